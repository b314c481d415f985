//! The same array on another stream.

use pyo3::prelude::*;

use crate::protocol::stream::{Request, Stream, SyncPolicy};
use crate::python::class::beside::kept;
use crate::python::class::view::PyCaiView;

impl PyCaiView {
    /// The same array on a stream that waits for it already; the view itself where it is ready there.
    pub(crate) fn ready_on<'py>(
        slf: &Bound<'py, Self>,
        stream: Stream,
        object: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, Self>> {
        let this = slf.get();
        if !this.view().may_need_order(Request::Stream(stream)) {
            return Ok(slf.clone());
        }
        this.moved(slf.py(), stream, kept(object))
            .into_object(slf.py())
    }

    /// The view after `request` has been answered, ready on `stream`.
    pub(crate) fn ordered<'py>(
        slf: &Bound<'py, Self>,
        request: Request,
        stream: Stream,
        object: Option<Py<PyAny>>,
    ) -> PyResult<Bound<'py, Self>> {
        let (py, this) = (slf.py(), slf.get());
        this.prepare(py)?;
        // An explicit wish: the policy is about what happens without one.
        if !this.view().needs_order(request, SyncPolicy::Event) {
            return Ok(slf.clone());
        }
        py.detach(|| this.view().order(request, SyncPolicy::Event))?;
        this.moved(py, stream, object).into_object(py)
    }
}
