//! Issues warnings of classes of our own, through Python's registry: its filters decide what is printed, and how often.

#[cfg(all(Py_3_11, not(Py_LIMITED_API), not(Py_GIL_DISABLED)))]
mod caller;

use std::cell::RefCell;

use once_cell::race::OnceBox;
use pyo3::exceptions::{PyResourceWarning, PyUserWarning};
use pyo3::prelude::*;
use pyo3::types::{PyString, PyType};

use crate::python::cpython::errors::class;

/// What a warning is about.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Warning {
    /// The order of the data: a stream that is not declared, or declared wrongly.
    Stream,
    /// A version of the interface that is newer than the one that is known.
    Version,
    /// A consume block that was never left.
    Consume,
}

/// Issues a warning at the line of the Python code that called this library.
///
/// # Errors
/// The warning, if a filter makes it an error.
#[cold]
pub(crate) fn warn(py: Python<'_>, warning: Warning, text: &Bound<'_, PyString>) -> PyResult<()> {
    let classes = classes(py)?;
    let class = match warning {
        Warning::Stream => &classes.stream,
        Warning::Version => &classes.version,
        Warning::Consume => &classes.consume,
    };
    if warning != Warning::Consume && is_collected() {
        let text = text.to_cow()?;
        if is_error(class.bind(py), &text)? {
            return Err(PyErr::from_type(class.bind(py).clone(), text.into_owned()));
        }
        collect(&text);
        return Ok(());
    }
    issue(text, class.bind(py))
}

/// Calls the function behind `warnings.warn`, as `PyErr_WarnEx` does, which would make a str of its text each time. The
/// innermost Python frame is the caller's: a function in Rust has none.
fn issue(text: &Bound<'_, PyString>, class: &Bound<'_, PyType>) -> PyResult<()> {
    static WARN: OnceBox<Py<PyAny>> = OnceBox::new();
    let py = text.py();
    #[cfg(all(Py_3_11, not(Py_LIMITED_API), not(Py_GIL_DISABLED)))]
    if let Some(issued) = caller::issue(text, class) {
        return issued;
    }
    let warn = WARN.get_or_try_init(|| {
        let warn = py.import("_warnings")?.getattr("warn")?;
        Ok::<_, PyErr>(Box::new(warn.unbind()))
    })?;
    warn.bind(py).call1((text, class)).map(drop)
}

thread_local! {
    /// The warnings about imports of this thread that are collected; `None` if they are issued.
    static COLLECTED: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

/// Runs code whose warnings about imports are returned, and not issued: of this thread, until the code ends.
pub(crate) fn collecting<R>(body: impl FnOnce() -> R) -> (R, Vec<String>) {
    /// Puts back what was collected before, also after a panic.
    struct Restore(Option<Vec<String>>);
    impl Drop for Restore {
        fn drop(&mut self) {
            COLLECTED.set(self.0.take());
        }
    }
    let restore = Restore(COLLECTED.replace(Some(Vec::new())));
    let result = body();
    let collected = COLLECTED.take().unwrap_or_default();
    drop(restore);
    (result, collected)
}

/// Whether warnings are collected on this thread.
fn is_collected() -> bool {
    COLLECTED.with_borrow(Option::is_some)
}

fn collect(text: &str) {
    COLLECTED.with_borrow_mut(|collected| {
        if let Some(collected) = collected {
            collected.push(text.to_owned());
        }
    });
}

/// Whether the filters make an error of a warning that is issued here, by the rules of `warnings.warn_explicit`, which
/// cannot be asked without issuing it.
fn is_error(class: &Bound<'_, PyType>, text: &str) -> PyResult<bool> {
    let py = class.py();
    let warnings = py.import("warnings")?;
    // From 3.14 on a context has filters of its own.
    let filters = match warnings.getattr_opt("_get_filters")? {
        Some(of_context) => of_context.call0()?,
        None => warnings.getattr("filters")?,
    };
    let frame = py.import("sys")?.call_method0("_getframe")?;
    let line: i64 = frame.getattr("f_lineno")?.extract()?;
    let module = frame
        .getattr("f_globals")?
        .call_method1("get", ("__name__", "<string>"))?;
    for filter in filters.try_iter()? {
        type Filter<'py> = (
            String,
            Bound<'py, PyAny>,
            Bound<'py, PyType>,
            Bound<'py, PyAny>,
            i64,
        );
        let (action, message, category, of_module, of_line): Filter<'_> = filter?.extract()?;
        let is_met = class.is_subclass(&category)?
            && (of_line == 0 || of_line == line)
            && is_matched(&message, text.into_pyobject(py)?.as_any())?
            && is_matched(&of_module, &module)?;
        if is_met {
            return Ok(action == "error");
        }
    }
    warnings.getattr("defaultaction")?.eq("error")
}

/// Whether a filter's pattern, which is None, a str or a compiled expression, matches a text.
fn is_matched(pattern: &Bound<'_, PyAny>, text: &Bound<'_, PyAny>) -> PyResult<bool> {
    match pattern {
        _ if pattern.is_none() => Ok(true),
        _ if pattern.is_instance_of::<PyString>() => pattern.eq(text),
        _ => pattern.call_method1("match", (text,))?.is_truthy(),
    }
}

/// The classes of the warnings.
pub(crate) struct Classes {
    pub(crate) base: Py<PyType>,
    pub(crate) stream: Py<PyType>,
    pub(crate) version: Py<PyType>,
    pub(crate) consume: Py<PyType>,
}

/// Returns the classes of the warnings.
///
/// # Errors
/// The first call creates the classes, which can fail.
pub(crate) fn classes(py: Python<'_>) -> PyResult<&Classes> {
    static CLASSES: OnceBox<Classes> = OnceBox::new();
    CLASSES.get_or_try_init(|| create(py).map(Box::new))
}

fn create(py: Python<'_>) -> PyResult<Classes> {
    let base = class(
        py,
        "InterchangeWarning",
        "The base class of this package's warnings.",
        &[&py.get_type::<PyUserWarning>()],
    )?;
    let stream = class(
        py,
        "StreamWarning",
        "A producer does not declare the stream that its data is ready on, or declares stream 0.",
        &[&base],
    )?;
    let version = class(
        py,
        "VersionWarning",
        "A producer exports a newer version of the CUDA Array Interface than the one that is known.",
        &[&base],
    )?;
    let consume = class(
        py,
        "ConsumeWarning",
        "A consume block was never left. Also a ResourceWarning, which Python's default filters ignore.",
        &[&base, &py.get_type::<PyResourceWarning>()],
    )?;
    Ok(Classes {
        base: base.unbind(),
        stream: stream.unbind(),
        version: version.unbind(),
        consume: consume.unbind(),
    })
}
