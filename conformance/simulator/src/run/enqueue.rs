//! Enqueueing work.

use crate::abi::codes::Code;
use crate::run::schedule::{self, Goal};
use crate::run::worker;
use crate::state::queue::{Mark, Op, QueueId};
use crate::state::settings::Schedule;
use crate::state::work::Work;
use crate::state::world::{Guard, announce};

/// Puts work on a queue, to run after `after` and after the implicit order of the legacy stream.
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
        work.note_record();
        queue.done += 1;
        work.tell_record();
        return Ok(world);
    }
    queue.pending.push_back(Op {
        serial,
        after,
        work,
    });
    worker::ensure(&mut world, id)?;
    announce();
    Ok(world)
}
