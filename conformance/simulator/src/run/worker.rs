//! Worker threads of the threaded schedule: a detached one per queue that has had work.

use std::ffi::c_void;
use std::ptr;

use crate::abi::arguments::{HostFunction, StreamCallbackFunction};
use crate::abi::codes::Code;
use crate::process::{host_function, life};
use crate::run::head::{Task, finish};
use crate::state::queue::QueueId;
use crate::state::settings::Schedule;
use crate::state::world::{World, announce, lock, sleep};

type Start = extern "C" fn(*mut c_void) -> *mut c_void;

/// Starts the worker of a queue.
fn spawn(queue: QueueId) -> Result<(), Code> {
    let mut thread: libc::pthread_t = 0;
    // SAFETY: the two function types differ only in `C-unwind` against `C`, which are the same
    // at the machine level; pthread_create's own start routine lets a forced unwinding through.
    let start = unsafe {
        std::mem::transmute::<extern "C-unwind" fn(*mut c_void) -> *mut c_void, Start>(main_loop)
    };
    let argument = ptr::without_provenance_mut::<c_void>(queue.0 as usize);
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
enum Step {
    Ran,
    Host(HostFunction, usize),
    Callback(StreamCallbackFunction, usize, usize),
    End,
}

extern "C-unwind" fn main_loop(argument: *mut c_void) -> *mut c_void {
    let queue = QueueId(argument.addr() as u64);
    loop {
        match step(queue) {
            Step::End => return ptr::null_mut(),
            Step::Ran => {}
            Step::Host(function, data) => {
                function(data);
                host_function::leave();
            }
            Step::Callback(function, stream, data) => {
                function(stream, 0, data);
                host_function::leave();
            }
        }
        drop(finish(queue));
    }
}

/// Takes the next task and runs it, unless it is a host function: `main_loop` calls those.
fn step(queue: QueueId) -> Step {
    match next_task(queue) {
        None => Step::End,
        Some(Task::Host(..) | Task::Callback(_)) if !host_function::enter() => Step::Ran,
        Some(Task::Host(function, data)) => Step::Host(function, data),
        Some(Task::Callback(callback)) => {
            Step::Callback(callback.function, callback.stream, callback.data)
        }
        Some(task) => {
            task.run();
            Step::Ran
        }
    }
}

/// Starts the worker of a queue that has none, under the threaded schedule.
///
/// A plain pthread rather than `std::thread`: a Python host function may end its thread with
/// pthread_exit while the interpreter shuts down, which must not meet a `catch_unwind`.
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
    spawn(id)
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
        world = sleep(world);
    }
}
