//! The context manager of `CaiView.consume`, which makes the return edge at the end of the block.

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
/// Entering makes the consumer's stream wait for the data, and returns a view that is ready there. Leaving makes the
/// producer's stream wait for the work on the consumer's stream, also if the body raises.
///
/// Raises
/// ------
/// RuntimeError
///     If the block is entered while it is open.
///
/// Examples
/// --------
/// >>> with view.consume(stream) as array:  # doctest: +SKIP
/// ...     kernel(array, stream)
#[pyclass(name = "Consume", module = "cai_dlpack", frozen)]
pub(crate) struct PyConsume {
    view: Py<PyCaiView>,
    stream: Stream,
    stream_object: Py<PyAny>,
    open: Mutex<Option<(ConsumeGuard, Scope)>>,
}

impl PyConsume {
    /// # Errors
    /// `stream-unknown` with `strict`, if the producer's stream is unknown.
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

    /// Keeps a guard until the end of the block; returns it if there is one already.
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
        view.prepare()?;
        let (policy, stream) = (policy::policy(), this.stream);
        let guard = view.view().consume_with(stream, policy)?;
        let scope = Scope::begin(guard.return_edge());
        let stream_object = this.stream_object.clone_ref(py);
        let consumed =
            PyCaiView::consumed(this.view.bind(py), guard.view(), stream_object, scope.clone())?;
        let consumed = consumed.into_object(py)?;
        match this.keep(guard, scope) {
            None => Ok(consumed),
            // Another thread has entered meanwhile: its block stays open, and this guard ends here.
            Some((guard, scope)) => {
                scope.end();
                drop(guard);
                Err(already_open())
            }
        }
    }

    fn __exit__(
        &self,
        _kind: &Bound<'_, PyAny>,
        _error: &Bound<'_, PyAny>,
        _trace: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        if let Some((guard, scope)) = self.take() {
            scope.end();
            // A producer that has moved goes on working on its new stream, which waits as well.
            let moved = self.view.get().producer_moved();
            let also = moved.as_ref().ok().copied().flatten();
            guard.finish_for(also)?;
            moved?;
        }
        Ok(false)
    }

    /// Shows view and stream object to the collector: an array that refers to its block makes a cycle.
    ///
    /// An open block shares the owner of its view, which is thereby not shown: the collector would finalise the array,
    /// and with it the producer's stream, before the block makes its return edge.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.view)?;
        visit.call(&self.stream_object)
    }
}
}

impl Drop for PyConsume {
    /// Makes the return edge of a block that was never left, and warns.
    fn drop(&mut self) {
        let Some((guard, scope)) = self.take() else {
            return;
        };
        scope.end();
        Python::try_attach(|py| {
            // An exception may be pending in the frame that held the block.
            release::keeping_exception(py, || {
                drop(guard);
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
