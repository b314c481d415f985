//! The two schedules, and waiting for work to be done.
//!
//! Threaded: a worker per queue runs the head as soon as what it waits for is done.
//! Lazy: no work runs until a call waits; the waiting thread then runs the work that its goal
//! needs, and among several runnable heads the one enqueued last. So a consumer that does not
//! wait for its producer runs first, and reads too early, every time.

use std::collections::BTreeMap;

use crate::abi::codes::{Code, Status};
use crate::run::head::run_head;
use crate::state::queue::{Mark, QueueId};
use crate::state::settings::Schedule;
use crate::state::shared_event::Awaited;
use crate::state::world::{Guard, World, lock, sleep};

/// The condition that a call waits for.
pub(crate) enum Goal {
    Marks(Vec<Mark>),
    /// Room for one more piece of work.
    Room(QueueId),
    /// A record of another process.
    Elsewhere(Awaited),
}

impl Goal {
    pub(crate) fn met(&self, world: &World) -> bool {
        match self {
            Goal::Marks(marks) => marks.iter().all(|mark| world.reached(*mark)),
            Goal::Room(id) => {
                let capacity = world.settings.queue_capacity;
                world
                    .queues
                    .get(id)
                    .is_none_or(|queue| queue.pending.len() < capacity)
            }
            Goal::Elsewhere(awaited) => awaited.is_over(),
        }
    }

    /// Returns the positions here that the goal needs.
    pub(crate) fn marks(&self, world: &World) -> Vec<Mark> {
        match self {
            Goal::Marks(marks) => marks.clone(),
            Goal::Room(id) => {
                let done = world.queues.get(id).map_or(0, |queue| queue.done);
                vec![Mark {
                    queue: *id,
                    position: done + 1,
                }]
            }
            Goal::Elsewhere(_) => Vec::new(),
        }
    }
}

/// Blocks the calling thread until the goal is met; under the lazy schedule it runs the work.
pub(crate) fn wait(mut world: Guard, goal: &Goal) -> Guard {
    if let Goal::Elsewhere(_) = goal {
        world.demand(goal);
    }
    while !goal.met(&world) {
        world = match world.settings.schedule {
            Schedule::Threaded => sleep(world),
            Schedule::Lazy => advance(world, goal),
        };
    }
    world
}

/// Blocks the calling thread until the marks are reached.
pub(crate) fn wait_for(world: Guard, marks: Vec<Mark>) -> Guard {
    wait(world, &Goal::Marks(marks))
}

/// Runs one piece of work that the goal needs; sleeps if none can run (a closed gate, another
/// thread or another process is running it).
fn advance(mut world: Guard, goal: &Goal) -> Guard {
    match world.pick(goal) {
        Some(queue) => run_head(world, queue),
        None => {
            world.demand(goal);
            sleep(world)
        }
    }
}

/// Returns NOT_READY unless the marks are reached. Under the lazy schedule one needed piece of work
/// then runs, if one can, so that a loop of queries ends.
pub(crate) fn poll(mut world: Guard, marks: Vec<Mark>) -> Status {
    if marks.iter().all(|mark| world.reached(*mark)) {
        return Ok(());
    }
    if world.settings.schedule == Schedule::Lazy {
        let goal = Goal::Marks(marks);
        match world.pick(&goal) {
            Some(queue) => drop(run_head(world, queue)),
            None => world.demand(&goal),
        }
    }
    Err(Code::NOT_READY)
}

/// Like [`poll`], for a record of another process.
pub(crate) fn poll_elsewhere(mut world: Guard, awaited: Awaited) -> Status {
    if awaited.is_over() {
        return awaited.outcome();
    }
    world.demand(&Goal::Elsewhere(awaited));
    Err(Code::NOT_READY)
}

/// Lets work run before a call, if orders are enumerated with host points under the lazy schedule.
pub(crate) fn host_point() {
    let mut world = lock();
    while world.settings.schedule == Schedule::Lazy && world.order.has_host_points() {
        let heads = world.runnable_heads();
        let chosen = if heads.is_empty() {
            0
        } else {
            world.order.choose(1 + heads.len())
        };
        if chosen == 0 {
            return;
        }
        world = run_head(world, heads[chosen - 1]);
    }
}

impl World {
    fn runnable_heads(&self) -> Vec<QueueId> {
        self.queues
            .keys()
            .copied()
            .filter(|id| self.is_runnable(*id))
            .collect()
    }

    /// Chooses the head that the lazy schedule runs next.
    pub(crate) fn pick(&mut self, goal: &Goal) -> Option<QueueId> {
        let mut heads = self.runnable_heads();
        if self.order.is_active() {
            if heads.is_empty() {
                return None;
            }
            let chosen = self.order.choose(heads.len());
            return Some(heads[chosen]);
        }
        let needed = self.needed(goal.marks(self));
        heads.retain(|id| needed.contains_key(id));
        heads.into_iter().max_by_key(|id| self.head_serial(*id))
    }

    fn head_serial(&self, id: QueueId) -> u64 {
        let head = self.queues.get(&id).and_then(|queue| queue.pending.front());
        head.map_or(0, |op| op.serial)
    }

    /// Returns the position that each queue must reach for the marks to be reached: the closure over
    /// dependencies.
    pub(crate) fn needed(&self, marks: Vec<Mark>) -> BTreeMap<QueueId, u64> {
        let mut needed = BTreeMap::new();
        let mut open = marks;
        while let Some(mark) = open.pop() {
            let known = needed.get(&mark.queue).copied().unwrap_or(0);
            if self.reached(mark) || known >= mark.position {
                continue;
            }
            needed.insert(mark.queue, mark.position);
            let queue = &self.queues[&mark.queue];
            let ahead = (mark.position - queue.done) as usize;
            open.extend(
                queue
                    .pending
                    .iter()
                    .take(ahead)
                    .flat_map(|op| op.after.iter().copied()),
            );
        }
        needed
    }
}
