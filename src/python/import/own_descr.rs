//! Reads the fields of a record from NumPy's dtype, and refuses those of which its `descr` says too little.
//!
//! | dtype | its `descr` |
//! |---|---|
//! | fields that overlap, or lie in another order than they are named | raises ValueError, or raw bytes without fields |
//! | a field of ml_dtypes (`bfloat16`, `int4`) | raw bytes, or a typestr that NumPy does not take |
//! | a field of objects | pointers that mean nothing elsewhere |

use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::protocol::dtype::TypeStr;
use crate::protocol::interface::Descr;
use crate::protocol::rule::{Field, Rule, Violation};
use crate::python::cpython::int::repr;
use crate::python::cpython::names::names;
use crate::python::cpython::recursion::Level;
use crate::python::cpython::release;
use crate::python::import::descr;

/// Reads the fields of `dtype`, that of `object`, of items that `typestr` describes; none if it is no dtype of NumPy's.
///
/// # Errors
/// `typestr-object`, `descr-unsaid` and the other rules of `descr`; the exceptions of the dtype's attributes.
#[cold]
pub(crate) fn of_dtype(
    object: &Bound<'_, PyAny>,
    dtype: &Bound<'_, PyAny>,
    typestr: TypeStr,
) -> PyResult<Descr> {
    match dtype.getattr_opt("names")? {
        Some(names) if !names.is_none() => check(object, dtype)?,
        _ => {}
    }
    match dtype.getattr_opt(&names(dtype.py()).descr)? {
        Some(list) if list.is_instance_of::<PyList>() => descr::read(Some(list), typestr),
        _ => Ok(Descr::None),
    }
}

fn check(object: &Bound<'_, PyAny>, dtype: &Bound<'_, PyAny>) -> PyResult<()> {
    let rule = if has_objects(dtype)? {
        Rule::TypestrObject
    } else if !is_said(dtype)? {
        Rule::DescrUnsaid
    } else {
        return Ok(());
    };
    let violation = Violation::new(rule, Field::ObjectDtype, repr(dtype));
    Err(match one_field(object, dtype)? {
        Some(field) => violation.with_hint(format!("view one field: cd.view(obj[{field}])")),
        None => violation,
    }
    .into())
}

fn has_objects(dtype: &Bound<'_, PyAny>) -> PyResult<bool> {
    match dtype.getattr_opt("hasobject")? {
        Some(objects) => objects.is_truthy(),
        None => Ok(false),
    }
}

/// Returns a field that can be viewed as an array of its own, quoted: NumPy's arrays give one by name, and Numba's do
/// not.
fn one_field(object: &Bound<'_, PyAny>, dtype: &Bound<'_, PyAny>) -> PyResult<Option<String>> {
    let fields = dtype.getattr("fields")?;
    for name in dtype.getattr("names")?.try_iter()? {
        let name = name?;
        let kind = fields.get_item(&name)?.get_item(0)?;
        let base = kind.getattr("base")?;
        let is_whole =
            !has_objects(&base)? && (base.getattr("names")?.is_none() || is_said(&base)?);
        if is_whole && release::dropping(|| object.get_item(&name).is_ok()) {
            return Ok(Some(repr(&name)));
        }
    }
    Ok(None)
}

/// Whether each field follows the one before, and has a type that its typestr names.
fn is_said(dtype: &Bound<'_, PyAny>) -> PyResult<bool> {
    /// The first number of the dtypes that a package registers with NumPy (`NPY_USERDEF`).
    const REGISTERED: i64 = 256;
    let _level = Level::begin(dtype.py())?;
    let (names, fields) = (dtype.getattr("names")?, dtype.getattr("fields")?);
    let mut end: i64 = 0;
    for name in names.try_iter()? {
        let field = fields.get_item(name?)?;
        let (kind, offset) = (field.get_item(0)?, field.get_item(1)?.extract::<i64>()?);
        if offset < end {
            return Ok(false);
        }
        end = offset.saturating_add(kind.getattr("itemsize")?.extract()?);
        let base = kind.getattr("base")?;
        let is_said = match base.getattr("names")?.is_none() {
            true => base.getattr("num")?.extract::<i64>()? < REGISTERED,
            false => is_said(&base)?,
        };
        if !is_said {
            return Ok(false);
        }
    }
    Ok(true)
}
