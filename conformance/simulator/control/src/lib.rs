//! The controls of cusim, the simulated CUDA driver, from Rust.
//!
//! Nothing is linked: the `sim_*` functions are looked up in the `libcuda.so.1` that the process
//! runs on, so that a test cannot steer another driver than the one it uses.
//!
//! ```no_run
//! let sim = cusim_control::Sim::load_built().expect("the simulator");
//! // From here on whatever asks the loader for libcuda.so.1 (cudarc, for one) gets the simulator.
//! sim.clear();
//! assert_eq!(sim.count("cuEventRecord"), 0);
//! ```

#![cfg(target_os = "linux")]

mod library;
mod log;
mod orders;
mod prototypes;

pub use library::NotSimulated;
pub use log::Call;

use std::ffi::CString;
use std::path::Path;
use std::ptr;

use prototypes::Prototypes;

/// The simulator that this process runs on. Cheap to copy; the library is never unloaded.
#[derive(Clone, Copy)]
pub struct Sim {
    c: Prototypes,
}

/// When work runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// A worker for each stream: work runs as soon as it may.
    Threaded,
    /// Work runs only when a call waits, on that call's thread.
    Lazy,
}

/// The number of objects that exist now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Live {
    /// Ranges of memory of any kind.
    pub allocations: u64,
    /// Created streams.
    pub streams: u64,
    /// Events.
    pub events: u64,
    /// Contexts, primary ones included.
    pub contexts: u64,
}

/// A CUresult other than success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CudaError(pub u32);

impl std::fmt::Display for CudaError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CUresult {}", self.0)
    }
}

impl std::error::Error for CudaError {}

/// A place in a stream that work does not pass until the gate is opened; dropping opens it.
pub struct Gate {
    sim: Sim,
    number: u64,
}

impl Gate {
    /// Lets the stream go on.
    pub fn open(&self) {
        (self.sim.c.sim_open)(self.number);
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.open();
    }
}

fn check(code: u32) -> Result<(), CudaError> {
    if code == 0 {
        Ok(())
    } else {
        Err(CudaError(code))
    }
}

fn c_text(text: &str) -> CString {
    CString::new(text.split('\0').next().unwrap_or_default()).unwrap_or_default()
}

impl Sim {
    /// Returns the simulator that the loader gives this process.
    ///
    /// # Errors
    ///
    /// If there is no `libcuda.so.1`, or it is a real driver.
    pub fn attach() -> Result<Sim, NotSimulated> {
        library::attach().map(|c| Sim { c })
    }

    /// Loads the simulator from a file, as the `libcuda.so.1` of this process.
    ///
    /// # Errors
    ///
    /// If the file is not the simulator, or the loader would give this process a real driver:
    /// start the process with `LD_LIBRARY_PATH` instead.
    pub fn load(path: &Path) -> Result<Sim, NotSimulated> {
        library::load(path).map(|c| Sim { c })
    }

    /// Returns the simulator that the loader gives this process; if there is no driver, builds the
    /// library with cargo and loads it, if the sources of the simulator lie beside this crate.
    ///
    /// # Errors
    ///
    /// Those of [`Sim::load`], and [`NotSimulated::NotBuilt`] if cargo fails or there are no sources, as for a crate from a
    /// registry: the message tells how to start the process on the simulator instead.
    pub fn load_built() -> Result<Sim, NotSimulated> {
        match Sim::attach() {
            Err(NotSimulated::NoDriver) => Sim::load(&library::built()?),
            other => other,
        }
    }

    /// Clears the call log.
    pub fn clear(&self) {
        (self.c.sim_log_clear)();
    }

    /// Counts the calls of a function since [`Sim::clear`], whatever the suffix of its variant.
    #[must_use]
    pub fn count(&self, name: &str) -> u64 {
        (self.c.sim_count)(c_text(name).as_ptr())
    }

    /// Returns the calls since [`Sim::clear`], oldest first.
    #[must_use]
    pub fn calls(&self) -> Vec<Call> {
        let text = library::text(|buffer, capacity| (self.c.sim_log_text)(buffer, capacity));
        text.lines().filter_map(Call::parse).collect()
    }

    /// Makes this thread's `nth` call of a function from now (1: the next one) return `code` and do
    /// nothing.
    pub fn fault(&self, name: &str, nth: u64, code: u32) {
        const THIS_THREAD: u32 = 1;
        (self.c.sim_fault_by)(c_text(name).as_ptr(), nth, code, THIS_THREAD);
    }

    /// Counts the faults that have not happened yet: 0 shows that a test reached them all.
    #[must_use]
    pub fn pending_faults(&self) -> u64 {
        (self.c.sim_fault_pending)()
    }

