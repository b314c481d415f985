//! Reads Python ints: by `__index__`, but neither `bool` nor `float`.

use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyInt, PyString};
use pyo3::{Borrowed, ffi};

use crate::protocol::rule::{Field, Rule, Violation};
use crate::python::cpython::errors::caused_by;
use crate::python::cpython::names::names;
use crate::python::cpython::recursion::Level;
use crate::python::cpython::text::{made, text, unless_raised};
use crate::python::cpython::{compact_int, release};

/// The field that holds an int, and the rules for a wrong type and a wrong value.
#[derive(Clone, Copy)]
pub(crate) struct IntRule {
    pub(crate) field: Field,
    pub(crate) not_int: Rule,
    pub(crate) out_of_range: Rule,
}

impl IntRule {
    pub(crate) const fn new(field: Field, not_int: Rule, out_of_range: Rule) -> Self {
        Self {
            field,
            not_int,
            out_of_range,
        }
    }

    /// Reads the object's value.
    ///
    /// # Errors
    /// `not_int` or `out_of_range`; what `__index__` raises.
    pub(crate) fn read<'py, T>(self, object: &Bound<'py, PyAny>) -> PyResult<T>
    where
        T: for<'a> FromPyObject<'a, 'py, Error = PyErr>,
    {
        let index = self.index(object)?;
        index.extract().map_err(|error: PyErr| {
            if error.is_instance_of::<PyOverflowError>(object.py()) {
                Violation::new(self.out_of_range, self.field, repr(object)).into()
            } else {
                error
            }
        })
    }

    /// Reads the object's value, of up to 128 bits.
    ///
    /// Only ints beyond 64 bits go through PyO3's `i128`: on the first one it fills a cell, for which a child that is
    /// forked meanwhile would wait for ever (see [`cpython`](crate::python::cpython)).
    pub(crate) fn read_wide(self, object: &Bound<'_, PyAny>) -> PyResult<i128> {
        let index = self.index(object)?;
        if let Some(number) = read_by_call(index.as_borrowed()) {
            return Ok(number.into());
        }
        match index.extract::<u64>() {
            Ok(number) => Ok(number.into()),
            Err(error) => {
                release::drop_now(error);
                self.read(&index)
            }
        }
    }

    /// Converts the object into an exact `int`.
    fn index<'py>(self, object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        if object.is_exact_instance_of::<PyInt>() {
            return Ok(object.clone());
        }
        if !has_index(object) {
            return Err(self.refuse(object).into());
        }
        let _level = Level::begin(object.py())?;
        // SAFETY: the GIL is held, and the object has `__index__`.
        let index = unsafe { ffi::PyNumber_Index(object.as_ptr()) };
        // SAFETY: a new reference, or NULL with an exception set.
        let index = unsafe { Bound::from_owned_ptr_or_err(object.py(), index) };
        // An array has `__index__` and raises TypeError, unless it holds one int.
        index.map_err(
            |error| match error.is_instance_of::<PyTypeError>(object.py()) {
                true => caused_by(self.refuse(object), error),
                false => error,
            },
        )
    }

    #[cold]
    fn refuse(self, object: &Bound<'_, PyAny>) -> Violation {
        let violation = Violation::new(self.not_int, self.field, repr(object));
        match self.not_int {
            Rule::ArgumentType => violation.with_hint("must be an int"),
            Rule::StreamType if matches!(self.field, Field::Argument(_)) => {
                violation.with_hint("of another stream object, pass the handle")
            }
            _ => violation,
        }
    }
}

/// Whether an object is an int, or says by `__index__` which one; no `bool`.
pub(crate) fn has_index(object: &Bound<'_, PyAny>) -> bool {
    // SAFETY: a living object, of any type.
    !object.is_instance_of::<PyBool>() && unsafe { ffi::PyIndex_Check(object.as_ptr()) } != 0
}

/// Reads an exact `int` of 64 bits, without a reference or an exception; `None` for anything else, which
/// [`IntRule::read`] takes or refuses.
#[inline(always)]
pub(crate) fn read_fast(object: Borrowed<'_, '_, PyAny>) -> Option<i64> {
    // SAFETY: a living object, of any type.
    if unsafe { ffi::PyLong_CheckExact(object.as_ptr()) } == 0 {
        return None;
    }
    // SAFETY: an exact int.
    if let Some(small) = unsafe { compact_int::read(object.as_ptr()) } {
        return Some(small);
    }
    read_by_call(object)
}

#[inline(never)]
fn read_by_call(int: Borrowed<'_, '_, PyAny>) -> Option<i64> {
    let mut overflow = 0;
    // SAFETY: an exact int, and memory for the flag; nothing is raised.
    let number = unsafe { ffi::PyLong_AsLongLongAndOverflow(int.as_ptr(), &raw mut overflow) };
    (overflow == 0).then_some(number)
}

/// Formats an object for an error message: its `repr`, cut after 120 characters, or its type if `repr` raises.
#[cold]
pub(crate) fn repr(object: &Bound<'_, PyAny>) -> String {
    const LONGEST: usize = 120;
    let readable = |text: Bound<'_, PyString>| Some(text.to_cow().ok()?.into_owned());
    let Some(text) = made(object, |object| object.repr()).and_then(readable) else {
        return format!("<an object of type {}>", type_name(object));
    };
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

/// Formats the type of an object for a message: its qualified name, with the module.
#[cold]
pub(crate) fn type_name(object: &Bound<'_, PyAny>) -> String {
    let (kind, names) = (object.get_type(), names(object.py()));
    release::dropping(|| {
        // A metaclass may have code of its own.
        let read = |attribute| text(&unless_raised(object.py(), kind.getattr(attribute))?);
        let name = read(&names.qualname).unwrap_or_else(|| "?".into());
        match read(&names.module).as_deref() {
            None | Some("builtins" | "__main__") => name,
            Some(module) => format!("{module}.{name}"),
        }
    })
}
