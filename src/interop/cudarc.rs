//! cudarc: arrays on its streams, and its slices as views. The only place that names its safe layer.
//!
//! ```text
//!   a.view().on(&stream)?   the stream waits for the data             On
//!     .device_ptr()         the kernel argument                        |
//!     launch                                                           |
//!   drop                    the producer's stream waits for the kernel v
//! ```
//!
//! # Which of cudarc's traits are implemented, and why not `CudaView`
//! 1. A `CudaView` cannot be built from outside cudarc: its fields are private, and it borrows two
//!    events that only a `CudaSlice` has.
//! 2. If it could, dropping its guard would record one of those events or make the host wait. Neither
//!    tells the *producer's* stream anything, and the return edge is what the CUDA Array Interface
//!    asks for.
//! 3. So [`On`] is a guard of its own, and cudarc's traits lead to it:
//!    [`PushKernelArg`](cudarc::driver::PushKernelArg) for `&On`, so that it is an argument of a launch
//!    as it stands; and [`DeviceSlice`](cudarc::driver::DeviceSlice), [`DevicePtr`](cudarc::driver::DevicePtr)
//!    and [`DevicePtrMut`](cudarc::driver::DevicePtrMut) for [`OnSlice`], so that cudarc's copies, cuBLAS
//!    and the rest take it. `OnSlice` exists apart because those traits mean contiguous memory: a
//!    strided array has a pointer, but no length that a copy may run along.
//! 4. `CudaSlice` is not made from a foreign array: it frees what it holds.

mod keep;
mod on;
mod slice;

pub use on::{Lend, On};
pub use slice::OnSlice;

use cudarc::driver::CudaStream;

use crate::driver::DriverError;
use crate::error::Error;
use crate::protocol::rule::{Field, Rule, Violation};
use crate::protocol::stream::Stream;

/// So that `?` takes cudarc's errors too, in functions that answer [`Error`].
impl From<cudarc::driver::DriverError> for Error {
    fn from(error: cudarc::driver::DriverError) -> Self {
        DriverError::new("a call of cudarc's", error.0 as u32).into()
    }
}

impl Stream {
    /// A stream of cudarc's, as both protocols number it.
    ///
    /// # Errors
    /// `stream-device` for the default stream of a context that is not its device's primary one: the
    /// number 1 would mean another stream. Make a stream with `new_stream` there.
    ///
    /// # Safety
    /// As [`Stream::from_handle`]: the number keeps nothing alive. [`View::on`](crate::view::View::on) and
    /// [`CaiView::from_cudarc`](crate::CaiView::from_cudarc) take streams that live by their types.
    pub unsafe fn from_cudarc(stream: &CudaStream) -> Result<Self, Violation> {
        number_of(stream)
    }
}

/// The stream's number in both protocols; whoever keeps it keeps the stream.
fn number_of(stream: &CudaStream) -> Result<Stream, Violation> {
    let number = Stream::from_raw(stream.cu_stream().addr() as u64);
    if number.is_default() && !stream.context().is_primary() {
        let hint = "its context is not the device's primary one; make a stream with new_stream";
        return Err(
            Violation::new(Rule::StreamDevice, Field::Argument("stream"), number).with_hint(hint),
        );
    }
    Ok(number)
}
