//! The functions of the hot paths, each with its usual call: see [`crate::python::cpython::fastcall`].

use std::ffi::CStr;

use pyo3::Borrowed;
use pyo3::prelude::*;

use crate::python::call::options::ProducerStream;
use crate::python::class::view::PyCaiView;
use crate::python::cpython::fastcall::{
    Answer, Quick, Vector, add_function, add_method, flag, keywords,
};
use crate::python::cpython::names::keys;
use crate::python::cpython::once::Once;
use crate::python::export::cai_to_capsule;
use crate::python::functions;

/// `view`.
struct View;

impl Quick for View {
    const NAME: &'static CStr = c"view";

    fn careful() -> &'static Once<Py<PyAny>> {
        static CAREFUL: Once<Py<PyAny>> = Once::new();
        &CAREFUL
    }

    #[inline(always)]
    fn call<'py>(_: Borrowed<'_, 'py, PyAny>, arguments: Vector<'_, 'py>) -> Answer<'py> {
        if let Some(object) = arguments.sole()
            && let Some(answer) = cai_to_capsule::view(object)
        {
            return answer;
        }
        careful_view(arguments)
    }
}

#[inline(never)]
fn careful_view<'py>(arguments: Vector<'_, 'py>) -> Answer<'py> {
    let Some(object) = arguments.only() else {
        return Answer::Unusual;
    };
    let (py, names) = (object.py(), keys(object.py()));
    keywords!(arguments, names; producer_stream, strict | dtype, shape, read_only, owner, ordinal, check);
    let is_plain = producer_stream.is_none()
        && dtype.is_none()
        && shape.is_none()
        && read_only.is_none()
        && owner.is_none()
        && check.is_none()
        && strict.is_none();
    if is_plain && let Some(answer) = cai_to_capsule::view_located(object, ordinal) {
        return answer;
    }
    let (Some(read_only), Some(strict)) = (flag(read_only), flag(strict)) else {
        return Answer::Unusual;
    };
    let view = functions::view(
        &object,
        ProducerStream::new(producer_stream),
        dtype.as_deref(),
        shape.as_deref(),
        read_only,
        owner.as_deref(),
        ordinal.as_deref(),
        check.as_deref(),
        strict.unwrap_or(false),
    );
    Answer::from_result(py, view.and_then(|view| view.into_object(py)))
}

/// `from_dlpack`.
struct FromDlpack;

impl Quick for FromDlpack {
    const NAME: &'static CStr = c"from_dlpack";

    fn careful() -> &'static Once<Py<PyAny>> {
        static CAREFUL: Once<Py<PyAny>> = Once::new();
        &CAREFUL
    }

    #[inline(always)]
    fn call<'py>(_: Borrowed<'_, 'py, PyAny>, arguments: Vector<'_, 'py>) -> Answer<'py> {
        if let Some(object) = arguments.sole()
            && let Some(answer) = cai_to_capsule::from_dlpack(object)
        {
            return answer;
        }
        let Some(object) = arguments.only() else {
            return Answer::Unusual;
        };
        let (py, names) = (object.py(), keys(object.py()));
        keywords!(arguments, names; producer_stream | copy, stream, dtype, shape, read_only);
        let (Some(copy), Some(read_only)) = (flag(copy), flag(read_only)) else {
            return Answer::Unusual;
        };
        let view = functions::from_dlpack(
            &object,
            None,
            copy,
            stream.as_deref(),
            ProducerStream::new(producer_stream),
            dtype.as_deref(),
            shape.as_deref(),
            read_only,
        );
        Answer::from_result(py, view.and_then(|view| view.into_object(py)))
    }
}

/// `to_dlpack`.
struct ToDlpack;

impl Quick for ToDlpack {
    const NAME: &'static CStr = c"to_dlpack";

    fn careful() -> &'static Once<Py<PyAny>> {
        static CAREFUL: Once<Py<PyAny>> = Once::new();
        &CAREFUL
    }

    #[inline(always)]
    fn call<'py>(_: Borrowed<'_, 'py, PyAny>, arguments: Vector<'_, 'py>) -> Answer<'py> {
        let Some(object) = arguments.only() else {
            return Answer::Unusual;
        };
        let names = keys(object.py());
        keywords!(arguments, names; writable | stream, max_version, dl_device, copy, ordinal);
        let is_plain = dl_device.is_none() && copy.is_none() && writable.is_none();
        if is_plain
            && let Some(answer) = cai_to_capsule::to_dlpack(object, stream, max_version, ordinal)
        {
            return answer;
        }
        let Some(writable) = flag(writable) else {
            return Answer::Unusual;
        };
        let capsule = functions::to_dlpack(
            &object,
            stream.as_deref(),
            max_version.as_deref(),
            dl_device.as_deref(),
            copy.as_deref(),
            writable.unwrap_or(false),
            ordinal.as_deref(),
        );
        Answer::from_result(object.py(), capsule)
    }
}

/// `CaiView.__dlpack__`.
struct Dlpack;

impl Quick for Dlpack {
    const NAME: &'static CStr = c"__dlpack__";

    fn careful() -> &'static Once<Py<PyAny>> {
        static CAREFUL: Once<Py<PyAny>> = Once::new();
        &CAREFUL
    }

    #[inline(always)]
    fn call<'py>(slf: Borrowed<'_, 'py, PyAny>, arguments: Vector<'_, 'py>) -> Answer<'py> {
        if !arguments.is_named_only() {
            return Answer::Unusual;
        }
        let (py, names) = (slf.py(), keys(slf.py()));
        keywords!(arguments, names; | stream, max_version, dl_device, copy);
        // SAFETY: a method descriptor of the class calls this, and it has checked the object.
        let slf = unsafe { slf.cast_unchecked::<PyCaiView>() };
        let capsule = PyCaiView::__dlpack__(
            &slf,
            stream.as_deref(),
            max_version.as_deref(),
            dl_device.as_deref(),
            copy.as_deref(),
        );
        Answer::from_result(py, capsule)
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
