//! The queues of the world: positions, implicit order, end.

use crate::abi::arguments::ContextHandle;
use crate::state::queue::{Kind, Mark, Queue, QueueId};
use crate::state::world::{World, announce};

impl World {
    /// Makes an empty queue.
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

    /// Returns the position after all work enqueued so far; 0 for a queue that is gone, as it has
    /// done all its work.
    pub(crate) fn tail(&self, queue: QueueId) -> Mark {
        Mark {
            queue,
            position: self.queues.get(&queue).map_or(0, |q| q.enqueued),
        }
    }

    /// Returns whether the work before a mark is done.
    pub(crate) fn reached(&self, mark: Mark) -> bool {
        self.queues
            .get(&mark.queue)
            .is_none_or(|queue| queue.done >= mark.position)
    }

    /// Returns the tails of the queues for which `wanted` holds.
    pub(crate) fn tails(&self, wanted: impl Fn(&Queue) -> bool) -> Vec<Mark> {
        let wanted = self.queues.iter().filter(|(_, queue)| wanted(queue));
        wanted
            .map(|(id, queue)| Mark {
                queue: *id,
                position: queue.enqueued,
            })
            .collect()
    }

    /// Returns the tails of all queues of a context.
    pub(crate) fn tails_of_context(&self, context_id: u64) -> Vec<Mark> {
        self.tails(|queue| queue.context_id == context_id)
    }

    /// Returns the marks that new work on `queue` waits for by implicit order: work on the legacy
    /// stream waits for all blocking streams of its context, and theirs waits for it.
    pub(crate) fn implicit_order(&self, queue: QueueId) -> Vec<Mark> {
        let Some(this) = self.queues.get(&queue) else {
            return Vec::new();
        };
        let partner = |other: &Queue| match this.kind {
            Kind::Legacy => other.is_blocking(),
            Kind::Blocking | Kind::PerThread(_) => other.kind == Kind::Legacy,
            Kind::NonBlocking => false,
        };
        self.tails(|other| {
            other.context_id == this.context_id && partner(other) && !other.is_idle()
        })
    }

    /// Finishes the head of a queue.
    pub(crate) fn retire_head(&mut self, id: QueueId) {
        let Some(queue) = self.queues.get_mut(&id) else {
            return;
        };
        let retired = queue.pending.pop_front();
        queue.running = false;
        queue.done += 1;
        if let Some(op) = retired {
            op.work.tell_record();
        }
        self.sweep(id);
    }

    /// Closes a queue: it is removed as soon as its work is done.
    pub(crate) fn close_queue(&mut self, id: QueueId) {
        if let Some(queue) = self.queues.get_mut(&id) {
            queue.closed = true;
        }
        self.sweep(id);
        announce();
    }

    /// Drops the work that has not started, and closes the queue: its context is gone.
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
