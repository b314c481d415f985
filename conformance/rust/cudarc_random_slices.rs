//! Random programs of slices that an `Arc` lends: each reader finds what the holder wrote before it, by whichever view, copy or
//! tensor and on whichever stream, and the holder, who takes the slice back, writes after all of them. Beside other contexts,
//! ended on other threads, and with calls that the driver refuses, which another thread is told.
//!
//! A program holds streams back at random, so that a write that waits for too little comes too early. It makes no captures
//! (`cudarc_slices.rs`).

use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use cai_dlpack::{CaiView, Error};
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr, DevicePtrMut, result};

use crate::cudarc_live::Dice;
use crate::cudarc_orders::{Memory, another_context};
use crate::cudarc_random_uses::{bind, current};
use crate::simulator::{Machine, eventually, machine, number};

const LENGTH: usize = 4;
const BYTES: usize = LENGTH * size_of::<f32>();
const ROUNDS: usize = 3;
/// Between a loan and the end of it.
const STEPS: usize = 8;
/// Of a slice that is given away.
const LAST_READS: usize = 2;
const SEEDS: std::ops::Range<u64> = 0..150;
/// The calls of orders, copies and ends of views, one of which the driver refuses now and then.
const CALLS: [&str; 13] = [
    "cuCtxGetCurrent",
    "cuCtxGetId",
    "cuCtxPopCurrent",
    "cuCtxPushCurrent",
    "cuEventCreate",
    "cuEventQuery",
    "cuEventRecord",
    "cuMemAllocAsync",
    "cuStreamGetCtx",
    "cuStreamIsCapturing",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
    "cuThreadExchangeStreamCaptureMode",
];
/// `CUDA_ERROR_UNKNOWN`.
const REFUSED: u32 = 999;
/// Of a handle or an address that is gone, and of a context that was destroyed.
const GONE: [u32; 3] = [400, 700, 709];

#[derive(Clone, Copy, PartialEq)]
enum Reads {
    OnItsOwn,
    OnceElsewhere,
    NoMore,
}

/// How often what the programs are about came up.
#[derive(Debug, Default)]
struct Told {
    reads: usize,
    /// Of the holder's, by cudarc alone, while the slice is lent.
    by_holder: usize,
    copies: usize,
    tensors: usize,
    ended_elsewhere: usize,
    refused: usize,
    taken_back: usize,
    given: usize,
    /// The last one goes.
    without_streams: usize,
    freed_by_a_view: usize,
}

struct Program<'a> {
    machine: &'a Machine,
    dice: Dice,
    /// The contexts that may be current; the first is the slice's.
    contexts: &'a [Arc<CudaContext>],
    /// Index of the one that is.
    current: usize,
    /// The slice's own.
    own: Arc<CudaStream>,
    /// Of the slice's context, too, which come and go: without one cudarc waits for nothing.
    made: Vec<Arc<CudaStream>>,
    /// Of the other contexts.
    others: &'a [Arc<CudaStream>],
    slice: Option<Arc<CudaSlice<f32>>>,
    views: Vec<CaiView>,
    /// Whether the holder reads in this round, and where. cudarc remembers one read alone: on another stream it may be the only one,
    /// before the end of a view.
    reads: Reads,
    /// The value of each byte.
    value: u8,
    /// Where the readers copy to.
    targets: &'a [Memory],
    /// The value of each byte that the targets must have, in turn, and how many bytes.
    found: Vec<(u8, usize)>,
    copies: Vec<(CaiView, u8)>,
    openers: Vec<thread::JoinHandle<()>>,
    told: Told,
}

fn bytes_of(view: &CaiView) -> usize {
    view.descriptor().len() as usize * size_of::<f32>()
}

