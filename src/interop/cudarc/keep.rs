//! Keeps owners until a stream is done with their memory, and drops cudarc's values in their own context.
//!
//! If the producer's stream waits for ours (the return edge), what the producer does with the memory when
//! the owner goes comes after our work. If the producer's stream is unknown, nothing orders the two: the view may
//! be dropped, and the memory freed or used anew, while a copy that safe code has enqueued still reads it.
//! So the owner is kept until an event shows that the stream has got there. A thread of its own waits for
//! the event, since the caller must not.
//!
//! **Roads not taken.** `cuLaunchHostFunc` would need no thread of ours, but an owner's end may call the
//! driver (that of cudarc's slices does), which a host function must not. Asking now and then whether the
//! event has come would keep the memory until the next question.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread::{self, ThreadId};

use cudarc::driver::sys::CUevent_flags;
use cudarc::driver::{CudaContext, CudaEvent, CudaStream};

use super::stream::number_of;
use crate::driver::{self, ContextGuard, RELAXED};
use crate::process::signals;
use crate::protocol::stream::{Capture, Stream};
use crate::view::{Owner, detach, is_elsewhere, thread_of};

/// An owner, and what comes before its end.
struct Kept {
    event: CudaEvent,
    owner: Owner,
}

impl Kept {
    fn end(self) {
        let Self { event, owner } = self;
        // An error is one of the context, in which nothing runs any more.
        event.context().record_err(event.synchronize());
        drop(event);
        drop(owner);
    }
}

/// Drops `owner` when what `stream` holds now is done. The host waits only if no event can be made.
///
/// Of a stream that is being captured the graph is launched later: the code that launches it keeps the view.
pub(super) fn until_done(owner: Owner, stream: &CudaStream) {
    within(Arc::clone(stream.context()), |context| {
        if is_captured(stream) {
            return;
        }
        // The thread that waits sleeps meanwhile.
        match stream.record_event(Some(CUevent_flags::CU_EVENT_BLOCKING_SYNC)) {
            Ok(event) => hand_over(Kept { event, owner }),
            Err(_) => {
                context.record_err(stream.synchronize());
                drop(owner);
            }
        }
    });
}

/// Whether the stream, whose context is current, is being captured.
fn is_captured(stream: &CudaStream) -> bool {
    let (Ok(driver), Ok(number)) = (driver::driver(), number_of(stream)) else {
        return false;
    };
    matches!(driver.capture(number), Ok(Capture::Active))
}

/// Hands it to the thread that waits; if there is none, the caller waits.
fn hand_over(kept: Kept) {
    static KEEPER: OnceLock<Option<Sender<Kept>>> = OnceLock::new();
    let left = match KEEPER.get_or_init(start) {
        Some(keeper) => keeper.send(kept).err().map(|error| error.0),
        None => Some(kept),
    };
    if let Some(kept) = left {
        kept.end();
    }
}

fn start() -> Option<Sender<Kept>> {
    let (sender, receiver) = channel::<Kept>();
    let run = move || {
        signals::block();
        // What this thread asks is no call that a capture elsewhere forbids.
        if let Ok(driver) = driver::driver() {
            let _ = driver.exchange_capture_mode(RELAXED);
        }
        receiver.into_iter().for_each(Kept::end);
    };
    let thread = thread::Builder::new().name("cai-dlpack-keep".into());
    thread.spawn(run).is_ok().then_some(sender)
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
