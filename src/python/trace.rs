//! The trace: one line for each conversion, with what it has done.
//!
//! ```text
//! view: producer=numba...DeviceNDArray route=cai shape=(3,) dtype=float32 device=(2, 0) stream=0x55d0 \
//!     calls=cuPointerGetAttributes time=14.2us
//! view: producer=Array refused=[typestr-syntax] calls=none time=5.0us
//! ```
//! A function that converts declares [`trace`] as its `TRACER`, by which [`fastcall`]
//! calls it while anything is traced; an attribute as well ([`getter`](crate::python::cpython::getter)). A method of PyO3's
//! calls [`traced`]. What C code calls without a moment for Python code is a [`QuietCall`].

use std::fmt::Write as _;
use std::ptr;
use std::time::{Duration, Instant};

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple};

use crate::driver::Noting;
use crate::python::call::policy;
use crate::python::capsule;
use crate::python::class::view::PyCaiView;
use crate::python::cpython::fastcall;
use crate::python::cpython::int::{repr, type_name};
use crate::python::cpython::tracing;
use crate::python::cpython::tracing::{Called, Marking, Marks, Range};
use crate::python::import::known_types;
use crate::python::shown;
use crate::view::CaiView;

/// Runs a conversion and writes its line, unless the current context is not traced, or this thread writes a line.
pub(crate) fn trace(
    py: Python<'_>,
    called: Called<'_, '_>,
    body: &mut dyn FnMut() -> *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    if tracing::is_writing() || !policy::is_traced(py) {
        return body();
    }
    let range = Range::push(py, called.name);
    let (marking, noting, start) = (Marking::begin(), Noting::begin(), Instant::now());
    // SAFETY: NULL, or a new reference: the call's result. It is owned here, so that it ends if the line panics.
    let result = unsafe { Bound::from_owned_ptr_or_opt(py, body()) };
    let took = start.elapsed();
    let (marks, calls) = (marking.take(), noting.calls());
    drop((marking, noting));
    // Not pending while the line is written, and set again as it was.
    let raised = match result {
        None => PyErr::take(py),
        Some(_) => None,
    };
    range.pop(py);
    tracing::write(py, || {
        let mut line = format!("{}:", called.name.to_string_lossy());
        if let Some(array) = called.array {
            let _ = write!(line, " producer={}", type_name(&array));
        }
        line += &match (&raised, &result) {
            (Some(error), _) => refused(py, error),
            (None, Some(made)) => facts(&called, marks, made),
            (None, None) => String::new(),
        };
        ended(line, &calls, took)
    });
    if let Some(error) = raised {
        error.restore(py);
    }
    result.map_or(ptr::null_mut(), Bound::into_ptr)
}

/// Runs the body of a method of PyO3's, which writes its line as a declared function does.
#[inline]
pub(crate) fn traced<'py>(
    py: Python<'py>,
    called: Called<'_, 'py>,
    body: impl FnOnce() -> PyResult<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    match tracing::may_trace() {
        true => traced_here(py, called, body),
        false => body(),
    }
}

#[cold]
fn traced_here<'py>(
    py: Python<'py>,
    called: Called<'_, 'py>,
    body: impl FnOnce() -> PyResult<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let mut body = Some(body);
    let made = trace(py, called, &mut || match body
        .take()
        .map_or_else(|| Ok(py.None().into_bound(py)), |body| body())
    {
        Ok(made) => made.into_ptr(),
        Err(error) => fastcall::raise(py, error),
    });
    // SAFETY: what the closure has returned: a new reference, or NULL with an exception set.
    unsafe { Bound::from_owned_ptr_or_err(py, made) }
}

