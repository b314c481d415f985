//! cudarc's streams as live streams and as the numbers of both protocols, and its errors as ours.

use std::sync::Arc;

use cudarc::driver::CudaStream;

use super::in_context::InContext;
use crate::driver::DriverError;
use crate::error::Error;
use crate::protocol::device::{Device, DeviceType};
use crate::protocol::rule::{Field, Rule, Violation};
use crate::protocol::stream::Stream;
use crate::view::{IntoLiveStream, Keeper, Kept, LiveStream};

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
    fn check(&self, memory: Device) -> Result<(), Error> {
        if number_of(self)?.is_default() {
            check_device(memory, self)?;
            // Of memory that every context reaches, a default stream is the current context's.
            self.context().bind_to_thread()?;
        }
        Ok(())
    }

    fn keep(&self) -> Kept {
        Kept(Arc::new(InContext::new(Arc::clone(self), self.context())))
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

/// Returns the stream's number; a default one's if it means this stream to the caller.
fn plain_number(stream: &CudaStream) -> Stream {
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
