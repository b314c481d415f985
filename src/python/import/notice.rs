//! Warns of what an import takes although the producer should not have exported it so, or has left it out.
//!
//! Python decides whether a warning is shown, by filters that may change and by what its registry has as shown
//! (`cpython::warn`). Its answer takes a str, which is kept from one warning to the next: made anew, formatted and hashed,
//! it takes four times as long as the answer.

use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::types::{PyString, PyType};

use crate::protocol::rule::Rule;
use crate::python::cpython::int::type_name;
use crate::python::cpython::names::names;
use crate::python::cpython::new::new_str;
use crate::python::cpython::warn::{self, Warning};
use crate::python::cpython::{getattr, release};

/// The subject of an import's warning.
#[derive(Clone, Copy)]
pub(crate) enum Notice {
    /// The stream is not declared, and the table of partners does not know it.
    StreamUnknown,
    /// A dict names stream 0.
    StreamZero,
    /// A dict is of this version, which is newer than 3.
    NewerVersion(i64),
}

impl Notice {
    fn warning(self) -> Warning {
        match self {
            Self::StreamUnknown | Self::StreamZero => Warning::Stream,
            Self::NewerVersion(_) => Warning::Version,
        }
    }

    /// Returns a number of its own for each notice.
    fn number(self) -> i64 {
        match self {
            Self::StreamUnknown => -1,
            Self::StreamZero => 0,
            Self::NewerVersion(version) => version,
        }
    }

    /// Formats the text about an object of the type of this name.
    fn text(self, name: &str) -> String {
        match self {
            Self::StreamUnknown => format!(
                "{name} does not say which stream it works on: the legacy default stream is taken, which waits for no \
                 non-blocking stream; {NAME_THE_STREAM} [{}]",
                Rule::StreamUndeclared.id(),
            ),
            Self::StreamZero => format!(
                "{name} exports stream 0 in its CUDA Array Interface, which version 3 forbids; it is taken as 1, the \
                 legacy default stream [stream-zero]"
            ),
            Self::NewerVersion(version) => format!(
                "{name} exports version {version} of the CUDA Array Interface, newer than the 3 that is known; it is \
                 read as 3"
            ),
        }
    }
}

/// The caller's remedy if no stream is declared, the end of a sentence.
pub(crate) const NAME_THE_STREAM: &str =
    "name the stream by producer_stream=, or None where nothing is pending";

/// Warns of an object, at the line of the Python code that called this library.
///
/// # Errors
/// The warning, if a filter makes it an error.
#[cold]
pub(crate) fn warn_of(object: &Bound<'_, PyAny>, notice: Notice) -> PyResult<()> {
    warn::warn(object.py(), notice.warning(), &text_of(object, notice)?)
}

/// A text that was made, and all that it is made of.
struct Made {
    number: i64,
    qualname: Py<PyAny>,
    module: Py<PyAny>,
    text: Py<PyString>,
}

/// The number of texts that are kept: more than a program has types that are warned of.
const MOST_TEXTS: usize = 64;

/// Returns the text of a notice about an object. It is kept by all that it is made of, and so never stale; no class is
/// kept.
fn text_of<'py>(object: &Bound<'py, PyAny>, notice: Notice) -> PyResult<Bound<'py, PyString>> {
    static TEXTS: Mutex<Vec<Made>> = Mutex::new(Vec::new());
    let py = object.py();
    let kind = object.get_type();
    let (qualname, module) = (
        attribute(&kind, &names(py).qualname),
        attribute(&kind, &names(py).module),
    );
    let (Some(qualname), Some(module)) = (qualname, module) else {
        return new_str(py, &notice.text(&type_name(object)));
    };
    let number = notice.number();
    // Under the lock no Python code runs: of exact strs, one more reference is taken or one given up.
    let lock = || TEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    let made = lock().iter().find_map(|made| {
        let is_same =
            made.number == number && made.qualname.is(&qualname) && made.module.is(&module);
        is_same.then(|| made.text.clone_ref(py))
    });
    if let Some(text) = made {
        return Ok(text.into_bound(py));
    }
    let text = new_str(py, &notice.text(&type_name(object)))?;
    let mut texts = lock();
    if texts.len() >= MOST_TEXTS {
        texts.clear();
    }
    texts.push(Made {
        number,
        qualname: qualname.unbind(),
        module: module.unbind(),
        text: text.clone().unbind(),
    });
    Ok(text)
}

/// Reads an attribute that is an exact str, whose comparison runs no Python code; `None` for any other.
fn attribute<'py>(kind: &Bound<'py, PyType>, name: &Py<PyString>) -> Option<Bound<'py, PyAny>> {
    match getattr::optional(kind, name) {
        Ok(value) => value.filter(|value| value.is_exact_instance_of::<PyString>()),
        Err(error) => {
            release::drop_now(error);
            None
        }
    }
}
