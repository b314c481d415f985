//! Queues: work in order, and positions in it. An event is a position; a wait is a dependency.

use std::collections::VecDeque;

use crate::abi::arguments::ContextHandle;
use crate::process::thread::ThreadKey;
use crate::state::work::Work;

/// Identifies a queue; never reused, whatever happens to the handle of its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct QueueId(pub(crate) u64);

/// Identifies a capture; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CaptureId(pub(crate) u64);

/// A place in a queue: reached once the queue has done that many pieces of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) queue: QueueId,
    pub(crate) position: u64,
}

/// How a queue relates to the legacy default stream of its context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The legacy stream itself (handle 0 or 1).
    Legacy,
    /// The per-thread stream (handle 2) of one thread: blocking, like a created stream.
    PerThread(ThreadKey),
    /// Created without CU_STREAM_NON_BLOCKING: ordered with the legacy stream, both ways.
    Blocking,
    /// Created with CU_STREAM_NON_BLOCKING: no implicit order.
    NonBlocking,
}

/// One piece of work with what it waits for.
pub(crate) struct Op {
    /// Order of enqueueing over all queues.
    pub(crate) serial: u64,
    pub(crate) after: Vec<Mark>,
    pub(crate) work: Work,
}

/// A stream's work. `done` counts finished pieces; `enqueued` all that were ever accepted.
pub(crate) struct Queue {
    pub(crate) context: ContextHandle,
    pub(crate) context_id: u64,
    pub(crate) kind: Kind,
    pub(crate) pending: VecDeque<Op>,
    pub(crate) enqueued: u64,
    pub(crate) done: u64,
    /// True while the head runs, outside the lock.
    pub(crate) running: bool,
    /// True once the stream is destroyed: the queue is removed when it is empty.
    pub(crate) closed: bool,
    pub(crate) has_worker: bool,
    pub(crate) capture: Option<CaptureId>,
}

impl Queue {
    pub(crate) fn new(context: ContextHandle, context_id: u64, kind: Kind) -> Queue {
        Queue {
            context,
            context_id,
            kind,
            pending: VecDeque::new(),
            enqueued: 0,
            done: 0,
            running: false,
            closed: false,
            has_worker: false,
            capture: None,
        }
    }

    /// Returns whether the queue takes part in the implicit order with the legacy stream.
    pub(crate) fn is_blocking(&self) -> bool {
        matches!(self.kind, Kind::Blocking | Kind::PerThread(_))
    }

    /// Returns whether all work is done.
    pub(crate) fn is_idle(&self) -> bool {
        self.done == self.enqueued
    }
}
