//! Random programs of uses that follow one another: each reader finds what the last writer before it has left, on whichever
//! stream and in whichever part that was, beside other contexts, with errors that cudarc has noted and calls that the driver
//! refuses. What is current stays, no note is lost, and the owner ends after all of it.
//!
//! A program holds streams back at random, so that a use that waits for too little comes too early. It makes no captures
//! (`cudarc_random_captures.rs`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use cai_dlpack::protocol::descriptor::{Descriptor, RawTensor};
use cai_dlpack::protocol::device::Device;
use cai_dlpack::protocol::dtype::DType;
use cai_dlpack::protocol::stream::Stream;
use cai_dlpack::view::Owner;
use cai_dlpack::{CaiView, Error};
use cudarc::driver::sys::CUresult;
use cudarc::driver::{CudaContext, CudaStream, DevicePtr, DriverError, result};

use crate::cudarc_guard::{Ends, stream as number_of};
use crate::cudarc_live::Dice;
use crate::cudarc_orders::{Memory, another_context};
use crate::simulator::{Machine, machine, number};

const BYTES: usize = 16;
/// A half of the array, in elements and in bytes.
const HALF: usize = 2;
const STEPS: usize = 24;
const SEEDS: std::ops::Range<u64> = 0..150;
/// The calls of an order, one of which the driver refuses now and then.
const CALLS: [&str; 4] = [
    "cuStreamWaitEvent",
    "cuEventRecord",
    "cuEventCreate",
    "cuStreamSynchronize",
];

/// How often what the programs are about came up.
#[derive(Debug, Default)]
struct Told {
    reads: usize,
    writes: usize,
    parts: usize,
    /// Reads on another stream than the guard's.
    elsewhere: usize,
    copies: usize,
    by_producer: usize,
    refused: usize,
}

struct Program<'a> {
    machine: &'a Machine,
    dice: Dice,
    /// The contexts that may be current; the first is the memory's and the streams'.
    contexts: &'a [Arc<CudaContext>],
    streams: &'a [Arc<CudaStream>],
    view: CaiView,
    /// Index of the producer's stream, if it names one.
    producer: Option<usize>,
    address: u64,
    /// Where the readers copy to.
    targets: &'a [Memory],
    /// The value of each byte, of either half.
    expected: [u8; 2],
    /// The values that the targets must have, in turn.
    found: Vec<[u8; 2]>,
    copies: Vec<(CaiView, [u8; 2])>,
    is_noted: bool,
    openers: Vec<thread::JoinHandle<()>>,
    told: Told,
}

pub(crate) fn current() -> u64 {
    let context = result::ctx::get_current().expect("told");
    context.map_or(0, |context| context.addr() as u64)
}

/// Makes a context current, whatever cudarc has noted.
pub(crate) fn bind(context: &CudaContext) {
    // SAFETY: a living context.
    unsafe { result::ctx::set_current(context.cu_ctx()) }.expect("current");
}

