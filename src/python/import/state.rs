//! Reads the state of an object that its export omits: pending operations, gradients, sparse and pinned memory.
//!
//! The attributes are those of torch, which Paddle has too; a type without them has none of these states ([`Traits`]).

use std::ptr;

use pyo3::ffi;
use pyo3::prelude::*;

use crate::protocol::dtype::{DType, code};
use crate::protocol::rule::{Field, Rule, Violation};
use crate::python::cpython::int::type_name;
use crate::python::cpython::names::names;
use crate::python::cpython::recursion::Level;
use crate::python::import::traits::Traits;

/// Whether the object's own `__dlpack__` refuses these elements, which the table's functions do not check (torch,
/// paddle).
///
/// # Errors
/// `values-lazy`, as by [`check_values`].
pub(crate) fn is_refused(
    object: &Bound<'_, PyAny>,
    traits: Traits,
    dtype: DType,
) -> PyResult<bool> {
    check_negation(object, traits)?;
    // Integers have no gradients, and only complex numbers a conjugate.
    if matches!(dtype.code(), code::COMPLEX | code::BCOMPLEX) {
        check_conjugate(object, traits)?;
    }
    let may_have_gradient = !matches!(dtype.code(), code::INT | code::UINT | code::BOOL);
    Ok(may_have_gradient && is_true(object, traits, Traits::REQUIRES_GRAD)?)
}

/// Refuses an object whose values are not the bytes in memory: torch's interface omits both flags, as its table does, and
/// its `__dlpack__` the negative one.
///
/// # Errors
/// `values-lazy`.
#[inline(always)]
pub(crate) fn check_values(object: &Bound<'_, PyAny>, traits: Traits) -> PyResult<()> {
    check_negation(object, traits)?;
    check_conjugate(object, traits)
}

#[inline(always)]
fn check_negation(object: &Bound<'_, PyAny>, traits: Traits) -> PyResult<()> {
    match is_true(object, traits, Traits::IS_NEG)? {
        true => Err(pending(object, "is_neg", "resolve_neg")),
        false => Ok(()),
    }
}

#[inline(always)]
fn check_conjugate(object: &Bound<'_, PyAny>, traits: Traits) -> PyResult<()> {
    match is_true(object, traits, Traits::IS_CONJ)? {
        true => Err(pending(object, "is_conj", "resolve_conj")),
        false => Ok(()),
    }
}

/// Whether the object is sparse: the table's functions treat every tensor as strided.
#[inline(always)]
pub(crate) fn is_no_array(object: &Bound<'_, PyAny>, traits: Traits) -> PyResult<bool> {
    is_true(object, traits, Traits::IS_SPARSE)
}

/// Whether an array is pinned, which its table states to be on the CPU.
#[inline(always)]
pub(crate) fn is_pinned(object: &Bound<'_, PyAny>, traits: Traits) -> PyResult<bool> {
    is_true(object, traits, Traits::IS_PINNED)
}

#[cold]
fn pending(object: &Bound<'_, PyAny>, flag: &str, resolve: &str) -> PyErr {
    let name = type_name(object);
    let found = format_args!("an object of type {name} whose {flag}() is true");
    Violation::new(Rule::ValuesLazy, Field::Object, found)
        .with_hint(format!("materialise it first, with {resolve}()"))
        .into()
}

/// Reads an attribute of [`Traits`]: a property, or a method without arguments. False if the type does not have it.
#[inline(always)]
fn is_true(object: &Bound<'_, PyAny>, traits: Traits, state: Traits) -> PyResult<bool> {
    Ok(traits.intersects(state) && read_state(object, traits, state)?)
}

#[inline(never)]
fn read_state(object: &Bound<'_, PyAny>, traits: Traits, state: Traits) -> PyResult<bool> {
    let _level = Level::begin(object.py())?;
    let py = object.py();
    let names = names(py);
    let name = match state {
        Traits::REQUIRES_GRAD => &names.requires_grad,
        Traits::IS_CONJ => &names.is_conj,
        Traits::IS_NEG => &names.is_neg,
        Traits::IS_SPARSE => &names.is_sparse,
        _ => &names.is_pinned,
    };
    let value = if traits.intersects(state.method()) {
        let argument = object.as_ptr();
        // SAFETY: a str, and one argument (the object), both alive during the call; the GIL is held.
        let answer = unsafe {
            ffi::PyObject_VectorcallMethod(name.as_ptr(), &raw const argument, 1, ptr::null_mut())
        };
        // SAFETY: a new reference, or NULL with an exception set.
        unsafe { Bound::from_owned_ptr_or_err(py, answer) }?
    } else {
        object.getattr(name)?
    };
    value.is_truthy()
}
