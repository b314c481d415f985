use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use super::*;
use crate::process::stack::on_stack_of;
use crate::protocol::descriptor::{Descriptor, RawTensor};
use crate::protocol::device::Device;
use crate::protocol::stream::Stream;
use crate::view::{CaiView, LiveStream, Owner};

/// Ends in the end of the next one.
struct Link {
    #[expect(dead_code, reason = "kept, and dropped")]
    next: Option<Owner>,
    dropped: Arc<AtomicUsize>,
    deepest: Arc<AtomicUsize>,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.dropped.fetch_add(1, SeqCst);
        let depth = NEST.with(|nest| nest.depth.get()) as usize;
        self.deepest.fetch_max(depth, SeqCst);
    }
}

#[test]
fn a_chain_of_any_length_is_released_in_a_bounded_stack() {
    const LINKS: usize = if cfg!(miri) { 500 } else { 100_000 };
    let (dropped, deepest) = (Arc::default(), Arc::default());
    let chain = (0..LINKS).fold(None, |next, _| {
        Some(Owner::new(Link {
            next,
            dropped: Arc::clone(&dropped),
            deepest: Arc::clone(&deepest),
        }))
    });
    // A small stack: a chain that nested to its end would be killed here.
    let end = std::thread::Builder::new().stack_size(256 << 10);
    let thread = end.spawn(move || {
        drop(chain);
        let nest = NEST.with(|nest| (nest.depth.get(), nest.waiting.get().is_null()));
        assert_eq!(nest, (0, true), "all is as it was");
    });
    thread.expect("a thread").join().expect("no panic");
    assert_eq!(dropped.load(SeqCst), LINKS);
    assert!(deepest.load(SeqCst) <= DEEPEST as usize);
}

#[test]
fn a_chain_through_managed_tensors_too() {
    const LINKS: usize = if cfg!(miri) { 500 } else { 20_000 };
    let dropped = Arc::new(AtomicUsize::new(0));
    let owner = Owner::new(Link {
        next: None,
        dropped: Arc::clone(&dropped),
        deepest: Arc::default(),
    });
    let tensor = RawTensor {
        data: 0x1000,
        device: Device::HOST,
        ..RawTensor::EXAMPLE
    };
    let descriptor = Descriptor::new(&tensor).expect("a valid tensor");
    // SAFETY: nobody follows the pointer in this test.
    let mut view = unsafe { CaiView::new(descriptor, Stream::None, owner) };
    for _ in 0..LINKS {
        let tensor = view
            .to_dlpack(LiveStream::NONE)
            .expect("no order is needed");
        view = CaiView::from_dlpack(tensor, LiveStream::NONE).expect("our own tensor");
    }
    let end = std::thread::Builder::new().stack_size(256 << 10);
    let thread = end.spawn(move || drop(view));
    thread.expect("a thread").join().expect("no panic");
    assert_eq!(dropped.load(SeqCst), 1);
}

/// Says that it ends.
struct Says(&'static str, Arc<Mutex<Vec<&'static str>>>);

impl Drop for Says {
    fn drop(&mut self) {
        self.1.lock().expect("no panic").push(self.0);
    }
}

/// Returns the words of those that end, in this order, with owners so deep, on a thread with so large a stack.
fn ends(depth: usize, stack: usize) -> Vec<&'static str> {
    let said = Arc::default();
    let says = |word| Says(word, Arc::clone(&said));
    // An owner beside a chain that ends later ends later, too.
    let first = Owner::new((Owner::new(says("first")), Owner::new(says("second"))));
    let inner = Owner::new((first, Owner::new(says("third")), says("fourth")));
    let owner = (1..depth).fold(inner, |owner, _| Owner::new(owner));
    on_stack_of(stack, || drop(owner));
    let said = said.lock().expect("no panic");
    said.clone()
}

/// A finaliser that waited for it would wait for ever.
#[test]
fn what_is_let_go_of_after_a_long_chain_ends_at_once() {
    struct Waits(Option<Owner>, Arc<Mutex<Vec<&'static str>>>);
    impl Drop for Waits {
        fn drop(&mut self) {
            drop(self.0.take());
            drop(Owner::new(Says("after the chain", Arc::clone(&self.1))));
            let said = self.1.lock().expect("no panic");
            assert_eq!(said[..], ["the chain", "after the chain"]);
        }
    }
    let places = [(256 << 10, 0), (256 << 10, 20), (8 << 20, 0), (8 << 20, 20)];
    // Deeper than what waits may end at where it is not known how much of the stack is left.
    let is_known = cfg!(all(target_os = "linux", not(miri)));
    let places = places.into_iter().chain(is_known.then_some((8 << 20, 40)));
    for (stack, above) in places {
        let said = Arc::<Mutex<Vec<_>>>::default();
        let first = Owner::new(Says("the chain", Arc::clone(&said)));
        let chain = (0..1_000).fold(first, |owner, _| Owner::new(owner));
        let waits = Owner::new(Waits(Some(chain), Arc::clone(&said)));
        let owner = (0..above).fold(waits, |owner, _| Owner::new(owner));
        on_stack_of(stack, || drop(owner));
        assert_eq!(
            said.lock().expect("no panic").len(),
            2,
            "no panic was caught"
        );
    }
}

/// Runs something further down the stack.
#[cfg(all(target_os = "linux", not(miri)))]
fn further_down(steps: usize, run: &mut (dyn FnMut() + Send)) {
    let room = std::hint::black_box([0_u8; 16]);
    match steps {
        0 => run(),
        _ => further_down(steps - 1, run),
    }
    std::hint::black_box(&room);
}

/// The list of what waits was emptied above that place, into itself below it, for ever.
#[cfg(all(target_os = "linux", not(miri)))]
#[test]
fn a_chain_ends_wherever_the_stack_becomes_too_small() {
    for (kibibytes, steps) in (48..104)
        .step_by(4)
        .flat_map(|room| (0..24).map(move |steps| (room, steps)))
    {
        let (done, over) = std::sync::mpsc::channel();
        let thread = std::thread::Builder::new().stack_size((1 << 20) + (kibibytes << 10));
        let thread = thread.spawn(move || {
            let mut chain = Some((0..300).fold(Owner::new(1_u8), |owner, _| Owner::new(owner)));
            further_down(steps, &mut || drop(chain.take()));
            done.send(()).expect("it is awaited");
        });
        let ended = over.recv_timeout(std::time::Duration::from_secs(60));
        assert_eq!(ended, Ok(()), "{kibibytes} KiB, {steps} steps");
        thread.expect("a thread").join().expect("no panic");
    }
}

#[test]
fn owners_end_in_the_order_in_which_they_are_let_go_of() {
    let some = [
        1, 2, 31, 32, 33, 61, 62, 63, 64, 65, 66, 95, 96, 97, 126, 127, 128, 129, 200,
    ];
    for depth in some {
        let found = ends(depth, 256 << 10);
        let owners: Vec<_> = found.iter().filter(|word| **word != "fourth").collect();
        assert_eq!(owners, [&"first", &"second", &"third"], "{depth}");
    }
}

#[cfg(all(target_os = "linux", not(miri)))]
#[test]
fn what_stands_beside_owners_ends_after_them_where_the_stack_is_large() {
    for depth in [1, 31, 32, 33, 63, 64, 65, 100, 127, 150] {
        let found = ends(depth, 8 << 20);
        assert_eq!(found, ["first", "second", "third", "fourth"], "{depth}");
    }
}
