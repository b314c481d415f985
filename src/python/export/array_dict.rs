//! Makes the dict of items that DLPack cannot describe: their typestr, and the fields of records.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString};

use crate::protocol::cai_only::CaiOnly;
use crate::protocol::interface::{Descr, DescrField};
use crate::python::cpython::names::names;
use crate::python::cpython::new::{new_dict, new_int, new_ints, new_list, new_str, new_tuple};

/// Makes a dict of the CUDA Array Interface without an array: its other values are None.
pub(crate) fn empty<'py>(
    py: Python<'py>,
    typestr: &Bound<'py, PyString>,
) -> PyResult<Bound<'py, PyDict>> {
    let (names, dict) = (names(py), new_dict(py)?);
    dict.set_item(&names.shape, py.None())?;
    dict.set_item(&names.typestr, typestr)?;
    dict.set_item(&names.data, py.None())?;
    dict.set_item(&names.strides, py.None())?;
    dict.set_item(&names.stream, py.None())?;
    dict.set_item(&names.version, new_int(py, 3)?)?;
    Ok(dict)
}

/// Like [`empty`], with the `descr` of records.
#[cold]
#[inline(never)]
pub(crate) fn described<'py>(py: Python<'py>, only: &CaiOnly) -> PyResult<Bound<'py, PyDict>> {
    let dict = empty(py, &new_str(py, &only.typestr().to_string())?)?;
    if let Some(descr) = descr(py, only.descr())? {
        dict.set_item(&names(py).descr, descr)?;
    }
    Ok(dict)
}

/// Returns the `descr` of records; `None` for any other items, whose typestr says all.
pub(crate) fn descr<'py>(py: Python<'py>, descr: &Descr) -> PyResult<Option<Bound<'py, PyList>>> {
    match descr {
        Descr::Fields(fields) => list_of(py, fields).map(Some),
        Descr::None | Descr::Trivial => Ok(None),
    }
}

fn list_of<'py>(py: Python<'py>, fields: &[DescrField]) -> PyResult<Bound<'py, PyList>> {
    let list = new_list(py)?;
    for field in fields {
        let name = match field.title() {
            Some(title) => {
                let names = [new_str(py, title), new_str(py, field.name())];
                new_tuple(py, names)?.into_any()
            }
            None => new_str(py, field.name())?.into_any(),
        };
        let kind = match field.nested() {
            Some(inner) => list_of(py, inner)?.into_any(),
            None => new_str(py, &field.typestr().to_string())?.into_any(),
        };
        if field.shape().is_empty() {
            list.append(new_tuple(py, [Ok(name), Ok(kind)])?)?;
        } else {
            let shape = new_ints(py, field.shape().iter().copied()).map(Bound::into_any);
            list.append(new_tuple(py, [Ok(name), Ok(kind), shape])?)?;
        }
    }
    Ok(list)
}
