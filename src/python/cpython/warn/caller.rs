//! Issues a warning as `warnings.warn` does, at a place whose line was found before.
//!
//! `warnings.warn` finds the line of the call anew each time, a search through the code object, and prepares for callers
//! further out. The rest of it, filters and registry, is the function that is called here.
//!
//! Not before 3.11 or under the stable ABI, which do not tell the instruction, and not without the GIL, since items of
//! dicts are borrowed.

use std::sync::Mutex;

use once_cell::race::OnceBox;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyCode, PyDict, PyString, PyType};

/// The number of places whose lines are kept. The code object of each stays alive.
const MOST: usize = 16;

/// An instruction of a code object, its file and its line: none of them changes.
struct Place {
    code: Py<PyCode>,
    instruction: i32,
    file: Py<PyAny>,
    line: i32,
}

static PLACES: Mutex<Vec<Place>> = Mutex::new(Vec::new());

/// The innermost Python frame.
struct Caller<'py> {
    frame: *mut ffi::PyFrameObject,
    code: Bound<'py, PyCode>,
    instruction: i32,
}

impl<'py> Caller<'py> {
    /// `None` if no Python code runs on this thread.
    fn find(py: Python<'py>) -> Option<Self> {
        // SAFETY: this thread is attached.
        let frame = unsafe { ffi::PyEval_GetFrame() };
        if frame.is_null() {
            return None;
        }
        // SAFETY: a living frame: this thread runs in it.
        let code = unsafe { ffi::PyFrame_GetCode(frame) };
        // SAFETY: a new reference, never NULL.
        let code = unsafe { Bound::from_owned_ptr(py, code.cast()) };
        Some(Self {
            frame,
            // SAFETY: a code object.
            code: unsafe { code.cast_into_unchecked() },
            // SAFETY: a living frame: this thread runs in it.
            instruction: unsafe { ffi::PyFrame_GetLasti(frame) },
        })
    }

    /// Returns the file and the line.
    fn place(&self) -> PyResult<(Bound<'py, PyAny>, i32)> {
        let py = self.code.py();
        // Under the lock no Python code runs. A call from within its holder finds the place anew.
        let is_here =
            |place: &&Place| place.code.is(&self.code) && place.instruction == self.instruction;
        if let Ok(places) = PLACES.try_lock()
            && let Some(place) = places.iter().find(is_here)
        {
            return Ok((place.file.bind(py).clone(), place.line));
        }
        let file = self.code.getattr("co_filename")?;
        // SAFETY: a living frame: this thread runs in it.
        let line = unsafe { ffi::PyFrame_GetLineNumber(self.frame) };
        let place = Place {
            code: self.code.clone().unbind(),
            instruction: self.instruction,
            file: file.clone().unbind(),
            line,
        };
        // What is displaced ends after the lock: a code object may be referred to weakly, by Python code.
        let mut displaced = None;
        if let Ok(mut places) = PLACES.try_lock() {
            if places.len() >= MOST {
                displaced = Some(places.remove(0));
            }
            places.push(place);
        }
        drop(displaced);
        Ok((file, line))
    }
}

/// Returns the name and the registry of the caller's module; `None` if one is missing, for which `warnings.warn` has
/// rules of its own.
fn module(py: Python<'_>) -> Option<(Bound<'_, PyString>, Bound<'_, PyDict>)> {
    static NAMES: OnceBox<[Py<PyString>; 2]> = OnceBox::new();
    let names = NAMES.get_or_init(|| {
        let names = ["__name__", "__warningregistry__"];
        Box::new(names.map(|name| PyString::intern(py, name).unbind()))
    });
    // SAFETY: this thread is attached.
    let globals = unsafe { ffi::PyEval_GetGlobals() };
    // SAFETY: NULL, or borrowed from the frame, which this thread runs in.
    let globals = unsafe { Bound::from_borrowed_ptr_or_opt(py, globals) }?;
    let [name, registry] = names.each_ref().map(|name| {
        // SAFETY: a living dict and a str; a missing item sets no exception, and the comparison of strs neither.
        let item = unsafe { ffi::PyDict_GetItemWithError(globals.as_ptr(), name.as_ptr()) };
        // SAFETY: NULL, or borrowed from the dict.
        unsafe { Bound::from_borrowed_ptr_or_opt(py, item) }
    });
    Some((
        name?.cast_into_exact().ok()?,
        registry?.cast_into_exact().ok()?,
    ))
}

/// Issues a warning; `None` if it must be issued by `warnings.warn`.
///
/// # Errors
/// The warning, if a filter makes it an error.
pub(super) fn issue(text: &Bound<'_, PyString>, class: &Bound<'_, PyType>) -> Option<PyResult<()>> {
    let py = text.py();
    let caller = Caller::find(py)?;
    let (file, line) = match caller.place() {
        Ok(place) => place,
        Err(error) => return Some(Err(error)),
    };
    let (name, registry) = module(py)?;
    // SAFETY: objects that live during the call; this thread is attached.
    let status = unsafe {
        ffi::PyErr_WarnExplicitObject(
            class.as_ptr(),
            text.as_ptr(),
            file.as_ptr(),
            line,
            name.as_ptr(),
            registry.as_ptr(),
        )
    };
    Some(match status {
        0 => Ok(()),
        _ => Err(PyErr::fetch(py)),
    })
}
