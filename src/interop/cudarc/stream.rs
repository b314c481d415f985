//! cudarc's streams as the numbers of both protocols, and its errors as ours.

use cudarc::driver::CudaStream;

use crate::driver::DriverError;
use crate::error::Error;
use crate::protocol::rule::{Field, Rule, Violation};
use crate::protocol::stream::Stream;

/// Lets `?` convert cudarc's errors in functions that return [`Error`].
impl From<cudarc::driver::DriverError> for Error {
    fn from(error: cudarc::driver::DriverError) -> Self {
        DriverError::new("a call of cudarc's", error.0 as u32).into()
    }
}

impl Stream {
    /// Returns a stream of cudarc's as both protocols number it.
    ///
    /// # Errors
    /// `stream-device` for the default stream of a context that is not its device's primary one: the
    /// number 1 would mean another stream. Make a stream with `new_stream` there.
    ///
    /// # Safety
    /// As [`Stream::from_handle`]: the number keeps nothing alive. [`View::on`](crate::view::View::on) and
    /// [`CaiView::from_cudarc`](crate::CaiView::from_cudarc) take streams that live by their types.
    ///
    /// ```
    /// use std::sync::Arc;
    /// # use cai_dlpack::{CaiView, Error, protocol::stream::Stream};
    /// # use cudarc::driver::CudaStream;
    ///
    /// /// For work that does not go through cudarc.
    /// fn ready_on(view: &CaiView, stream: &Arc<CudaStream>) -> Result<CaiView, Error> {
    ///     // SAFETY: the stream is one of the process, which lives until its end.
    ///     view.on(unsafe { Stream::from_cudarc(stream) }?)
    /// }
    /// # let _ = ready_on;
    /// ```
    pub unsafe fn from_cudarc(stream: &CudaStream) -> Result<Self, Violation> {
        number_of(stream)
    }
}

/// Returns the stream's number in both protocols; the caller that keeps it keeps the stream.
pub(super) fn number_of(stream: &CudaStream) -> Result<Stream, Violation> {
    let number = Stream::from_raw(stream.cu_stream().addr() as u64);
    if number.is_default() && !stream.context().is_primary() {
        let hint = "its context is not the device's primary one; make a stream with new_stream";
        return Err(
            Violation::new(Rule::StreamDevice, Field::Argument("stream"), number).with_hint(hint),
        );
    }
    Ok(number)
}
