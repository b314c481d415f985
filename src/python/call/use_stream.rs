//! The work streams of a context.

use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::Borrowed;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyInt;

use crate::driver;
use crate::driver::{ContextGuard, Driver, DriverError};
use crate::protocol::device::Device;
use crate::protocol::rule::Field;
use crate::protocol::stream::{Platform, Stream};
use crate::python::call::{blocks, options, stream};
use crate::python::cpython::fastcall::{Function, signature};
use crate::python::cpython::thread_exit::entries;
use crate::view::detach;

/// Whether a block has been entered in this process: before that there need be no class to compare with, and PyO3 panics if it
/// cannot make one for want of memory.
static IS_USED: AtomicBool = AtomicBool::new(false);

/// Returns what `fact` finds first in the open blocks, innermost first.
///
/// # Errors
/// Those of [`blocks::innermost`].
fn innermost<T>(py: Python<'_>, fact: impl Fn(&UseStream) -> Option<T>) -> PyResult<Option<T>> {
    match IS_USED.load(Ordering::Relaxed) {
        false => Ok(None),
        true => blocks::innermost(py, fact),
    }
}

/// The work stream of a context, and what keeps it alive: the code of a producer, and a finaliser, may leave the block
/// while the stream is used.
#[derive(Clone)]
pub(crate) struct Work<'py> {
    pub(crate) stream: Stream,
    /// What was passed to the block.
    pub(crate) object: Option<Bound<'py, PyAny>>,
}

impl<'py> Work<'py> {
    pub(crate) const LEGACY_DEFAULT: Self = Self {
        stream: Stream::LegacyDefault,
        object: None,
    };

    fn of(py: Python<'py>, block: &UseStream) -> Self {
        Self {
            stream: block.stream,
            object: Some(block.object.bind(py).clone()),
        }
    }
}

/// Returns the work stream of the current context for an array on `device`: of the innermost `use_stream` block that
/// counts for it, else the legacy default stream.
///
/// # Errors
/// Those of [`blocks_of`] and of [`of_blocks`].
#[inline]
pub(crate) fn work_stream(py: Python<'_>, device: Device) -> PyResult<Work<'_>> {
    match blocks::are_open() {
        false => Ok(Work::LEGACY_DEFAULT),
        true => of_open(py, device),
    }
}

#[cold]
fn of_open(py: Python<'_>, device: Device) -> PyResult<Work<'_>> {
    let found = innermost(py, |block| Some((block.device_id, Work::of(py, block))))?;
    match found {
        None => Ok(Work::LEGACY_DEFAULT),
        Some((None, work)) => Ok(work),
        Some(_) => of_blocks(py, blocks_of(device)?),
    }
}

/// Returns the stream of the innermost `use_stream` block of a CUDA device, else the legacy default stream.
///
/// # Errors
/// Those of [`innermost`].
pub(crate) fn of_blocks(py: Python<'_>, device_id: i32) -> PyResult<Work<'_>> {
    let of_device = |block: &UseStream| {
        (block.device_id.is_none_or(|id| id == device_id)).then(|| Work::of(py, block))
    };
    let found = innermost(py, of_device)?;
    Ok(found.unwrap_or(Work::LEGACY_DEFAULT))
}

/// Returns the object that was passed to the innermost block of this stream that has one, which keeps it alive during the block
/// alone: a block of the same number inside of it keeps nothing.
///
/// # Errors
/// Those of [`innermost`].
#[cold]
pub(crate) fn object_of<'py>(
    py: Python<'py>,
    stream: Stream,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    innermost(py, |block| {
        let object = block.object.bind(py);
        let is_it = block.stream == stream && !object.is_exact_instance_of::<PyInt>();
        is_it.then(|| object.clone())
    })
}

/// Returns the id of the CUDA device whose blocks count for an array: of pinned and managed memory, which has none of
/// its own, that of this thread's context.
///
/// # Errors
/// The driver's, when it is asked.
#[cold]
pub(crate) fn blocks_of(device: Device) -> Result<i32, DriverError> {
    let platform = Platform::of(device);
    match (platform, driver::driver()) {
        (Some(Platform::HostReadable), Ok(driver)) => {
            detach(|| match driver.current_context()? {
                Some(_) => driver.current_device(),
                None => Ok(device.id),
            })
        }
        _ => Ok(device.id),
    }
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

signature! {
    /// Names the stream that the caller works on, during a `with` block.
    ///
    /// A consumer that imports views through the C Exchange API reads the work stream without naming an array. It
    /// gets this stream, and every view that it imports is made ready there. Without a block it gets the legacy default
    /// stream. A consumer of `__dlpack__` that names no stream finds device memory ready on this one and on the legacy
    /// default stream; in a capture, which forbids the latter, on this one alone. A producer of DLPack without that API
    /// is asked for its data on the same stream. The block belongs to the current context, as that of `policy` does.
    ///
    /// Returns
    /// -------
    /// ContextManager
    ///
    /// Raises
    /// ------
    /// TypeError, ValueError
    ///     If `stream` names no stream, or `device_id` no device.
    /// RuntimeError
    ///     If the block is left in another context than it was entered in.
    /// DriverError
    ///     If a call of the CUDA driver fails.
    NameStream = use_stream [
        /// An int or an object with ``__cuda_stream__``.
        stream: "StreamLike",
    ] (
        /// The id of the stream's CUDA device. None: the driver is queried.
        device_id: "int | None" = None,
    ) -> "AbstractContextManager[object]"
}

impl Function for NameStream {
    fn call<'py>(
        slf: Borrowed<'_, 'py, PyAny>,
        arguments: Self::Arguments<'_, 'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let device_id = arguments.device_id.map(options::device_id).transpose()?;
        let stream = stream::named(&arguments.stream, Field::Argument("stream"))?;
        let device_id = match device_id {
            Some(device_id) => device_id,
            None => device_of(stream)?,
        };
        let block = UseStream::new(Some(device_id), stream, &arguments.stream);
        Ok(Bound::new(slf.py(), block)?.into_any())
    }
}

/// The context manager that `use_stream` returns.
#[pyclass(name = "UseStream", module = "cai_dlpack", frozen)]
pub(crate) struct UseStream {
    /// `None` for one that counts for every device.
    device_id: Option<i32>,
    stream: Stream,
    /// Keeps a stream object alive.
    object: Py<PyAny>,
}

impl UseStream {
    fn new(device_id: Option<i32>, stream: Stream, object: &Bound<'_, PyAny>) -> Self {
        Self {
            device_id,
            stream,
            object: object.clone().unbind(),
        }
    }

    /// Calls `body` in a block that counts for every device.
    ///
    /// # Errors
    /// Those of `body`; out of memory.
    pub(crate) fn around<'py, R>(
        (stream, object): (Stream, &Bound<'py, PyAny>),
        body: impl FnOnce() -> PyResult<R>,
    ) -> PyResult<R> {
        let block = Bound::new(object.py(), Self::new(None, stream, object))?;
        IS_USED.store(true, Ordering::Relaxed);
        blocks::around(&block, body)
    }
}

entries! {
impl UseStream {
    fn __enter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        IS_USED.store(true, Ordering::Relaxed);
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
