//! The beginning and the end of a context.

use std::collections::BTreeMap;

use crate::abi::arguments::ContextHandle;
use crate::state::objects::Context;
use crate::state::queue::{Kind, QueueId};
use crate::state::world::{World, announce};

impl World {
    /// Makes a context on a device; under `handle` if given, for a primary context that comes back.
    pub(crate) fn new_context(
        &mut self,
        device: usize,
        flags: u32,
        primary: bool,
        handle: Option<ContextHandle>,
    ) -> ContextHandle {
        let id = self.fresh_number();
        let context = Context {
            id,
            device,
            flags,
            primary,
            poison: None,
            legacy: QueueId(0),
            per_thread: BTreeMap::new(),
            peers: Vec::new(),
            limits: BTreeMap::new(),
        };
        let reuse = self.settings.reuse;
        let handle = match handle {
            Some(handle) => {
                self.contexts.restore(handle, context);
                handle
            }
            None => self.contexts.insert(reuse, context),
        };
        let legacy = self.new_queue(handle, id, Kind::Legacy);
        if let Ok(context) = self.contexts.get_mut(handle) {
            context.legacy = legacy;
        }
        handle
    }

    /// Removes all that belongs to a context: work that has not started, streams, events, memory.
    /// The caller removes the context itself.
    pub(crate) fn clear_context(&mut self, handle: ContextHandle, id: u64) {
        let queues: Vec<QueueId> = self
            .queues
            .iter()
            .filter(|(_, queue)| queue.context_id == id)
            .map(|(id, _)| *id)
            .collect();
        for queue in queues {
            self.abandon_queue(queue);
        }
        // What a reset primary context had is as dead as what was destroyed by hand: driver 580.159.04
        // crashes on such a stream, and knows a stream of a destroyed context.
        let is_primary = self
            .contexts
            .get(handle)
            .is_ok_and(|context| context.primary);
        if is_primary {
            self.streams.remove_where(|stream| stream.context == handle);
        } else {
            self.streams.orphan_where(|stream| stream.context == handle);
        }
        self.events.remove_where(|event| event.context == handle);
        self.memory.remove_context(handle);
        announce();
    }
}
