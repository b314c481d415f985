//! Keeps owners until a stream is done with their memory, and drops cudarc's values in their own context.
//!
//! If the producer's stream waits for ours (the return edge), what the producer does with the memory when
//! the owner goes comes after our work. If the producer's stream is unknown, nothing orders the two: the view may
//! be dropped, and the memory freed or used anew, while a copy that safe code has enqueued still reads it.
//! So the owner is kept until an event shows that the stream has got there ([`crate::view::keep`]), which is
//! recorded after the end of a capture that it would break. That is for the work that runs by itself; what the capture
//! holds runs with its graph, which keeps the owner for its launches.

use std::sync::Arc;
use std::thread::ThreadId;

use cudarc::driver::{CudaContext, CudaStream};

use super::stream::number_of;
use crate::driver::{self, ContextGuard};
use crate::protocol::stream::{Capture, Stream};
use crate::view::{Owner, detach, is_elsewhere, keep, thread_of};

/// Drops a share of `owner` when what `stream` holds now is done. The host waits only if no event can be made.
///
/// The work of a stream that is being captured comes later, when the graph is launched, which keeps the owner itself
/// ([`by_graph`]): this is for what was enqueued before the capture.
pub(super) fn until_done(owner: &Owner, stream: &CudaStream) {
    within(Arc::clone(stream.context()), |context| {
        if let (Ok(driver), Ok(number)) = (driver::driver(), number_of(stream))
            && keep::until_done(driver, number, owner).is_ok()
        {
            return;
        }
        context.record_err(stream.synchronize());
    });
}

/// Waits for `stream`. Of a stream that a capture forbids the host to wait for, a share of `owner` is dropped when what
/// it holds now is done.
pub(super) fn wait_or_keep(owner: &Owner, stream: &CudaStream) {
    within(Arc::clone(stream.context()), |context| {
        if let (Ok(driver), Ok(number)) = (driver::driver(), number_of(stream))
            && driver.capture(number) != Ok(Capture::Idle)
            && keep::until_done(driver, number, owner).is_ok()
        {
            return;
        }
        context.record_err(stream.synchronize());
    });
}

/// Has the graph that `stream` is being captured into keep `owner`; see [`keep::by_graph`].
pub(super) fn by_graph(stream: &CudaStream, number: Stream, owner: &Owner, kept_by: u64) -> u64 {
    let keep =
        || driver::driver().map_or(0, |driver| keep::by_graph(driver, number, owner, kept_by));
    detach(|| match number {
        Stream::Handle(_) => keep(),
        // A default stream is the current context's.
        _ => {
            let mut kept = 0;
            within(Arc::clone(stream.context()), |_| kept = keep());
            kept
        }
    })
}

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
            within(context, |context| {
                if is_elsewhere {
                    context.record_err(context.synchronize());
                }
                drop(value);
            });
        });
    }
}

/// Runs `body` in `context`, gives the context up, and leaves the calling thread's as it was.
fn within(context: Arc<CudaContext>, body: impl FnOnce(&CudaContext)) {
    let driver = driver::driver().ok();
    let _before = driver.and_then(|driver| ContextGuard::around(driver).ok());
    context.record_err(context.bind_to_thread());
    body(&context);
    // The last one to give it up makes it current once more: that comes before the guard's end.
    drop(context);
}
