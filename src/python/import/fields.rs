//! Imports structs and selects their fields ([`CaiView::field`](crate::CaiView::field)).

use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::protocol::cai_only::CaiOnly;
use crate::protocol::descriptor::Descriptor;
use crate::protocol::dtype::{Kind, TypeStr};
use crate::protocol::interface::Descr;
use crate::protocol::rule::{Rule, Violation};
use crate::python::call::choice::text;
use crate::python::call::dtype;
use crate::python::call::options::Options;
use crate::python::class::view::PyCaiView;
use crate::python::cpython::int::repr;
use crate::python::cpython::names::names;
use crate::python::cpython::new::{new_str, new_tuple};
use crate::python::import::cai_dict::ParsedDict;
use crate::python::import::own_descr;

/// Adds the fields of the object's `dtype` to a dict without a `descr` (Numba, PyCUDA), unless the caller describes its
/// items otherwise. Whether the items have fields then.
///
/// # Errors
/// The rules of `descr`; the exceptions of the object's `dtype`.
pub(crate) fn complete(
    object: &Bound<'_, PyAny>,
    read: &mut ParsedDict<'_>,
    options: &Options<'_, '_>,
) -> PyResult<bool> {
    if !options.keeps_elements() {
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

fn own_descr(object: &Bound<'_, PyAny>, typestr: TypeStr) -> PyResult<Descr> {
    match object.getattr_opt(&names(object.py()).dtype)? {
        Some(dtype) => own_descr::of_dtype(object, &dtype, typestr),
        None => Ok(Descr::None),
    }
}

/// Returns the names of a view's fields.
pub(crate) fn field_names<'py>(
    py: Python<'py>,
    descriptor: &Descriptor,
) -> PyResult<Bound<'py, PyTuple>> {
    let fields = descriptor.cai_only().map(CaiOnly::descr);
    let names: Vec<_> = fields.into_iter().flat_map(Descr::names).collect();
    new_tuple(py, names.into_iter().map(|name| new_str(py, name)))
}

/// Returns one field as a view of the same memory, owner and streams.
///
/// # Errors
/// Those of [`CaiView::field`](crate::CaiView::field).
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
    let view = whole.get().view().field(named, dtype).map_err(found)?;
    PyCaiView::derive(whole, view)
}
