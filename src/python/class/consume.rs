//! `with view.consume(stream) as t`: a consume block, and the return edge at its end.

use std::ffi::CString;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::{PyResourceWarning, PyRuntimeError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;

use crate::protocol::rule::{Field, Rule, Violation};
use crate::protocol::stream::Stream;
use crate::python::call::policy;
use crate::python::class::scope::Scope;
use crate::python::class::view::PyCaiView;
use crate::python::cpython::release;
use crate::python::cpython::thread_exit::entries;
use crate::view::{ConsumeGuard, ReturnEdge};

/// The context manager that `CaiView.consume` returns.
///
/// Entering makes `stream` wait for the data and gives a view that is ready there; leaving makes the
/// producer's stream wait for what `stream` holds by then, also when the body raises.
#[pyclass(name = "Consume", module = "cai_dlpack", frozen)]
pub(crate) struct PyConsume {
    view: Py<PyCaiView>,
    stream: Stream,
    stream_object: Py<PyAny>,
    open: Mutex<Option<(ConsumeGuard, Scope)>>,
}

impl PyConsume {
    /// # Errors
    /// With `strict`, `stream-unknown` where the return edge has nowhere to go.
    pub(crate) fn new(
        view: &Bound<'_, PyCaiView>,
        stream: Stream,
        object: Py<PyAny>,
        strict: bool,
    ) -> PyResult<Self> {
        if strict && view.get().view().return_edge(stream) == ReturnEdge::Unknown {
            return Err(
                Violation::new(Rule::StreamUnknown, Field::Argument("strict"), "True")
                    .with_hint("name it by producer_stream= on import")
                    .into(),
            );
        }
        Ok(Self {
            view: view.clone().unbind(),
            stream,
            stream_object: object,
            open: Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Option<(ConsumeGuard, Scope)>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Option<(ConsumeGuard, Scope)> {
        self.lock().take()
    }

    /// Keeps a guard until the end of the block; hands it back if there is one already.
    fn keep(&self, guard: ConsumeGuard, scope: Scope) -> Option<(ConsumeGuard, Scope)> {
        let mut open = self.lock();
        if open.is_some() {
            return Some((guard, scope));
        }
        *open = Some((guard, scope));
        None
    }
}

#[cold]
fn already_open() -> PyErr {
    PyRuntimeError::new_err("this consume block is open; call consume() again for another one")
}

entries! {
impl PyConsume {
    fn __enter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyCaiView>> {
        let (py, this) = (slf.py(), slf.get());
        let view = this.view.get();
        if this.lock().is_some() {
            return Err(already_open());
        }
        view.prepare(py)?;
        let (policy, stream) = (policy::policy(), this.stream);
        let guard = py.detach(|| view.view().consume_with(stream, policy))?;
        let scope = Scope::begin(guard.return_edge());
        let stream_object = this.stream_object.clone_ref(py);
        let consumed = view.consumed(py, guard.view(), stream_object, scope.clone());
        let consumed = consumed.into_object(py)?;
        match this.keep(guard, scope) {
            None => Ok(consumed),
            // Another thread has entered meanwhile: its block stands, and this guard ends here.
            Some((guard, scope)) => {
                scope.end();
                py.detach(|| drop(guard));
                Err(already_open())
            }
        }
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _kind: &Bound<'_, PyAny>,
        _error: &Bound<'_, PyAny>,
        _trace: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        if let Some((guard, scope)) = self.take() {
            scope.end();
            // A producer that has moved goes on working there: that stream is made to wait as well.
            let moved = self.view.get().producer_moved();
            let also = moved.as_ref().ok().copied().flatten();
            py.detach(|| guard.finish_for(also))?;
            moved?;
        }
        Ok(false)
    }

    /// An array that keeps its block makes a cycle, as one that keeps its view does.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.view)?;
        visit.call(&self.stream_object)
    }
}
}

impl Drop for PyConsume {
    /// A block that was entered and never left: the edge is made now, and the user told.
    fn drop(&mut self) {
        let Some((guard, scope)) = self.take() else {
            return;
        };
        scope.end();
        Python::try_attach(|py| {
            // An exception may be on its way through the frame that held the block; it goes on.
            release::keeping_exception(py, || {
                py.detach(|| drop(guard));
                warn(py);
            });
        });
    }
}

#[cold]
fn warn(py: Python<'_>) {
    let text = CString::from(c"a consume block was never left; its return edge was made only now");
    if let Err(error) = PyErr::warn(py, &py.get_type::<PyResourceWarning>(), &text, 1) {
        error.write_unraisable(py, None);
    }
}
