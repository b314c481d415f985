//! `join`: makes one stream wait for several streams and views, by one event for each distinct stream.

use pyo3::Borrowed;
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::driver;
use crate::driver::Place;
use crate::error::Error;
use crate::protocol::rule::Field;
use crate::protocol::stream::{Request, Stream, SyncPolicy};
use crate::python::call::stream;
use crate::python::class::view::PyCaiView;
use crate::python::cpython::fastcall::{Function, signature};

signature! {
    /// Makes a stream wait for many streams or views, by one event for each distinct stream.
    ///
    /// If a producer works on several streams, join them, then import with ``producer_stream=on``. For many arrays that
    /// go to one stream the number of events is that of the streams, not of the arrays.
    ///
    /// Returns
    /// -------
    /// list of CaiView
    ///     The views among `items`, in order, ready on `on`.
    ///
    /// Raises
    /// ------
    /// TypeError, ValueError
    ///     If an item is neither a view nor a stream, or `on` names no stream.
    /// DriverError
    ///     If a call of the CUDA driver fails.
    Join = join [
        /// Views, for their ready streams, and streams: ints or objects with ``__cuda_stream__``.
        items: "Iterable[CaiView | _StreamLike]",
    ] (
        /// The stream that waits.
        on: "_StreamLike",
    ) -> "list[CaiView]"
}

impl Function for Join {
    fn call<'py>(
        _: Borrowed<'_, 'py, PyAny>,
        arguments: Self::Arguments<'_, 'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        join(&arguments.items, &arguments.on).map(Bound::into_any)
    }
}

fn join<'py>(items: &Bound<'py, PyAny>, on: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyList>> {
    let py = items.py();
    let target = stream::named(on, Field::Argument("on"))?;
    let mut views: Vec<Bound<'py, PyCaiView>> = Vec::new();
    let mut waits: Vec<(Stream, Option<Place>)> = Vec::new();
    for item in items.try_iter()? {
        let item = item?;
        if let Ok(view) = item.cast::<PyCaiView>() {
            view.get().prepare(py)?;
            add(
                &mut waits,
                view.get().view().ready(),
                Some(view.get().view().place()),
            );
            views.push(view.clone());
        } else {
            add(
                &mut waits,
                stream::named(&item, Field::Argument("items"))?,
                None,
            );
        }
    }
    let request = Request::Stream(target);
    waits.retain(|(stream, place)| {
        let place = place.unwrap_or(Place::cuda(-1, 0));
        driver::needed(*stream, request, &place, SyncPolicy::Event)
    });
    if !waits.is_empty() {
        py.detach(|| carry_out(&waits, target))?;
    }
    let ready = PyList::empty(py);
    for view in views {
        ready.append(PyCaiView::ready_on(&view, target, Some(on))?)?;
    }
    Ok(ready)
}

/// Adds a stream unless it is in the list: 300 views of two streams are two entries.
fn add(waits: &mut Vec<(Stream, Option<Place>)>, stream: Stream, place: Option<Place>) {
    let is_same = |(other, there): &(Stream, Option<Place>)| {
        *other == stream && (!stream.is_default() || key(there.as_ref()) == key(place.as_ref()))
    };
    if stream != Stream::None && !waits.iter().any(is_same) {
        waits.push((stream, place));
    }
}

/// Returns what distinguishes one default stream from another: its device and its thread.
fn key(place: Option<&Place>) -> Option<(i32, Option<std::thread::ThreadId>, u64)> {
    // Without a known device (managed and pinned memory) each address counts by itself.
    place.map(|place| {
        (
            place.ordinal,
            place.thread,
            if place.ordinal < 0 { place.pointer } else { 0 },
        )
    })
}

fn carry_out(waits: &[(Stream, Option<Place>)], on: Stream) -> Result<(), Error> {
    let driver = driver::driver()?;
    // A default stream without a view is the current context's.
    let here = Place {
        context: driver.current_context()?,
        ..Place::cuda(-1, 0)
    };
    let waits: Vec<_> = waits
        .iter()
        .map(|(stream, place)| (*stream, place.unwrap_or(here)))
        .collect();
    driver::join(driver, &waits, on)?;
    Ok(())
}
