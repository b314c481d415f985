//! Calls that may block, made without the interpreter's lock.
//!
//! A host callback may hold the driver's lock and want the GIL, so a thread that holds the GIL must
//! not enter the driver to order or to wait. This room knows no Python: the Python room says once how
//! to let go.

use std::sync::OnceLock;

/// Runs its argument once, with the lock let go where this thread holds it.
pub(crate) type Unlock = fn(&mut (dyn FnMut() + Send));

static UNLOCK: OnceLock<Unlock> = OnceLock::new();

/// Says how to let go of the interpreter's lock; the first one stays.
#[cfg(feature = "pyo3")]
pub(crate) fn set_unlock(unlock: Unlock) {
    UNLOCK.get_or_init(|| unlock);
}

/// Runs `body` with no interpreter's lock held by this thread.
pub(crate) fn unlocked<R: Send>(body: impl FnOnce() -> R + Send) -> R {
    let Some(unlock) = UNLOCK.get() else {
        return body();
    };
    let (mut body, mut result) = (Some(body), None);
    unlock(&mut || result = body.take().map(|body| body()));
    match result {
        Some(result) => result,
        None => unreachable!("an unlocker runs its argument"),
    }
}
