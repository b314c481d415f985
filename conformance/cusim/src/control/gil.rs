//! The assertion that Python's GIL is not held: a call that enqueues, creates, destroys or waits
//! may block on the driver, whose host functions may want the GIL.
//!
//! Python is looked up at run time among the loaded libraries; without one nothing is held.

use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError};

use crate::entry::Class;

static WATCHING: AtomicBool = AtomicBool::new(false);
/// Functions to watch besides (or instead of) the classes; by name without suffix.
static VIOLATIONS: Mutex<Vec<&'static str>> = Mutex::new(Vec::new());
static NAMES: Mutex<Vec<String>> = Mutex::new(Vec::new());

type ThreadState = extern "C" fn() -> usize;

/// The two questions that tell whether this thread holds the GIL.
struct Python {
    /// The thread state that is running now: of this thread from 3.12 on, of the whole
    /// interpreter before.
    current: ThreadState,
    /// The thread state that belongs to this thread.
    own: ThreadState,
    current_is_own: bool,
}

static PYTHON: LazyLock<Option<Python>> = LazyLock::new(find_python);

fn symbol(name: &CStr) -> Option<usize> {
    // SAFETY: a NUL-terminated name and the pseudo-handle that means "all loaded libraries".
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!address.is_null()).then(|| address.expose_provenance())
}

fn function(name: &CStr) -> Option<ThreadState> {
    let address = std::ptr::with_exposed_provenance::<()>(symbol(name)?);
    // SAFETY: the names passed here are functions of CPython's C API without arguments that
    // return a pointer (PyGILState_GetThisThreadState, *_GetUnchecked, *_UncheckedGet).
    Some(unsafe { std::mem::transmute::<*const (), ThreadState>(address) })
}

fn find_python() -> Option<Python> {
    let own = function(c"PyGILState_GetThisThreadState")?;
    // 3.13 has the public name; `_PyThreadState_UncheckedGet` serves the versions before.
    let recent = function(c"PyThreadState_GetUnchecked");
    let current = recent.or_else(|| function(c"_PyThreadState_UncheckedGet"))?;
    // 3.12 made the current thread state thread-local; it also brought PyType_FromMetaclass.
    let current_is_own = symbol(c"PyType_FromMetaclass").is_some();
    Some(Python {
        current,
        own,
        current_is_own,
    })
}

/// Whether the calling thread holds the GIL (on free-threaded builds: is attached).
pub(crate) fn is_held() -> bool {
    let Some(python) = PYTHON.as_ref() else {
        return false;
    };
    let current = (python.current)();
    current != 0 && (python.current_is_own || current == (python.own)())
}

/// Watches calls that enqueue, create, destroy or wait; with `names`, only those functions.
pub(crate) fn watch(on: bool, names: Vec<String>) {
    *NAMES.lock().unwrap_or_else(PoisonError::into_inner) = names;
    VIOLATIONS
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clear();
    WATCHING.store(on, Ordering::Release);
}

/// The calls that were made with the GIL held, in order.
pub(crate) fn violations() -> Vec<&'static str> {
    VIOLATIONS
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone()
}

/// At the door: notes a call that is watched and made with the GIL held.
pub(crate) fn check(symbol: &'static str, class: Class) {
    if WATCHING.load(Ordering::Acquire) && is_watched(symbol, class) && is_held() {
        VIOLATIONS
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(symbol);
    }
}

fn is_watched(symbol: &str, class: Class) -> bool {
    let names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    if names.is_empty() {
        return matches!(
            class,
            Class::Create | Class::Destroy | Class::Enqueue | Class::Wait
        );
    }
    names.iter().any(|name| {
        symbol
            .strip_prefix(name.as_str())
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
    })
}
