//! Driver calls, made without the interpreter's lock.
//!
//! Any call may wait for a lock of the driver, which a `cuMemFree` may hold until the device is done; a host function
//! that the device waits for may want the GIL. So a thread that holds the GIL does not enter the driver, not even to
//! ask about a pointer. Nothing here names Python: its side registers once how to let go.
//!
//! The driver is loaded before the lock is released, not within: a thread of Python's must not fork while another one
//! is in the loader or in `cuInit`, whose half-made state the child would have. `cuInit` waits for no host function.

use std::sync::OnceLock;

use crate::driver::{Defaults, Driver, DriverError, driver, twice};

/// Runs its argument once, with the interpreter's lock released if this thread holds it.
pub(crate) type Detach = fn(&mut (dyn FnMut() + Send));

static DETACH: OnceLock<Detach> = OnceLock::new();

/// Registers how to release the interpreter's lock; the first one stays.
pub(crate) fn set_detach(detach: Detach) {
    DETACH.get_or_init(|| detach);
}

/// Has this thread end the objects that it alone can end, and returns whether there may be such.
static END_OWN: OnceLock<fn() -> bool> = OnceLock::new();

/// Registers how a thread ends what only it can end; the first one stays.
pub(crate) fn set_end_own(end: fn() -> bool) {
    END_OWN.get_or_init(|| end);
}

/// Ends the objects of this thread that no other one can end, although it has dropped them; returns false if there is nothing
/// of the kind. May run any code.
pub(crate) fn end_own() -> bool {
    END_OWN.get().is_some_and(|end| end())
}

/// Loads the driver if need be, and passes it to `body` while this thread holds no interpreter's lock.
///
/// # Errors
/// Those of [`driver()`], and `body`'s.
pub(crate) fn with_driver<R: Send, E: Send + From<DriverError>>(
    body: impl FnOnce(&'static dyn Driver) -> Result<R, E> + Send,
) -> Result<R, E> {
    let driver = driver()?;
    detach(|| body(driver))
}

/// Returns whose streams the default streams are on this thread now.
#[cold]
pub(crate) fn defaults_now() -> Defaults {
    let Ok(driver) = driver() else {
        // Nothing is pending on the streams of no driver; an order says so itself.
        return Defaults::OfMemory;
    };
    match detach(|| twice(|| driver.current_context())) {
        Ok(Some(context)) => Defaults::Of(context),
        Ok(None) => Defaults::OfMemory,
        Err(_) => Defaults::Untold,
    }
}

/// Runs `body` while this thread holds no interpreter's lock.
pub(crate) fn detach<R: Send>(body: impl FnOnce() -> R + Send) -> R {
    let Some(detach) = DETACH.get() else {
        return body();
    };
    let (mut body, mut result) = (Some(body), None);
    detach(&mut || result = body.take().map(|body| body()));
    match result {
        Some(result) => result,
        None => unreachable!("a registered function runs its argument"),
    }
}
