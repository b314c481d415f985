//! Exports a view as a dict of the CUDA Array Interface, version 3.
//!
//! Copies a template of the element type, and sets the values that differ: filling an empty dict key by key costs twice
//! as much, as it grows.

use once_cell::race::OnceBox;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::protocol::convert::Items;
use crate::protocol::device::Access;
use crate::protocol::dtype::DType;
use crate::protocol::stream::Stream;
use crate::python::cpython::names::names;
use crate::python::cpython::new::{new_address_and_flag, new_ints, new_str, new_uint};
use crate::python::export::array_dict;
use crate::view::CaiView;

/// The template of each element type; empty for those without a typestr.
static TEMPLATES: [OnceBox<Py<PyDict>>; DType::ALL.len()] =
    [const { OnceBox::new() }; DType::ALL.len()];

/// Makes the dict of a view of these items (`Descriptor::check_interface`), whose ready stream its number names here
/// ([`CaiView::ready_by_number`]).
#[inline]
pub(crate) fn of<'py>(
    py: Python<'py>,
    view: &CaiView,
    items: Items<'_>,
    ready: Stream,
) -> PyResult<Bound<'py, PyDict>> {
    let descriptor = view.descriptor();
    let names = names(py);
    let dict = match items {
        Items::Typed(typestr) => {
            let template = template(py, descriptor.dtype(), typestr)?;
            // SAFETY: a living dict; the GIL is held.
            let dict = unsafe { ffi::PyDict_Copy(template.as_ptr()) };
            // SAFETY: a new reference, or NULL with an exception set.
            let dict = unsafe { Bound::from_owned_ptr_or_err(py, dict) }?;
            // SAFETY: `PyDict_Copy` returns a dict.
            unsafe { dict.cast_into_unchecked::<PyDict>() }
        }
        Items::CaiOnly(only) => array_dict::described(py, only)?,
    };
    dict.set_item(
        &names.shape,
        new_ints(py, descriptor.shape().iter().copied())?,
    )?;
    let is_read_only = descriptor.access() != Access::Writable;
    dict.set_item(
        &names.data,
        new_address_and_flag(py, descriptor.data(), is_read_only)?,
    )?;
    if let Some(itemsize) = descriptor.itemsize()
        && let Some(strides) = descriptor.layout().interface_strides(itemsize)
    {
        dict.set_item(&names.strides, new_ints(py, strides)?)?;
    }
    if let Some(stream) = ready.to_cai() {
        dict.set_item(&names.stream, new_uint(py, stream)?)?;
    }
    Ok(dict)
}

/// Returns the template of an element type, in which strides and stream are None.
#[inline]
fn template<'py>(
    py: Python<'py>,
    dtype: DType,
    typestr: &'static str,
) -> PyResult<&'py Bound<'py, PyDict>> {
    let place = dtype.index().expect("a type with a typestr is scalar");
    let made = TEMPLATES[place].get_or_try_init(|| {
        let dict = array_dict::empty(py, &new_str(py, typestr)?)?;
        Ok::<_, PyErr>(Box::new(dict.unbind()))
    })?;
    Ok(made.bind(py))
}
