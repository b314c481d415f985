//! The libraries that callers have named, by the object: finding a name compares it with all of the table's.
//!
//! A module and an interned str, as a name in code is, are found by their address, of which there are few. Any other str
//! is found by a dict.

use once_cell::race::OnceBox;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyModule, PyString};

use crate::partners::PARTNERS;
use crate::python::cpython::new::new_uint;
use crate::python::cpython::release;
use crate::python::to::imported::Imported;

/// An object by which a library was named. It is kept, so that no other object gets its address.
struct Named {
    object: Py<PyAny>,
    imported: &'static Imported,
}

/// The objects, in the order in which they were named first; the first empty cell ends them.
static BY_ADDRESS: [OnceBox<Named>; 32] = [const { OnceBox::new() }; 32];

/// The index of the partner of each name.
fn by_name(py: Python<'_>) -> &Bound<'_, PyDict> {
    static BY_NAME: OnceBox<Py<PyDict>> = OnceBox::new();
    BY_NAME
        .get_or_init(|| Box::new(PyDict::new(py).unbind()))
        .bind(py)
}

/// Finds the library that an object has named before.
///
/// # Errors
/// Those of importing the library.
#[inline(always)]
pub(super) fn find(library: &Bound<'_, PyAny>) -> PyResult<Option<&'static Imported>> {
    let named = BY_ADDRESS.iter().map_while(OnceBox::get);
    for named in named {
        if named.object.is(library) {
            return Ok(Some(named.imported));
        }
    }
    find_by_name(library)
}

#[inline(never)]
fn find_by_name(library: &Bound<'_, PyAny>) -> PyResult<Option<&'static Imported>> {
    if !library.is_exact_instance_of::<PyString>() {
        return Ok(None);
    }
    let Some(at) = by_name(library.py()).get_item(library)? else {
        return Ok(None);
    };
    let partner = PARTNERS.get(at.extract::<usize>()?);
    let imported = partner.map(|partner| Imported::of(library.py(), partner));
    imported.transpose()
}

/// Remembers the library of a name or a module.
///
/// # Errors
/// Out of memory.
#[cold]
pub(super) fn remember(library: &Bound<'_, PyAny>, imported: &'static Imported) -> PyResult<()> {
    if let Ok(name) = library.cast_exact::<PyString>() {
        let at = PARTNERS
            .iter()
            .position(|each| std::ptr::eq(each, imported.partner));
        if let Some(at) = at {
            by_name(library.py()).set_item(name, new_uint(library.py(), at as u64)?)?;
        }
        let interned = PyString::intern(library.py(), &name.to_string_lossy());
        if !interned.is(name) {
            return Ok(());
        }
    } else if !library.is_exact_instance_of::<PyModule>() {
        return Ok(());
    }
    let mut named = Box::new(Named {
        object: library.clone().unbind(),
        imported,
    });
    for cell in &BY_ADDRESS {
        match cell.set(named) {
            Ok(()) => return Ok(()),
            Err(taken) => named = taken,
        }
    }
    release::dropping(|| drop(named));
    Ok(())
}
