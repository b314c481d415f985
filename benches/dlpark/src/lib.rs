//! dlpark's own way in and out of Python, as its documentation shows it.

use dlpark::python::{ImportedDlpack, from_dlpack};
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;

/// Imports, validates and gives back.
#[pyfunction]
fn take(object: &Bound<'_, PyAny>) -> PyResult<()> {
    let tensor = from_dlpack(object.as_borrowed(), None, Some(false))?;
    match tensor.validate() {
        Ok(_) => Ok(()),
        Err(why) => Err(PyBufferError::new_err(why.to_string())),
    }
}

/// Imports, and answers a capsule of the same tensor.
#[pyfunction]
fn pass_on<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    match from_dlpack(object.as_borrowed(), None, Some(false))? {
        ImportedDlpack::Legacy(tensor) => tensor.into_pyobject(object.py()),
        ImportedDlpack::Versioned(tensor) => tensor.into_pyobject(object.py()),
    }
}

#[pymodule]
fn dlpark_path(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(take, module)?)?;
    module.add_function(wrap_pyfunction!(pass_on, module)?)
}
