//! Work: what a queue holds, and how one piece of it runs.
//!
//! A piece is prepared under the lock (addresses become spans, lifetimes are checked), runs
//! without it, and is retired under it again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::abi::arguments::HostFunction;
use crate::abi::codes::Code;
use crate::driver::memory::copy::Copy2d;
use crate::driver::memory::fill::Fill;
use crate::memory::kernel::Kernel;
use crate::state::world::World;

/// When the record of an event was reached: nanoseconds since the process began to ask; 0: not yet.
#[derive(Debug, Default)]
pub(crate) struct Stamp(AtomicU64);

static START: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);

impl Stamp {
    fn note(&self) {
        let since_start = START.elapsed().as_nanos() as u64;
        self.0.store(since_start.max(1), Ordering::Release);
    }

    pub(crate) fn nanoseconds(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

/// One piece of work.
#[derive(Clone)]
pub(crate) enum Work {
    /// Only order: cuStreamWaitEvent, joins.
    Nothing,
    /// cuEventRecord: notes the time.
    Record(Arc<Stamp>),
    Copy(Copy2d),
    Fill(Fill),
    /// cuLaunchHostFunc and cuStreamAddCallback.
    HostFunction(HostFunction, usize),
    StreamCallback(StreamCallback),
    /// Stream-ordered allocation: from here on the memory may be touched.
    Allocate(u64),
    /// Stream-ordered free: from here on it may not.
    Free(u64),
    /// Runnable once the gate is open.
    Gate(u64),
    Delay(Duration),
    Kernel(Kernel),
}

/// cuStreamAddCallback's function: stream, status, data.
#[derive(Clone, Copy)]
pub(crate) struct StreamCallback {
    pub(crate) function: StreamCallbackFunction,
    pub(crate) stream: usize,
    pub(crate) data: usize,
}

/// CUstreamCallback.
pub(crate) type StreamCallbackFunction = extern "C-unwind" fn(usize, u32, usize);

/// A prepared piece: everything that is needed to run it without the lock.
pub(crate) enum Task {
    Nothing,
    Sleep(Duration),
    /// Runs on spans of memory that its `Arc`s keep mapped.
    Memory(Box<dyn FnOnce()>),
    Host(HostFunction, usize),
    Callback(StreamCallback),
}

impl Work {
    /// Has no effect but order and time: may be done at once when nothing is before it.
    pub(crate) fn is_bookkeeping(&self) -> bool {
        matches!(self, Work::Nothing | Work::Record(_))
    }

    pub(crate) fn note_time(&self) {
        if let Work::Record(stamp) = self {
            stamp.note();
        }
    }

    /// Under the lock: checks what the work touches and finds where it lies.
    pub(crate) fn prepare(&self, world: &mut World) -> Result<Task, Code> {
        match self {
            Work::Nothing | Work::Gate(_) => Ok(Task::Nothing),
            Work::Record(stamp) => {
                stamp.note();
                Ok(Task::Nothing)
            }
            Work::Copy(copy) => copy.prepare(&world.memory),
            Work::Fill(fill) => fill.prepare(&world.memory),
            Work::HostFunction(function, data) => Ok(Task::Host(*function, *data)),
            Work::StreamCallback(callback) => Ok(Task::Callback(*callback)),
            Work::Allocate(buffer) => world.memory.begin_life(*buffer).map(|()| Task::Nothing),
            Work::Free(buffer) => world.memory.end_life(*buffer).map(|()| Task::Nothing),
            Work::Delay(length) => Ok(Task::Sleep(*length)),
            Work::Kernel(kernel) => kernel.prepare(&world.memory),
        }
    }
}
