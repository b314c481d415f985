//! Random programs over the safe functions, on the scripted driver: under Miri no order of calls, clones, drops, threads
//! and refusals of the driver is undefined behaviour, each owner is dropped once, all that was allocated is freed, and
//! each array holds what it must.
//!
//! Memory is real and the views of it are honest, so that all that is left to go wrong is this library's. Elements are
//! written, by `unsafe` code that keeps its contract, while only one thread runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::*;
use crate::driver::script::{self, Script};
use crate::protocol::stream::Capture;

mod arrays;
mod random;

use arrays::{Array, Content, Maker};
use random::{CONTEXT, HANDLES, Random};

const PROGRAMS: u64 = if cfg!(miri) { 8 } else { 1_500 };
const STEPS: usize = 60;
/// Calls that fail now and then; not those whose failure leaks on purpose: one that frees, and those by which a graph is
/// given what it keeps.
const FALLIBLE: [&str; 17] = [
    "cuEventCreate",
    "cuEventRecord",
    "cuEventQuery",
    "cuStreamWaitEvent",
    "cuStreamIsCapturing",
    "cuStreamGetCtx",
    "cuStreamGetId",
    "cuStreamCreate",
    "cuStreamSynchronize",
    "cuCtxGetCurrent",
    "cuPointerGetAttributes",
    "cuMemAlloc",
    "cuMemAllocAsync",
    "cuMemAllocManaged",
    "cuMemHostAlloc",
    "cuMemcpyAsync",
    "cuLaunchHostFunc",
];

/// A tensor of either layout.
enum Exported {
    Versioned(DlpackTensor<DLManagedTensorVersioned>),
    Legacy(DlpackTensor<DLManagedTensor>),
}

/// What a program holds.
struct Held {
    random: Random,
    driver: &'static Script,
    maker: Maker,
    arrays: Vec<Array>,
    tensors: Vec<(Exported, Content)>,
    owners: Vec<Owner>,
    guards: Vec<(ConsumeGuard, Content)>,
    /// The captures so far, and the graphs that keep something.
    captures: u64,
    graphs: Vec<u64>,
}

impl Held {
    fn step(&mut self) {
        if self.random.below(4) == 0 {
            let (call, after) = (self.random.below(FALLIBLE.len()), self.random.below(3));
            // No code that means that a context is gone, and all memory with it; nor that memory is short.
            let code = [1, 400, 801, 999][self.random.below(4)];
            self.driver.fault(FALLIBLE[call], after as u32, code);
        }
        self.one_step();
        self.driver.without_faults().current(CONTEXT);
        keep::round();
        if let Some(at) = self.any() {
            self.arrays[at].check();
        }
    }

    fn one_step(&mut self) {
        let Some(at) = self.any() else {
            return self.make();
        };
        let array = self.arrays[at].clone();
        let other = self.arrays[self.random.below(self.arrays.len())].clone();
        let stream = self.live(&other.view);
        let view = &array.view;
        let same = |made: CaiView| array.with(made);
        match self.random.below(26) {
            0 => self.make(),
            1 => self.arrays.extend([array.clone()]),
            2 | 3 => drop(self.arrays.swap_remove(at)),
            4 => self.export(&array, stream),
            5 => self.export(&array, LiveStream::NONE),
            6 => {
                let tensor = view.to_dlpack_legacy(LiveStream::NONE);
                let tensor = tensor.map(Exported::Legacy);
                self.tensors
                    .extend(tensor.map(|tensor| (tensor, array.content.clone())));
            }
            7 | 8 => self.take_over(stream),
            9 => drop(self.tensors.pop()),
            10 => self.arrays[at].reverse(),
            11 => self.arrays.extend(view.on(stream).map(same)),
            12 => self.arrays.extend(view.synchronize().map(same)),
            13 => {
                let guard = view.consume(stream);
                self.guards
                    .extend(guard.map(|guard| (guard, array.content.clone())));
            }
            14 => self.end_a_guard(),
            15 => {
                let side = [PresentAs::Host, PresentAs::Cuda][self.random.below(2)];
                self.arrays.extend(view.present_as(side).map(same));
            }
            16 | 17 => {
                let copy = view.copy_on(stream).map(|copy| array.copied(copy));
                self.arrays.extend(copy);
            }
            18 => {
                let copy = view.copy_to_host().map(|copy| array.copied(copy));
                self.arrays.extend(copy);
            }
            19 => drop(CaiView::allocated_like(view.descriptor(), stream.number())),
            20 => self.arrays.extend(array.field(&mut self.random)),
            21 => self.keep(at),
            22 => self.borrow(),
            23 => self.capture(view),
            24 => self.end_a_graph(),
            _ => self.on_a_thread(),
        }
    }

