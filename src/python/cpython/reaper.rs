//! Queues releases that need the GIL; a pending call and a reaper thread empty the queue.
//!
//! ```text
//!   enqueue --push--> queue --+--> pending call on the main thread --> ended with the GIL
//!                             +--> reaper thread (waits for the GIL) -> ended with the GIL
//! ```
//! A deleter never waits: a push is a few atomic operations, and one wake-up if the queue was empty. The pending call
//! is faster, but runs only when the main thread runs byte code; the reaper also runs while the main thread is in a C
//! call. They do not run at the same time. Only the reaper waits for the GIL. Once a driver is in use the reaper is the
//! only one: a finaliser that frees memory breaks a capture of the thread that it runs on, whose mode only a call of the driver could change.
//!
//! **At the end** a function of `atexit` closes the gate, stops the reaper and empties the queue. Later deletions
//! without the GIL are leaked and counted: there is no interpreter left. With the GIL releases go on as long as the
//! interpreter runs.
//!
//! **A forked child** has no reaper and drops its parent's queue; its first owner installs everything anew.

use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use pyo3::ffi;
use pyo3::prelude::*;

use crate::driver::{ContextGuard, OwnThread};
use crate::process::{fork, signals};
use crate::python::cpython::{gil, thread_exit, tracing};
use crate::view::{Gate, Node, Queue};
use crate::{driver, view};

static QUEUE: Queue = Queue::new();
static GATE: Gate = Gate::new();
/// Whether one of the two empties the queue now. The other leaves what has come since to it: what was let go of first has
/// ended before what came after it begins to.
static DRAINING: AtomicBool = AtomicBool::new(false);
/// Whether a pending call is scheduled.
static CALLED: AtomicBool = AtomicBool::new(false);
/// The reaper; null before the first owner and after the end. Read inside the gate only, so that it may be taken once
/// the gate is closed.
static REAPER: AtomicPtr<JoinHandle<()>> = AtomicPtr::new(ptr::null_mut());
static INSTALLED: AtomicBool = AtomicBool::new(false);
static INSTALLING: AtomicBool = AtomicBool::new(false);

/// The stack of the reaper, which runs finalisers of any Python code: that of a main thread.
const STACK: usize = 8 << 20;
/// Until the reaper tries again, if there was no memory for its thread state.
const PAUSE: Duration = Duration::from_millis(10);

/// Pushes a node on the queue, without waiting. After the end the node is leaked and counted.
///
/// # Safety
/// `node` is initialised, and the caller gives up its sole ownership.
pub(super) unsafe fn enqueue(node: NonNull<Node>) {
    let entered = GATE.enter(|| {
        view::QUEUED.add();
        // SAFETY: initialised, and solely owned until now (this function's contract).
        if unsafe { QUEUE.push(node) } {
            wake();
        }
    });
    if entered.is_none() {
        view::LEAKED.add();
    }
}

/// Schedules the pending call, if no driver is in use, and wakes the reaper. Called inside the gate.
fn wake() {
    if gil::is_ending() {
        return;
    }
    if may_call() && !CALLED.swap(true, Ordering::SeqCst) {
        // SAFETY: needs no GIL, but an interpreter: it has not begun to end while the gate is open.
        if unsafe { ffi::Py_AddPendingCall(Some(on_pending_call), ptr::null_mut()) } != 0 {
            // CPython's 32 places are taken: the reaper empties the queue.
            CALLED.store(false, Ordering::SeqCst);
        }
    }
    wake_reaper();
}

/// Called inside the gate.
fn wake_reaper() {
    // SAFETY: null, or a box that is freed only after the gate is closed and every thread has left it.
    if let Some(reaper) = unsafe { REAPER.load(Ordering::Acquire).as_ref() } {
        reaper.thread().unpark();
    }
}