impl Program<'_> {
    fn step(&mut self) {
        let (primary, stream) = (&self.contexts[0], self.dice.below(self.streams.len()));
        if self.dice.below(6) == 0 {
            primary.record_err::<()>(Err(DriverError(CUresult::CUDA_ERROR_INVALID_VALUE)));
            self.is_noted = true;
        }
        self.hold_back();
        let current_one = self.dice.below(self.contexts.len());
        bind(&self.contexts[current_one]);
        let before = current();
        let what = self.dice.below(8);
        let is_refused = what < 7 && self.dice.below(4) == 0;
        if is_refused {
            let (call, nth) = (
                CALLS[self.dice.below(CALLS.len())],
                1 + self.dice.below(2) as u64,
            );
            self.machine.sim.fault(call, nth, 2);
        }
        let done = match what {
            0 | 1 => self.read(stream),
            2 | 3 => self.write(stream),
            4 => self.write_parts(stream),
            5 => self.read_elsewhere(stream),
            6 => self.copy_on(stream),
            _ => {
                self.write_by_producer();
                Ok(())
            }
        };
        self.machine.sim.clear_faults();
        assert!(done.is_ok() || is_refused, "{done:?}");
        self.told.refused += usize::from(done.is_err());
        // cudarc makes its own current where the host waits for another stream than the guard's.
        assert!(
            what == 5 || current() == before,
            "what is current after {what}"
        );
    }

    /// Holds a stream back for a moment.
    fn hold_back(&mut self) {
        if self.dice.below(2) == 0 {
            let stream = &self.streams[self.dice.below(self.streams.len())];
            bind(&self.contexts[0]);
            let gate = self.machine.sim.gate(number(stream)).expect("a gate");
            self.openers.push(thread::spawn(move || {
                thread::sleep(Duration::from_millis(2));
                gate.open();
            }));
        }
    }

    /// Works on a stream as a program does that has made its context current; what is current stays.
    fn on<R>(&self, stream: usize, work: impl FnOnce(&CudaStream) -> R) -> R {
        let before = result::ctx::get_current().expect("told");
        bind(&self.contexts[0]);
        let done = work(&self.streams[stream]);
        // SAFETY: a living context.
        unsafe { result::ctx::set_current(before.unwrap_or(std::ptr::null_mut())) }
            .expect("current");
        done
    }

    fn fill(&self, address: u64, value: u8, bytes: usize, stream: usize) {
        self.on(stream, |stream| {
            // SAFETY: memory of this size, which stays to the end of the program; a living stream.
            unsafe { result::memset_d8_async(address, value, bytes, stream.cu_stream()) }
                .expect("a fill");
        });
    }

    /// Copies the array to the next target.
    fn copy(&mut self, from: u64, stream: usize) {
        let to = self.targets[self.found.len()].address;
        self.on(stream, |stream| {
            // SAFETY: memory of this size at either end, which stays to the end of the program; a living stream.
            unsafe { result::memcpy_dtod_async(to, from, BYTES, stream.cu_stream()) }
                .expect("a copy");
        });
        self.found.push(self.expected);
    }

    fn read(&mut self, stream: usize) -> Result<(), Error> {
        let view = self.view.clone();
        let guard = view.typed::<f32>()?.on(&self.streams[stream])?;
        self.copy(*guard.device_ptr(), stream);
        self.told.reads += 1;
        guard.finish().map(drop)
    }

    /// Reads on another stream than the guard's, through cudarc's own trait.
    fn read_elsewhere(&mut self, stream: usize) -> Result<(), Error> {
        let (view, other) = (self.view.clone(), self.dice.below(self.streams.len()));
        let others = Arc::clone(&self.streams[other]);
        let mut guard = view.typed::<f32>()?.on(&self.streams[stream])?;
        let slice = guard.as_slice()?;
        let (from, done) = slice.device_ptr(&others);
        self.copy(from, other);
        drop(done);
        self.told.elsewhere += 1;
        guard.finish().map(drop)
    }

    fn write(&mut self, stream: usize) -> Result<(), Error> {
        let value = self.dice.below(256) as u8;
        let mut view = std::mem::replace(&mut self.view, empty());
        let written = self.written(&mut view, stream, value);
        self.view = view;
        written
    }

    fn written(&mut self, view: &mut CaiView, stream: usize, value: u8) -> Result<(), Error> {
        let guard = view.typed_mut::<f32>()?.on(&self.streams[stream])?;
        self.fill(*guard.device_ptr(), value, BYTES, stream);
        self.expected = [value; 2];
        self.told.writes += 1;
        let elsewhere = self.dice.below(self.contexts.len());
        let before = result::ctx::get_current().expect("told");
        bind(&self.contexts[elsewhere]);
        let finished = guard.finish();
        // SAFETY: a living context.
        unsafe { result::ctx::set_current(before.unwrap_or(std::ptr::null_mut())) }
            .expect("current");
        finished.map(drop)
    }

    fn write_parts(&mut self, stream: usize) -> Result<(), Error> {
        let (other, values) = (
            self.dice.below(self.streams.len()),
            [0; 2].map(|_: u8| self.dice.below(256) as u8),
        );
        let mut view = std::mem::replace(&mut self.view, empty());
        let written = self.written_in_parts(&mut view, [stream, other], values);
        self.view = view;
        written
    }

    fn written_in_parts(
        &mut self,
        view: &mut CaiView,
        streams: [usize; 2],
        values: [u8; 2],
    ) -> Result<(), Error> {
        let (left, right) = view.typed_mut::<f32>()?.split(0, HALF)?;
        let mut told = Ok(());
        self.told.parts += 1;
        let mut ends = Vec::new();
        for (half, part) in [left, right].into_iter().enumerate() {
            match part.on(&self.streams[streams[half]]) {
                Ok(guard) => {
                    self.fill(*guard.device_ptr(), values[half], BYTES / 2, streams[half]);
                    self.expected[half] = values[half];
                    ends.push(guard);
                }
                Err(refused) => told = Err(refused),
            }
        }
        for guard in ends {
            if let Err(refused) = guard.finish() {
                told = Err(refused);
            }
        }
        told
    }

    fn copy_on(&mut self, stream: usize) -> Result<(), Error> {
        let copy = self.view.copy_on(&self.streams[stream])?;
        self.copies.push((copy, self.expected));
        self.told.copies += 1;
        Ok(())
    }

    /// The producer writes on its own stream, as it may after the ends of all that has used the array.
    fn write_by_producer(&mut self) {
        if let Some(producer) = self.producer {
            let value = self.dice.below(256) as u8;
            self.fill(self.address, value, BYTES, producer);
            self.expected = [value; 2];
            self.told.by_producer += 1;
        }
    }

    fn run(mut self, ended: &AtomicBool) -> Told {
        for _ in 0..STEPS {
            self.step();
        }
        // It is set aside for as long as a thread ends something.
        let late = Instant::now() + Duration::from_secs(10);
        while self.is_noted && self.contexts[0].check_err().is_ok() {
            assert!(Instant::now() < late, "an error that was noted");
            thread::yield_now();
        }
        for opener in std::mem::take(&mut self.openers) {
            opener.join().expect("opened");
        }
        bind(&self.contexts[0]);
        for stream in self.streams {
            // SAFETY: a living stream.
            unsafe { result::stream::synchronize(stream.cu_stream()) }.expect("all is done");
        }
        let bytes = |address| self.machine.sim.peek(address, BYTES).expect("bytes");
        let of = |[left, right]: [u8; 2]| [[left; BYTES / 2], [right; BYTES / 2]].concat();
        for (nth, (target, expected)) in self.targets.iter().zip(&self.found).enumerate() {
            assert_eq!(bytes(target.address), of(*expected), "read {nth}");
        }
        for (copy, expected) in &self.copies {
            copy.synchronize().expect("the copy");
            assert_eq!(bytes(copy.descriptor().data()), of(*expected), "a copy");
        }
        assert_eq!(bytes(self.address), of(self.expected), "the array");
        assert!(!ended.load(Ordering::SeqCst), "the owner");
        self.told
    }
}

