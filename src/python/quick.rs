//! The functions of the hot paths, each with its usual call: see [`super::vectorcall`].

use std::ffi::CStr;

use pyo3::Borrowed;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use super::class::PyCaiView;
use super::functions;
use super::keys::keys;
use super::options::ProducerStream;
use super::vectorcall::{Quick, Vector, add_function, add_method, flag};

type Answer<'py> = Option<PyResult<Bound<'py, PyAny>>>;

/// Where `producer_stream` stands among the keywords: its `None` says that nothing is pending.
const PRODUCER_STREAM: usize = 0;

/// `view`.
struct View;

impl Quick for View {
    const NAME: &'static CStr = c"view";

    fn careful() -> &'static PyOnceLock<Py<PyAny>> {
        static CAREFUL: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        &CAREFUL
    }

    #[inline]
    fn call<'py>(_: Borrowed<'_, 'py, PyAny>, arguments: Vector<'_, 'py>) -> Answer<'py> {
        let object = arguments.only()?;
        let names = keys(object.py());
        let [
            producer,
            dtype,
            shape,
            read_only,
            owner,
            ordinal,
            check,
            strict,
        ] = arguments.keywords_keeping(
            PRODUCER_STREAM,
            [
                &names.producer_stream,
                &names.dtype,
                &names.shape,
                &names.read_only,
                &names.owner,
                &names.ordinal,
                &names.check,
                &names.strict,
            ],
        )?;
        let (read_only, strict) = (flag(read_only)?, flag(strict)?);
        let view = functions::view(
            &object,
            ProducerStream::new(producer),
            dtype.as_deref(),
            shape.as_deref(),
            read_only,
            owner.as_deref(),
            ordinal.as_deref(),
            check.as_deref(),
            strict.unwrap_or(false),
        );
        Some(view.and_then(|view| Ok(Bound::new(object.py(), view)?.into_any())))
    }
}

/// `from_dlpack`.
struct FromDlpack;

impl Quick for FromDlpack {
    const NAME: &'static CStr = c"from_dlpack";

    fn careful() -> &'static PyOnceLock<Py<PyAny>> {
        static CAREFUL: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        &CAREFUL
    }

    #[inline]
    fn call<'py>(_: Borrowed<'_, 'py, PyAny>, arguments: Vector<'_, 'py>) -> Answer<'py> {
        let object = arguments.only()?;
        let names = keys(object.py());
        let [producer, copy, stream, dtype, shape, read_only] = arguments.keywords_keeping(
            PRODUCER_STREAM,
            [
                &names.producer_stream,
                &names.copy,
                &names.stream,
                &names.dtype,
                &names.shape,
                &names.read_only,
            ],
        )?;
        let (copy, read_only) = (flag(copy)?, flag(read_only)?);
        let view = functions::from_dlpack(
            &object,
            None,
            copy,
            stream.as_deref(),
            ProducerStream::new(producer),
            dtype.as_deref(),
            shape.as_deref(),
            read_only,
        );
        Some(view.and_then(|view| Ok(Bound::new(object.py(), view)?.into_any())))
    }
}

/// `to_dlpack`.
struct ToDlpack;

impl Quick for ToDlpack {
    const NAME: &'static CStr = c"to_dlpack";

    fn careful() -> &'static PyOnceLock<Py<PyAny>> {
        static CAREFUL: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        &CAREFUL
    }

    #[inline]
    fn call<'py>(_: Borrowed<'_, 'py, PyAny>, arguments: Vector<'_, 'py>) -> Answer<'py> {
        let object = arguments.only()?;
        let names = keys(object.py());
        let [stream, max_version, dl_device, copy, writable, ordinal] = arguments.keywords([
            &names.stream,
            &names.max_version,
            &names.dl_device,
            &names.copy,
            &names.writable,
            &names.ordinal,
        ])?;
        let writable = flag(writable)?.unwrap_or(false);
        Some(functions::to_dlpack(
            &object,
            stream.as_deref(),
            max_version.as_deref(),
            dl_device.as_deref(),
            copy.as_deref(),
            writable,
            ordinal.as_deref(),
        ))
    }
}

/// `CaiView.__dlpack__`.
struct Dlpack;

impl Quick for Dlpack {
    const NAME: &'static CStr = c"__dlpack__";

    fn careful() -> &'static PyOnceLock<Py<PyAny>> {
        static CAREFUL: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        &CAREFUL
    }

    #[inline]
    fn call<'py>(slf: Borrowed<'_, 'py, PyAny>, arguments: Vector<'_, 'py>) -> Answer<'py> {
        if !arguments.is_named_only() {
            return None;
        }
        let names = keys(slf.py());
        let [stream, max_version, dl_device, copy] = arguments.keywords([
            &names.stream,
            &names.max_version,
            &names.dl_device,
            &names.copy,
        ])?;
        // SAFETY: a method descriptor of the class calls this, and it has checked the object.
        let slf = unsafe { slf.cast_unchecked::<PyCaiView>() };
        Some(PyCaiView::__dlpack__(
            &slf,
            stream.as_deref(),
            max_version.as_deref(),
            dl_device.as_deref(),
            copy.as_deref(),
        ))
    }
}

/// Puts the usual calls before the functions of `module`, and before the class's methods.
///
/// # Errors
/// What Python raises.
pub(crate) fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    add_function::<View>(
        module,
        wrap_pyfunction!(functions::view, module)?.into_any(),
    )?;
    add_function::<FromDlpack>(
        module,
        wrap_pyfunction!(functions::from_dlpack, module)?.into_any(),
    )?;
    add_function::<ToDlpack>(
        module,
        wrap_pyfunction!(functions::to_dlpack, module)?.into_any(),
    )?;
    add_method::<Dlpack>(&module.py().get_type::<PyCaiView>())
}