impl Program<'_> {
    fn some_stream(&mut self) -> Arc<CudaStream> {
        let all = [slice::from_ref(&self.own), &self.made, self.others].concat();
        Arc::clone(&all[self.dice.below(all.len())])
    }

    /// One of the slice's context, beside which cudarc waits.
    fn some_made(&mut self) -> Arc<CudaStream> {
        if self.made.is_empty() || self.dice.below(4) == 0 {
            // One that is not forked waits for the whole context.
            let made = match self.dice.below(4) {
                0 => self.contexts[0].new_stream(),
                _ => self.own.fork(),
            };
            bind(&self.contexts[self.current]);
            self.made.push(made.expect("a stream"));
        }
        Arc::clone(&self.made[self.dice.below(self.made.len())])
    }

    /// Holds a stream back for a moment.
    fn hold_back(&mut self, stream: &CudaStream) {
        bind(stream.context());
        let gate = self.machine.sim.gate(number(stream)).expect("a gate");
        let moment = Duration::from_millis(1 + self.dice.below(6) as u64);
        self.openers.push(thread::spawn(move || {
            thread::sleep(moment);
            gate.open();
        }));
        bind(&self.contexts[self.current]);
    }

    /// Works on a stream as a program does that has made its context current; what is current stays.
    fn on(&self, stream: &CudaStream, work: impl FnOnce()) {
        bind(stream.context());
        work();
        bind(&self.contexts[self.current]);
    }

    /// Copies bytes of the slice to the next target.
    fn copy(&mut self, from: u64, bytes: usize, stream: &CudaStream) {
        let to = self.targets[self.found.len()].address;
        self.on(stream, || {
            // SAFETY: memory of this size at either end, which stays until the streams are done; a living stream.
            unsafe { result::memcpy_dtod_async(to, from, bytes, stream.cu_stream()) }
                .expect("a copy");
        });
        self.found.push((self.value, bytes));
    }

    fn step(&mut self) {
        self.current = self.dice.below(self.contexts.len());
        bind(&self.contexts[self.current]);
        let (stream, what) = (self.some_stream(), self.dice.below(9));
        if self.dice.below(2) == 0 {
            self.hold_back(&stream);
        }
        // cudarc's own uses are its own.
        let is_refused = what != 2 && self.refuse_one();
        let has_views = !self.views.is_empty();
        let done = match what {
            0 | 1 if has_views => self.read(&stream),
            2 => {
                self.read_as_holder();
                Ok(())
            }
            3 if has_views => self.copy_on(&stream),
            4 if has_views => self.pass_on(&stream),
            5 | 6 if has_views => {
                self.end_one();
                Ok(())
            }
            7 => {
                self.told.without_streams += usize::from(!self.made.is_empty());
                self.made.clear();
                bind(&self.contexts[self.current]);
                Ok(())
            }
            _ => self.lend(),
        };
        let is_met = self.has_met(is_refused);
        assert!(done.is_ok() || is_met, "{done:?}");
        let expected = self.contexts[self.current].cu_ctx().addr() as u64;
        assert_eq!(current(), expected, "what is current after {what}");
        self.forget_noted();
    }

    /// Has the driver refuse a call now and then.
    fn refuse_one(&mut self) -> bool {
        let is_refused = self.dice.below(2) == 0;
        if is_refused {
            let call = CALLS[self.dice.below(CALLS.len())];
            let nth = 1 + self.dice.below(4) as u64;
            self.machine.sim.fault(call, nth, REFUSED);
        }
        is_refused
    }

    /// Whether that call has been made. The driver refuses it no more.
    fn has_met(&mut self, is_refused: bool) -> bool {
        let is_met = is_refused && self.machine.sim.pending_faults() == 0;
        self.machine.sim.clear_faults();
        self.told.refused += usize::from(is_met);
        is_met
    }

    /// cudarc would tell a refused call to its next one.
    fn forget_noted(&self) {
        for context in self.contexts {
            let _ = context.check_err();
        }
    }

    /// Lends the slice, or a part.
    fn lend(&mut self) -> Result<(), Error> {
        let shared = Arc::clone(self.slice.as_ref().expect("the holder's"));
        let offset = self.dice.below(LENGTH);
        let length = 1 + self.dice.below(LENGTH - offset);
        let view = CaiView::from_cudarc_part(shared, offset, [length], [1])?;
        self.views.push(view);
        Ok(())
    }

    fn some_view(&mut self) -> CaiView {
        self.views[self.dice.below(self.views.len())].clone()
    }

    fn read(&mut self, stream: &Arc<CudaStream>) -> Result<(), Error> {
        let view = self.some_view();
        let bytes = bytes_of(&view);
        let guard = view.typed::<f32>()?.on(stream)?;
        self.copy(*guard.device_ptr(), bytes, stream);
        self.told.reads += 1;
        guard.finish().map(drop)
    }

    fn read_as_holder(&mut self) {
        let made = self.some_made();
        let stream = match self.reads {
            Reads::OnItsOwn => Arc::clone(&self.own),
            Reads::OnceElsewhere => made,
            Reads::NoMore => return,
        };
        if self.reads == Reads::OnceElsewhere {
            self.reads = Reads::NoMore;
        }
        let slice = Arc::clone(self.slice.as_ref().expect("the holder's"));
        let (from, done) = slice.device_ptr(&stream);
        self.copy(from, BYTES, &stream);
        drop(done);
        bind(&self.contexts[self.current]);
        self.told.by_holder += 1;
    }

    fn copy_on(&mut self, stream: &Arc<CudaStream>) -> Result<(), Error> {
        let copy = self.some_view().copy_on(stream)?;
        self.copies.push((copy, self.value));
        self.told.copies += 1;
        Ok(())
    }

    /// Takes a view of the slice from a tensor.
    fn pass_on(&mut self, stream: &Arc<CudaStream>) -> Result<(), Error> {
        let tensor = self.some_view().to_dlpack(stream)?;
        self.views.push(CaiView::from_dlpack(tensor, stream)?);
        self.told.tensors += 1;
        Ok(())
    }

    fn end_one(&mut self) {
        let view = self.views.swap_remove(self.dice.below(self.views.len()));
        self.end(view);
    }

    fn end(&mut self, ended: impl Send) {
        if self.reads == Reads::OnceElsewhere {
            self.reads = Reads::NoMore;
        }
        match self.dice.below(2) {
            0 => drop(ended),
            _ => {
                self.told.ended_elsewhere += 1;
                thread::scope(|scope| scope.spawn(|| drop(ended)).join()).expect("no panic");
            }
        }
    }

    /// Ends the views, takes the slice back, and writes it on another stream.
    fn take_back(&mut self) {
        let (views, is_refused) = (std::mem::take(&mut self.views), self.refuse_one());
        self.end(views);
        self.has_met(is_refused);
        let mut held = self.slice.take();
        eventually("the slice is its holder's again", || {
            held.as_mut()
                .is_some_and(|slice| Arc::get_mut(slice).is_some())
        });
        let mut slice = held.and_then(Arc::into_inner).expect("taken back");
        self.forget_noted();
        let stream = self.some_made();
        if self.dice.below(2) == 0 {
            self.hold_back(&stream);
        }
        self.value = self.dice.below(256) as u8;
        let (to, done) = slice.device_ptr_mut(&stream);
        self.on(&stream, || {
            // SAFETY: memory of this size, which stays until the streams are done; a living stream.
            unsafe { result::memset_d8_async(to, self.value, BYTES, stream.cu_stream()) }
                .expect("a fill");
        });
        drop(done);
        self.slice = Some(Arc::new(slice));
        self.reads = [Reads::OnItsOwn, Reads::OnceElsewhere][self.dice.below(2)];
        self.told.taken_back += 1;
    }

    /// Writes the slice, gives it to a view that is the last to hold it, and reads it there.
    fn give(&mut self) {
        self.take_back();
        if self.dice.below(2) == 0 {
            self.made.clear();
            bind(&self.contexts[self.current]);
        }
        let slice = self.slice.take().and_then(Arc::into_inner);
        let view = CaiView::from_cudarc(slice.expect("the holder's alone"), [LENGTH]);
        self.views.push(view.expect("a view"));
        for _ in 0..LAST_READS {
            let stream = self.some_stream();
            self.read(&stream).expect("a read");
        }
        self.told.given += 1;
    }

    fn run(mut self) -> Told {
        for _ in 0..ROUNDS {
            self.take_back();
            for _ in 0..STEPS {
                self.step();
            }
        }
        match self.dice.below(3) {
            0 => self.take_back(),
            1 => self.give(),
            _ => self.told.freed_by_a_view += usize::from(!self.views.is_empty()),
        }
        // As cudarc frees it, too.
        self.some_made();
        drop(self.slice.take());
        self.made.clear();
        let views = std::mem::take(&mut self.views);
        self.end(views);
        for opener in std::mem::take(&mut self.openers) {
            opener.join().expect("opened");
        }
        self.forget_noted();
        for context in self.contexts {
            context.synchronize().expect("all is done");
        }
        let bytes = |address, count| self.machine.sim.peek(address, count).expect("bytes");
        for (nth, (target, (value, count))) in self.targets.iter().zip(&self.found).enumerate() {
            assert_eq!(
                bytes(target.address, *count),
                vec![*value; *count],
                "read {nth}"
            );
        }
        for (copy, value) in &self.copies {
            copy.synchronize().expect("the copy");
            let count = bytes_of(copy);
            let found = bytes(copy.descriptor().data(), count);
            assert_eq!(found, vec![*value; count], "a copy");
        }
        self.told
    }
}