/// Takes the array's place while it is lent.
fn empty() -> CaiView {
    CaiView::empty::<f32>(Device::cuda(0), [0]).expect("an array")
}

#[test]
fn each_reader_finds_what_the_last_writer_left() {
    let machine = machine();
    let primary = CudaContext::new(0).expect("device 0");
    let contexts = [
        Arc::clone(&primary),
        another_context(),
        CudaContext::new(1).expect("device 1"),
    ];
    primary.bind_to_thread().expect("current");
    let mut streams: Vec<_> = (0..4)
        .map(|_| primary.new_stream().expect("a stream"))
        .collect();
    streams.push(primary.default_stream());
    let memory = Memory::new(&primary, BYTES);
    let targets: Vec<_> = (0..STEPS).map(|_| Memory::new(&primary, BYTES)).collect();
    let mut told = Told::default();
    for seed in SEEDS {
        println!("seed {seed}"); // of the one that fails
        let mut dice = Dice(seed);
        let producer = match dice.below(3) {
            0 => None,
            _ => Some(dice.below(streams.len())),
        };
        let tensor = RawTensor::new(memory.address, Device::cuda(0), DType::F32, &[4]);
        let ended = Arc::new(AtomicBool::new(false));
        let owner = Owner::new(Ends(Arc::clone(&ended), None));
        let ready = producer.map_or(Stream::None, |producer| number_of(&streams[producer]));
        // SAFETY: elements of the memory, which stays to the end with the streams.
        let mut view =
            unsafe { CaiView::new(Descriptor::new(&tensor).expect("a tensor"), ready, owner) };
        if producer.is_some() {
            // SAFETY: as above; nothing is freed before the end.
            view = unsafe { view.with_producer(ready) };
        }
        machine
            .sim
            .poke(memory.address, &[7; BYTES])
            .expect("sevens");
        let program = Program {
            machine: &machine,
            dice,
            contexts: &contexts,
            streams: &streams,
            view,
            producer,
            address: memory.address,
            targets: &targets,
            expected: [7; 2],
            found: Vec::new(),
            copies: Vec::new(),
            is_noted: false,
            openers: Vec::new(),
            told,
        };
        told = program.run(&ended);
        let late = Instant::now() + Duration::from_secs(10);
        while !ended.load(Ordering::SeqCst) && Instant::now() < late {
            thread::yield_now();
        }
        assert!(ended.load(Ordering::SeqCst), "the owner goes");
    }
    println!("{told:?}");
    let Told {
        reads,
        writes,
        parts,
        elsewhere,
        copies,
        by_producer,
        refused,
    } = told;
    let least = [
        reads,
        writes,
        parts,
        elsewhere,
        copies,
        by_producer,
        refused,
    ]
    .into_iter()
    .min();
    assert!(least > Some(50), "too few of one kind");
}
