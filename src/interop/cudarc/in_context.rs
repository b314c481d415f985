//! Drops cudarc's values in their own context.

use std::num::NonZeroU64;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaSlice, CudaStream};

use super::events;
use crate::driver::{self, Context, ContextGuard, Driver, DriverError, Relaxed, UNTOLD, twice};
use crate::process::thread::Thread;
use crate::protocol::device::Device;
use crate::protocol::stream::{Capture, Stream};
use crate::view::{Element, Owner, detach, is_elsewhere, keep, thread_of};

/// A share of a slice or a stream, whose last holder ends it in its own context; what is current stays. Who else holds a slice
/// is told, by the events that cudarc keeps in it, that its stream waits for those who read it here.
///
/// cudarc frees a slice on its stream without asking which context is current, and if that is a default
/// stream its number alone means the current context's, or the calling thread's: elsewhere the host waits for
/// the whole context first. A stream makes its context current to be destroyed.
///
/// A slice whose stream is being captured is not freed there: that would break the capture. It stays until the work from before
/// is done, and is tried again then.
pub(super) struct InContext<T: Ends> {
    /// `None` once it is being dropped.
    kept: Option<Arc<T>>,
    /// The stream that it is freed on, or which it is.
    stream: Stream,
    thread: Option<Thread>,
    /// Whether its stream may wait for readers of whom others that hold it know nothing.
    has_readers: bool,
    /// Whether it could not be dropped before.
    is_again: bool,
}

/// A value of cudarc's that its drop frees or destroys.
pub(super) trait Ends: Send + Sync + Sized + 'static {
    /// The context that it is of.
    fn context(&self) -> &Arc<CudaContext>;

    /// Makes the stream that it is freed on wait for those who use it. Its drop does so too, but returns no
    /// refusal, and makes no further wait after one. If others hold it, too, their use comes after what that stream has: returns
    /// false, and changes nothing, if that cannot be made to wait for theirs.
    ///
    /// # Errors
    /// cudarc's refusal, or an error that another thread has noted meanwhile.
    fn settle(_shared: &mut Arc<Self>) -> Result<bool, cudarc::driver::DriverError> {
        Ok(true)
    }
}

impl Ends for CudaStream {
    fn context(&self) -> &Arc<CudaContext> {
        self.context()
    }
}

impl<T: Element> Ends for CudaSlice<T> {
    fn context(&self) -> &Arc<CudaContext> {
        self.context()
    }

    fn settle(shared: &mut Arc<Self>) -> Result<bool, cudarc::driver::DriverError> {
        match Arc::get_mut(shared) {
            Some(slice) => events::wait_for_all(slice).map(|_| true),
            None => events::note_readers(shared),
        }
    }
}

impl<T: Ends> InContext<T> {
    pub(super) fn new(value: Arc<T>) -> Self {
        Self {
            kept: Some(value),
            stream: Stream::None,
            thread: None,
            has_readers: false,
            is_again: false,
        }
    }

    /// With readers, for whom its stream is made to wait.
    pub(super) fn with_readers(mut self) -> Self {
        self.has_readers = true;
        self
    }

    /// With its work on `stream`, which may be the calling thread's own.
    pub(super) fn on(mut self, stream: Stream) -> Self {
        self.stream = stream;
        self.thread = thread_of(stream);
        self
    }

    pub(super) fn value(&mut self) -> &mut Arc<T> {
        self.kept.as_mut().expect("kept until it is dropped")
    }
}

impl<T: Ends> Drop for InContext<T> {
    fn drop(&mut self) {
        let (stream, thread, is_again) = (self.stream, self.thread, self.is_again);
        let last = |value| Arc::into_inner(value).map(Arc::new);
        let mut kept = self.kept.take();
        if !self.has_readers {
            // One that others hold ends nothing here, neither the context. Nor is an error taken that cudarc has noted there,
            // which a caller on another thread may ask for at this moment.
            kept = kept.and_then(last);
        }
        let Some(mut value) = kept else { return };
        let (is_elsewhere, context) = (is_elsewhere(thread), Arc::clone(value.context()));
        let is_lent = Arc::get_mut(&mut value).is_none();
        detach(|| {
            if is_elsewhere && !is_lent && wait_for_context(&context, None).is_err() {
                // Its work may be pending, and what is enqueued here would not come after that.
                return std::mem::forget(value);
            }
            // The context, too, is given up in there.
            within(Arc::clone(&context), move |driver| {
                // Where the context is gone, so is the memory, and the stream that it would be freed on.
                let Ok(driver) = driver else {
                    return std::mem::forget(value);
                };
                let device = Device::cuda(context.ordinal() as i32);
                let again = |value| {
                    Owner::new(Self {
                        kept: Some(value),
                        stream,
                        thread,
                        has_readers: false,
                        is_again: true,
                    })
                };
                if is_elsewhere && is_lent {
                    // Other work of the context may wait for this thread, which ends nothing.
                    return keep::after_context(driver, device.id, again(value));
                }
                // One that is destroyed in the midst of a capture breaks that.
                while !may_be_captured(driver, stream)
                    // cudarc frees beside captures of others, too.
                    && let Ok(_relaxed) = twice(|| Relaxed::new(driver))
                {
                    let is_sole = Arc::get_mut(&mut value).is_some();
                    if !is_sole && keep::is_ours() {
                        // Others may read it on a stream of theirs at this moment, of which the event would tell no more.
                        break;
                    }
                    let settled = T::settle(&mut value);
                    if let Err(refused) = settled {
                        // Another call's, or this one's: cudarc's next call tells it.
                        context.record_err::<()>(Err(refused));
                    }
                    if settled != Ok(true) && !is_sole {
                        break;
                    }
                    if settled.is_err() && keep::wait_for_context(driver).is_err() {
                        return std::mem::forget(value);
                    }
                    // A capture that uses the slice has its stream now.
                    if may_be_captured(driver, stream) {
                        break;
                    }
                    if is_sole {
                        return drop(value);
                    }
                    // The others may have gone meanwhile.
                    match last(value) {
                        Some(sole) => value = sole,
                        None => return,
                    }
                }
                let (again, begun) = (again(value), keep::Begun::OnStream);
                let is_over =
                    keep::by_stream_of(driver, None, (stream, None), &again, device, begun);
                // Dropped here it is tried again at once; a driver that refuses for ever would be asked for ever.
                if is_over && is_again {
                    std::mem::forget(again);
                }
            });
        });
    }
}

