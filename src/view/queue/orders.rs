//! Every order of a few threads' steps that the memory model allows, by loom (`make loom`).

use std::sync::Arc as StdArc;
use std::sync::atomic::{AtomicUsize as Counter, Ordering::SeqCst};

use loom::sync::atomic::AtomicBool;
use loom::sync::{Arc, Mutex};
use loom::thread;

use super::*;
use crate::view::Owner;

// loom's atomics cannot be made in a constant.
impl Queue {
    fn new() -> Self {
        Self {
            pushed: AtomicPtr::new(ptr::null_mut()),
            put_back: AtomicPtr::new(ptr::null_mut()),
        }
    }
}

impl Gate {
    fn new() -> Self {
        Self(AtomicUsize::new(0))
    }
}

/// An owner that counts its end, with the standard library's counter: it is not what is looked at.
fn counted() -> (Owner, StdArc<Counter>) {
    struct Counted(StdArc<Counter>);
    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_add(1, SeqCst);
        }
    }
    let drops = StdArc::new(Counter::new(0));
    (Owner::new(Counted(StdArc::clone(&drops))), drops)
}

/// A node that may go to another thread.
struct Sent(NonNull<Node>);
// SAFETY: the node's owner is `Send`, and one thread at a time has the node.
unsafe impl Send for Sent {}

fn node() -> (Sent, StdArc<Counter>) {
    let (owner, drops) = counted();
    (Sent(Node::boxed(owner.into_raw()).expect("memory")), drops)
}

fn push(queue: &Queue, node: Sent) -> bool {
    // SAFETY: fresh, and pushed once.
    unsafe { queue.push(node.0) }
}

fn drain(queue: &Queue) -> usize {
    queue
        .take()
        .map(|node| {
            // SAFETY: out of the queue; its owner may end anywhere.
            unsafe { Node::end(node) };
        })
        .count()
}

#[test]
fn two_pushes_and_a_drain_release_each_once() {
    loom::model(|| {
        let queue = Arc::new(Queue::new());
        let (first, first_drops) = node();
        let (second, second_drops) = node();
        let threads = [first, second].map(|node| {
            let queue = Arc::clone(&queue);
            thread::spawn(move || push(&queue, node))
        });
        let early = drain(&queue);
        let woke = threads.map(|thread| thread.join().expect("no panic"));
        assert_eq!(early + drain(&queue), 2);
        assert_eq!(
            (first_drops.load(SeqCst), second_drops.load(SeqCst)),
            (1, 1)
        );
        assert!(woke[0] || woke[1], "nobody was told");
    });
}

#[test]
fn what_was_written_before_a_push_is_seen_by_whoever_takes_it() {
    loom::model(|| {
        let queue = Arc::new(Queue::new());
        let written = Arc::new(AtomicBool::new(false));
        let (only, drops) = node();
        let deleter = {
            let (queue, written) = (Arc::clone(&queue), Arc::clone(&written));
            thread::spawn(move || {
                written.store(true, Ordering::Relaxed);
                push(&queue, only);
            })
        };
        if drain(&queue) == 1 {
            assert!(
                written.load(Ordering::Relaxed),
                "the node without what it says"
            );
        }
        deleter.join().expect("no panic");
        drain(&queue);
        assert_eq!(drops.load(SeqCst), 1);
    });
}

/// The pending call's flag: a node never stays behind with nobody on the way to fetch it.
#[test]
fn a_node_is_always_followed_by_a_call() {
    loom::model(|| {
        let queue = Arc::new(Queue::new());
        // One call is on its way, for a first node.
        let called = Arc::new(AtomicBool::new(true));
        let (first, first_drops) = node();
        assert!(push(&queue, first));

        let (second, second_drops) = node();
        let pusher = {
            let (queue, called) = (Arc::clone(&queue), Arc::clone(&called));
            thread::spawn(move || push(&queue, second) && !called.swap(true, Ordering::SeqCst))
        };
        // The call, as `on_pending_call` does it.
        called.store(false, Ordering::SeqCst);
        drain(&queue);
        let called_again = pusher.join().expect("no panic");
        if called_again {
            drain(&queue);
        }
        assert_eq!(
            (first_drops.load(SeqCst), second_drops.load(SeqCst)),
            (1, 1)
        );
    });
}

/// After `close` nobody pushes: what was pushed before is there to be taken, all of it.
#[test]
fn a_push_is_seen_by_the_end_or_is_refused() {
    loom::model(|| {
        let (gate, queue) = (Arc::new(Gate::new()), Arc::new(Queue::new()));
        let (only, drops) = node();
        let deleter = {
            let (gate, queue) = (Arc::clone(&gate), Arc::clone(&queue));
            thread::spawn(move || {
                let node = Sent(only.0);
                let entered = gate.enter(|| push(&queue, Sent(only.0))).is_some();
                (entered, node)
            })
        };
        gate.close();
        let at_the_end = drain(&queue);
        let (entered, node) = deleter.join().expect("no panic");
        assert_eq!(at_the_end, usize::from(entered));
        if !entered {
            // SAFETY: refused, so that it is this test's; leaked in earnest.
            unsafe { Node::release(node.0) };
        }
        assert_eq!(drops.load(SeqCst), 1);
    });
}

#[test]
fn two_that_enter_and_one_that_closes() {
    loom::model(|| {
        let gate = Arc::new(Gate::new());
        let closed = Arc::new(AtomicBool::new(false));
        let threads = [(); 2].map(|()| {
            let (gate, closed) = (Arc::clone(&gate), Arc::clone(&closed));
            thread::spawn(move || {
                gate.enter(|| assert!(!closed.load(Ordering::Relaxed), "inside a closed gate"));
            })
        });
        gate.close();
        closed.store(true, Ordering::Relaxed);
        for thread in threads {
            thread.join().expect("no panic");
        }
    });
}

#[test]
fn two_that_share_first_agree_and_the_last_releases() {
    loom::model(|| {
        let (owner, drops) = counted();
        let owner = Arc::new(owner);
        let threads = [(); 2].map(|()| {
            let owner = Arc::clone(&owner);
            thread::spawn(move || drop(owner.share()))
        });
        drop(owner);
        for thread in threads {
            thread.join().expect("no panic");
        }
        assert_eq!(drops.load(SeqCst), 1);
    });
}

/// The claim of a capsule, as `python::capsule` does it: check and rename under the capsule's lock.
fn claims(locked: bool) {
    loom::model(move || {
        let lock = Arc::new(Mutex::new(()));
        let used = Arc::new(AtomicBool::new(false));
        let claim = {
            let (lock, used) = (Arc::clone(&lock), Arc::clone(&used));
            move || {
                let _held = locked.then(|| lock.lock().expect("no panic"));
                if used.load(Ordering::Relaxed) {
                    return false;
                }
                used.store(true, Ordering::Relaxed);
                true
            }
        };
        let other = thread::spawn(claim.clone());
        let winners = [claim(), other.join().expect("no panic")];
        assert_eq!(winners.iter().filter(|&&won| won).count(), 1);
    });
}

#[test]
fn one_of_two_claims_wins() {
    claims(true);
}

/// The control: without the lock loom finds two winners.
#[test]
#[should_panic(expected = "left: 2")]
fn without_the_lock_both_may_win() {
    claims(false);
}
