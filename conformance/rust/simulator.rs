//! The simulated driver under this process: one for all tests, which take turns.

use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cudarc::driver::CudaStream;
use cusim_control::{NotSimulated, Schedule, Sim};

/// The simulator, for one test at a time. Its log holds the calls of the test's thread alone: the
/// thread that frees kept memory may still ask for the end of what an earlier test left.
pub(crate) struct Machine {
    pub(crate) sim: Sim,
    _turn: MutexGuard<'static, ()>,
}

pub(crate) fn machine() -> Machine {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
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
        let set = self.sim.set("log", 1);
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
