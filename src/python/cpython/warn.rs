//! Issues warnings once per type of producer, not once per array.

use std::ffi::CString;

use once_cell::race::OnceBox;
use pyo3::prelude::*;
use pyo3::sync::critical_section::with_critical_section;
use pyo3::types::PySet;

use crate::python::cpython::int::type_name;

/// Warns, unless the object's type was warned of with this text before.
///
/// # Errors
/// The warning, if a filter makes it an error.
#[cold]
pub(crate) fn once(
    object: &Bound<'_, PyAny>,
    text: &str,
    category: &Bound<'_, PyAny>,
) -> PyResult<()> {
    static SEEN: OnceBox<Py<PySet>> = OnceBox::new();
    let py = object.py();
    let seen = SEEN
        .get_or_try_init(|| PySet::empty(py).map(|set| Box::new(set.unbind())))?
        .bind(py);
    // A reference to the type would keep it alive for ever.
    let key = (type_name(object), text);
    // Added first, so that the second try succeeds if a filter makes the warning an error. One step also without the
    // GIL: tuples of str are compared without Python code.
    let is_new = with_critical_section(seen, || {
        let is_new = !seen.contains(&key)?;
        seen.add(&key)?;
        Ok::<_, PyErr>(is_new)
    })?;
    if !is_new {
        return Ok(());
    }
    PyErr::warn(py, category, &CString::new(text).unwrap_or_default(), 1)
}
