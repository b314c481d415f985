//! Detects whether this thread holds the GIL of the interpreter that loaded the library.
//!
//! `PyGILState_Check` does not tell: it returns 1 on every thread once a subinterpreter has existed, and after the
//! interpreter's end. `PyThreadState_GetUnchecked` is one load, and needs neither the GIL nor a living interpreter:
//!
//! | | it returns | the GIL is held if |
//! |---|---|---|
//! | 3.10, 3.11 | the thread state that holds the GIL, of any thread | it is this thread's own |
//! | 3.12 and later | the thread state of this thread, while it is attached | it is not NULL |
//!
//! In both cases it must belong to the interpreter that loaded the library.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, Ordering};

use once_cell::race::OnceBox;
use pyo3::exceptions::{PyImportError, PyMemoryError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::python::cpython::counted::counted;
use crate::python::cpython::{source, tracing};
use crate::view;

type Current = unsafe extern "C" fn() -> *mut ffi::PyThreadState;
type IsFinalizing = unsafe extern "C" fn() -> std::ffi::c_int;
type Make = unsafe extern "C" fn(*mut ffi::PyInterpreterState) -> *mut ffi::PyThreadState;
type Bind = unsafe extern "C" fn(*mut ffi::PyThreadState);

struct Interpreter {
    current: Current,
    /// Whether `current` returns the thread state of the process, not of this thread (before 3.12).
    per_process: bool,
    main: AtomicPtr<ffi::PyInterpreterState>,
}

static INTERPRETER: OnceBox<Interpreter> = OnceBox::new();

/// Whether one thread holds it at a time. The library refuses every interpreter but the main one.
pub(crate) const IS_EXCLUSIVE: bool = !cfg!(Py_GIL_DISABLED);

/// Records the caller's interpreter. Before the first call [`is_held`] is false.
///
/// # Errors
/// `ImportError` in another interpreter than the first, which a program that embeds Python has ended: what is let go of without
/// the GIL would never end in that one. Out of memory.
pub(crate) fn learn(py: Python<'_>) -> PyResult<()> {
    // SAFETY: this thread is attached (`py`).
    let main = unsafe { ffi::PyInterpreterState_Get() };
    // SAFETY: a living interpreter: this thread's.
    let own = unsafe { ffi::PyInterpreterState_GetDict(main) };
    // SAFETY: NULL, or a dict that lives as long as the interpreter.
    let own = unsafe { Bound::from_borrowed_ptr_or_opt(py, own) };
    let own = own.ok_or_else(|| PyMemoryError::new_err(()))?;
    // The next interpreter may be at the address of the first. Each copy of this library has a static of its own.
    let mark = format!("cai_dlpack, the library of {:p}", &INTERPRETER);
    INTERPRETER.get_or_try_init(|| {
        own.set_item(&mark, true)?;
        Ok::<_, PyErr>(Box::new(Interpreter {
            current: find_current().unwrap_or(no_thread_state),
            per_process: py.version_info() < (3, 12),
            main: AtomicPtr::new(main),
        }))
    })?;
    if own.contains(mark)? {
        return Ok(());
    }
    Err(PyImportError::new_err(
        "cai_dlpack serves the interpreter that imported it first, which has ended: a process can import it in one \
         interpreter only",
    ))
}

/// Whether this thread holds the GIL (is attached).
#[inline]
pub(crate) fn is_held() -> bool {
    INTERPRETER.get().is_some_and(Interpreter::is_held)
}

/// Releases the GIL around `body`, if this thread holds it.
pub(crate) fn detach(body: &mut (dyn FnMut() + Send)) {
    if is_held() {
        // SAFETY: this very thread holds the GIL of our interpreter.
        unsafe { Python::assume_attached() }.detach(body);
    } else {
        body();
    }
}

/// Has this thread run byte code for a moment, in which a free-threaded CPython ends the objects that this thread has made
/// and of which another one has dropped the last reference: they wait for that, also while this thread waits in C. Returns
/// false, and does nothing, under the GIL: there any thread ends any object.
pub(crate) fn end_own_objects() -> bool {
    cfg!(Py_GIL_DISABLED)
        && attached(|py| {
            // A finaliser that finds no memory would wait for its own end.
            let nothing = || source::eval(py, "None", &PyDict::new(py)).map(drop);
            view::keep::ending(|| tracing::reporting(py, nothing))
        })
        .is_some()
}

/// Runs `body` attached, on a thread that CPython has a state for; `None` on any other, and at the interpreter's end.
pub(crate) fn attached<T>(body: impl FnOnce(Python<'_>) -> T) -> Option<T> {
    // SAFETY: reads a thread-specific value; NULL before the start and after the end.
    let state = unsafe { ffi::PyGILState_GetThisThreadState() };
    (!state.is_null()).then(|| attach(body)).flatten()
}

/// Runs `body` attached; `None` if that cannot be any more, or must not be (while the collector visits objects).
///
/// Not by [`Python::try_attach`] alone: PyO3 takes a thread for attached while a call that it has counted is on the stack, of
/// which code of others may have let go of the GIL, and then called this library.
fn attach<T>(body: impl FnOnce(Python<'_>) -> T) -> Option<T> {
    if is_held() {
        return Python::try_attach(body);
    }
    if is_ending() {
        return None;
    }
    let _taken = Taken::take();
    Python::try_attach(body)
}

/// The GIL, taken by a thread that did not hold it; let go of after a panic, too.
struct Taken(ffi::PyGILState_STATE);

impl Taken {
    /// The interpreter is there, and is not [ending](is_ending).
    fn take() -> Self {
        // SAFETY: the interpreter is there, and may begin to end at any time: CPython then stops this thread for ever.
        Self(unsafe { ffi::PyGILState_Ensure() })
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        // SAFETY: what `take` has been told, on the same thread (a state is not `Send`), which has the GIL as it had it then.
        unsafe { ffi::PyGILState_Release(self.0) };
    }
}

/// Runs `body` attached, on a thread of ours that CPython has no state for; a state is made for it before, and freed after.
/// `None` if there is no memory for the state (`PyGILState_Ensure`, which makes one too, ends the process then), and if
/// the interpreter ends.
pub(super) fn attached_first<T>(body: impl FnOnce(Python<'_>) -> T) -> Option<T> {
    let state = new_thread_state()?;
    let result = Python::try_attach(body);
    if is_ending() {
        return result; // It ends the states of all threads.
    }
    // SAFETY: this thread's own state, which is not current: `try_attach` has left it as it was.
    unsafe { ffi::PyEval_RestoreThread(state.as_ptr()) };
    // Not `PyGILState_Release`, which ends what the thread has kept (`threading.local`) with the count at zero: before CPython
    // 3.12.4 a finaliser that takes and releases the GIL then frees the state a second time.
    // SAFETY: the state is current, and ends below.
    unsafe { ffi::PyThreadState_Clear(state.as_ptr()) };
    // SAFETY: the state is current.
    unsafe { ffi::PyEval_SaveThread() };
    // SAFETY: the state is cleared, not current, and this thread's alone.
    unsafe { ffi::PyThreadState_Delete(state.as_ptr()) };
    result
}

/// Makes a state of this thread, which is not attached by that; `None` if there is no memory.
fn new_thread_state() -> Option<NonNull<ffi::PyThreadState>> {
    let interpreter = INTERPRETER.get().filter(|_| !is_ending())?;
    let main = interpreter.main.load(Ordering::Relaxed);
    // CPython 3.11 alone binds what it has made without a look at whether that is NULL: there its two halves.
    if let Some(bind) = find(&[c"_PyThreadState_SetCurrent"]).filter(|_| interpreter.per_process) {
        let make = find(&[c"_PyThreadState_Prealloc"])?;
        // SAFETY: the function has had this signature since it exists (3.2).
        let make = unsafe { std::mem::transmute::<*mut std::ffi::c_void, Make>(make) };
        // SAFETY: the function has this signature, in the one version that has it (3.11).
        let bind = unsafe { std::mem::transmute::<*mut std::ffi::c_void, Bind>(bind) };
        // SAFETY: needs no GIL, but an interpreter: `is_ending` (above) says that it is there, and it does not end before the
        // function of `atexit` has joined this thread. If that was discarded, the end may begin in between: documented.
        let state = NonNull::new(unsafe { make(main) })?;
        // SAFETY: a state that was just made, not NULL, on the thread that is to have it.
        unsafe { bind(state.as_ptr()) };
        return Some(state);
    }
    // SAFETY: needs no GIL, but an interpreter: as above.
    NonNull::new(unsafe { ffi::PyThreadState_New(main) })
}

/// Runs `body` with the GIL, which this thread holds already, or takes.
///
/// # Panics
/// If the interpreter ends, and this thread does not hold the GIL: no one can take it any more.
#[cold]
pub(crate) fn with<R>(body: impl FnOnce(Python<'_>) -> R) -> R {
    if !is_held() {
        return attach(body).expect("the interpreter ends");
    }
    // SAFETY: this very thread holds the GIL of our interpreter.
    let py = unsafe { Python::assume_attached() };
    counted(py, || body(py))
}

impl Interpreter {
    #[inline]
    fn is_held(&self) -> bool {
        // SAFETY: reads one pointer; needs neither the GIL nor a living interpreter.
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

/// Whether the interpreter has begun to end: after the functions of `atexit`, and before every other thread that
/// waits for the GIL is killed. Best effort on any other thread: the end may begin right after the call.
pub(crate) fn is_ending() -> bool {
    static IS_FINALIZING: OnceBox<Option<IsFinalizing>> = OnceBox::new();
    // SAFETY: may be called at any time.
    if unsafe { ffi::Py_IsInitialized() } == 0 {
        return true;
    }
    let is_finalizing = IS_FINALIZING.get_or_init(|| Box::new(find_is_finalizing()));
    // SAFETY: may be called at any time; it reads one value.
    is_finalizing.is_some_and(|is_finalizing| unsafe { is_finalizing() } != 0)
}

extern "C" fn no_thread_state() -> *mut ffi::PyThreadState {
    std::ptr::null_mut()
}

/// Finds `PyThreadState_GetUnchecked` or its older, private name; the stable ABI has neither. `None` if there is no
/// such function, or no search (Windows): then [`is_held`] is always false, and every release is queued.
fn find_current() -> Option<Current> {
    let address = find(&[
        c"PyThreadState_GetUnchecked",
        c"_PyThreadState_UncheckedGet",
    ])?;
    // SAFETY: both functions have had this signature since they exist (3.5).
    Some(unsafe { std::mem::transmute::<*mut std::ffi::c_void, Current>(address) })
}

fn find_is_finalizing() -> Option<IsFinalizing> {
    let address = find(&[c"Py_IsFinalizing", c"_Py_IsFinalizing"])?;
    // SAFETY: both functions have had this signature since they exist (3.7).
    Some(unsafe { std::mem::transmute::<*mut std::ffi::c_void, IsFinalizing>(address) })
}

/// Returns the address of the first of these functions that the process has loaded.
pub(super) fn find(names: &[&std::ffi::CStr]) -> Option<*mut std::ffi::c_void> {
    #[cfg(unix)]
    return names.iter().find_map(|name| {
        // SAFETY: a C string, which lives during the call.
        let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        (!address.is_null()).then_some(address)
    });
    #[cfg(not(unix))]
    {
        let _ = names;
        None
    }
}
