//! Drops cudarc's values in their own context.

use std::sync::Arc;
use std::thread::ThreadId;

use cudarc::driver::CudaContext;

use crate::driver::{self, ContextGuard, Relaxed};
use crate::protocol::stream::Stream;
use crate::view::{Owner, detach, is_elsewhere, keep, thread_of};

/// A slice or a stream, which is dropped in its own context; what is current stays.
///
/// cudarc frees a slice on its stream without asking which context is current, and if that is a default
/// stream its number alone means the current context's, or the calling thread's: elsewhere the host waits for
/// the whole context first. A stream makes its context current to be destroyed.
pub(super) struct InContext<T: Send> {
    /// `None` once it is being dropped.
    kept: Option<(T, Arc<CudaContext>)>,
    thread: Option<ThreadId>,
}

impl<T: Send> InContext<T> {
    pub(super) fn new(value: T, context: &Arc<CudaContext>) -> Self {
        Self {
            kept: Some((value, Arc::clone(context))),
            thread: None,
        }
    }

    /// With its work on `stream`, which may be the calling thread's own.
    pub(super) fn on(mut self, stream: Stream) -> Self {
        self.thread = thread_of(stream);
        self
    }
}

impl<T: Send> Drop for InContext<T> {
    fn drop(&mut self) {
        let is_elsewhere = is_elsewhere(self.thread);
        let Some((value, context)) = self.kept.take() else {
            return;
        };
        detach(|| {
            if is_elsewhere {
                wait_for_context(&context, None);
            }
            within(context, |_| {
                // cudarc frees beside captures of others, too.
                let _relaxed = driver::driver().and_then(Relaxed::new).ok();
                drop(value);
            });
        });
    }
}

/// Runs `body` in `context`, gives the context up, and leaves the calling thread's as it was.
pub(super) fn within(context: Arc<CudaContext>, body: impl FnOnce(&CudaContext)) {
    let driver = driver::driver().ok();
    let _before = driver.and_then(|driver| ContextGuard::around(driver).ok());
    context.record_err(context.bind_to_thread());
    body(&context);
    // The last one to give it up makes it current once more: that comes before the guard's end.
    drop(context);
}

/// Waits for all work of a context, of which a stream cannot be named here; a share of `owner` stays for ever if the host
/// cannot.
pub(super) fn wait_for_context(context: &Arc<CudaContext>, owner: Option<&Owner>) {
    within(Arc::clone(context), |_| match (driver::driver(), owner) {
        (Ok(driver), _) => keep::wait_for_context(driver, owner),
        (Err(_), Some(owner)) => std::mem::forget(owner.share()),
        (Err(_), None) => {}
    });
}
