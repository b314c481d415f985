//! The life of the process: initialised by cuInit, forked, shut down.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::process::python;

static INITIALISED: AtomicBool = AtomicBool::new(false);
static SHUT_DOWN: AtomicBool = AtomicBool::new(false);
static FORKED: AtomicBool = AtomicBool::new(false);

/// Notes that cuInit has succeeded. From here on a forked child is unusable.
pub(crate) fn initialise() {
    if !INITIALISED.swap(true, Ordering::AcqRel) {
        // SAFETY: the child handler only stores to an atomic, which is safe after fork.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        python::meet();
    }
}

extern "C" fn in_child() {
    FORKED.store(true, Ordering::Release);
}

/// Returns whether cuInit has succeeded.
pub(crate) fn is_initialised() -> bool {
    INITIALISED.load(Ordering::Acquire)
}

/// Returns whether this process was forked after cuInit.
pub(crate) fn is_forked() -> bool {
    FORKED.load(Ordering::Acquire)
}

/// Returns whether the process's destructors have begun to run.
pub(crate) fn is_shut_down() -> bool {
    SHUT_DOWN.load(Ordering::Acquire)
}

/// Runs when the process exits, with the other destructors of shared libraries. Workers start
/// nothing new from here on; pending work is dropped with the process.
extern "C" fn at_exit() {
    SHUT_DOWN.store(true, Ordering::Release);
}

// SAFETY: the loader calls each pointer in this section once, as a function that returns nothing;
// `at_exit` reads no arguments, so those that the loader may pass do no harm.
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = at_exit;
