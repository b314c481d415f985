//! The class that `explain` returns.

use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple};

use crate::python::cpython::errors::raised;
use crate::python::cpython::new::{new_str, new_tuple};
use crate::python::cpython::text::text;
use crate::python::cpython::thread_exit::entries;

/// The description of an import, returned by `explain`; its `str` is a text of a few lines.
///
/// Attributes
/// ----------
/// route
/// ready
/// order
/// refused
/// call
/// launch
/// dropped
/// remedies
/// driver_calls
/// warnings
/// unknown
#[pyclass(name = "Explanation", module = "cai_dlpack", frozen)]
#[derive(Default)]
pub(crate) struct Explanation {
    /// The route of `view`: "exchange", "cai", "dlpack", "array_interface", "capsule" or "view"; None if it would
    /// refuse the array.
    #[pyo3(get)]
    pub(super) route: Option<&'static str>,
    /// Where the data is ready: "now", "on" a stream, or "undeclared" with the stream that is taken; None if the
    /// producer makes it ready on the stream that it is passed.
    #[pyo3(get)]
    pub(super) ready: Option<String>,
    /// Which stream would wait for which; None if the order depends on the producer.
    #[pyo3(get)]
    pub(super) order: Option<String>,
    /// The error that the import or the consumer would raise; None if neither would, as far as is `unknown`.
    #[pyo3(get)]
    pub(super) refused: Option<String>,
    /// The consumer's call, in which `v` is the view; None without `to`.
    #[pyo3(get)]
    pub(super) call: Option<&'static str>,
    /// Explains the launch of a kernel of the library with the view as its argument: the call, the order, the
    /// driver's calls, and what is refused and dropped. None if the library has no kernels that take a view.
    #[pyo3(get)]
    pub(super) launch: Option<Py<Explanation>>,
    /// What the consumer's call takes and its array does not have, such as "the read-only flag": it can be written,
    /// although the view's memory is read-only, or may be. None if nothing is known.
    #[pyo3(get)]
    pub(super) dropped: Option<String>,
    pub(super) remedies: Vec<String>,
    pub(super) driver_calls: Option<Vec<&'static str>>,
    pub(super) warnings: Vec<String>,
    /// What cannot be known, and without what: a call of a `__dlpack__` that would make a stream wait, or the
    /// consumer's stream. None if nothing.
    #[pyo3(get)]
    pub(super) unknown: Option<String>,
    pub(super) text: String,
}

entries! {
impl Explanation {
    /// The calls that the consumer takes instead of a refused one; what the error of a refused import advises.
    #[getter]
    fn remedies<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        texts(py, self.remedies.iter())
    }

    /// The driver's calls that make the order, such as "cuEventRecord"; None if they depend on the producer, or on a
    /// stream that is not named. Questions are not among them.
    #[getter]
    fn driver_calls<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let calls = self.driver_calls.as_ref();
        let calls = calls.map(|calls| texts(py, calls.iter()));
        calls.transpose()
    }

    /// The warnings that `view` would give.
    #[getter]
    fn warnings<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        texts(py, self.warnings.iter())
    }

    fn __str__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyString>> {
        new_str(py, &self.text)
    }

    fn __repr__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyString>> {
        new_str(py, &self.text)
    }
}
}

/// The first line of an error's text: torch appends a backtrace of C++.
pub(super) fn sentence(py: Python<'_>, error: &PyErr) -> String {
    let text = text(error.value(py)).unwrap_or_default();
    match text.lines().next() {
        Some(line) if !line.is_empty() => line.to_owned(),
        _ => raised(error),
    }
}

fn texts<'py>(
    py: Python<'py>,
    texts: impl ExactSizeIterator<Item = impl AsRef<str>>,
) -> PyResult<Bound<'py, PyTuple>> {
    new_tuple(py, texts.map(|text| new_str(py, text.as_ref())))
}
