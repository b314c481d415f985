//! Issues warnings of classes of our own, through Python's registry: its filters decide what is printed, and how often.

#[cfg(all(Py_3_11, not(Py_LIMITED_API), not(Py_GIL_DISABLED)))]
mod caller;

use std::sync::atomic::{AtomicUsize, Ordering};

use once_cell::race::OnceBox;
use pyo3::exceptions::{PyResourceWarning, PyUserWarning, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyString, PyType};

use crate::process::thread::Thread;
use crate::python::cpython::context_var::ContextVar;
use crate::python::cpython::errors::class;
use crate::python::cpython::new::{new_str, new_uint};
use crate::python::cpython::{release, text};

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
    if warning != Warning::Consume
        && let Some(list) = list(py)?
    {
        if is_error(class.bind(py), &text.to_cow()?)? {
            return Err(PyErr::from_type(
                class.bind(py).clone(),
                text.clone().unbind(),
            ));
        }
        // The filters' code may have let another thread, or greenlet, end the trial.
        if !list.is_empty() {
            return list.append(text);
        }
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

/// How many trials collect warnings now. With none, no context is read.
static COLLECTING: AtomicUsize = AtomicUsize::new(0);

/// The list of the warnings about imports that a thread collects in a context, behind the thread's number; empty once that is over.
/// A context variable: greenlets of one thread begin and end their trials in any order.
fn collected(py: Python<'_>) -> PyResult<&'static ContextVar> {
    static VARIABLE: OnceBox<ContextVar> = OnceBox::new();
    VARIABLE.get_or_try_init(|| ContextVar::new(py, "cai_dlpack.warnings").map(Box::new))
}

/// Runs code whose warnings about imports are returned, and not issued: in this context, until the code ends.
///
/// # Errors
/// Out of memory, before the code has run.
pub(crate) fn collecting<R>(
    py: Python<'_>,
    body: impl FnOnce() -> R,
) -> PyResult<(R, Vec<String>)> {
    /// Collects no more, also after a panic, and though there is no memory to take the list out of the context.
    struct Over<'py>(Bound<'py, PyList>, Bound<'py, PyAny>);
    impl Drop for Over<'_> {
        fn drop(&mut self) {
            let py = self.0.py();
            COLLECTING.fetch_sub(1, Ordering::Relaxed);
            let emptied = self.0.del_slice(0, self.0.len());
            let taken_out = collected(py).and_then(|variable| variable.reset(&self.1));
            for error in [emptied, taken_out].into_iter().filter_map(Result::err) {
                release::drop_now(error);
            }
        }
    }
    let list = PyList::empty(py);
    list.append(new_uint(py, Thread::current().number())?)?;
    let token = collected(py)?.set(list.as_any())?;
    COLLECTING.fetch_add(1, Ordering::Relaxed);
    let over = Over(list, token);
    let result = body();
    let texts = over.0.iter().skip(1).filter_map(|found| text::text(&found));
    Ok((result, texts.collect()))
}

/// Returns the list in which warnings are collected here; `None` if they are issued, as those of another thread with a copy of the
/// context are.
fn list(py: Python<'_>) -> PyResult<Option<Bound<'_, PyList>>> {
    if COLLECTING.load(Ordering::Relaxed) == 0 {
        return Ok(None);
    }
    let found = collected(py)?.get(py)?;
    let list = found.and_then(|found| found.cast_into::<PyList>().ok());
    let here = Thread::current().number();
    let is_here = |list: &Bound<'_, PyList>| {
        let thread = list.get_item(0).ok();
        thread.is_some_and(|thread| thread.extract::<u64>().is_ok_and(|thread| thread == here))
    };
    Ok(list.filter(|list| !list.is_empty() && is_here(list)))
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
    let caller = || -> PyResult<(i64, Bound<'_, PyAny>)> {
        let frame = py.import("sys")?.call_method0("_getframe")?;
        let globals = frame.getattr("f_globals")?;
        let module = globals.call_method1("get", ("__name__", "<string>"))?;
        Ok((frame.getattr("f_lineno")?.extract()?, module))
    };
    let (line, module) = match caller() {
        // A thread that runs no Python code has no frame.
        Err(error) if error.is_instance_of::<PyValueError>(py) => {
            release::drop_now(error);
            (0, new_str(py, "sys")?.into_any())
        }
        found => found?,
    };
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
