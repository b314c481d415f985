//! The work streams of a context.

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;

use crate::driver;
use crate::driver::{ContextGuard, Driver, DriverError};
use crate::protocol::rule::{Field, Rule, Violation};
use crate::protocol::stream::Stream;
use crate::python::call::{blocks, stream};
use crate::python::cpython::int::IntRule;
use crate::python::cpython::thread_exit::entries;
use crate::view::detach;

/// Returns the work stream of the current context on a device: of the innermost `use_stream` block, else the legacy
/// default stream.
///
/// # Errors
/// Those of [`blocks::innermost`].
pub(crate) fn work_stream(py: Python<'_>, device_id: i32) -> PyResult<Stream> {
    let of_device = |block: &UseStream| (block.device_id == device_id).then_some(block.stream);
    let found = blocks::innermost(py, of_device)?;
    Ok(found.unwrap_or(Stream::LegacyDefault))
}

fn given_device_id(device_id: &Bound<'_, PyAny>) -> PyResult<i32> {
    let field = Field::Argument("device_id");
    let device_id: i32 =
        IntRule::new(field, Rule::ArgumentType, Rule::DeviceIdRange).read(device_id)?;
    if device_id < 0 {
        return Err(Violation::new(Rule::DeviceIdRange, field, device_id).into());
    }
    Ok(device_id)
}

/// Queries the driver for the device of a stream's context, or of this thread's context for a default stream. 0
/// without a driver or a context.
fn device_of(stream: Stream) -> Result<i32, DriverError> {
    match driver::driver() {
        Ok(driver) => detach(|| device_asked_of(driver, stream)),
        Err(_) => Ok(0),
    }
}

fn device_asked_of(driver: &dyn Driver, stream: Stream) -> Result<i32, DriverError> {
    if !stream.is_default() {
        let _current = ContextGuard::of_handle(driver, stream)?;
        return driver.current_device();
    }
    match driver.current_context()? {
        Some(_) => driver.current_device(),
        None => Ok(0),
    }
}

/// Names the stream that the caller works on, during a `with` block.
///
/// A consumer that imports views through the C Exchange API reads the work stream without naming an array. It
/// gets this stream, and every view that it imports is made ready there. Without a block it gets the legacy default
/// stream. A producer of DLPack without that API is asked for its data on the same stream. The block belongs to the
/// current context, as that of `policy` does.
///
/// Parameters
/// ----------
/// stream : StreamLike
///     An int or an object with ``__cuda_stream__``.
/// device_id : int | None, default None
///     The id of the stream's CUDA device. None: the driver is queried.
///
/// Raises
/// ------
/// TypeError, ValueError
///     If `stream` names no stream, or `device_id` no device.
/// RuntimeError
///     If the block is left in another context than it was entered in.
/// DriverError
///     If a call of the CUDA driver fails.
#[pyclass(name = "use_stream", module = "cai_dlpack", frozen)]
pub(crate) struct UseStream {
    device_id: i32,
    stream: Stream,
    /// Keeps a stream object alive.
    object: Py<PyAny>,
}

entries! {
impl UseStream {
    #[new]
    #[pyo3(signature = (stream, /, *, device_id=None))]
    fn new(stream: &Bound<'_, PyAny>, device_id: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        let device_id = device_id.map(given_device_id).transpose()?;
        let object = stream.clone().unbind();
        let stream = stream::named(stream, Field::Argument("stream"))?;
        Ok(Self {
            device_id: match device_id {
                Some(device_id) => device_id,
                None => device_of(stream)?,
            },
            stream,
            object,
        })
    }

    fn __enter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        blocks::enter(slf)?;
        Ok(slf.clone())
    }

    fn __exit__(
        slf: &Bound<'_, Self>,
        _kind: &Bound<'_, PyAny>,
        _error: &Bound<'_, PyAny>,
        _trace: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        blocks::leave(slf)?;
        Ok(false)
    }

    /// Shows the stream object to the collector: an object that refers to the block makes a cycle.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.object)
    }
}
}
