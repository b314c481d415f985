//! cudarc's streams as live streams and as the numbers of both protocols, and its errors as ours.

use std::sync::Arc;

use cudarc::driver::CudaStream;

use super::in_context::{InContext, context_of};
use crate::driver::{ContextGuard, DriverError};
use crate::error::Error;
use crate::protocol::device::{Device, DeviceType};
use crate::protocol::rule::{Field, Rule, Violation};
use crate::protocol::stream::Stream;
use crate::view::{CaiView, IntoLiveStream, Keeper, Kept, LiveStream, with_driver};

/// Lets `?` convert cudarc's errors in functions that return [`Error`].
impl From<cudarc::driver::DriverError> for Error {
    fn from(error: cudarc::driver::DriverError) -> Self {
        DriverError::new("a call of cudarc's", error.0 as u32).into()
    }
}

impl Stream {
    /// Returns a stream of cudarc's as both protocols number it: data, which keeps nothing alive. A `&Arc<CudaStream>`
    /// is a [`LiveStream`] as it stands.
    ///
    /// # Errors
    /// `stream-device` for the default stream of a context that is not its device's primary one: the
    /// number 1 would mean another stream. Make a stream with `new_stream` there.
    ///
    /// ```no_run
    /// use cai_dlpack::interop::cudarc::context;
    /// use cai_dlpack::{Error, protocol::stream::Stream};
    ///
    /// let stream = context(0)?.new_stream()?;
    /// assert_eq!(Stream::from_cudarc(&stream)?.raw(), stream.cu_stream().addr() as u64);
    /// # Ok::<(), Error>(())
    /// ```
    pub fn from_cudarc(stream: &CudaStream) -> Result<Self, Violation> {
        number_of(stream)
    }
}

/// Passes a stream of cudarc's to [`CaiView::on`](crate::CaiView::on), `consume`, `copy_on`, `to_dlpack` and
/// `from_dlpack`; what they make keeps a clone of the `Arc`, if it names the stream.
///
/// They return `stream-device` for the default stream of a context that is not its device's primary one, or of another
/// device than the memory's.
///
/// ```
/// use std::sync::Arc;
/// # use cai_dlpack::{CaiView, Error};
/// # use cudarc::driver::CudaStream;
///
/// /// For work that does not go through cudarc.
/// fn ready_on(view: &CaiView, stream: &Arc<CudaStream>) -> Result<CaiView, Error> {
///     view.on(stream)
/// }
/// # let _ = ready_on;
/// ```
impl<'a> IntoLiveStream<'a> for &'a Arc<CudaStream> {
    fn into_live_stream(self) -> LiveStream<'a> {
        LiveStream::kept_by(plain_number(self), self)
    }
}

impl Keeper for Arc<CudaStream> {
    fn check(&self, array: &CaiView) -> Result<Option<ContextGuard<'static>>, Error> {
        if !number_of(self)?.is_default() {
            return Ok(None);
        }
        check_device(array.device(), self)?;
        mean_default(array, self)
    }

    fn keep(&self) -> Kept {
        let mut kept = InContext::new(Arc::clone(self));
        if let number @ Stream::Handle(_) = plain_number(self) {
            kept = kept.on(number);
        }
        Kept::by(kept)
    }
}

/// Refuses a stream of another device than the memory's.
pub(super) fn check_device(memory: Device, stream: &CudaStream) -> Result<(), Violation> {
    let field = Field::Argument("stream");
    let ordinal = stream.context().ordinal();
    if memory.device_type == DeviceType::CUDA && usize::try_from(memory.id) != Ok(ordinal) {
        let found = format_args!("a stream of device {ordinal} for memory on {memory}");
        return Err(Violation::new(Rule::StreamDevice, field, found));
    }
    Ok(())
}

/// Has the number of a default stream mean this one for an array: of memory that every context reaches it is the current
/// context's, and of a device's memory that of the memory's context.
///
/// # Errors
/// `stream-device` for memory of another context; the driver's refusal.
pub(super) fn mean_default(
    array: &CaiView,
    stream: &CudaStream,
) -> Result<Option<ContextGuard<'static>>, Error> {
    let own = context_of(stream.context());
    let data = array.descriptor().data();
    if array.means_current_context() {
        // Not by cudarc, whose `bind_to_thread` tells an error instead that another thread notes meanwhile.
        return Ok(with_driver(|driver| {
            own.map(|own| ContextGuard::of_context(driver, own))
                .transpose()
        })?);
    }
    if data == 0 {
        return Ok(None);
    }
    let info = with_driver(|driver| driver.pointer_info(data, false))?;
    if info.context.is_some_and(|whose| Some(whose) != own) {
        let found = "the default stream of another context than the memory's";
        let refused = Violation::new(Rule::StreamDevice, Field::Argument("stream"), found);
        return Err(refused.with_hint("make a stream with new_stream").into());
    }
    Ok(None)
}

/// Returns the stream's number; a default one's if it means this stream to the caller.
pub(super) fn plain_number(stream: &CudaStream) -> Stream {
    Stream::from_raw(stream.cu_stream().addr() as u64)
}

/// Returns the stream's number in both protocols; the caller that keeps it keeps the stream.
pub(super) fn number_of(stream: &CudaStream) -> Result<Stream, Violation> {
    let number = plain_number(stream);
    if number.is_default() && !stream.context().is_primary() {
        let hint = "its context is not the device's primary one; make a stream with new_stream";
        return Err(
            Violation::new(Rule::StreamDevice, Field::Argument("stream"), number).with_hint(hint),
        );
    }
    Ok(number)
}
