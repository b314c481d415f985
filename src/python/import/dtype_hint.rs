//! The element type by the object's own word, where its typestr leaves it open or says another one.
//!
//! | typestr | written by | for |
//! |---|---|---|
//! | `<V2`, `|V1` | torch, CuPy with ml_dtypes | bfloat16, float8 |
//! | `<f1` | ml_dtypes | float8_e5m2 |
//! | `<f2` | Paddle, torch of 2024 | bfloat16, beside float16 |
//! | `<u2` | Warp | bfloat16, beside uint16 |
//!
//! Nothing is guessed: the object's `dtype` says so, or what the typestr says holds. The last two are asked
//! of these libraries alone; for every other producer the typestr is the type.

use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::protocol::dtype::{DType, Kind, TypeStr};
use crate::python::cpython::names::names;
use crate::python::cpython::release;
use crate::python::import::known_types;
use crate::python::import::traits::Traits;

/// Whether a typestr of this object may mean another type than it says.
#[inline]
pub(crate) fn is_doubtful(object: &Bound<'_, PyAny>, dtype: DType) -> bool {
    (dtype == DType::F16 || dtype == DType::U16) && mislabels(object)
}

#[cold]
fn mislabels(object: &Bound<'_, PyAny>) -> bool {
    known_types::facts_of(object).is_ok_and(|facts| facts.traits.intersects(Traits::MISLABELS))
}

/// The type that the object's own `dtype` names, where the typestr does not settle it.
///
/// # Errors
/// What the object's `dtype` raises.
pub(crate) fn of(object: &Bound<'_, PyAny>, typestr: TypeStr) -> PyResult<Option<DType>> {
    let is_open = match (typestr.kind(), typestr.itemsize()) {
        (Kind::Void, 1 | 2) | (Kind::Float, 1) => true,
        (Kind::Float | Kind::UInt, 2) => mislabels(object),
        _ => false,
    };
    if is_open {
        special(object, typestr.itemsize())
    } else {
        Ok(None)
    }
}

/// The type without a typestr, of this size, that the object's own `dtype` names.
///
/// # Errors
/// What the object's `dtype` raises.
pub(crate) fn special(object: &Bound<'_, PyAny>, itemsize: u32) -> PyResult<Option<DType>> {
    let Some(dtype) = object.getattr_opt(&names(object.py()).dtype)? else {
        return Ok(None);
    };
    let name = match dtype.getattr_opt("__name__")? {
        Some(name) => name.str()?,
        None => dtype.str()?,
    };
    Ok(named(&name, itemsize))
}

/// By the last part of a name (`torch.bfloat16`).
fn named(name: &Bound<'_, PyString>, itemsize: u32) -> Option<DType> {
    let name = release::dropping(|| name.to_cow().ok())?;
    let last = name.rsplit('.').next()?;
    let dtype = DType::from_name(last)?;
    (!dtype.has_typestr() && dtype.itemsize() == Some(itemsize)).then_some(dtype)
}
