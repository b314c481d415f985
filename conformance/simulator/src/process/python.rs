//! The Python interpreter of this process, if there is one: looked up at run time among the loaded
//! libraries, so that C and Rust programs need none.

use std::ffi::CStr;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};

type ThreadState = extern "C" fn() -> usize;
type Flag = extern "C" fn() -> i32;

struct Python {
    /// The thread state that is running now: of this thread from 3.12 on, of the whole
    /// interpreter before.
    current: ThreadState,
    /// The thread state that belongs to this thread.
    own: ThreadState,
    current_is_own: bool,
    is_initialised: Flag,
    is_finalizing: Flag,
}

static MET: AtomicBool = AtomicBool::new(false);
static PYTHON: LazyLock<Option<Python>> = LazyLock::new(find);

fn symbol(name: &CStr) -> Option<*const ()> {
    // SAFETY: a NUL-terminated name and the pseudo-handle that means "all loaded libraries".
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!address.is_null()).then_some(address.cast())
}

fn thread_state(name: &CStr) -> Option<ThreadState> {
    // SAFETY: the names passed here are functions of CPython's C API without arguments that
    // return a pointer (PyGILState_GetThisThreadState, *_GetUnchecked, *_UncheckedGet).
    Some(unsafe { std::mem::transmute::<*const (), ThreadState>(symbol(name)?) })
}

fn flag(name: &CStr) -> Option<Flag> {
    // SAFETY: the names passed here are functions of CPython's C API without arguments that
    // return an int (Py_IsInitialized, Py_IsFinalizing and its old name).
    Some(unsafe { std::mem::transmute::<*const (), Flag>(symbol(name)?) })
}

fn find() -> Option<Python> {
    // 3.13 has the public names; those with an underscore serve the versions before.
    let recent = thread_state(c"PyThreadState_GetUnchecked");
    Some(Python {
        current: recent.or_else(|| thread_state(c"_PyThreadState_UncheckedGet"))?,
        own: thread_state(c"PyGILState_GetThisThreadState")?,
        // 3.12 made the current thread state thread-local; it also brought PyType_FromMetaclass.
        current_is_own: symbol(c"PyType_FromMetaclass").is_some(),
        is_initialised: flag(c"Py_IsInitialized")?,
        is_finalizing: flag(c"Py_IsFinalizing").or_else(|| flag(c"_Py_IsFinalizing"))?,
    })
}

/// Returns whether the calling thread holds the GIL (on free-threaded builds: is attached).
pub(crate) fn holds_gil() -> bool {
    let Some(python) = PYTHON.as_ref() else {
        return false;
    };
    let current = (python.current)();
    current != 0 && (python.current_is_own || current == (python.own)())
}

/// Notes whether an interpreter runs.
pub(crate) fn meet() {
    let runs = PYTHON
        .as_ref()
        .is_some_and(|python| (python.is_initialised)() != 0);
    MET.store(runs, Ordering::Release);
}

/// Returns whether the interpreter that [`meet`] noted has ended, or is about to.
pub(crate) fn has_ended() -> bool {
    MET.load(Ordering::Acquire)
        && PYTHON
            .as_ref()
            .is_some_and(|python| (python.is_initialised)() == 0 || (python.is_finalizing)() != 0)
}
