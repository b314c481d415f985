//! The service thread of a process that shares events with others: it does the work that they wait
//! for, and wakes the threads here that wait for theirs.
//!
//! Under the lazy schedule a process does no work before somebody waits. Somebody may be another
//! process: it marks the record, rings, and this thread runs what is before the record. The waits of
//! other processes and the end of other processes are all that it looks at; it sleeps otherwise.

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::abi::codes::{Code, Status};
use crate::process::doorbell::Doorbell;
use crate::process::life;
use crate::run::elsewhere::{STARTED, WATCHING};
use crate::run::head::{Task, finish};
use crate::run::schedule::{self, Goal};
use crate::run::worker::{Step, start_thread};
use crate::state::queue::{Mark, QueueId};
use crate::state::settings::Schedule;
use crate::state::shared_event::{Awaited, SharedEvent};
use crate::state::work::Work;
use crate::state::world::{Guard, World, announce, lock};

/// How often it looks while something is awaited: the end of a process rings no bell.
const INTERVAL: Duration = Duration::from_millis(5);

/// Starts the thread, unless it runs.
pub(crate) fn ensure() -> Status {
    if STARTED.swap(true, Ordering::AcqRel) {
        return Ok(());
    }
    let started = start_thread(main_loop, 0);
    if started.is_err() {
        STARTED.store(false, Ordering::Release);
    }
    started
}

extern "C-unwind" fn main_loop(_: *mut c_void) -> *mut c_void {
    let Some(bell) = Doorbell::own() else {
        return ptr::null_mut();
    };
    let mut is_late = false;
    loop {
        let seen = bell.rings();
        if life::is_shut_down() {
            return ptr::null_mut();
        }
        while let Some((queue, step)) = next_step() {
            step.call();
            drop(finish(queue));
        }
        let limit = look(is_late).then_some(INTERVAL);
        bell.sleep(seen, limit);
        is_late = bell.rings() == seen;
    }
}

/// Takes a piece of work that another process waits for, under the lazy schedule, and runs it unless
/// it is a host function: `main_loop` calls those.
fn next_step() -> Option<(QueueId, Step)> {
    let mut world = lock();
    if world.settings.schedule != Schedule::Lazy || life::is_shut_down() {
        return None;
    }
    let queue = world.pick_wanted()?;
    let task: Task = world.start_head(queue);
    drop(world);
    Some((queue, Step::of(task)))
}

/// Wakes the threads that wait for other processes, and passes on what their wait needs. Returns
/// whether to look again soon.
fn look(is_late: bool) -> bool {
    let mut world = lock();
    let wanted = Goal::Marks(world.wanted_elsewhere());
    if world.settings.schedule == Schedule::Lazy {
        world.demand(&wanted);
    }
    let awaited = world.awaited();
    if is_late {
        // The bell of a process that was asked by one which died before it rang.
        awaited.iter().for_each(Awaited::ring);
    }
    let is_unmet = world.settings.schedule == Schedule::Lazy && !wanted.met(&world);
    let again = is_unmet || !awaited.is_empty();
    WATCHING.store(again, Ordering::Release);
    announce();
    again
}

impl World {
    /// Adds an event to those whose records other processes may wait for.
    pub(crate) fn share_event(&mut self, event: &Arc<SharedEvent>) {
        self.shared_events.retain(|known| known.strong_count() > 0);
        self.shared_events.push(Arc::downgrade(event));
    }

    /// Returns an event that this process shares already.
    pub(crate) fn shared_event(&self, inode: u64) -> Option<Arc<SharedEvent>> {
        let mut known = self
            .shared_events
            .iter()
            .filter_map(|event| event.upgrade());
        known.find(|event| event.inode() == inode)
    }

    /// Returns the positions that other processes wait for and that are not reached.
    fn wanted_elsewhere(&self) -> Vec<Mark> {
        let events = self
            .shared_events
            .iter()
            .filter_map(|event| event.upgrade());
        let wanted = events.flat_map(|event| event.wanted());
        wanted.filter(|mark| !self.reached(*mark)).collect()
    }

    fn pick_wanted(&mut self) -> Option<QueueId> {
        let wanted = self.wanted_elsewhere();
        if wanted.is_empty() {
            return None;
        }
        self.pick(&Goal::Marks(wanted))
    }

    /// Returns the records of other processes that threads and heads of queues here wait for.
    fn awaited(&mut self) -> Vec<Awaited> {
        let heads = self
            .queues
            .values()
            .filter_map(|queue| queue.pending.front());
        let by_queues = heads.filter_map(|op| match &op.work {
            Work::Await(awaited) => Some(awaited.clone()),
            _ => None,
        });
        let by_threads = self.host_waits.values().cloned();
        by_queues
            .chain(by_threads)
            .filter(|awaited| !awaited.is_over())
            .collect()
    }
}

/// Blocks the calling thread until a record of another process is done, or lost.
pub(crate) fn wait_elsewhere(mut world: Guard, awaited: &Awaited) -> Result<Guard, Code> {
    let number = world.fresh_number();
    world.host_waits.insert(number, awaited.clone());
    world = schedule::wait(world, &Goal::Elsewhere(awaited.clone()));
    world.host_waits.remove(&number);
    awaited.outcome().map(|()| world)
}
