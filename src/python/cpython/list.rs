//! Takes the items of a list at one moment.

use pyo3::prelude::*;
use pyo3::sync::critical_section::with_critical_section;
use pyo3::types::PyList;

/// Returns the items of a list at one moment.
///
/// Not by `PyList_AsTuple`: before CPython 3.12 it looks up the list's memory and then allocates the tuple, by which the
/// garbage collector may start; a finaliser that empties the list frees that memory. A `Vec` starts no collection.
pub(crate) fn items<'py>(list: &Bound<'py, PyList>) -> Vec<Bound<'py, PyAny>> {
    with_critical_section(list, || list.iter().collect())
}
