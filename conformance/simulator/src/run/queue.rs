//! Queues of the world: their positions, their order, their end.

use crate::abi::arguments::ContextHandle;
use crate::state::queue::{Kind, Mark, Queue, QueueId};
use crate::state::world::{World, announce};

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

    /// The tails of all queues of all contexts of a device.
    pub(crate) fn tails_of_device(&self, device: usize) -> Vec<Mark> {
        let contexts = self
            .contexts
            .iter()
            .filter(|(_, context)| context.device == device);
        contexts
            .flat_map(|(_, context)| self.tails_of_context(context.id))
            .collect()
    }

    /// What the legacy stream's implicit order makes new work on `queue` wait for: work on the
    /// legacy stream waits for all blocking streams of its context, and theirs waits for it.
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
