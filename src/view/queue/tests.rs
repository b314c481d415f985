use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use super::*;
use crate::view::{Owner, stats};

/// A node of its own with an owner that counts its end.
fn node(drops: &'static AtomicUsize) -> NonNull<Node> {
    struct Counted(&'static AtomicUsize);
    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_add(1, SeqCst);
        }
    }
    Node::boxed(Owner::new(Counted(drops)).into_raw()).expect("memory for a node")
}

fn push(queue: &Queue, node: NonNull<Node>) -> bool {
    // SAFETY: each node of these tests is fresh, and pushed once.
    unsafe { queue.push(node) }
}

fn end_all(taken: Taken) -> usize {
    taken
        .map(|node| {
            // SAFETY: the node came out of the queue, and its owner may end anywhere.
            unsafe { Node::end(node) };
        })
        .count()
}

#[test]
fn a_push_says_whether_the_queue_was_empty() {
    static DROPS: AtomicUsize = AtomicUsize::new(0);
    let queue = Queue::new();
    assert!(queue.is_empty());
    assert!(push(&queue, node(&DROPS)));
    assert!(!queue.is_empty());
    assert!(!push(&queue, node(&DROPS)));
    assert_eq!(end_all(queue.take()), 2);
    assert!(queue.is_empty());
    assert_eq!(end_all(queue.take()), 0);
    assert!(push(&queue, node(&DROPS)));
    assert_eq!(end_all(queue.take()), 1);
    assert_eq!(DROPS.load(SeqCst), 3);
}

#[test]
fn what_is_pushed_first_comes_first() {
    static DROPS: AtomicUsize = AtomicUsize::new(0);
    let (queue, nodes) = (Queue::new(), [0; 3].map(|_| node(&DROPS)));
    for node in nodes {
        push(&queue, node);
    }
    let mut taken = queue.take();
    assert_eq!(taken.next(), Some(nodes[0]));
    let second = taken.next().expect("the second");
    let later = [0; 2].map(|_| node(&DROPS));
    push(&queue, later[0]);
    // SAFETY: out of the queue, and this test's.
    unsafe { queue.put_back(second, &mut taken) };
    push(&queue, later[1]);
    assert!(taken.next().is_none() && !queue.is_empty());
    let taken: Vec<_> = queue.take().collect();
    assert_eq!(taken, [nodes[1], nodes[2], later[0], later[1]]);
    assert!(queue.is_empty());
    for node in std::iter::once(nodes[0]).chain(taken) {
        // SAFETY: taken out of the queue, and this test's.
        unsafe { Node::release(node) };
    }
}

#[test]
fn what_is_taken_and_not_iterated_over_is_leaked() {
    static DROPS: AtomicUsize = AtomicUsize::new(0);
    let queue = Queue::new();
    push(&queue, node(&DROPS));
    let only = queue.take().next().expect("one node");
    assert_eq!(DROPS.load(SeqCst), 0);
    // SAFETY: taken out of the queue, and this test's.
    unsafe { Node::release(only) };
    assert_eq!(DROPS.load(SeqCst), 1);
}

#[test]
fn many_producers_and_two_consumers_release_each_once() {
    static DROPS: AtomicUsize = AtomicUsize::new(0);
    const PRODUCERS: usize = 4;
    const EACH: usize = if cfg!(miri) { 100 } else { 50_000 };
    let queue = Queue::new();
    let done = AtomicBool::new(false);
    let first_pushes = AtomicUsize::new(0);
    let ended: usize = std::thread::scope(|scope| {
        let producers: Vec<_> = (0..PRODUCERS)
            .map(|_| {
                scope.spawn(|| {
                    for _ in 0..EACH {
                        first_pushes.fetch_add(usize::from(push(&queue, node(&DROPS))), SeqCst);
                    }
                })
            })
            .collect();
        let consume = || {
            let mut ended = 0;
            while !done.load(SeqCst) {
                ended += end_all(queue.take());
                std::thread::yield_now();
            }
            ended
        };
        let consumers = [scope.spawn(consume), scope.spawn(consume)];
        for producer in producers {
            producer.join().expect("no panic");
        }
        done.store(true, SeqCst);
        consumers
            .into_iter()
            .map(|each| each.join().expect("no panic"))
            .sum()
    });
    let ended = ended + end_all(queue.take());
    assert_eq!(ended, PRODUCERS * EACH);
    assert_eq!(DROPS.load(SeqCst), PRODUCERS * EACH);
    assert!(first_pushes.load(SeqCst) >= 1);
}

#[test]
fn a_closed_gate_lets_nobody_in() {
    let gate = Gate::new();
    assert_eq!(gate.enter(|| 7), Some(7));
    assert!(!gate.is_closed());
    gate.close();
    assert!(gate.is_closed());
    assert_eq!(gate.enter(|| 7), None);
    gate.close();
    assert!(gate.is_closed(), "closing it again is nothing");
}

#[test]
fn closing_waits_for_whoever_is_inside() {
    let gate = Gate::new();
    let inside = AtomicUsize::new(0);
    let closed = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while gate
                    .enter(|| {
                        inside.fetch_add(1, SeqCst);
                        assert!(!closed.load(SeqCst), "inside a closed gate");
                        inside.fetch_sub(1, SeqCst);
                    })
                    .is_some()
                {}
            });
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
        gate.close();
        assert_eq!(inside.load(SeqCst), 0);
        closed.store(true, SeqCst);
    });
}

#[test]
fn a_forked_child_does_not_wait_for_threads_that_it_does_not_have() {
    let gate = Gate::new();
    gate.0.fetch_add(ONE_INSIDE, SeqCst);
    gate.forget_who_is_inside();
    gate.close();
    gate.forget_who_is_inside();
    assert!(gate.is_closed(), "what the parent has closed stays closed");
}

#[test]
fn the_counters_say_what_was_released() {
    static DROPS: AtomicUsize = AtomicUsize::new(0);
    let before = stats();
    let (first, second) = (node(&DROPS), node(&DROPS));
    for each in [first, second] {
        // SAFETY: fresh, and this test's.
        unsafe { Node::release(each) };
    }
    // Other tests run beside this one; conformance/tests/ownership asks for the exact values.
    assert!(stats().released >= before.released + 2);
}
