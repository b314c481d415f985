//! Python objects as owners: released at once where this thread holds the GIL, queued elsewhere.
//!
//! ```text
//!   deleter, GIL held ------------------------------> Py_DECREF
//!   deleter, anywhere else --push--> queue --+--> pending call on the main thread --> Py_DECREF
//!                                            +--> reaper thread (waits for the GIL) --> Py_DECREF
//! ```
//! A deleter never waits: a push is a few atomic operations, and one wake-up where the queue was
//! empty. The pending call is the quick way (the main thread runs byte code); the reaper is the sure
//! one (it sits in a C call). Only the reaper waits for the GIL.
//!
//! **The end.** An `atexit` function closes the gate, stops the reaper and empties the queue. What is
//! deleted without the GIL later is leaked on purpose and counted: there is no interpreter to give it
//! back to. With the GIL, releases go on as long as the interpreter runs anything at all.
//!
//! **Who holds the GIL** is asked of the interpreter's current thread state, not of
//! `PyGILState_Check`, which answers 1 once a subinterpreter has existed and after the end.
//! PyO3's own deferred drop is not used: it is emptied only by the next PyO3 call, if there is one.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread::{JoinHandle, Thread};

use pyo3::ffi;
use pyo3::prelude::*;

use crate::view::{self, Gate, Node, Queue, RawOwner, Vtable};

/// The vtable of owners whose payload is a strong reference to a Python object.
pub(crate) static PYTHON: Vtable = Vtable {
    release,
    release_node,
};

/// Takes a strong reference over as an owner's payload.
///
/// # Errors
/// The first call prepares the interpreter's end (`atexit`), which can fail; later ones cannot.
#[inline]
pub(crate) fn own(object: Bound<'_, PyAny>) -> PyResult<RawOwner> {
    ensure_installed(object.py())?;
    // SAFETY: a `Bound` is never null.
    let payload = unsafe { NonNull::new_unchecked(object.into_ptr()) };
    Ok(RawOwner::new(payload.cast(), &PYTHON))
}

static QUEUE: Queue = Queue::new();
static GATE: Gate = Gate::new();
/// A pending call is on its way.
static CALLED: AtomicBool = AtomicBool::new(false);
static INTERPRETER: OnceLock<Interpreter> = OnceLock::new();
static REAPER: Mutex<Option<JoinHandle<()>>> = Mutex::new(None);
static REAPER_THREAD: OnceLock<Thread> = OnceLock::new();

/// What tells whether this thread holds the GIL of the interpreter that imported us.
struct Interpreter {
    current: unsafe extern "C" fn() -> *mut ffi::PyThreadState,
    /// Before 3.12 `current` answers for the process, not for this thread.
    per_process: bool,
    main: AtomicPtr<ffi::PyInterpreterState>,
}

impl Interpreter {
    #[inline]
    fn is_held(&self) -> bool {
        // SAFETY: needs neither the GIL nor a living interpreter: it reads one pointer.
        let current = unsafe { (self.current)() };
        if current.is_null() {
            return false;
        }
        // SAFETY: reads a thread-specific value; NULL before the start and after the end.
        if self.per_process && unsafe { ffi::PyGILState_GetThisThreadState() } != current {
            return false;
        }
        // SAFETY: a thread state is current on this thread, which is what this call needs.
        let interpreter = unsafe { ffi::PyInterpreterState_Get() };
        interpreter == self.main.load(Ordering::Relaxed)
    }
}

/// Whether this very thread holds the GIL (is attached) now.
#[inline]
pub(crate) fn is_held() -> bool {
    INTERPRETER.get().is_some_and(Interpreter::is_held)
}

/// # Safety
/// `payload` is a strong reference, given up here.
unsafe fn release(payload: NonNull<()>) {
    if is_held() {
        // SAFETY: the GIL is held; the reference is ours to give up.
        return unsafe { decref(payload) };
    }
    let node = Box::new(Node::new(
        RawOwner {
            payload,
            vtable: &PYTHON,
        },
        free_box,
    ));
    // SAFETY: a fresh node, ours alone.
    unsafe { enqueue(NonNull::from(Box::leak(node))) };
}

/// # Safety
/// Of [`Vtable::release_node`]; the payload is a strong reference.
unsafe fn release_node(node: NonNull<Node>) {
    if is_held() {
        // SAFETY: the GIL is held; the node is ours.
        unsafe { finish(node) };
    } else {
        // SAFETY: the node is ours, and given to the queue.
        unsafe { enqueue(node) };
    }
}

/// # Safety
/// `node` was leaked from a box by [`release`], and is not used any more.
unsafe fn free_box(node: NonNull<Node>) {
    // SAFETY: as above; a node has nothing to drop but its memory.
    drop(unsafe { Box::from_raw(node.as_ptr()) });
}

/// Gives up a reference without disturbing an exception that is on its way.
///
/// # Safety
/// The GIL is held, and `payload` is a strong reference that is ours.
unsafe fn decref(payload: NonNull<()>) {
    // Counted first: what follows can run any Python code, and that may look at the counters.
    view::RELEASED.add();
    let object = payload.cast::<ffi::PyObject>().as_ptr();
    // SAFETY: the GIL is held.
    if unsafe { ffi::PyErr_Occurred() }.is_null() {
        // SAFETY: the GIL is held and the reference is ours.
        unsafe { ffi::Py_DECREF(object) };
        return;
    }
    // SAFETY: the GIL is held.
    let py = unsafe { Python::assume_attached() };
    let pending = PyErr::take(py);
    // SAFETY: the GIL is held and the reference is ours.
    unsafe { ffi::Py_DECREF(object) };
    if let Some(error) = pending {
        error.restore(py);
    }
}