/// Whether a capture forbids to free on a stream; of no stream there is none.
///
/// # Errors
/// The driver's refusal.
pub(super) fn is_captured(driver: &dyn Driver, stream: Stream) -> Result<bool, DriverError> {
    if stream == Stream::None {
        return Ok(false);
    }
    twice(|| driver.capture(stream)).map(|capture| capture != Capture::Idle)
}

/// Whether a capture may forbid to free on a stream. A context that has failed has none.
fn may_be_captured(driver: &dyn Driver, stream: Stream) -> bool {
    is_captured(driver, stream).unwrap_or_else(|refused| !refused.is_end_of_context())
}

/// cudarc's context as the driver's.
pub(super) fn context_of(context: &CudaContext) -> Option<Context> {
    NonZeroU64::new(context.cu_ctx().addr() as u64).map(Context)
}

/// Runs `body` in `context`, gives the context up, and leaves the calling thread's as it was. Hands `body` the driver, or its
/// refusal to make the context current: then what is asked about default streams is answered of others.
pub(super) fn within<R>(
    context: Arc<CudaContext>,
    body: impl FnOnce(Result<&'static dyn Driver, DriverError>) -> R,
) -> R {
    let driver = match driver::driver() {
        Ok(driver) => driver,
        Err(absent) => return body(Err(absent)),
    };
    let own = context_of(&context);
    let mut before = twice(|| ContextGuard::around(driver));
    if let (Err(_), Some(own)) = (&before, own) {
        // It is not told what is current: that stays, too.
        before = twice(|| ContextGuard::above(driver, own)).map(ContextGuard::with_others);
    }
    // cudarc tells an error that it has noted to the next call, which does nothing else: `bind_to_thread` would bind nothing,
    // and the end of a slice not wait for those who read it.
    let noted = context.check_err();
    let entered = match (&mut before, own) {
        (Ok(before), Some(own)) => twice(|| before.switch(own)),
        (Err(refused), _) => Err(*refused),
        // No context of cudarc's is without a handle.
        (_, None) => Err(UNTOLD),
    };
    let noted = Noted(&context, noted);
    let result = body(entered.map(|()| driver));
    drop(noted);
    // The last one to give it up makes it current once more: that comes before the guard's end.
    if let Some(last) = Arc::into_inner(context) {
        drop(last);
        if let Ok(mut before) = before
            // A context that was the caller's and has just ended is named no more; nor is popped what its end may have popped.
            && (before.original() == own || twice(|| before.restore()).is_err())
        {
            std::mem::forget(before);
        }
    }
    result
}

/// An error that cudarc had noted in a context, which it notes again at the end, and after a panic.
struct Noted<'a>(&'a CudaContext, Result<(), cudarc::driver::DriverError>);

impl Drop for Noted<'_> {
    fn drop(&mut self) {
        self.0.record_err(self.1);
    }
}

/// Whether cudarc gives a context back when it ends; else it destroys it. `None` if the driver does not tell.
fn is_primary(driver: &dyn Driver, context: &CudaContext) -> Option<bool> {
    let own = context_of(context)?;
    let ask = || {
        let id = driver.context_id(own)?;
        driver::is_primary(driver, context.ordinal() as i32, (own, id))
    };
    twice(ask).ok()
}

/// Calls cudarc as if it had noted no error, which it would tell instead of doing anything; returns what it notes itself.
/// An error that was noted before stays noted.
pub(super) fn without_noted<R>(
    context: &CudaContext,
    body: impl FnOnce() -> Result<R, cudarc::driver::DriverError>,
) -> Result<R, cudarc::driver::DriverError> {
    let noted = context.check_err();
    let result = body();
    let meanwhile = context.check_err();
    context.record_err(noted);
    result.and_then(|result| meanwhile.map(|()| result))
}

/// Waits for all work of a context, of which a stream cannot be named here.
///
/// # Errors
/// The driver's refusal: the work may go on, and a share of `owner` stays for ever.
pub(super) fn wait_for_context(
    context: &Arc<CudaContext>,
    owner: Option<&Owner>,
) -> Result<(), DriverError> {
    within(Arc::clone(context), |driver| {
        let waited = match driver {
            Ok(driver) => keep::wait_for_context(driver),
            Err(error) if error.is_end_of_context() => Ok(()),
            Err(refused) => Err(refused),
        };
        if let (Err(_), Some(owner)) = (&waited, owner) {
            keep_for_ever(owner, context);
        }
        waited
    })
}

/// Keeps a share of `owner` for ever, as the driver tells nothing of the work in a context, and the context, about which writers
/// ask. A primary one stays where it is.
pub(super) fn keep_for_ever(owner: &Owner, context: &Arc<CudaContext>) {
    keep::keep_for_ever(owner, context_of(context));
    if !driver::driver().is_ok_and(|driver| is_primary(driver, context) == Some(true)) {
        std::mem::forget(Arc::clone(context));
    }
}
