//! Releases that must wait for the GIL: the queue, the pending call and the reaper that empty it.
//!
//! ```text
//!   enqueue --push--> queue --+--> pending call on the main thread --> ended with the GIL
//!                             +--> reaper thread (waits for the GIL) -> ended with the GIL
//! ```
//! A deleter never waits: a push is a few atomic operations, and one wake-up where the queue was
//! empty. The pending call is the quick way (the main thread runs byte code); the reaper is the sure
//! one (it sits in a C call). Only the reaper waits for the GIL.
//!
//! **The end.** An `atexit` function closes the gate, stops the reaper and empties the queue. What is
//! deleted without the GIL later is leaked on purpose and counted: there is no interpreter to give it
//! back to. With the GIL, releases go on as long as the interpreter runs anything at all.
//!
//! **A forked child** has neither its parent's reaper nor any use for what its parent had queued: it
//! starts afresh with its first owner.

use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::thread::JoinHandle;

use pyo3::ffi;
use pyo3::prelude::*;

use crate::driver::ContextGuard;
use crate::process::{fork, signals};
use crate::python::cpython::{gil, thread_exit};
use crate::view::{Gate, Node, Queue};
use crate::{driver, view};

static QUEUE: Queue = Queue::new();
static GATE: Gate = Gate::new();
/// A pending call is on its way.
static CALLED: AtomicBool = AtomicBool::new(false);
/// Null before the first owner and after the end. Looked at inside the gate only, so that whoever has
/// closed the gate may take it.
static REAPER: AtomicPtr<JoinHandle<()>> = AtomicPtr::new(ptr::null_mut());
static INSTALLED: AtomicBool = AtomicBool::new(false);
static INSTALLING: AtomicBool = AtomicBool::new(false);

/// A reaper runs finalisers, which may be anyone's Python code: as much stack as a main thread has.
const STACK: usize = 8 << 20;

/// Gives a node to the queue; never waits. After the end the node is leaked, and counted.
///
/// # Safety
/// `node` is initialised and the caller's alone, who gives it away.
pub(super) unsafe fn enqueue(node: NonNull<Node>) {
    let entered = GATE.enter(|| {
        view::QUEUED.add();
        // SAFETY: by this function's contract.
        if unsafe { QUEUE.push(node) } {
            wake();
        }
    });
    if entered.is_none() {
        view::LEAKED.add();
    }
}

/// Tells the pending call and the reaper. Called inside the gate.
fn wake() {
    if gil::is_ending() {
        return;
    }
    if !CALLED.swap(true, Ordering::SeqCst) {
        // SAFETY: needs no GIL; the gate is open, so that the interpreter has not begun to end.
        if unsafe { ffi::Py_AddPendingCall(Some(on_pending_call), ptr::null_mut()) } != 0 {
            // Its 32 places are taken: the reaper will do it.
            CALLED.store(false, Ordering::SeqCst);
        }
    }
    // SAFETY: null, or a box that nobody takes before the gate is closed and we have left it.
    if let Some(reaper) = unsafe { REAPER.load(Ordering::Acquire).as_ref() } {
        reaper.thread().unpark();
    }
}

extern "C" fn on_pending_call(_: *mut std::ffi::c_void) -> std::ffi::c_int {
    // Before the queue is emptied: whoever pushes from now on finds it empty, and calls again.
    CALLED.store(false, Ordering::SeqCst);
    // A subinterpreter runs pending calls too; the reaper has been told, and knows the right one.
    if gil::is_held() {
        // SAFETY: this thread is attached, to our interpreter.
        drain(unsafe { Python::assume_attached() });
    }
    0
}

/// Releases everything that waits. The caller is attached to our interpreter.
fn drain(_py: Python<'_>) {
    thread_exit::guard();
    for node in QUEUE.take() {
        view::DRAINED.add();
        // SAFETY: the node came out of the queue and is ours; `_py` proves that the GIL is held.
        unsafe { Node::end(node) };
    }
}

/// Attached once, and let go of the GIL where there is nothing to do: to attach makes a thread state, under a
/// lock that a child finds taken for ever if it is forked meanwhile (CPython before 3.12).
fn reap() {
    signals::block();
    if wait() {
        let mut context = a_context();
        Python::try_attach(|py| {
            drain(py);
            while py.detach(|| {
                drop(context.take());
                let is_more = wait();
                context = is_more.then(a_context).flatten();
                is_more
            }) {
                drain(py);
            }
        });
    }
}

