//! Imports structs and selects their fields ([`CaiView::field`](crate::CaiView::field)).

use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use crate::protocol::dtype::{Kind, TypeStr};
use crate::protocol::interface::Descr;
use crate::protocol::rule::{Rule, Violation};
use crate::python::call::choice::text;
use crate::python::call::dtype;
use crate::python::call::options::Options;
use crate::python::class::view::PyCaiView;
use crate::python::cpython::int::repr;
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
    name: &Bound<'_, PyAny>,
    dtype: Option<&Bound<'_, PyAny>>,
) -> PyResult<PyCaiView> {
    let dtype = dtype.map(self::dtype::dtype).transpose()?;
    let given = text(name, "name", "a str, the name of a field")?;
    // A struct without names refuses the empty one.
    let named = given.as_deref().unwrap_or_default();
    let found = |violation: Violation| match (violation.rule(), &given) {
        (Rule::FieldUnknown | Rule::FieldNone, None) => violation.with_found(repr(name)),
        _ => violation,
    };
    let this = whole.get();
    let (view, fields) = (this.view().field(this.descr(), named, dtype)).map_err(found)?;
    Ok(PyCaiView::derive(whole, view)?.with_fields(fields))
}
