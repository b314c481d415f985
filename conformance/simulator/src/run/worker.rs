//! Worker threads of the threaded schedule: a detached one per queue that has had work.

use std::ffi::c_void;
use std::ptr;

use crate::abi::arguments::{HostFunction, StreamCallbackFunction};
use crate::abi::codes::Code;
use crate::process::{host_function, life};
use crate::run::elsewhere;
use crate::run::head::{Task, finish};
use crate::state::queue::QueueId;
use crate::state::settings::Schedule;
use crate::state::world::{World, announce, lock, sleep};

type Start = extern "C" fn(*mut c_void) -> *mut c_void;
pub(crate) type Main = extern "C-unwind" fn(*mut c_void) -> *mut c_void;

/// Starts a detached thread, whose argument is a number.
///
/// A plain pthread rather than `std::thread`: a Python host function may end its thread with
/// pthread_exit while the interpreter shuts down, which must not meet a `catch_unwind`.
pub(crate) fn start_thread(main: Main, argument: usize) -> Result<(), Code> {
    let mut thread: libc::pthread_t = 0;
    // SAFETY: the two function types differ only in `C-unwind` against `C`, which are the same
    // at the machine level; pthread_create's own start routine lets a forced unwinding through.
    let start = unsafe { std::mem::transmute::<Main, Start>(main) };
    let argument = ptr::without_provenance_mut::<c_void>(argument);
    // SAFETY: `thread` is writable, null attributes mean the defaults, `start` is a function of
    // the type that pthread_create asks for and treats its argument as a number.
    let failed = unsafe { libc::pthread_create(&raw mut thread, ptr::null(), start, argument) };
    if failed != 0 {
        return Err(Code::OPERATING_SYSTEM);
    }
    // SAFETY: `thread` was created just now and is neither joined nor detached yet.
    unsafe { libc::pthread_detach(thread) };
    Ok(())
}

/// A step of a worker: nothing in it needs a destructor, so that a host function that ends the
/// thread unwinds through plain frames only.
#[derive(Clone, Copy)]
pub(crate) enum Step {
    Ran,
    Host(HostFunction, usize),
    Callback(StreamCallbackFunction, usize, usize),
    End,
}

impl Step {
    /// Runs a task, unless it is a host function: [`Step::call`] calls those.
    pub(crate) fn of(task: Task) -> Step {
        match task {
            Task::Host(..) | Task::Callback(_) if !host_function::enter() => Step::Ran,
            Task::Host(function, data) => Step::Host(function, data),
            Task::Callback(callback) => {
                Step::Callback(callback.function, callback.stream, callback.data)
            }
            task => {
                task.run();
                Step::Ran
            }
        }
    }

    /// Calls the host function of the step, if it has one.
    pub(crate) fn call(self) {
        match self {
            Step::Ran | Step::End => return,
            Step::Host(function, data) => function(data),
            Step::Callback(function, stream, data) => function(stream, 0, data),
        }
        host_function::leave();
    }
}

extern "C-unwind" fn main_loop(argument: *mut c_void) -> *mut c_void {
    let queue = QueueId(argument.addr() as u64);
    loop {
        match next_task(queue).map_or(Step::End, Step::of) {
            Step::End => return ptr::null_mut(),
            step => step.call(),
        }
        drop(finish(queue));
    }
}

/// Starts the worker of a queue that has none, under the threaded schedule.
pub(crate) fn ensure(world: &mut World, id: QueueId) -> Result<(), Code> {
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
    start_thread(main_loop, id.0 as usize)
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
        ensure(world, id)?;
    }
    elsewhere::wake();
    announce();
    Ok(())
}

/// Blocks a worker until the head of its queue may run, and returns the task; None once the queue
/// is gone.
fn next_task(id: QueueId) -> Option<Task> {
    let mut world = lock();
    loop {
        if !world.queues.contains_key(&id) || life::is_shut_down() {
            return None;
        }
        if world.settings.schedule == Schedule::Threaded && world.is_runnable(id) {
            return Some(world.start_head(id));
        }
        if let Some(awaited) = world.blocked_by(id) {
            awaited.demand();
            elsewhere::watch();
        }
        world = sleep(world);
    }
}
