//! Imports structs and selects their fields ([`CaiView::field`](crate::CaiView::field)).

use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use crate::protocol::dtype::{Kind, TypeStr};
use crate::protocol::interface::Descr;
use crate::python::call::options;
use crate::python::call::options::Options;
use crate::python::class::view::PyCaiView;
use crate::python::cpython::names::names;
use crate::python::import::cai_dict::ParsedDict;
use crate::python::import::descr;

/// Whether the dict describes a struct, and the caller does not describe its items otherwise. Without a `descr`
/// (Numba, PyCUDA) the fields are those of the object's `dtype`.
///
/// # Errors
/// The rules of `descr`; the exceptions of the object's `dtype`.
pub(crate) fn is_one(
    object: &Bound<'_, PyAny>,
    read: &mut ParsedDict<'_>,
    options: &Options<'_, '_>,
) -> PyResult<bool> {
    if options.dtype.is_some() || options.shape.is_some() {
        return Ok(false);
    }
    let typestr = read.interface.typestr();
    let is_open = !matches!(read.interface.descr(), Descr::Fields(_));
    if is_open && typestr.kind() == Kind::Void {
        let own = own_descr(object, typestr)?;
        read.interface.set_descr(own);
    }
    Ok(matches!(read.interface.descr(), Descr::Fields(_)))
}

/// Reads `object.dtype.descr`, an attribute of NumPy's dtypes.
fn own_descr(object: &Bound<'_, PyAny>, typestr: TypeStr) -> PyResult<Descr> {
    let Some(dtype) = object.getattr_opt(&names(object.py()).dtype)? else {
        return Ok(Descr::None);
    };
    match dtype.getattr_opt(&names(object.py()).descr)? {
        Some(list) if list.is_instance_of::<PyList>() => descr::read(Some(list), typestr),
        _ => Ok(Descr::None),
    }
}

/// Returns the names of a view's fields.
pub(crate) fn field_names<'py>(py: Python<'py>, fields: &Descr) -> PyResult<Bound<'py, PyTuple>> {
    PyTuple::new(py, fields.names().collect::<Vec<_>>())
}

/// Returns one field as a view of the same memory, owner and streams.
///
/// # Errors
/// `field-unknown`, `field-none`, `field-stride` and the rules of its type.
pub(crate) fn field(
    whole: &Bound<'_, PyCaiView>,
    name: &str,
    dtype: Option<&Bound<'_, PyAny>>,
) -> PyResult<PyCaiView> {
    let dtype = dtype.map(options::dtype).transpose()?;
    let this = whole.get();
    let (view, fields) = this.view().field(this.descr(), name, dtype)?;
    Ok(PyCaiView::derive(whole, view)?.with_fields(fields))
}