/// Whether the main thread may end owners between two instructions. Their end may free memory of a device, which would
/// break a capture that this thread is making: once a driver is in use the reaper alone ends them, if there is one.
fn may_call() -> bool {
    driver::in_use().is_none() || REAPER.load(Ordering::Relaxed).is_null()
}

extern "C" fn on_pending_call(_: *mut std::ffi::c_void) -> std::ffi::c_int {
    // Before the queue is emptied: a later push schedules the next call.
    CALLED.store(false, Ordering::SeqCst);
    // A subinterpreter runs pending calls too; then the reaper empties the queue, as it does if a driver has come
    // meanwhile.
    if gil::is_held() && may_call() {
        // SAFETY: this thread is attached (`is_held`).
        drain_in_turn(unsafe { Python::assume_attached() }, may_call);
        // For what came meanwhile, which the reaper has left to this call. Not only if the queue holds something: no order says that
        // this thread sees it.
        GATE.enter(wake_reaper);
    }
    0
}

/// Releases what is in the queue, as long as `may` says so before each: what ends may wait, while another thread brings a
/// driver. The reaper gets the rest. Does nothing while another thread is at it.
///
/// The caller is attached to the interpreter that loaded the library.
fn drain_in_turn(py: Python<'_>, may: impl Fn() -> bool) {
    if !DRAINING.swap(true, Ordering::SeqCst) {
        drain(py, may);
        DRAINING.store(false, Ordering::SeqCst);
    }
}

/// Like [`drain_in_turn`], also while another thread is at it.
fn drain(_py: Python<'_>, may: impl Fn() -> bool) {
    thread_exit::guard();
    let born = fork::generation();
    let mut taken = QUEUE.take();
    while let Some(node) = taken.next() {
        if !may() {
            let entered = GATE.enter(|| {
                // SAFETY: `take` gave up its ownership, and nothing has been done with it.
                unsafe { QUEUE.put_back(node, &mut taken) };
                wake();
            });
            if entered.is_none() {
                std::iter::once(node)
                    .chain(taken)
                    .for_each(|_| view::LEAKED.add());
            }
            return;
        }
        // SAFETY: a node of the queue is initialised, and `take` gives up its ownership; the GIL is held (`_py`).
        let end = || unsafe { Node::end(node) };
        // A finaliser that finds no memory would wait for its own end.
        view::keep::ending(end);
        // A thread that waits for memory counts on its being back by then. In a child that a finaliser has forked nothing is
        // pending any more.
        if fork::generation() == born {
            view::DRAINED.add();
        }
    }
}

/// The reaper's loop. Attaches once, and detaches while the queue is empty: attaching makes a thread state under a
/// lock, which a child that is forked meanwhile finds locked for ever (CPython before 3.12).
fn reap() {
    signals::block();
    let born = fork::generation();
    let mut own = OwnThread::default();
    while wait(born) {
        let mut round = Round::begin(&mut own);
        let ended = gil::attached_first(|py| {
            drain_in_turn(py, || round.is_ready());
            while py.detach(|| {
                drop(round.context.take());
                let is_more = wait(born);
                if is_more {
                    round = Round::begin(&mut own);
                }
                is_more
            }) {
                drain_in_turn(py, || round.is_ready());
            }
        });
        if ended.is_some() || gil::is_ending() {
            return;
        }
        // No memory: the pending call alone empties the queue meanwhile.
        drop(round);
        std::thread::park_timeout(PAUSE);
    }
}

/// The state of the reaper's thread for the finalisers that it runs in one go. It is prepared without the GIL.
struct Round {
    /// Whether a driver was in use, which was asked for RELAXED mode then.
    has_driver: bool,
    /// Is current for those that call the driver (Numba's) and expect one, as on the threads that use arrays. `None` if the
    /// process has no context yet.
    context: Option<ContextGuard<'static>>,
}

impl Round {
    fn begin(own: &mut OwnThread) -> Self {
        let driver = driver::in_use();
        let context = driver.and_then(|driver| {
            own.relax(driver);
            ContextGuard::of_any_device(driver).ok().flatten()
        });
        Self {
            has_driver: driver.is_some(),
            context,
        }
    }

