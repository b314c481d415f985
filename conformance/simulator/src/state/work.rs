//! Work: the pieces that a queue holds.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::abi::arguments::{HostFunction, StreamCallbackFunction};
use crate::memory::copy::Copy2d;
use crate::memory::fill::Fill;
use crate::memory::kernel::Kernel;
use crate::state::shared_event::{Awaited, Published};

/// The time at which an event's record was reached, in nanoseconds since the first use of this
/// clock; 0 if it has not been.
#[derive(Debug, Default)]
pub(crate) struct Stamp(AtomicU64);

static START: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);

impl Stamp {
    pub(crate) fn note(&self) {
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
    /// cuEventRecord: notes the time, and tells other processes.
    Record(Arc<Stamp>, Option<Arc<Published>>),
    /// A wait for a record of another process. Runnable once that is over.
    Await(Awaited),
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

impl Work {
    /// Returns whether the work has no effect but order and time: it may be done at once if nothing
    /// is before it.
    pub(crate) fn is_bookkeeping(&self) -> bool {
        matches!(self, Work::Nothing | Work::Record(..))
    }

    /// Notes the time at which a record is reached.
    pub(crate) fn note_record(&self) {
        if let Work::Record(stamp, _) = self {
            stamp.note();
        }
    }

    /// Tells other processes of a record that counts as done here: what one process has waited for is done for all.
    pub(crate) fn tell_record(&self) {
        if let Work::Record(_, Some(published)) = self {
            published.finish();
        }
    }
}