/// Takes what cudarc notes in a context, as any call of another thread does.
pub(crate) fn take_errors(context: &CudaContext, is_over: &AtomicBool) {
    while !is_over.load(Ordering::Relaxed) {
        let _ = context.check_err();
        std::hint::spin_loop();
    }
}

/// At its end, after a panic, too.
pub(crate) struct Sets<'a>(pub(crate) &'a AtomicBool);

impl Drop for Sets<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_slice_is_written_after_those_to_whom_it_was_lent() {
    let machine = machine();
    machine.log_every_thread();
    let primary = CudaContext::new(0).expect("device 0");
    let targets: Vec<_> = (0..ROUNDS * STEPS + LAST_READS)
        .map(|_| Memory::new(&primary, BYTES))
        .collect();
    let mut told = Told::default();
    for seed in SEEDS {
        println!("seed {seed}"); // of the one that fails
        let mut dice = Dice(seed);
        let is_primary = dice.below(2) == 0;
        let home = match is_primary {
            true => CudaContext::new(0),
            false => CudaContext::new_non_primary(0, 0),
        };
        let home = home.expect("a context");
        let own = match dice.below(3) {
            0 if is_primary => home.default_stream(),
            1 if is_primary => home.per_thread_stream(),
            _ => home.new_stream().expect("a stream"),
        };
        let contexts = [Arc::clone(&home), Arc::clone(&primary), another_context()];
        let others = [&primary, &contexts[2]].map(|other| other.new_stream().expect("a stream"));
        let slice = own.clone_htod(&[0.0_f32; LENGTH]).expect("memory");
        home.synchronize().expect("the copy is done");
        let program = Program {
            machine: &machine,
            dice,
            contexts: &contexts,
            current: 0,
            own,
            made: Vec::new(),
            others: &others,
            slice: Some(Arc::new(slice)),
            views: Vec::new(),
            reads: Reads::NoMore,
            value: 0,
            targets: &targets,
            found: Vec::new(),
            copies: Vec::new(),
            openers: Vec::new(),
            told,
        };
        let (has_others, is_over) = (seed % 2 == 0, AtomicBool::new(false));
        told = thread::scope(|scope| {
            let _over = Sets(&is_over);
            if has_others {
                scope.spawn(|| take_errors(&home, &is_over));
            }
            program.run()
        });
        let left = Arc::downgrade(&home);
        bind(&primary);
        drop((home, contexts, others));
        eventually("the context goes", || left.strong_count() == 0);
    }
    let calls = machine.sim.calls();
    let gone: Vec<_> = calls
        .iter()
        .filter(|call| call.result.is_some_and(|code| GONE.contains(&code)))
        .take(3)
        .collect();
    assert!(gone.is_empty(), "{gone:?}");
    println!("{told:?}");
    let Told {
        reads,
        by_holder,
        copies,
        tensors,
        ended_elsewhere,
        refused,
        taken_back,
        given,
        without_streams,
        freed_by_a_view,
    } = told;
    let least = [
        reads,
        by_holder,
        copies,
        tensors,
        ended_elsewhere,
        refused,
        taken_back,
        given,
        without_streams,
        freed_by_a_view,
    ]
    .into_iter()
    .min();
    assert!(least > Some(20), "too few of one kind");
}