/// # Safety
/// The GIL is held and `node` is ours; its payload is a strong reference.
unsafe fn finish(node: NonNull<Node>) {
    // SAFETY: initialised and ours.
    let payload = unsafe { node.as_ref() }.owner.payload;
    // SAFETY: the GIL is held; the node held this reference.
    unsafe { decref(payload) };
    // SAFETY: the payload is gone and the node is ours.
    unsafe { Node::free(node) };
}

/// # Safety
/// `node` is ours, and given away.
unsafe fn enqueue(node: NonNull<Node>) {
    let entered = GATE.enter(|| {
        view::QUEUED.add();
        // SAFETY: initialised, and given to the queue here.
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
    if !CALLED.swap(true, Ordering::AcqRel) {
        // SAFETY: needs no GIL; the gate is open, so that the interpreter has not begun to end.
        if unsafe { ffi::Py_AddPendingCall(Some(on_pending_call), std::ptr::null_mut()) } != 0 {
            // Its 32 places are taken: the reaper will do it.
            CALLED.store(false, Ordering::Release);
        }
    }
    if let Some(thread) = REAPER_THREAD.get() {
        thread.unpark();
    }
}

extern "C" fn on_pending_call(_: *mut std::ffi::c_void) -> std::ffi::c_int {
    CALLED.store(false, Ordering::Release);
    // SAFETY: the interpreter runs pending calls with the GIL.
    drain(unsafe { Python::assume_attached() });
    0
}

/// Releases everything that waits.
pub(crate) fn drain(_py: Python<'_>) {
    for node in QUEUE.take() {
        view::DRAINED.add();
        // SAFETY: the node came out of the queue and is ours. With the GIL, which `_py` proves, this
        // releases it at once; in a forked child it leaks what the parent had queued.
        unsafe { Node::release(node) };
    }
}

fn reap() {
    while !GATE.is_closed() {
        if QUEUE.is_empty() {
            std::thread::park();
        } else {
            Python::attach(drain);
        }
    }
}

/// The end of the queue; the function that `atexit` calls.
pub(crate) fn close(py: Python<'_>) {
    py.detach(|| {
        GATE.close();
        if let Some(thread) = REAPER_THREAD.get() {
            thread.unpark();
        }
        let reaper = REAPER.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(reaper) = reaper {
            // It cannot have panicked: `drain` runs no code that unwinds.
            let _ = reaper.join();
        }
    });
    drain(py);
}

/// Prepares everything for the first Python owner; cheap afterwards.
///
/// Not done at import, so that a program that imports and forks finds no thread; and not left to an
/// initialisation function, which the author of an extension crate could forget.
#[inline]
fn ensure_installed(py: Python<'_>) -> PyResult<()> {
    if INTERPRETER.get().is_some() {
        Ok(())
    } else {
        install(py)
    }
}

#[cold]
fn install(py: Python<'_>) -> PyResult<()> {
    view::watch_forks();
    let current = current_thread_state().ok_or_else(|| {
        pyo3::exceptions::PyImportError::new_err(
            "this interpreter has no PyThreadState_GetUnchecked",
        )
    })?;
    let close = pyo3::wrap_pyfunction!(close_at_exit, py)?;
    py.import("atexit")?.call_method1("register", (close,))?;
    let mut reaper = REAPER.lock().unwrap_or_else(PoisonError::into_inner);
    if INTERPRETER.get().is_none() {
        // Where no thread can be had, the pending call is left; nothing fails.
        if let Ok(handle) = std::thread::Builder::new()
            .name("cai-dlpack-reaper".into())
            .spawn(reap)
        {
            let _ = REAPER_THREAD.set(handle.thread().clone());
            *reaper = Some(handle);
        }
        INTERPRETER.get_or_init(|| Interpreter {
            current,
            per_process: py.version_info() < (3, 12),
            // SAFETY: the GIL is held.
            main: AtomicPtr::new(unsafe { ffi::PyInterpreterState_Get() }),
        });
    }
    Ok(())
}

/// Releases what waits and stops the reaper; `atexit` calls it.
#[pyfunction]
#[pyo3(name = "_close")]
fn close_at_exit(py: Python<'_>) {
    close(py);
}

/// `PyThreadState_GetUnchecked`, or its older, private name. Looked up since the stable ABI has neither.
#[cfg(unix)]
fn current_thread_state() -> Option<unsafe extern "C" fn() -> *mut ffi::PyThreadState> {
    [
        c"PyThreadState_GetUnchecked",
        c"_PyThreadState_UncheckedGet",
    ]
    .iter()
    .find_map(|name| {
        // SAFETY: the name is a C string; the search is over what the process has loaded.
        let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        // SAFETY: both names have had this signature since they exist (3.5), and NULL becomes `None`.
        unsafe {
            std::mem::transmute::<
                *mut libc::c_void,
                Option<unsafe extern "C" fn() -> *mut ffi::PyThreadState>,
            >(address)
        }
    })
}

/// Never held, as far as we can say: everything goes to the queue, which is right and slower.
#[cfg(not(unix))]
fn current_thread_state() -> Option<unsafe extern "C" fn() -> *mut ffi::PyThreadState> {
    extern "C" fn nobody() -> *mut ffi::PyThreadState {
        std::ptr::null_mut()
    }
    Some(nobody)
}