    fn any(&mut self) -> Option<usize> {
        let at = self.random.below(self.arrays.len());
        (!self.arrays.is_empty()).then_some(at)
    }

    fn make(&mut self) {
        let made = match self.random.below(4) {
            0 => self.maker.records(&mut self.random),
            _ => self.maker.array(&mut self.random),
        };
        let producer = match made.view.device() {
            Device::HOST => Stream::None,
            _ => self.random.stream(),
        };
        let view = match self.random.below(3) {
            0 => made.view.clone(),
            // SAFETY: nothing works on the memory, and the scripted driver's streams are alive to the end.
            _ => unsafe { made.view.clone().with_producer(producer) },
        };
        self.arrays.push(made.with(view));
    }

    /// A view's stream, which its owner keeps, or a promised one.
    fn live<'a>(&mut self, other: &'a CaiView) -> LiveStream<'a> {
        match self.random.below(2) {
            0 => other.ready(),
            // SAFETY: the scripted driver's streams are alive to the end.
            _ => unsafe { LiveStream::new(self.random.stream()) },
        }
    }

    fn export(&mut self, array: &Array, stream: LiveStream<'_>) {
        let tensor = array.view.to_dlpack(stream).map(Exported::Versioned);
        self.tensors
            .extend(tensor.map(|tensor| (tensor, array.content.clone())));
    }

    fn take_over(&mut self, ready: LiveStream<'_>) {
        let Some((tensor, content)) = self.tensors.pop() else {
            return;
        };
        let view = match tensor {
            Exported::Versioned(tensor) => match self.random.below(3) {
                // SAFETY: a tensor of ours, unchanged.
                0 => unsafe { CaiView::from_dlpack_ptr(tensor.into_raw(), ready.number()) },
                1 => {
                    // SAFETY: a tensor of ours, unchanged.
                    let again = unsafe { DlpackTensor::new(tensor.into_managed()) };
                    CaiView::from_dlpack(again, ready)
                }
                _ => CaiView::from_dlpack(tensor, ready),
            },
            Exported::Legacy(tensor) => CaiView::from_dlpack(tensor, ready),
        };
        // A default stream of another context, or a driver that does not tell; the tensor has ended.
        let Ok(view) =
            view.inspect_err(|refused| assert!(ready.number().is_default(), "{refused}"))
        else {
            return;
        };
        // SAFETY: nothing works on the memory, and the scripted driver's streams are alive to the end.
        let view = unsafe { view.with_producer(ready.number()) };
        self.arrays.push(Array { view, content });
    }

    fn end_a_guard(&mut self) {
        let Some((guard, content)) = self.guards.pop() else {
            return;
        };
        let view = guard.view().clone();
        self.arrays.push(Array { view, content });
        match self.random.below(2) {
            0 => drop(guard),
            _ => drop(guard.finish()),
        }
    }

    /// Keeps the owner: by a share, beside another one, or until a stream is done.
    fn keep(&mut self, at: usize) {
        let other = self.random.below(self.arrays.len());
        let (owner, device) = (
            self.arrays[other].view.owner().share(),
            self.arrays[other].view.device(),
        );
        match self.random.below(3) {
            0 => self.owners.push(owner),
            1 => self.arrays[at].view.keep_beside(owner),
            _ => keep::by_stream(
                self.driver,
                self.random.stream(),
                &owner,
                device,
                keep::Begun::OnStream,
            ),
        }
        let _ = self.arrays[at].view.interface();
    }

    /// Enters arrays in the ledger, as arguments of a function or by hand, and asks for others meanwhile: what meets is
    /// refused, and nothing that lies apart.
    fn borrow(&mut self) {
        let count = 1 + self.random.below(4);
        let arrays: Vec<_> = (0..count)
            .map(|_| self.arrays[self.random.below(self.arrays.len())].clone())
            .collect();
        let (mut by_hand, mut arguments, mut entered) = (Vec::new(), Vec::new(), Vec::new());
        for array in &arrays {
            let (content, exclusive) = (&array.content, self.random.below(2) == 0);
            let rivals = entered.iter().filter(|(_, other, _)| exclusive || *other);
            let rivals: Vec<&Content> = rivals.map(|(other, ..)| *other).collect();
            let must_refuse = rivals.iter().any(|other| content.meets(other));
            let may_refuse = rivals.iter().any(|other| content.may_meet(other));
            let is_argument = self.random.below(2) == 0;
            let begun = if is_argument {
                let borrow = Box::new(Borrow::of(array.view.descriptor(), exclusive));
                let place = ptr::NonNull::from(Box::leak(borrow));
                arguments.push(place);
                // SAFETY: fresh, and in a box of its own until it has ended below.
                unsafe { Borrow::begin(place) }
            } else {
                let begun = match exclusive {
                    false => array.view.borrow_memory(),
                    true => array.view.borrow_memory_mut(),
                };
                begun.map(|borrow| by_hand.push(borrow))
            };
            assert!(begun.is_err() || !must_refuse, "{arrays:?}");
            assert!(begun.is_ok() || may_refuse, "{arrays:?}");
            if begun.is_ok() {
                entered.push((content, exclusive, is_argument));
            }
        }
        let mut asked = self.arrays[self.random.below(self.arrays.len())].clone();
        if let Some((is_lent, is_lent_mut)) = asked.is_lent() {
            for (other, is_exclusive, is_argument) in &entered {
                if *is_argument && asked.content.meets(other) {
                    let is_refused = !is_lent_mut && (!is_lent || !*is_exclusive);
                    assert!(is_refused, "{arrays:?}");
                }
            }
        }
        let elsewhere = self.random.below(3) == 0;
        thread::scope(|scope| match elsewhere {
            true => drop(scope.spawn(move || drop(by_hand))),
            false => drop(by_hand),
        });
        for place in arguments {
            // SAFETY: as `begin` left it, and not used any more.
            unsafe { Borrow::end(place) };
            // SAFETY: leaked above, and in no ledger.
            drop(unsafe { Box::from_raw(place.as_ptr()) });
        }
    }

    /// Begins or ends the capture of a stream, or has its graph keep an owner.
    fn capture(&mut self, view: &CaiView) {
        let stream = self.random.stream();
        match self.random.below(4) {
            0 => {
                self.captures += 1;
                let capture = [Capture::Active, Capture::Invalidated][self.random.below(2)];
                self.driver.captured(stream, capture, self.captures);
            }
            1 => drop(self.driver.captured(stream, Capture::Idle, 0)),
            _ => {
                let graph = keep::by_graph(self.driver, stream, view.owner(), 0).unwrap_or(0);
                self.graphs.push(graph);
            }
        }
    }

    fn end_a_graph(&mut self) {
        if let Some(graph) = self.graphs.pop() {
            self.driver.end_graph(graph);
        }
    }

    /// Another thread reads, copies and ends some things, with the driver or without, while this one uses what shares
    /// their owners.
    fn on_a_thread(&mut self) {
        let shared = self.arrays.clone();
        let half = self.arrays.split_off(self.arrays.len() / 2);
        let tensors = std::mem::take(&mut self.tensors);
        let owners = std::mem::take(&mut self.owners);
        let guards = std::mem::take(&mut self.guards);
        let driver = (self.random.below(2) == 0).then_some(self.driver);
        let there = thread::spawn(move || {
            let _installed = driver.map(|driver| script::install(driver.current(CONTEXT)));
            half.iter().for_each(Array::check);
            drop((tensors, half, owners, guards));
        });
        for array in &shared {
            let tensor = array.view.to_dlpack(LiveStream::NONE);
            let _ = (array.view.owner().share(), tensor);
            array.check();
        }
        drop(shared);
        assert!(there.join().is_ok(), "a thread that ends well");
    }
}

