//! Reads the letters of a str without raising, allocating or running code, so that a reader may hold borrowed references
//! meanwhile.
//!
//! `PyUnicode_AsUTF8AndSize` does not qualify: for a lone surrogate it raises an error, whose allocation may start the
//! garbage collector (CPython before 3.12) and with it any finaliser.

use std::ops::Deref;

use pyo3::prelude::*;
use pyo3::{Borrowed, ffi};

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
