//! Converts a caught panic into an exception.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use pyo3::exceptions::PyMemoryError;
use pyo3::gc::PyTraverseError;
use pyo3::panic::PanicException;
use pyo3::prelude::*;

/// What PyO3's constructors panic with if CPython returns NULL: an int, a str or a tuple for which there is no memory.
/// PyO3 has printed CPython's `MemoryError` by then.
const NO_OBJECT: &str = "PyObject pointer is null";

/// The type that an entry of a class returns (`entries!`).
pub(crate) trait Entry {
    /// Runs the entry.
    fn run(body: impl FnOnce() -> Self) -> Self;
}

/// Raises `MemoryError` where PyO3 finds no memory for an object.
impl<T> Entry for PyResult<T> {
    #[inline(always)]
    fn run(body: impl FnOnce() -> Self) -> Self {
        catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|payload| Err(caught(&*payload)))
    }
}

/// Makes no object, and runs as it is.
macro_rules! makes_no_object {
    ($($returned:ty),*) => {$(
        impl Entry for $returned {
            #[inline(always)]
            fn run(body: impl FnOnce() -> Self) -> Self {
                body()
            }
        }
    )*};
}
makes_no_object!((), Option<bool>, Result<(), PyTraverseError>);

/// Returns the exception for a panic: `MemoryError` where PyO3 has found no memory for an object.
#[cold]
pub(crate) fn caught(payload: &(dyn Any + Send)) -> PyErr {
    match is_out_of_memory(payload) {
        true => PyMemoryError::new_err(()),
        false => PanicException::new_err("panic from Rust code"),
    }
}

/// Whether PyO3 has found no memory for an object.
pub(crate) fn is_out_of_memory(payload: &(dyn Any + Send)) -> bool {
    payload
        .downcast_ref::<&str>()
        .is_some_and(|text| *text == NO_OBJECT)
}