    /// Whether no driver has come since, for which the next round prepares the thread.
    fn is_ready(&self) -> bool {
        self.has_driver || driver::in_use().is_none()
    }
}

/// Sleeps until the queue holds something that no pending call is at; returns false once the gate is closed, and in a child that a
/// finaliser has forked here, whose only thread this is.
fn wait(born: u32) -> bool {
    while !GATE.is_closed() && fork::generation() == born {
        // Also if the interpreter ends without closing the gate: CPython then stops this thread for ever when it
        // attaches (`thread_exit`).
        if !QUEUE.is_empty() && !DRAINING.load(Ordering::SeqCst) {
            return true;
        }
        std::thread::park();
    }
    false
}

/// Installs the fork handlers, the function of `atexit` and the reaper with the first owner; one load afterwards.
///
/// Not at import, so that a program that imports and then forks has no extra thread; and not in an initialisation
/// function, which an extension crate could forget to call.
///
/// # Errors
/// The exception of `atexit.register`.
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
    gil::learn(py)?;
    if GATE.is_closed() {
        // This interpreter is at its end: what is let go of with the GIL ends at once, and nothing else does.
        return Ok(());
    }
    let close = pyo3::wrap_pyfunction!(close, py)?;
    py.import("atexit")?.call_method1("register", (close,))?;
    // Another thread may install at the same time; nothing waits for it. A lock would be locked for ever in a child
    // that is forked meanwhile.
    if !INSTALLING.swap(true, Ordering::AcqRel) {
        watch_children();
        start_reaper();
        INSTALLED.store(true, Ordering::Release);
        INSTALLING.store(false, Ordering::Release);
    }
    Ok(())
}

/// Starts the reaper. If no thread can be started the pending call alone empties the queue.
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
            // For nodes that were pushed before the handle was stored.
            thread.unpark();
        }
    });
}

/// Closes the gate, stops the reaper and empties the queue; called by `atexit`.
#[pyfunction]
#[pyo3(name = "_close")]
fn close(py: Python<'_>) {
    // Without the GIL: the reaper may be waiting for it.
    py.detach(|| {
        GATE.close();
        let reaper = REAPER.swap(ptr::null_mut(), Ordering::AcqRel);
        if !reaper.is_null() {
            // SAFETY: a box of `start_reaper`, which `swap` has taken; the gate is closed and left, so that no
            // reference to it is left.
            let reaper = unsafe { Box::from_raw(reaper) };
            reaper.thread().unpark();
            // It cannot have panicked: what it runs does not unwind.
            let _ = reaper.join();
        }
    });
    // A next interpreter is refused by the first owner that it makes.
    INSTALLED.store(false, Ordering::Release);
    drain(py, || true);
    tracing::flush(py);
}

fn watch_children() {
    static WATCHED: AtomicBool = AtomicBool::new(false);
    if !WATCHED.swap(true, Ordering::Relaxed) {
        // SAFETY: `reset_in_child` uses atomics only, neither locks nor allocations.
        unsafe { fork::in_child(reset_in_child) };
    }
}

/// Resets the state in a forked child, which has one thread: the parent's other threads do not go on. Atomic
/// operations and reads of memory only.
extern "C" fn reset_in_child() {
    for _ in QUEUE.take() {
        view::LEAKED.add();
    }
    view::DRAINED.catch_up(&view::QUEUED);
    GATE.forget_who_is_inside();
    CALLED.store(false, Ordering::Relaxed);
    DRAINING.store(false, Ordering::Relaxed);
    // The handle of a thread that the child does not have; leaked.
    REAPER.store(ptr::null_mut(), Ordering::Relaxed);
    INSTALLING.store(false, Ordering::Relaxed);
    INSTALLED.store(false, Ordering::Relaxed);
}
