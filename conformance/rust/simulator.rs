//! The driver under this process: the simulated one, or with `CAI_DLPACK_GPU=1` a GPU's. One for all tests, which take
//! turns.

use std::fmt::Debug;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cudarc::driver::CudaStream;
use cusim_control::{Call, Live, NotSimulated, Schedule, Sim};

use crate::hardware::{self, Hardware};

/// The simulator, for one test at a time. Its log holds the calls of the test's thread alone: the
/// thread that frees kept memory may still ask for the end of what an earlier test left.
pub(crate) struct Machine {
    pub(crate) sim: Steered,
    _turn: MutexGuard<'static, ()>,
}

/// A driver that tests steer: the simulator, or a GPU's, which can do less. A test that asks a GPU's for more ends, and
/// says so by a message that begins with [`NOT_RUN`]; `conformance/gpu/rust.py` lists these.
#[derive(Clone, Copy)]
pub(crate) enum Steered {
    Simulator(Sim),
    Gpu(&'static Hardware),
}

const NOT_RUN: &str = "not run on a GPU";

/// A place in a stream that work does not pass until the gate is opened; dropping opens it.
pub(crate) enum Gate {
    Simulator(cusim_control::Gate),
    Gpu(hardware::Gate),
}

impl Gate {
    /// Lets the stream go on.
    pub(crate) fn open(&self) {
        match self {
            Self::Simulator(gate) => gate.open(),
            Self::Gpu(gate) => gate.open(),
        }
    }
}

fn told<T>(answer: Result<T, impl Debug>) -> Result<T, String> {
    answer.map_err(|why| format!("{why:?}"))
}

impl Steered {
    fn simulator(&self, what: &str) -> &Sim {
        match self {
            Self::Simulator(sim) => sim,
            Self::Gpu(_) => panic!("{NOT_RUN}: {what}, which the simulator alone has"),
        }
    }

    /// Whether there is a log of calls, the same for `clear`, `count` and `calls`.
    pub(crate) fn has_log(&self) -> bool {
        matches!(self, Self::Simulator(_))
    }

    /// A GPU has no log to clear.
    pub(crate) fn clear(&self) {
        if let Self::Simulator(sim) = self {
            sim.clear();
        }
    }

    pub(crate) fn count(&self, name: &str) -> u64 {
        self.simulator("it counts calls").count(name)
    }

    pub(crate) fn calls(&self) -> Vec<Call> {
        self.simulator("it reads the log of calls").calls()
    }

    pub(crate) fn live(&self) -> Live {
        self.simulator("it counts the driver's objects").live()
    }

    pub(crate) fn fault(&self, name: &str, nth: u64, code: u32) {
        let sim = self.simulator("it has a call fail");
        sim.fault(name, nth, code);
    }

    /// Refuses a GPU for a test that goes on with a context which has been destroyed: its driver reads what is freed then.
    pub(crate) fn answers_for_destroyed_contexts(&self) {
        self.simulator("it needs the answers of a destroyed context");
    }

    pub(crate) fn pending_faults(&self) -> u64 {
        let sim = self.simulator("it has a call fail");
        sim.pending_faults()
    }

    pub(crate) fn clear_faults(&self) {
        let sim = self.simulator("it has calls fail no more");
        sim.clear_faults();
    }

    pub(crate) fn gate(&self, stream: u64) -> Result<Gate, String> {
        match self {
            Self::Simulator(sim) => told(sim.gate(stream).map(Gate::Simulator)),
            Self::Gpu(gpu) => told(gpu.gate(stream).map(Gate::Gpu)),
        }
    }

    pub(crate) fn store(&self, stream: u64, address: u64, bytes: &[u8]) -> Result<(), String> {
        match self {
            Self::Simulator(sim) => told(sim.store(stream, address, bytes)),
            Self::Gpu(gpu) => told(gpu.store(stream, address, bytes)),
        }
    }

    pub(crate) fn poke(&self, address: u64, bytes: &[u8]) -> Result<(), String> {
        match self {
            Self::Simulator(sim) => told(sim.poke(address, bytes)),
            Self::Gpu(gpu) => told(gpu.poke(address, bytes)),
        }
    }

    pub(crate) fn peek(&self, address: u64, count: usize) -> Result<Vec<u8>, String> {
        match self {
            Self::Simulator(sim) => told(sim.peek(address, count)),
            Self::Gpu(gpu) => told(gpu.peek(address, count)),
        }
    }

    /// A GPU's work runs when it may.
    pub(crate) fn set_schedule(&self, schedule: Schedule) {
        if let Self::Simulator(sim) = self {
            sim.set_schedule(schedule);
        }
    }

    pub(crate) fn schedule(&self) -> Schedule {
        match self {
            Self::Simulator(sim) => sim.schedule(),
            Self::Gpu(_) => Schedule::Threaded,
        }
    }
}

pub(crate) fn machine() -> Machine {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    if std::env::var_os("CAI_DLPACK_GPU").is_some() {
        return Machine {
            sim: Steered::Gpu(Hardware::get()),
            _turn: turn,
        };
    }
    let sim = match Sim::load_built() {
        Err(NotSimulated::NotBuilt(_)) => {
            build();
            Sim::load_built()
        }
        found => found,
    };
    let sim = sim.unwrap_or_else(|why| panic!("{why}"));
    sim.clear_faults();
    sim.set_schedule(Schedule::Threaded);
    sim.set("log", 2).expect("a setting of the simulator");
    sim.clear();
    let sim = Steered::Simulator(sim);
    Machine { sim, _turn: turn }
}

fn build() {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo)
        .args(["build", "--locked", "--package", "cusim"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status();
    assert!(
        built.is_ok_and(|status| status.success()),
        "cargo build --package cusim"
    );
}

impl Machine {
    /// Clears the log, which holds the calls of every thread from now on.
    pub(crate) fn log_every_thread(&self) {
        let sim = self.sim.simulator("it reads the log of calls");
        let set = sim.set("log", 1);
        set.expect("a setting of the simulator");
        self.sim.clear();
    }

    /// The calls since the last clear that order streams or wait, with the stream that each names.
    pub(crate) fn orders(&self) -> Vec<(String, u64)> {
        let names = [
            "cuEventRecord",
            "cuStreamWaitEvent",
            "cuStreamSynchronize",
            "cuEventSynchronize",
        ];
        let calls = self.sim.calls().into_iter();
        calls
            .map(|call| (call.name().to_owned(), call.argument("stream").unwrap_or(0)))
            .filter(|(name, _)| names.contains(&name.as_str()))
            .collect()
    }
}

/// What it costs to make one stream wait for another.
pub(crate) fn one_event(ready: u64, waiting: u64) -> [(String, u64); 2] {
    [
        ("cuEventRecord".to_owned(), ready),
        ("cuStreamWaitEvent".to_owned(), waiting),
    ]
}

/// A stream's number.
pub(crate) fn number(stream: &CudaStream) -> u64 {
    stream.cu_stream().addr() as u64
}

/// Waits until something is so that a thread of the library's brings about.
pub(crate) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let late = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(Instant::now() < late, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
