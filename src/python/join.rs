//! `join`: makes one stream wait for several streams and views, by one event for each distinct stream.

use pyo3::Borrowed;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyIterator, PyList};

use crate::driver;
use crate::driver::{Defaults, Joined};
use crate::error::Error;
use crate::protocol::rule::Field;
use crate::protocol::stream::{Plan, Request, Stream, SyncPolicy};
use crate::python::call::choice::wrong_type;
use crate::python::call::options::Options;
use crate::python::call::stream;
use crate::python::capsule;
use crate::python::class::view::PyCaiView;
use crate::python::cpython::errors::caused_by;
use crate::python::cpython::fastcall::{Function, signature};
use crate::python::cpython::names::names;
use crate::python::cpython::recursion::Level;
use crate::python::cpython::tracing::Tracer;
use crate::python::import::object;
use crate::python::import::route;
use crate::python::import::route::Taken;
use crate::python::trace::trace;
use crate::view::{defaults_now, with_driver};

signature! {
    /// Makes a stream wait for many streams or arrays, by one event for each distinct stream.
    ///
    /// If a producer works on several streams, join them, then import with ``producer_stream=on``. For many arrays that
    /// go to one stream the number of events is that of the streams, not of the arrays. If `on` is a default stream, it
    /// is that of the views' context, which must be one; without views it is that of the current context. A default stream
    /// among the items is that of the context that is current as it is handed out.
    ///
    /// Returns
    /// -------
    /// list of CaiView
    ///     The views among `items`, and views of the arrays, in order, ready on `on`.
    ///
    /// Raises
    /// ------
    /// TypeError, ValueError
    ///     If an item is neither an array nor a stream, or `on` names no stream; those of `view`.
    /// DriverError
    ///     If a call of the CUDA driver fails.
    Join = join [
        /// Views and arrays, for their ready streams, and streams: ints or objects with ``__cuda_stream__``.
        items: "Iterable[ArrayLike | StreamLike]",
    ] (
        /// The stream that waits.
        on: "StreamLike",
    ) -> "list[CaiView]"
}

impl Function for Join {
    const TRACER: Option<Tracer> = Some(trace);

    fn call<'py>(
        _: Borrowed<'_, 'py, PyAny>,
        arguments: Self::Arguments<'_, 'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        join(&arguments.items, &arguments.on).map(Bound::into_any)
    }
}

/// Iterates over the items.
///
/// # Errors
/// `argument-type` for an array and for an object that is no iterable; what its `__iter__` raises.
fn iterate<'py>(items: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyIterator>> {
    let wrong = || wrong_type(items, "items", "an iterable of arrays and streams");
    if is_array(items)? {
        return Err(wrong().into());
    }
    items.try_iter().map_err(|error| {
        // A TypeError raised inside `__iter__` has a traceback; CPython's own has none.
        let is_type_error = error.is_instance_of::<PyTypeError>(items.py());
        match is_type_error && error.traceback(items.py()).is_none() {
            true => caused_by(wrong(), error),
            false => error,
        }
    })
}

/// Whether an item is one that [`object::new_view`] takes, and no stream. The interface may be an attribute of the object
/// alone.
fn is_array(item: &Bound<'_, PyAny>) -> PyResult<bool> {
    if item.is_instance_of::<PyDict>() || capsule::is_capsule(item) {
        return Ok(true);
    }
    let names = names(item.py());
    Ok(item.get_type().hasattr(&names.dlpack)? || item.hasattr(&names.cai)?)
}

