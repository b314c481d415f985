//! Reads the letters of a str without raising, allocating or running code, so that a reader may hold borrowed references
//! meanwhile.
//!
//! `PyUnicode_AsUTF8AndSize` does not qualify: for a lone surrogate it raises an error, whose allocation may start the
//! garbage collector (CPython before 3.12) and with it any finaliser.

use std::ops::Deref;

use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::types::PyString;
use pyo3::{Borrowed, ffi};

use crate::python::cpython::interrupt::raise_later;
use crate::python::cpython::release;

/// The letters of a str, one byte each: Latin-1, or only ASCII.
#[cfg(not(any(Py_LIMITED_API, PyPy, GraalPy)))]
pub(crate) struct Letters<'a>(&'a [u8]);

#[cfg(not(any(Py_LIMITED_API, PyPy, GraalPy)))]
impl<'a> Letters<'a> {
    /// Reads an exact str in place; `None` for any other object, and for a letter of more than one byte.
    #[inline(always)]
    pub(crate) fn read_fast(text: Borrowed<'a, '_, PyAny>) -> Option<Self> {
        let text = text.as_ptr();
        // SAFETY: a living object, of any type.
        if unsafe { ffi::PyUnicode_CheckExact(text) } == 0 {
            return None;
        }
        // SAFETY: an exact str.
        if unsafe { ffi::PyUnicode_KIND(text) } != ffi::PyUnicode_1BYTE_KIND {
            return None;
        }
        // SAFETY: an exact str.
        let length = unsafe { ffi::PyUnicode_GET_LENGTH(text) };
        // SAFETY: an exact str.
        let letters = unsafe { ffi::PyUnicode_DATA(text) };
        // SAFETY: `length` letters of one byte (the kind), which the str owns, never changes, and keeps during `'a`.
        let letters = unsafe { std::slice::from_raw_parts(letters.cast(), length.cast_unsigned()) };
        Some(Self(letters))
    }
}

#[cfg(not(any(Py_LIMITED_API, PyPy, GraalPy)))]
impl Deref for Letters<'_> {
    type Target = [u8];

    #[inline(always)]
    fn deref(&self) -> &[u8] {
        self.0
    }
}

/// The letters of a str of up to [`LONGEST`], one byte each: Latin-1.
#[cfg(any(Py_LIMITED_API, PyPy, GraalPy))]
pub(crate) struct Letters<'a> {
    letters: [u8; LONGEST],
    length: usize,
    lives: std::marker::PhantomData<&'a ()>,
}

/// The length of the longest typestr of a type that DLPack has, and some more.
#[cfg(any(Py_LIMITED_API, PyPy, GraalPy))]
const LONGEST: usize = 8;

#[cfg(any(Py_LIMITED_API, PyPy, GraalPy))]
impl<'a> Letters<'a> {
    /// Copies the letters of an exact str; `None` for any other object, for a longer one, and for a letter of more than
    /// one byte.
    pub(crate) fn read_fast(text: Borrowed<'a, '_, PyAny>) -> Option<Self> {
        let text = text.as_ptr();
        // SAFETY: a living object, of any type.
        if unsafe { ffi::PyUnicode_CheckExact(text) } == 0 {
            return None;
        }
        // SAFETY: an exact str, for which nothing is raised.
        let length = unsafe { ffi::PyUnicode_GetLength(text) }.cast_unsigned();
        let mut letters = [0; LONGEST];
        for (at, letter) in letters.get_mut(..length)?.iter_mut().enumerate() {
            // SAFETY: an exact str, and `at` is below its length, so that nothing is raised.
            *letter =
                u8::try_from(unsafe { ffi::PyUnicode_ReadChar(text, at.cast_signed()) }).ok()?;
        }
        Some(Self {
            letters,
            length,
            lives: std::marker::PhantomData,
        })
    }
}

#[cfg(any(Py_LIMITED_API, PyPy, GraalPy))]
impl Deref for Letters<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.letters[..self.length]
    }
}

/// Formats numbers as Python does a tuple.
#[cold]
pub(crate) fn as_tuple(numbers: impl ExactSizeIterator<Item = impl ToString>) -> String {
    let numbers: Vec<String> = numbers.map(|number| number.to_string()).collect();
    match numbers.as_slice() {
        [number] => format!("({number},)"),
        numbers => format!("({})", numbers.join(", ")),
    }
}

/// Returns the text of a str, and of any other object what `str` makes of it; `None` if that raises. Runs no code for a str:
/// `str` itself asks for signals first, whose handlers may raise.
#[cold]
pub(crate) fn text(object: &Bound<'_, PyAny>) -> Option<String> {
    let read = |text: &Bound<'_, PyString>| text.to_string_lossy().into_owned();
    match object.cast::<PyString>() {
        Ok(text) => Some(read(text)),
        Err(_) => made(object, Bound::str).map(|text| read(&text)),
    }
}

/// Returns what `str` or `repr` makes of an object for a message; `None` if it raises. What is not the object's own, as an
/// interrupt that comes meanwhile, is [raised after all](raise_later).
#[cold]
pub(crate) fn made<'py>(
    object: &Bound<'py, PyAny>,
    make: fn(&Bound<'py, PyAny>) -> PyResult<Bound<'py, PyString>>,
) -> Option<Bound<'py, PyString>> {
    let py = object.py();
    // Or else the call asks for them, and what their handlers raise is taken for what the object has raised.
    if let Err(signalled) = py.check_signals() {
        raise_later(py, signalled);
    }
    unless_raised(py, make(object))
}

/// Returns what a question for a message has found; `None` if it has raised, which is dropped, or raised after all.
#[cold]
pub(crate) fn unless_raised<T>(py: Python<'_>, found: PyResult<T>) -> Option<T> {
    match found {
        Ok(found) => Some(found),
        Err(error) => {
            match error.is_instance_of::<PyException>(py) {
                true => release::drop_now(error),
                false => raise_later(py, error),
            }
            None
        }
    }
}
