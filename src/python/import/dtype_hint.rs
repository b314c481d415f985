//! Reads the element type from the object's `dtype`, if its typestr leaves it open or states another one.
//!
//! | typestr | written by | for |
//! |---|---|---|
//! | `<V2`, `|V1` | torch, NumPy and CuPy with ml_dtypes | bfloat16, float8, and padded types smaller than a byte |
//! | `<f1` | ml_dtypes | float8_e5m2 |
//! | `|V4`, `<c4` | none known | complex32, which ml_dtypes writes as `<W4` |
//! | `<f2` | Paddle, torch of 2024 | bfloat16, beside float16 |
//! | `<u2` | Warp | bfloat16, beside uint16 |
//!
//! Nothing is guessed: the type is that of the object's `dtype`, else that of the typestr. The `dtype` is read for the
//! last two typestrs only if the object is of one of these libraries.

use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::protocol::dtype::{DType, Kind, TypeStr};
use crate::python::cpython::names::names;
use crate::python::cpython::release;
use crate::python::import::known_types;
use crate::python::import::traits::Traits;

/// Whether the object's typestr may state another type than its own.
#[inline]
pub(crate) fn is_doubtful(object: &Bound<'_, PyAny>, dtype: DType) -> bool {
    is_often_mislabelled(dtype) && mislabels(object)
}

/// Whether some library writes the typestr of this type for another one.
#[inline]
pub(crate) fn is_often_mislabelled(dtype: DType) -> bool {
    dtype == DType::F16 || dtype == DType::U16
}

/// Whether the object's library does.
#[cold]
pub(crate) fn mislabels(object: &Bound<'_, PyAny>) -> bool {
    known_types::facts_of(object).is_ok_and(|facts| facts.traits.intersects(Traits::MISLABELS))
}

/// Returns the type of the object's `dtype`, if the typestr leaves it open.
///
/// # Errors
/// The exceptions of the object's `dtype`.
pub(crate) fn of(object: &Bound<'_, PyAny>, typestr: TypeStr) -> PyResult<Option<DType>> {
    let is_open = match (typestr.kind(), typestr.itemsize()) {
        _ if typestr.is_swapped() => false,
        (Kind::Void, 1 | 2 | 4) | (Kind::Float, 1) | (Kind::Complex, 4) => true,
        (Kind::Float | Kind::UInt, 2) => mislabels(object),
        _ => false,
    };
    if is_open {
        special(object, typestr.itemsize())
    } else {
        Ok(None)
    }
}

/// Returns the type of the object's `dtype`, if it has this size and no typestr. One smaller than a byte is padded to a
/// byte, as ml_dtypes stores it ([`into_named`](crate::protocol::interface::CaiInterface::into_named)).
///
/// # Errors
/// The exceptions of the object's `dtype`.
pub(crate) fn special(object: &Bound<'_, PyAny>, itemsize: u32) -> PyResult<Option<DType>> {
    let Some(dtype) = object.getattr_opt(&names(object.py()).dtype)? else {
        return Ok(None);
    };
    let name = match dtype.getattr_opt("__name__")? {
        Some(name) => name.str()?,
        None => dtype.str()?,
    };
    if itemsize == 1
        && let dtype @ Some(_) = without_order(&dtype)?
    {
        return Ok(dtype);
    }
    Ok(named(&name, itemsize))
}

/// Returns the type of a dtype of one byte of NumPy's, which names itself by its typestr if it has a foreign byte order
/// (`>V1`): one byte has no order.
fn without_order(dtype: &Bound<'_, PyAny>) -> PyResult<Option<DType>> {
    match dtype.getattr_opt("name")? {
        Some(name) => Ok(name.cast().ok().and_then(|name| named(name, 1))),
        None => Ok(None),
    }
}

/// Looks a type up by the last part of its name (`torch.bfloat16`).
fn named(name: &Bound<'_, PyString>, itemsize: u32) -> Option<DType> {
    let name = release::dropping(|| name.to_cow().ok())?;
    let last = name.rsplit('.').next()?;
    let dtype = DType::from_name(last)?;
    let is_padded = dtype.is_sub_byte() && dtype.lanes() == 1;
    let nbytes = if is_padded { 1 } else { dtype.itemsize()? };
    (!dtype.has_typestr() && nbytes == itemsize).then_some(dtype)
}
