//! NumPy's masked arrays, whose `__dlpack__` drops the mask.

use pyo3::prelude::*;

use crate::protocol::rule::{Field, Rule, Violation};
use crate::python::cpython::int::{repr, type_name};
use crate::python::cpython::names::names;
use crate::python::import::known_types;
use crate::python::import::traits::Traits;

/// Refuses a masked array that has a mask, whatever its values.
///
/// # Errors
/// `mask-present`; the exceptions of the array's `mask`.
#[cold]
pub(crate) fn check(object: &Bound<'_, PyAny>) -> PyResult<()> {
    if mask(object)?.is_none() {
        return Ok(());
    }
    let dtype = object.getattr(&names(object.py()).dtype)?;
    if dtype.getattr("hasobject")?.is_truthy()? {
        let violation = Violation::new(Rule::TypestrObject, Field::ObjectDtype, repr(&dtype));
        return Err(violation.into());
    }
    let kind = type_name(object);
    let found = format_args!("an array with a mask, of type {kind}");
    // Each field of a record has a mask of its own.
    let hint = match dtype.getattr("names")?.is_none() {
        true => {
            "cd.split_masked(obj) gives the values and the mask as a pair; obj.filled(value) replaces what is masked"
        }
        false => {
            "cd.split_masked(obj['name']) gives one field and its mask as a pair; obj.filled(value) replaces what is masked"
        }
    };
    Err(Violation::new(Rule::MaskPresent, Field::Object, found)
        .with_hint(hint)
        .into())
}

/// Returns the mask; `None` for `numpy.ma.nomask`, which is a false scalar.
///
/// # Errors
/// The exceptions of the array's `mask`.
pub(crate) fn mask<'py>(object: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
    let mask = object.getattr("mask")?;
    let is_array = known_types::facts_of(&mask)?
        .traits
        .intersects(Traits::NDARRAY);
    Ok(match is_array || mask.is_truthy()? {
        true => Some(mask),
        false => None,
    })
}

/// Returns which values of a masked array are valid, as `split_masked` has it: the opposite of NumPy's mask, and
/// therefore a copy.
///
/// # Errors
/// `mask-dtype` for records, each field of which has a mask of its own; the exceptions of NumPy.
pub(crate) fn valid<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = object.py();
    let mask = py
        .import("numpy.ma")?
        .call_method1("getmaskarray", (object,))?;
    let dtype = mask.getattr(&names(py).dtype)?;
    if dtype.getattr("names")?.is_none() {
        let valid = mask.call_method0("__invert__")?;
        // Without axes it is a scalar, which has no memory to share.
        return py.import("numpy")?.call_method1("asarray", (valid,));
    }
    let found = format_args!("a mask of dtype {dtype}");
    Err(Violation::new(Rule::MaskDtype, Field::Object, found)
        .with_hint("split one field of the records: cd.split_masked(obj['name'])")
        .into())
}