    /// Removes the faults that have not happened yet.
    pub fn clear_faults(&self) {
        (self.c.sim_fault_clear)();
    }

    /// Stops a stream (a CUstream as a number) here until the gate is opened.
    ///
    /// # Errors
    ///
    /// If no context is current, or the stream is not one.
    pub fn gate(&self, stream: u64) -> Result<Gate, CudaError> {
        match (self.c.sim_gate)(stream) {
            0 => Err(CudaError(400)),
            number => Ok(Gate { sim: *self, number }),
        }
    }

    /// Enqueues a kernel that writes these bytes to device memory.
    ///
    /// # Errors
    ///
    /// If the stream or the address is not one, or the range is too small.
    pub fn store(&self, stream: u64, address: u64, bytes: &[u8]) -> Result<(), CudaError> {
        check((self.c.sim_store)(
            stream,
            address,
            bytes.as_ptr(),
            bytes.len() as u64,
        ))
    }

    /// Enqueues a kernel that sums `count` elements (`u1 i4 i8 f4 f8`) into one `i8` or `f8`.
    ///
    /// # Errors
    ///
    /// Those of [`Sim::store`], and for other element types.
    pub fn sum(
        &self,
        stream: u64,
        result: u64,
        source: u64,
        count: u64,
        element: &str,
    ) -> Result<(), CudaError> {
        check((self.c.sim_sum)(
            stream,
            result,
            source,
            count,
            c_text(element).as_ptr(),
        ))
    }

    /// Reads device-accessible memory as it is now, past all streams.
    ///
    /// # Errors
    ///
    /// If the range is not in the driver's memory.
    pub fn peek(&self, address: u64, bytes: usize) -> Result<Vec<u8>, CudaError> {
        let mut found = vec![0u8; bytes];
        check((self.c.sim_peek)(address, found.as_mut_ptr(), bytes as u64)).map(|()| found)
    }

    /// Writes device-accessible memory now, past all streams.
    ///
    /// # Errors
    ///
    /// Those of [`Sim::peek`].
    pub fn poke(&self, address: u64, bytes: &[u8]) -> Result<(), CudaError> {
        check((self.c.sim_poke)(
            address,
            bytes.as_ptr(),
            bytes.len() as u64,
        ))
    }

    /// Counts the objects that exist now.
    #[must_use]
    pub fn live(&self) -> Live {
        Live {
            allocations: (self.c.sim_live_allocations)(),
            streams: (self.c.sim_live_streams)(),
            events: (self.c.sim_live_events)(),
            contexts: (self.c.sim_live_contexts)(),
        }
    }

    /// Counts the pieces of work that are not done, over all streams.
    #[must_use]
    pub fn pending_work(&self) -> u64 {
        (self.c.sim_pending_work)()
    }

    /// Changes `protect`, `reuse`, `queue`, `driver_version` or `memory`, for objects made afterwards.
    ///
    /// # Errors
    ///
    /// If there is no such setting.
    pub fn set(&self, name: &str, value: u64) -> Result<(), CudaError> {
        check((self.c.sim_set)(c_text(name).as_ptr(), value))
    }

    /// Switches the schedule; pending work carries on under the new one.
    pub fn set_schedule(&self, schedule: Schedule) {
        (self.c.sim_set)(c"schedule".as_ptr(), u64::from(schedule == Schedule::Lazy));
    }

    /// Returns the schedule in force.
    #[must_use]
    pub fn schedule(&self) -> Schedule {
        match (self.c.sim_get)(c"schedule".as_ptr()) {
            0 => Schedule::Threaded,
            _ => Schedule::Lazy,
        }
    }

    /// Runs a program once for every legal order of its queues, lazily, and returns how many there
    /// were. The program must do the same each time and wait for all its work.
    pub fn for_every_order(&self, host_points: bool, program: impl FnMut()) -> u64 {
        orders::run(self, host_points, program)
    }

    fn order_begin(&self, prefix: &[u32], host_points: bool) {
        (self.c.sim_order_begin)(prefix.as_ptr(), prefix.len() as u64, u32::from(host_points));
    }

    fn order_end(&self) -> Vec<(u32, u32)> {
        let count = (self.c.sim_order_end)(ptr::null_mut(), ptr::null_mut(), 0) as usize;
        let (mut choices, mut options) = (vec![0; count], vec![0; count]);
        (self.c.sim_order_end)(choices.as_mut_ptr(), options.as_mut_ptr(), count as u64);
        choices.into_iter().zip(options).collect()
    }
}

/// The Rust blocks of the page are compiled with the documentation's tests; those of docs/cusim.md with cai-dlpack's, as that
/// page is not in this package.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