/// Writes what every line ends with.
fn ended(mut line: String, calls: &[&'static str], took: Duration) -> String {
    let calls = match calls {
        [] => "none".to_owned(),
        calls => calls.join(","),
    };
    let _ = write!(
        line,
        " calls={calls} time={:.1}us",
        took.as_secs_f64() * 1e6
    );
    line
}

fn refused(py: Python<'_>, error: &PyErr) -> String {
    let value = error.value(py);
    let rule = value.getattr("rule").ok();
    match rule.as_ref().and_then(|rule| rule.cast::<PyString>().ok()) {
        Some(rule) => format!(" refused=[{rule}]"),
        None => format!(" raised={}", type_name(value)),
    }
}

/// Returns the route, the array and the streams of a conversion that has succeeded.
fn facts(called: &Called<'_, '_>, marks: Marks, made: &Bound<'_, PyAny>) -> String {
    let source = called.array.and_then(|array| {
        let view = array.cast::<PyCaiView>().ok()?;
        Some(array_of(view.get().view()))
    });
    let route = match (&source, called.array) {
        (Some(_), _) => Some("view"),
        (None, Some(_)) => marks.route.or_else(|| route(called)),
        // Of several arrays.
        (None, None) => None,
    };
    // Of `split_masked`, the values.
    let first = made.cast::<PyTuple>().ok();
    let first = first.and_then(|made| made.get_item(0).ok());
    let made = first.as_ref().unwrap_or(made);
    let is_view = made.cast::<PyCaiView>().ok();
    let array = match is_view {
        Some(view) => Some(array_of(view.get().view())),
        None => (marks.array.or(source)).or_else(|| of_capsule(made)),
    };
    let mut line = String::new();
    if let Some(route) = route {
        let _ = write!(line, " route={route}");
    }
    if let Some(array) = array {
        line += &array;
    }
    if let Some(stream) = called.stream {
        let _ = write!(line, " requested={}", requested(&stream));
    }
    if is_view.is_none() && !made.is_none() {
        let _ = write!(line, " made={}", type_name(made));
    }
    line
}

/// Returns a stream as the caller has named it; a handle as [`shown::stream_name`] has it.
fn requested(stream: &Bound<'_, PyAny>) -> String {
    match stream.extract::<u64>() {
        Ok(handle) if handle > 2 => format!("{handle:#x}"),
        _ => repr(stream),
    }
}

/// Returns the route of an import that has marked none.
fn route(called: &Called<'_, '_>) -> Option<&'static str> {
    let array = called.array?;
    if capsule::is_capsule(&array) {
        return Some("capsule");
    }
    let facts = known_types::facts_of(&array).ok()?;
    let is_by_table = facts.table.is_some() && called.name != c"from_cai";
    Some(if is_by_table { "exchange" } else { "cai" })
}

/// Returns the array of a capsule that has just been made; `None` for any other object.
fn of_capsule(made: &Bound<'_, PyAny>) -> Option<String> {
    if !capsule::is_capsule(made) {
        return None;
    }
    let tensor = capsule::read(made.clone()).ok()?;
    Some(format!(" {}", shown::array(&tensor.descriptor)))
}

/// Returns an array and the stream on which it is ready.
fn array_of(view: &CaiView) -> String {
    let ready = shown::stream_name(view.ready_number());
    format!(" {} stream={ready}", shown::array(view.descriptor()))
}

/// Marks the array of a conversion whose result does not tell it.
#[inline(always)]
pub(crate) fn mark_array(view: &CaiView) {
    tracing::mark(|marks| marks.array = Some(array_of(view)));
}

/// As [`mark_array`], for a view as an object.
#[inline(always)]
pub(crate) fn mark_view(view: &Bound<'_, PyAny>) {
    tracing::mark(|marks| {
        let view = view.cast::<PyCaiView>().ok();
        marks.array = view.map(|view| array_of(view.get().view()));
    });
}

/// The trace of a call that runs no Python code, of the exchange table or of NumPy's protocols: its line is kept.
pub(crate) struct QuietCall(Option<Box<(Marking, Noting, Instant)>>);

impl QuietCall {
    #[inline(always)]
    pub(crate) fn begin(py: Python<'_>) -> Self {
        Self(match tracing::may_trace() {
            true => Self::traced(py),
            false => None,
        })
    }

    #[cold]
    #[inline(never)]
    fn traced(py: Python<'_>) -> Option<Box<(Marking, Noting, Instant)>> {
        let is_traced = !tracing::is_writing() && policy::is_traced(py);
        is_traced.then(|| Box::new((Marking::begin(), Noting::begin(), Instant::now())))
    }

    /// Keeps the line of the call; `view` is what it has handed over, or `None` if it has failed.
    #[inline(always)]
    pub(crate) fn end(self, name: &str, origin: Origin, view: Option<&CaiView>) {
        if let Self(Some(begun)) = self {
            keep(&begun, name, origin, view);
        }
    }
}

/// What a [`QuietCall`] hands over.
#[derive(Clone, Copy)]
pub(crate) enum Origin {
    View,
    /// The tensor of another library.
    Tensor,
}

impl Origin {
    /// The producer, which runs no Python code to be told, and the route.
    const fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::View => ("cai_dlpack.CaiView", "view"),
            Self::Tensor => ("DLManagedTensorVersioned", "exchange"),
        }
    }
}

#[cold]
#[inline(never)]
fn keep(
    (marking, noting, start): &(Marking, Noting, Instant),
    name: &str,
    origin: Origin,
    view: Option<&CaiView>,
) {
    let took = start.elapsed();
    let (producer, route) = origin.names();
    let mut line = format!("{name}: producer={producer}");
    line += &match (view, marking.take().rule) {
        (Some(view), _) => format!(" route={route}{}", array_of(view)),
        (None, Some(rule)) => format!(" refused=[{rule}]"),
        (None, None) => " raised".to_owned(),
    };
    tracing::keep(ended(line, &noting.calls(), took));
}
