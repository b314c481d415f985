//! Worker threads of the threaded schedule: one per queue that has work, daemons all.

use std::ffi::c_void;
use std::ptr;

use crate::abi::arguments::HostFunction;
use crate::abi::codes::Code;
use crate::process::host_function;
use crate::run::schedule;
use crate::state::queue::QueueId;
use crate::state::work::{StreamCallbackFunction, Task};

type Start = extern "C" fn(*mut c_void) -> *mut c_void;

/// Starts the worker of a queue.
pub(crate) fn spawn(queue: QueueId) -> Result<(), Code> {
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
        schedule::task_done(queue);
    }
}

/// Takes the next task and runs it, unless it is a host function: `main_loop` calls those.
fn step(queue: QueueId) -> Step {
    match schedule::next_task(queue) {
        None => Step::End,
        Some(Task::Host(..) | Task::Callback(_)) if !host_function::enter() => Step::Ran,
        Some(Task::Host(function, data)) => Step::Host(function, data),
        Some(Task::Callback(callback)) => {
            Step::Callback(callback.function, callback.stream, callback.data)
        }
        Some(task) => {
            schedule::run_here(task);
            Step::Ran
        }
    }
}
