//! Resolves stream arguments to queues.

use crate::abi::arguments::{ContextHandle, StreamHandle};
use crate::abi::codes::{Code, Status};
use crate::entry::enter::Call;
use crate::memory::place::Place;
use crate::memory::ranges::Kind as Memory;
use crate::process::thread;
use crate::state::objects::Pool;
use crate::state::queue::{Kind, QueueId};
use crate::state::world::World;

const LEGACY: StreamHandle = StreamHandle(1);
const PER_THREAD: StreamHandle = StreamHandle(2);

/// A stream argument, resolved: the queue that it means and the context that it belongs to.
#[derive(Clone, Copy)]
pub(crate) struct Target {
    pub(crate) queue: QueueId,
    pub(crate) context: ContextHandle,
    pub(crate) kind: Kind,
}

impl Target {
    /// Resolves a handle. 0 is the legacy stream, or the per-thread one in the `_ptsz` variants; 1
    /// and 2 are those two by name; all of them belong to the current context. Every call needs a
    /// current context; a created stream may belong to another one.
    pub(crate) fn resolve(
        world: &mut World,
        call: &Call,
        stream: StreamHandle,
    ) -> Result<Target, Code> {
        let current = world.current()?;
        let per_thread = stream == PER_THREAD || (stream == StreamHandle::NULL && call.per_thread);
        if per_thread {
            return Target::per_thread(world, current);
        }
        if stream == StreamHandle::NULL || stream == LEGACY {
            let queue = world.context(current)?.legacy;
            return Ok(Target {
                queue,
                context: current,
                kind: Kind::Legacy,
            });
        }
        let created = world.streams.get(stream)?;
        let (queue, context) = (created.queue, created.context);
        world.context(context)?;
        let kind = world.queues.get(&queue).ok_or(Code::INVALID_HANDLE)?.kind;
        Ok(Target {
            queue,
            context,
            kind,
        })
    }

    /// Resolves the per-thread stream, which the first use makes.
    fn per_thread(world: &mut World, current: ContextHandle) -> Result<Target, Code> {
        let key = thread::key();
        let kind = Kind::PerThread(key);
        let context = world.context(current)?;
        let queue = match context.per_thread.get(&key) {
            Some(queue) => *queue,
            None => {
                let id = context.id;
                let queue = world.new_queue(current, id, kind);
                if let Ok(context) = world.contexts.get_mut(current) {
                    context.per_thread.insert(key, queue);
                }
                queue
            }
        };
        Ok(Target {
            queue,
            context: current,
            kind,
        })
    }

    /// Refuses memory of a pool that the stream's device does not reach. Any device reaches all other memory here.
    pub(crate) fn reaches(&self, world: &World, place: &Place) -> Status {
        let Some(range) = world.memory.range(place) else {
            return Ok(());
        };
        let device = world.context(self.context)?.device;
        let Memory::Pool(pool) = range.kind else {
            return Ok(());
        };
        // Memory outlives its pool, which then refuses nobody any more, and whose handle may be another pool's.
        let refuses = |pool: &Pool| pool.device == range.device && !pool.is_reached_by(device);
        match world.pools.get(pool) {
            Ok(pool) if refuses(pool) => Err(Code::INVALID_VALUE),
            _ => Ok(()),
        }
    }

    /// Returns whether the stream takes part in a capture.
    pub(crate) fn is_capturing(&self, world: &World) -> bool {
        world
            .queues
            .get(&self.queue)
            .is_some_and(|queue| queue.capture.is_some())
    }
}
