//! `join`: makes one stream wait for several streams and views, by one event for each distinct stream.

use pyo3::Borrowed;
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::driver;
use crate::driver::Joined;
use crate::protocol::rule::Field;
use crate::python::call::stream;
use crate::python::class::view::PyCaiView;
use crate::python::cpython::fastcall::{Function, signature};
use crate::python::cpython::recursion::Level;
use crate::view::with_driver;

signature! {
    /// Makes a stream wait for many streams or views, by one event for each distinct stream.
    ///
    /// If a producer works on several streams, join them, then import with ``producer_stream=on``. For many arrays that
    /// go to one stream the number of events is that of the streams, not of the arrays. A default stream is that of
    /// the views' context, which must be one; without views that of the current context.
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
    let _level = Level::begin(py)?;
    let target = stream::named(on, Field::Argument("on"))?;
    let mut views: Vec<Bound<'py, PyCaiView>> = Vec::new();
    let mut joined = Joined::default();
    for item in items.try_iter()? {
        let item = item?;
        if let Ok(view) = item.cast::<PyCaiView>() {
            view.get().prepare()?;
            joined.array(view.get().view().ready(), view.get().view().place());
            views.push(view.clone());
        } else {
            joined.stream(stream::named(&item, Field::Argument("items"))?);
        }
    }
    if joined.needs_driver(target) {
        with_driver(|driver| driver::join(driver, &joined, target))?;
    }
    let ready = PyList::empty(py);
    for view in views {
        ready.append(PyCaiView::ready_on(&view, target, Some(on))?)?;
    }
    Ok(ready)
}
