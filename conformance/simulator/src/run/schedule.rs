//! When work runs: the two schedules, and waiting for work to be done.
//!
//! Threaded: a worker per queue runs the head as soon as what it waits for is done.
//! Lazy: nobody runs anything until a call waits; the waiting thread then runs what its goal
//! needs, and among several runnable heads the one enqueued last. So a consumer that does not
//! wait for its producer runs first, and reads what is not there yet, every time.

use std::collections::BTreeMap;

use crate::abi::arguments::ContextHandle;
use crate::abi::codes::Code;
use crate::driver::init;
use crate::process::host_function;
use crate::state::queue::{Mark, QueueId};
use crate::state::settings::Schedule;
use crate::state::work::{Task, Work};
use crate::state::world::{Guard, World, announce, lock, sleep};

/// What a waiting call waits for.
pub(crate) enum Goal {
    Marks(Vec<Mark>),
    /// Room for one more piece of work.
    Room(QueueId),
}

impl Goal {
    fn met(&self, world: &World) -> bool {
        match self {
            Goal::Marks(marks) => marks.iter().all(|mark| world.reached(*mark)),
            Goal::Room(id) => {
                let capacity = world.settings.queue_capacity;
                world
                    .queues
                    .get(id)
                    .is_none_or(|queue| queue.pending.len() < capacity)
            }
        }
    }

    fn marks(&self, world: &World) -> Vec<Mark> {
        match self {
            Goal::Marks(marks) => marks.clone(),
            Goal::Room(id) => {
                let done = world.queues.get(id).map_or(0, |queue| queue.done);
                vec![Mark {
                    queue: *id,
                    position: done + 1,
                }]
            }
        }
    }
}

/// Blocks the calling thread until the goal is met; under the lazy schedule, by doing the work.
pub(crate) fn wait(mut world: Guard, goal: &Goal) -> Guard {
    while !goal.met(&world) {
        world = match world.settings.schedule {
            Schedule::Threaded => sleep(world),
            Schedule::Lazy => advance(world, goal),
        };
    }
    world
}

/// Runs one piece of work that the goal needs; sleeps when none can run (a closed gate, or
/// another thread is running it).
pub(crate) fn advance(mut world: Guard, goal: &Goal) -> Guard {
    match world.pick(goal) {
        Some(queue) => run_head(world, queue),
        None => sleep(world),
    }
}

/// Runs one needed piece of work if one can run, and does not wait for any.
pub(crate) fn nudge(mut world: Guard, goal: &Goal) -> Guard {
    match world.pick(goal) {
        Some(queue) => run_head(world, queue),
        None => world,
    }
}

/// Lazy schedule, orders being enumerated, host points on: lets work run before a call does.
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
    /// The head may run now: all it waits for is done, and its gate is open.
    fn is_runnable(&self, id: QueueId) -> bool {
        let Some(queue) = self.queues.get(&id) else {
            return false;
        };
        let Some(head) = queue.pending.front() else {
            return false;
        };
        let gate_open = match head.work {
            Work::Gate(number) => self.gates.get(&number).is_none_or(|open| *open),
            _ => true,
        };
        !queue.running && gate_open && head.after.iter().all(|mark| self.reached(*mark))
    }

    fn runnable_heads(&self) -> Vec<QueueId> {
        self.queues
            .keys()
            .copied()
            .filter(|id| self.is_runnable(*id))
            .collect()
    }

    /// Which head the lazy schedule runs next.
    fn pick(&mut self, goal: &Goal) -> Option<QueueId> {
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

    /// How far each queue has to go for the marks to be reached: the closure over dependencies.
    fn needed(&self, marks: Vec<Mark>) -> BTreeMap<QueueId, u64> {
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

    /// Marks the head as running and prepares it. Work of a poisoned context does nothing.
    fn start_head(&mut self, id: QueueId) -> Task {
        let Some(queue) = self.queues.get_mut(&id) else {
            return Task::Nothing;
        };
        queue.running = true;
        let context = queue.context;
        let work = queue
            .pending
            .front()
            .map_or(Work::Nothing, |op| op.work.clone());
        if self
            .contexts
            .get(context)
            .is_none_or(|context| context.poison.is_some())
        {
            work.note_time();
            return Task::Nothing;
        }
        work.prepare(self).unwrap_or_else(|code| {
            self.poison(context, code);
            Task::Nothing
        })
    }

    /// Gives a context a sticky error, the first one for good.
    pub(crate) fn poison(&mut self, context: ContextHandle, code: Code) {
        if let Some(context) = self.contexts.get_mut(context) {
            context.poison.get_or_insert(code);
        }
    }
}

/// Runs the head of a queue on this thread.
fn run_head(mut world: Guard, id: QueueId) -> Guard {
    let task = world.start_head(id);
    drop(world);
    run(task);
    finish(id)
}

fn finish(id: QueueId) -> Guard {
    let mut world = lock();
    world.retire_head(id);
    announce();
    world
}

fn run(task: Task) {
    match task {
        Task::Nothing => {}
        Task::Sleep(length) => std::thread::sleep(length),
        Task::Memory(job) => job(),
        Task::Host(function, data) => {
            if host_function::enter() {
                function(data);
                host_function::leave();
            }
        }
        Task::Callback(callback) => {
            if host_function::enter() {
                (callback.function)(callback.stream, 0, callback.data);
                host_function::leave();
            }
        }
    }
}

/// Gives a queue its worker, once, under the threaded schedule.
///
/// A plain pthread rather than `std::thread`: a Python host function may end its thread with
/// pthread_exit while the interpreter shuts down, which must not meet a `catch_unwind`.
pub(crate) fn ensure_worker(world: &mut World, id: QueueId) -> Result<(), Code> {
    if world.settings.schedule == Schedule::Lazy {
        return Ok(());
    }
    let Some(queue) = world.queues.get_mut(&id) else {
        return Ok(());
    };
    if queue.has_worker {
        return Ok(());
    }
    queue.has_worker = true;
    crate::run::worker::spawn(id)
}

/// Switches the schedule; pending work carries on under the new one.
pub(crate) fn switch(world: &mut World, schedule: Schedule) -> Result<(), Code> {
    world.settings.schedule = schedule;
    let busy: Vec<QueueId> = world
        .queues
        .iter()
        .filter(|(_, queue)| !queue.pending.is_empty())
        .map(|(id, _)| *id)
        .collect();
    for id in busy {
        ensure_worker(world, id)?;
    }
    announce();
    Ok(())
}

/// A worker's next task, once its head may run; None when the queue is gone.
pub(crate) fn next_task(id: QueueId) -> Option<Task> {
    let mut world = lock();
    loop {
        if !world.queues.contains_key(&id) || init::is_shut_down() {
            return None;
        }
        if world.settings.schedule == Schedule::Threaded && world.is_runnable(id) {
            return Some(world.start_head(id));
        }
        world = sleep(world);
    }
}

/// A worker has run its task.
pub(crate) fn task_done(id: QueueId) {
    drop(finish(id));
}

/// Runs a task that is not a host function, on a worker.
pub(crate) fn run_here(task: Task) {
    run(task);
}
