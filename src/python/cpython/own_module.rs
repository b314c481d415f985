//! Finds the extension module that this copy of the library is linked into.

use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyModule, PyString, PyType};

use crate::python::cpython::names::names;
use crate::python::cpython::release;

/// Whether the classes of this copy are public names of a package ([`register`](crate::python::register)).
static IS_PACKAGE: AtomicBool = AtomicBool::new(false);

/// Leaves the classes of this copy the names that they have in the package `cai_dlpack`.
pub(crate) fn is_the_package() {
    IS_PACKAGE.store(true, Ordering::Relaxed);
}

/// Sets `__module__` of a class to the extension module that it is of, unless this is the package, or no module is
/// found. Without this call two classes of one process have one name.
pub(crate) fn rename(class: &Bound<'_, PyType>) {
    if IS_PACKAGE.load(Ordering::Relaxed) {
        return;
    }
    release::dropping(|| {
        if let Some(name) = name(class.py()) {
            // A name that cannot be set stays.
            let _ = class.setattr(&names(class.py()).module, name);
        }
    });
}

/// Returns the name of the imported module of the file that this code lies in; `None` for a program that embeds Python.
fn name(py: Python<'_>) -> Option<Bound<'_, PyString>> {
    let file = own_file()?;
    let modules = py.import("sys").ok()?.getattr("modules").ok()?;
    // The values are copied: another thread may import meanwhile. A dict of a module is read past its `__getattr__`,
    // which would load a lazy one.
    for module in modules.cast::<PyDict>().ok()?.values() {
        let Ok(module) = module.cast::<PyModule>() else {
            continue;
        };
        let of_this_file = || -> PyResult<bool> {
            let path = module.dict().get_item("__file__")?;
            let path = path.as_ref().and_then(|path| path.cast::<PyString>().ok());
            Ok(path.is_some_and(|path| path.to_string_lossy() == file))
        };
        if of_this_file().unwrap_or(false) {
            return module.name().ok();
        }
    }
    None
}

/// Returns the path of the library that this function is linked into, as it was loaded by.
#[cfg(unix)]
fn own_file() -> Option<String> {
    use std::ffi::CStr;
    use std::mem::MaybeUninit;

    let mut found = MaybeUninit::<libc::Dl_info>::uninit();
    let here = own_file as fn() -> Option<String> as *const libc::c_void;
    // SAFETY: any address may be asked about; `found` is writable memory of the type.
    let is_found = unsafe { libc::dladdr(here, found.as_mut_ptr()) } != 0;
    if !is_found {
        return None;
    }
    // SAFETY: "on success, these functions return a nonzero value" (dladdr(3)), with every field filled.
    let file = unsafe { found.assume_init() }.dli_fname;
    if file.is_null() {
        return None;
    }
    // SAFETY: a string of the loader's with a final NUL, which stays as long as this library is loaded.
    let file = unsafe { CStr::from_ptr(file) };
    file.to_str().ok().map(str::to_owned)
}

#[cfg(not(unix))]
fn own_file() -> Option<String> {
    None
}