/// A context for the finalisers that this thread runs: those that call the driver themselves (Numba's) expect
/// one to be current, as it is on the threads that use arrays. None where the process has none yet.
fn a_context() -> Option<ContextGuard<'static>> {
    ContextGuard::of_any_device(driver::in_use()?)
        .ok()
        .flatten()
}

/// Sleeps until something waits, or (false) until the gate is closed.
fn wait() -> bool {
    while !GATE.is_closed() {
        // Also where the interpreter ends and has not told us: CPython then stops whoever wants its GIL, for
        // ever (`killed`).
        if !QUEUE.is_empty() {
            return true;
        }
        std::thread::park();
    }
    false
}

/// Prepares everything for the first owner that wants the GIL; one load afterwards.
///
/// Not done at import, so that a program that imports and forks finds no thread; and not left to an
/// initialisation function, which the author of an extension crate could forget.
///
/// # Errors
/// What `atexit.register` raises.
#[inline]
pub(super) fn ensure_installed(py: Python<'_>) -> PyResult<()> {
    if INSTALLED.load(Ordering::Acquire) {
        Ok(())
    } else {
        install(py)
    }
}

#[cold]
fn install(py: Python<'_>) -> PyResult<()> {
    fork::watch();
    gil::learn(py);
    let close = pyo3::wrap_pyfunction!(close, py)?;
    py.import("atexit")?.call_method1("register", (close,))?;
    // Another thread may have come as far while `atexit` ran: it will be done in a moment, and nothing
    // of ours waits for it. No lock: a child that is forked meanwhile would find it taken for ever.
    if !INSTALLING.swap(true, Ordering::AcqRel) {
        watch_children();
        start_reaper();
        INSTALLED.store(true, Ordering::Release);
        INSTALLING.store(false, Ordering::Release);
    }
    Ok(())
}

/// Where no thread can be had, the pending call is left; nothing fails.
fn start_reaper() {
    GATE.enter(|| {
        if !REAPER.load(Ordering::Acquire).is_null() {
            return;
        }
        let builder = std::thread::Builder::new()
            .name("cai-dlpack".into())
            .stack_size(STACK);
        if let Ok(handle) = builder.spawn(reap) {
            let thread = handle.thread().clone();
            REAPER.store(Box::into_raw(Box::new(handle)), Ordering::Release);
            // For what was pushed before there was anybody to wake.
            thread.unpark();
        }
    });
}

/// Releases what waits and stops the reaper: the function that `atexit` calls.
#[pyfunction]
#[pyo3(name = "_close")]
fn close(py: Python<'_>) {
    // Without the GIL: the reaper may be waiting for it.
    py.detach(|| {
        GATE.close();
        let reaper = REAPER.swap(ptr::null_mut(), Ordering::AcqRel);
        if !reaper.is_null() {
            // SAFETY: made by `start_reaper`; the gate is closed, so that nobody looks at it any more.
            let reaper = unsafe { Box::from_raw(reaper) };
            reaper.thread().unpark();
            // It cannot have panicked: what it runs does not unwind.
            let _ = reaper.join();
        }
    });
    drain(py);
}

fn watch_children() {
    static WATCHED: AtomicBool = AtomicBool::new(false);
    if !WATCHED.swap(true, Ordering::Relaxed) {
        // SAFETY: `start_afresh` does what is allowed there.
        unsafe { fork::in_child(start_afresh) };
    }
}

/// In a forked child, which has one thread: what the parent's other threads were at will not go on.
/// Atomic operations and reads of memory only.
extern "C" fn start_afresh() {
    for _ in QUEUE.take() {
        view::LEAKED.add();
    }
    view::DRAINED.catch_up(&view::QUEUED);
    GATE.forget_who_is_inside();
    CALLED.store(false, Ordering::Relaxed);
    // The handle of a thread that is not here; leaked.
    REAPER.store(ptr::null_mut(), Ordering::Relaxed);
    INSTALLING.store(false, Ordering::Relaxed);
    INSTALLED.store(false, Ordering::Relaxed);
}
