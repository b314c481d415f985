//! Whether this thread really holds the GIL of the interpreter that we serve.
//!
//! `PyGILState_Check` is not to be trusted: it answers 1 for every thread once a subinterpreter has
//! existed, and after the interpreter's end. So the interpreter is asked for the thread state that is
//! current, which is one load and needs neither the GIL nor a living interpreter:
//!
//! | | what `current` answers for | held where |
//! |---|---|---|
//! | 3.10, 3.11 | the process: the thread state that holds the GIL | it is this thread's own |
//! | 3.12 and later | this thread: its thread state while it is attached | it is there |
//!
//! and in both cases it must belong to our interpreter.

use std::sync::atomic::{AtomicPtr, Ordering};

use once_cell::race::OnceBox;
use pyo3::ffi;
use pyo3::prelude::*;

type Current = unsafe extern "C" fn() -> *mut ffi::PyThreadState;
type IsFinalizing = unsafe extern "C" fn() -> std::ffi::c_int;

struct Interpreter {
    current: Current,
    /// Before 3.12 `current` answers for the process, not for this thread.
    per_process: bool,
    main: AtomicPtr<ffi::PyInterpreterState>,
}

static INTERPRETER: OnceBox<Interpreter> = OnceBox::new();

/// Learns which interpreter is ours: the caller's. Before that nobody holds its GIL.
pub(crate) fn learn(py: Python<'_>) {
    INTERPRETER.get_or_init(|| {
        Box::new(Interpreter {
            current: find_current().unwrap_or(nobody),
            per_process: py.version_info() < (3, 12),
            // SAFETY: the GIL is held.
            main: AtomicPtr::new(unsafe { ffi::PyInterpreterState_Get() }),
        })
    });
}

/// Whether this very thread holds the GIL (is attached) now.
#[inline]
pub(crate) fn is_held() -> bool {
    INTERPRETER.get().is_some_and(Interpreter::is_held)
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

/// Whether the interpreter has begun to end: after `atexit`'s functions, and before every other thread
/// that wants the GIL is killed. Best effort for who is not such a thread: there is a moment between this
/// answer and its use.
pub(super) fn is_ending() -> bool {
    static IS_FINALIZING: OnceBox<Option<IsFinalizing>> = OnceBox::new();
    // SAFETY: may be called at any time.
    if unsafe { ffi::Py_IsInitialized() } == 0 {
        return true;
    }
    let is_finalizing = IS_FINALIZING.get_or_init(|| Box::new(find_is_finalizing()));
    // SAFETY: may be called at any time; it reads one value.
    is_finalizing.is_some_and(|ask| unsafe { ask() } != 0)
}

extern "C" fn nobody() -> *mut ffi::PyThreadState {
    std::ptr::null_mut()
}

/// `PyThreadState_GetUnchecked`, or its older, private name: the stable ABI has neither. `None` where
/// there is no such function, or (Windows) no such search: then nobody ever holds the GIL, as far as we
/// can say, and everything goes through the queue: right, and later.
fn find_current() -> Option<Current> {
    let address = find(&[
        c"PyThreadState_GetUnchecked",
        c"_PyThreadState_UncheckedGet",
    ])?;
    // SAFETY: both names have had this signature since they exist (3.5).
    Some(unsafe { std::mem::transmute::<*mut std::ffi::c_void, Current>(address) })
}

fn find_is_finalizing() -> Option<IsFinalizing> {
    let address = find(&[c"Py_IsFinalizing", c"_Py_IsFinalizing"])?;
    // SAFETY: both names have had this signature since they exist (3.7).
    Some(unsafe { std::mem::transmute::<*mut std::ffi::c_void, IsFinalizing>(address) })
}

/// The address of the first of these functions that the process has.
pub(super) fn find(names: &[&std::ffi::CStr]) -> Option<*mut std::ffi::c_void> {
    #[cfg(unix)]
    return names.iter().find_map(|name| {
        // SAFETY: the name is a C string; the search is over what the process has loaded.
        let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        (!address.is_null()).then_some(address)
    });
    #[cfg(not(unix))]
    {
        let _ = names;
        None
    }
}
