//! Driver calls, made without the interpreter's lock.
//!
//! Any call may wait for a lock of the driver, which a `cuMemFree` may hold until the device is done; a host function
//! that the device waits for may want the GIL. So a thread that holds the GIL does not enter the driver, not even to
//! ask about a pointer. Nothing here names Python: its side registers once how to let go.

use std::sync::OnceLock;

/// Runs its argument once, with the interpreter's lock released if this thread holds it.
pub(crate) type Detach = fn(&mut (dyn FnMut() + Send));

static DETACH: OnceLock<Detach> = OnceLock::new();

/// Registers how to release the interpreter's lock; the first one stays.
pub(crate) fn set_detach(detach: Detach) {
    DETACH.get_or_init(|| detach);
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
