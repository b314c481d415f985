//! Host functions: marks the threads that run one, and stops calling them when Python ends.
//!
//! A host function may be Python's. Called while the interpreter goes down it faults, or waits for
//! ever, and its pointer does not tell its owner; so at the end of the interpreter the ones that
//! are left are skipped.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::process::python;

thread_local! {
    static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
}

static ENDED: AtomicBool = AtomicBool::new(false);
/// Host functions that are running.
static RUNNING: AtomicUsize = AtomicUsize::new(0);

/// Marks this thread as running a host function, in which no call of the API is permitted. Returns
/// false if the function must not be called any more.
pub(crate) fn enter() -> bool {
    RUNNING.fetch_add(1, Ordering::SeqCst);
    if ENDED.load(Ordering::SeqCst) || python::has_ended() {
        RUNNING.fetch_sub(1, Ordering::SeqCst);
        return false;
    }
    // A thread whose locals are gone makes no further call of the API, so a failure is fine.
    let _ = IN_HOST_FUNCTION.try_with(|flag| flag.set(true));
    true
}

/// Ends what [`enter`] began.
pub(crate) fn leave() {
    let _ = IN_HOST_FUNCTION.try_with(|flag| flag.set(false));
    RUNNING.fetch_sub(1, Ordering::SeqCst);
}

/// Returns whether the calling thread runs a host function.
pub(crate) fn is_inside() -> bool {
    IN_HOST_FUNCTION.try_with(Cell::get).unwrap_or(false)
}

/// Stops all host functions that have not begun. Waits for those that run, a second at most: one
/// that takes longer is inside the interpreter, which ends it.
pub(crate) fn end_all() {
    ENDED.store(true, Ordering::SeqCst);
    let deadline = Instant::now() + Duration::from_secs(1);
    while RUNNING.load(Ordering::SeqCst) != 0 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
}
