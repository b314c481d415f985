//! Queues: work in order, and positions in it. An event is a position; a wait is a dependency.

use std::collections::VecDeque;

use crate::abi::arguments::ContextHandle;
use crate::abi::codes::Code;
use crate::driver::capture::CaptureId;
use crate::driver::context::ThreadKey;
use crate::run::schedule::{self, Goal};
use crate::state::settings::Schedule;
use crate::state::work::Work;
use crate::state::world::{Guard, World, announce};

/// Names a queue for ever; never reused, whatever happens to the handle of its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct QueueId(pub(crate) u64);

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
    /// The head is running right now, outside the lock.
    pub(crate) running: bool,
    /// The stream was destroyed: the queue goes once it is empty.
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

    /// Takes part in the implicit order with the legacy stream.
    pub(crate) fn is_blocking(&self) -> bool {
        matches!(self.kind, Kind::Blocking | Kind::PerThread(_))
    }

    /// Everything enqueued so far is done.
    pub(crate) fn is_idle(&self) -> bool {
        self.done == self.enqueued
    }
}

impl World {
    pub(crate) fn new_queue(
        &mut self,
        context: ContextHandle,
        context_id: u64,
        kind: Kind,
    ) -> QueueId {
        let id = QueueId(self.fresh_number());
        self.queues
            .insert(id, Queue::new(context, context_id, kind));
        id
    }

    /// The end of what is enqueued now. A queue that is gone has done all its work.
    pub(crate) fn tail(&self, queue: QueueId) -> Mark {
        Mark {
            queue,
            position: self.queues.get(&queue).map_or(0, |q| q.enqueued),
        }
    }

    pub(crate) fn reached(&self, mark: Mark) -> bool {
        self.queues
            .get(&mark.queue)
            .is_none_or(|queue| queue.done >= mark.position)
    }

    /// The tails of all queues of a context.
    pub(crate) fn tails_of_context(&self, context_id: u64) -> Vec<Mark> {
        let wanted = self
            .queues
            .iter()
            .filter(|(_, queue)| queue.context_id == context_id);
        wanted
            .map(|(id, queue)| Mark {
                queue: *id,
                position: queue.enqueued,
            })
            .collect()
    }

    /// What the legacy stream's implicit order makes new work on `queue` wait for: work on the
    /// legacy stream waits for all blocking streams of its context, and theirs waits for it.
    fn implicit_order(&self, queue: QueueId) -> Vec<Mark> {
        let Some(this) = self.queues.get(&queue) else {
            return Vec::new();
        };
        let partner = |other: &Queue| match this.kind {
            Kind::Legacy => other.is_blocking(),
            Kind::Blocking | Kind::PerThread(_) => other.kind == Kind::Legacy,
            Kind::NonBlocking => false,
        };
        let same_context = self
            .queues
            .iter()
            .filter(|(_, other)| other.context_id == this.context_id);
        let partners = same_context.filter(|(_, other)| partner(other) && !other.is_idle());
        partners
            .map(|(id, other)| Mark {
                queue: *id,
                position: other.enqueued,
            })
            .collect()
    }

    /// Finishes the head of a queue.
    pub(crate) fn retire_head(&mut self, id: QueueId) {
        let Some(queue) = self.queues.get_mut(&id) else {
            return;
        };
        queue.pending.pop_front();
        queue.running = false;
        queue.done += 1;
        self.sweep(id);
    }

    /// Stops accepting work; the queue goes as soon as what it has is done.
    pub(crate) fn close_queue(&mut self, id: QueueId) {
        if let Some(queue) = self.queues.get_mut(&id) {
            queue.closed = true;
        }
        self.sweep(id);
        announce();
    }

    /// Throws away the work that has not started: the context is gone.
    pub(crate) fn abandon_queue(&mut self, id: QueueId) {
        if let Some(queue) = self.queues.get_mut(&id) {
            let kept = usize::from(queue.running);
            let dropped = queue.pending.len() - kept;
            queue.pending.truncate(kept);
            queue.enqueued -= dropped as u64;
        }
        self.close_queue(id);
    }

    fn sweep(&mut self, id: QueueId) {
        if self
            .queues
            .get(&id)
            .is_some_and(|queue| queue.closed && queue.is_idle())
        {
            self.queues.remove(&id);
        }
    }
}

/// Puts work on a queue, after `after` and after what the legacy stream demands.
///
/// A full queue makes the host wait for room first, as a full launch queue does.
pub(crate) fn enqueue(
    world: Guard,
    id: QueueId,
    mut after: Vec<Mark>,
    work: Work,
) -> Result<Guard, Code> {
    let mut world = schedule::wait(world, &Goal::Room(id));
    after.extend(world.implicit_order(id));
    after.retain(|mark| !world.reached(*mark));
    let serial = world.fresh_number();
    let threaded = world.settings.schedule == Schedule::Threaded;
    let queue = world.queues.get_mut(&id).ok_or(Code::INVALID_HANDLE)?;
    queue.enqueued += 1;
    if threaded && after.is_empty() && queue.pending.is_empty() && work.is_bookkeeping() {
        work.note_time();
        queue.done += 1;
        return Ok(world);
    }
    queue.pending.push_back(Op {
        serial,
        after,
        work,
    });
    schedule::ensure_worker(&mut world, id)?;
    announce();
    Ok(world)
}
