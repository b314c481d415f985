//! Orders a view onto another stream, or the host after it.

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;

use crate::driver::Pending;
use crate::protocol::stream::{Request, Stream, SyncPolicy};
use crate::python::class::awaiting::Awaitable;
use crate::python::class::beside::kept;
use crate::python::class::view::PyCaiView;
use crate::python::cpython::release;
use crate::python::cpython::tracing::Called;

impl PyCaiView {
    /// Returns a view that is ready on `stream`, which waits for the data already.
    ///
    /// # Errors
    /// Those of [`moved`](Self::moved).
    pub(crate) fn ready_on<'py>(
        slf: &Bound<'py, Self>,
        stream: Stream,
        object: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, Self>> {
        let this = slf.get();
        if !this.view().may_need_order(Request::Stream(stream)) {
            // Drops the reference to the stream object if it is not kept.
            return release::dropping(|| Self::ready_there(slf, stream, kept(object)));
        }
        // What is ready everywhere stays so.
        let object = object.filter(|_| this.view().ready_number() != Stream::None);
        Self::moved(slf, stream, kept(object))?.into_object(slf.py())
    }

    /// Carries `request` out, and returns a view that is ready on `stream`.
    pub(crate) fn ordered<'py>(
        slf: &Bound<'py, Self>,
        request: Request,
        stream: Stream,
        object: Option<Py<PyAny>>,
    ) -> PyResult<Bound<'py, Self>> {
        let this = slf.get();
        this.prepare_by_name(request)?;
        // By events whatever the policy, which applies to implicit order.
        if !this.view().needs_order(request, SyncPolicy::Event) {
            return Self::ready_there(slf, stream, object);
        }
        this.view().order(request, SyncPolicy::Event)?;
        Self::moved(slf, stream, object)?.into_object(slf.py())
    }

    /// Returns the view, which is ready where it was asked for. Where that is the stream of an object, a view that keeps the
    /// object: the number alone keeps no stream alive.
    fn ready_there<'py>(
        slf: &Bound<'py, Self>,
        stream: Stream,
        object: Option<Py<PyAny>>,
    ) -> PyResult<Bound<'py, Self>> {
        let this = slf.get();
        let is_kept = object
            .as_ref()
            .is_none_or(|object| this.keeps_stream(object));
        match is_kept || this.view().ready_number() != stream {
            true => Ok(slf.clone()),
            false => Self::moved(slf, stream, object)?.into_object(slf.py()),
        }
    }
}

/// The work of `CaiView.wait`.
pub(crate) struct Waited(pub(crate) Py<PyCaiView>);

impl Awaitable for Waited {
    fn begin(&self, _py: Python<'_>) -> PyResult<Option<Pending>> {
        let this = self.0.get();
        this.prepare_by_name(Request::Host)?;
        Ok(this.view().begin_order(Request::Host, SyncPolicy::Event)?)
    }

    fn result(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let view = self.0.bind(py);
        if view.get().view().ready_number() == Stream::None {
            return Ok(view.clone().into_any().unbind());
        }
        let waited = PyCaiView::moved(view, Stream::None, None)?.into_object(py)?;
        Ok(waited.into_any().unbind())
    }

    fn called<'a, 'py>(&'a self, py: Python<'py>) -> Called<'a, 'py> {
        Called {
            name: c"wait",
            array: Some(self.0.as_any().bind_borrowed(py)),
            stream: None,
        }
    }

    fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.0)
    }
}