#[test]
fn random_programs_of_safe_calls() {
    let driver = Script::leak();
    driver
        .with_memory()
        .stream(0xa1, CONTEXT)
        .stream(0xa2, CONTEXT)
        .primary(0, CONTEXT)
        .current(CONTEXT);
    let _installed = script::install(driver);
    for seed in 1..=PROGRAMS {
        let ended: Arc<AtomicUsize> = Arc::default();
        let mut held = Held {
            random: Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            driver,
            maker: Maker {
                driver,
                made: 0,
                ended: Arc::clone(&ended),
            },
            arrays: Vec::new(),
            tensors: Vec::new(),
            owners: Vec::new(),
            guards: Vec::new(),
            captures: 0,
            graphs: Vec::new(),
        };
        for _ in 0..STEPS {
            held.step();
        }
        let (made, graphs) = (held.maker.made, std::mem::take(&mut held.graphs));
        drop(held);
        for stream in HANDLES {
            driver.captured(stream, Capture::Idle, 0);
        }
        graphs.iter().for_each(|graph| driver.end_graph(*graph));
        // What a stream was to be waited for ends on other threads.
        let begun = Instant::now();
        let is_over = || (ended.load(Ordering::Acquire), driver.allocated()) == (made, 0);
        while !is_over() && begun.elapsed() < Duration::from_secs(20) {
            keep::round();
            thread::yield_now();
        }
        assert_eq!(
            (ended.load(Ordering::Acquire), driver.allocated()),
            (made, 0),
            "program {seed}: each owner ends once, and each allocation is freed"
        );
        driver.take_calls();
    }
}