fn join<'py>(items: &Bound<'py, PyAny>, on: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyList>> {
    let py = items.py();
    let _level = Level::begin(py)?;
    let target = stream::named(on, Field::Argument("on"))?;
    let mut arrays: Vec<Bound<'py, PyAny>> = Vec::new();
    let mut joined = Joined::default();
    // An iterator may hand out objects that nothing else refers to, and a handle is valid as long as its object.
    let mut objects = Vec::new();
    let mut streams = Vec::new();
    // What is no array is refused before any array is imported.
    for item in iterate(items)? {
        let item = item?;
        if let Ok(view) = item.cast::<PyCaiView>() {
            view.get().check_alive()?;
            arrays.push(item);
        } else if is_array(&item)? {
            arrays.push(item);
        } else {
            let stream = stream::named(&item, Field::Argument("items"))?;
            // The code of the next item may make another context current.
            streams.push((stream, stream.is_default().then(defaults_now)));
            objects.push(item);
        }
    }
    let is_default = |(_, whose): &(Stream, Option<Defaults>)| whose.is_some();
    let now = streams.iter().any(is_default).then(defaults_now);
    for (stream, whose) in streams {
        let of_another = whose.filter(|whose| match whose {
            Defaults::OfMemory => false,
            Defaults::Untold => true,
            _ => Some(*whose) != now,
        });
        joined.stream(stream, of_another.unwrap_or(Defaults::OfCurrent));
    }
    let mut taken = Vec::new();
    let ready = ordered(arrays, joined, on, target, &mut taken);
    if ready.is_err() {
        taken.into_iter().for_each(Taken::restore);
    }
    drop(objects);
    ready
}

/// Imports the arrays, has the target wait for all, and returns their views. `taken` gets what puts the tensors of
/// capsules back.
fn ordered<'py>(
    arrays: Vec<Bound<'py, PyAny>>,
    mut joined: Joined,
    on: &Bound<'py, PyAny>,
    target: Stream,
    taken: &mut Vec<Taken<'py>>,
) -> PyResult<Bound<'py, PyList>> {
    let py = on.py();
    let views = arrays.into_iter().map(|array| match array.cast_into() {
        Ok(view) => Ok(view),
        Err(other) => imported(&other.into_inner(), taken),
    });
    let views: Vec<Bound<'py, PyCaiView>> = views.collect::<PyResult<_>>()?;
    let mut moved = Vec::new();
    for view in &views {
        view.get().check_alive()?;
        let this = view.get().view();
        joined.array(this.ready_number(), this.place());
        match this.foresee_producer(SyncPolicy::Event)? {
            Some(Plan::Refuse(refused)) => return Err(refused.into()),
            Some(_) => moved.push(view),
            None => {}
        }
    }
    if let Some(refused) = joined.refused(target) {
        return Err(of_target(refused.into()).into());
    }
    if !moved.is_empty() {
        // The driver is asked twice then: what it can foresee is refused before anything waits.
        with_driver(|driver| driver::check_join(driver, &joined, target)).map_err(of_target)?;
    }
    for view in moved {
        let request = Request::Stream(target);
        view.get().follow_by_name(request)?;
    }
    if joined.needs_driver(target) {
        with_driver(|driver| driver::join(driver, &joined, target)).map_err(of_target)?;
    }
    let ready = PyList::empty(py);
    for view in views {
        view.get().check_scope()?;
        ready.append(PyCaiView::ready_on(&view, target, Some(on))?)?;
    }
    Ok(ready)
}

/// Names the argument that the stream which waits has here.
fn of_target(error: Error) -> Error {
    match error {
        Error::Violation(refused) if refused.field() == Field::Argument("stream") => {
            refused.in_field(Field::Argument("on")).into()
        }
        other => other,
    }
}

/// Imports an array that is no view; its wait for a producer that has moved is made with those of the views.
fn imported<'py>(
    array: &Bound<'py, PyAny>,
    taken: &mut Vec<Taken<'py>>,
) -> PyResult<Bound<'py, PyCaiView>> {
    if !capsule::is_capsule(array) {
        let view = object::new_view_unordered(array)?;
        return Ok(view.cast_into::<PyCaiView>()?);
    }
    let offer = route::offer_of_capsule(array, Options::NONE)?;
    let (view, of_capsule) = route::take(offer, Options::NONE)?;
    taken.push(of_capsule);
    PyCaiView::new(view).into_object(array.py())
}
