//! Host functions: what the thread may do while it is in one, and when none may be called any more.
//!
//! A host function may be Python's. Called while the interpreter goes down it faults, or waits for
//! ever, and nobody can tell whose it is; so at the end of the interpreter the ones that are left
//! are passed over.

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

/// Marks this thread as running a host function, in which no call of the API is permitted. False:
/// the function must not be called any more.
pub(crate) fn enter() -> bool {
    RUNNING.fetch_add(1, Ordering::SeqCst);
    if ENDED.load(Ordering::SeqCst) || python::has_ended() {
        RUNNING.fetch_sub(1, Ordering::SeqCst);
        return false;
    }
    // After the thread's locals are gone nobody can ask any more, so a failure is fine.
    let _ = IN_HOST_FUNCTION.try_with(|flag| flag.set(true));
    true
}

pub(crate) fn leave() {
    let _ = IN_HOST_FUNCTION.try_with(|flag| flag.set(false));
    RUNNING.fetch_sub(1, Ordering::SeqCst);
}

pub(crate) fn is_inside() -> bool {
    IN_HOST_FUNCTION.try_with(Cell::get).unwrap_or(false)
}

/// From now on none is called. Waits for those that run, a second at most: one that takes longer
/// is inside the interpreter, which ends it.
pub(crate) fn end_all() {
    ENDED.store(true, Ordering::SeqCst);
    let deadline = Instant::now() + Duration::from_secs(1);
    while RUNNING.load(Ordering::SeqCst) != 0 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
}
