//! Start, end and fork: cuInit, the destructor, and what a child process may do (nothing).

use std::sync::atomic::{AtomicBool, Ordering};

use crate::abi::arguments::Out;
use crate::abi::codes::{Answer, Code};
use crate::entry::enter::{Call, Class, exports};
use crate::process::python;
use crate::state::world::lock;

static INITIALISED: AtomicBool = AtomicBool::new(false);
static SHUT_DOWN: AtomicBool = AtomicBool::new(false);
static FORKED: AtomicBool = AtomicBool::new(false);

exports! {
    Always 2000 cuInit(flags: u32) = init;
    Always 2020 cuDriverGetVersion(version: Out<i32>) = driver_version;
}

/// cuInit: flags must be 0. From here on a forked child is unusable.
fn init(_: &Call, flags: u32) -> Answer {
    if flags != 0 {
        return Err(Code::INVALID_VALUE);
    }
    if lock().devices.is_empty() {
        return Err(Code::NO_DEVICE);
    }
    if !INITIALISED.swap(true, Ordering::AcqRel) {
        // SAFETY: the child handler only stores to an atomic, which is safe after fork.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        python::meet();
    }
    Ok(())
}

fn driver_version(_: &Call, version: Out<i32>) -> Answer {
    version.put(lock().settings.driver_version as i32)
}

extern "C" fn in_child() {
    FORKED.store(true, Ordering::Release);
}

/// A process forked after cuInit gets NOT_INITIALIZED from every call, without a lock being
/// taken: the lock may be held by a thread that the child does not have. After the destructor
/// every call answers DEINITIALIZED. Calls that are always allowed pass both.
pub(crate) fn check_process(class: Class) -> Answer {
    if FORKED.load(Ordering::Acquire) {
        return Err(Code::NOT_INITIALIZED);
    }
    if class != Class::Always && SHUT_DOWN.load(Ordering::Acquire) {
        return Err(Code::DEINITIALIZED);
    }
    Ok(())
}

pub(crate) fn check_initialised() -> Answer {
    if INITIALISED.load(Ordering::Acquire) {
        Ok(())
    } else {
        Err(Code::NOT_INITIALIZED)
    }
}

pub(crate) fn is_forked() -> bool {
    FORKED.load(Ordering::Acquire)
}

pub(crate) fn is_shut_down() -> bool {
    SHUT_DOWN.load(Ordering::Acquire)
}

/// Runs when the process exits, with the other destructors of shared libraries. Workers start
/// nothing new from here on; pending work is dropped with the process.
extern "C" fn at_exit() {
    SHUT_DOWN.store(true, Ordering::Release);
}

// SAFETY: the section holds pointers to functions without arguments, which is what this is.
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = at_exit;
