//! The GIL watch: notes calls made with Python's GIL held. A call that enqueues, creates, destroys
//! or waits may block on the driver, whose host functions may want the GIL.
//! Without Python in the process no call is noted.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::entry::symbol::{Class, is_variant};
use crate::process::python::holds_gil;

static WATCHING: AtomicBool = AtomicBool::new(false);
static VIOLATIONS: Mutex<Vec<&'static str>> = Mutex::new(Vec::new());
/// Functions to watch instead of the classes, if there are any; by name without suffix, `*` for all.
static NAMES: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Watches calls that enqueue, create, destroy or wait; with `names`, only those functions, or all by `*`.
pub(crate) fn watch(on: bool, names: Vec<String>) {
    *NAMES.lock().unwrap_or_else(PoisonError::into_inner) = names;
    VIOLATIONS
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clear();
    WATCHING.store(on, Ordering::Release);
}

/// Returns the watched calls that were made with the GIL held, in order.
pub(crate) fn violations() -> Vec<&'static str> {
    VIOLATIONS
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone()
}

/// Notes a call that is watched and made with the GIL held.
pub(crate) fn check(symbol: &'static str, class: Class) {
    if WATCHING.load(Ordering::Acquire) && is_watched(symbol, class) && holds_gil() {
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
    names
        .iter()
        .any(|name| name == "*" || is_variant(symbol, name))
}
