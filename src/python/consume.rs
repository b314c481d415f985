//! `with view.consume(stream) as t`: a loan, and the return edge at its end.

use std::ffi::CString;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::exceptions::{PyResourceWarning, PyRuntimeError};
use pyo3::prelude::*;

use super::class::PyCaiView;
use super::context;
use crate::protocol::rule::{Field, Rule, Violation};
use crate::protocol::stream::Stream;
use crate::view::{Consumed, ReturnEdge};

/// Whether the loan that a view belongs to has ended. A view of no loan has none.
#[derive(Clone, Debug)]
pub(crate) struct Scope {
    ended: Arc<AtomicBool>,
    edge: ReturnEdge,
}

impl Scope {
    /// # Errors
    /// `scope-ended` after the end.
    #[inline]
    pub(crate) fn check(&self) -> PyResult<()> {
        if self.ended.load(Ordering::Acquire) {
            Err(ended())
        } else {
            Ok(())
        }
    }

    pub(crate) fn edge(&self) -> ReturnEdge {
        self.edge
    }
}

#[cold]
fn ended() -> PyErr {
    Violation::new(
        Rule::ScopeEnded,
        Field::Object,
        "a view of a consume block that was left",
    )
    .into()
}

/// The context manager that `CaiView.consume` returns.
///
/// Entering makes `stream` wait for the data and gives a view that is ready there; leaving makes the
/// producer's stream wait for what `stream` holds by then, also when the body raises.
#[pyclass(name = "Consume", module = "cai_dlpack", frozen)]
pub(crate) struct PyConsume {
    view: Py<PyCaiView>,
    stream: Stream,
    stream_object: Py<PyAny>,
    open: Mutex<Option<(Consumed, Scope)>>,
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

    fn take(&self) -> Option<(Consumed, Scope)> {
        self.open
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }
}

#[pymethods]
impl PyConsume {
    fn __enter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyCaiView>> {
        let (py, this) = (slf.py(), slf.get());
        let view = this.view.get();
        view.prepare(py)?;
        if this
            .open
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .is_some()
        {
            return Err(PyRuntimeError::new_err(
                "this consume block is open; call consume() again for another one",
            ));
        }
        let (policy, stream) = (context::policy(), this.stream);
        let loan = py.detach(|| view.view().consume_with(stream, policy))?;
        let scope = Scope {
            ended: Arc::default(),
            edge: loan.return_edge(),
        };
        let lent = PyCaiView::lent(loan.view(), this.stream_object.clone_ref(py), scope.clone());
        let lent = Bound::new(py, lent)?;
        // Of two threads that enter at once, the second one's loan replaces the first's, which ends.
        let first = this
            .open
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .replace((loan, scope));
        py.detach(|| drop(first));
        Ok(lent)
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _kind: &Bound<'_, PyAny>,
        _error: &Bound<'_, PyAny>,
        _trace: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        if let Some((loan, scope)) = self.take() {
            scope.ended.store(true, Ordering::Release);
            py.detach(|| loan.finish())?;
        }
        Ok(false)
    }
}

impl Drop for PyConsume {
    /// A block that was entered and never left: the edge is made now, and the user told.
    fn drop(&mut self) {
        let Some((loan, scope)) = self.take() else {
            return;
        };
        scope.ended.store(true, Ordering::Release);
        Python::try_attach(|py| {
            py.detach(|| drop(loan));
            let text =
                CString::from(c"a consume block was never left; its return edge was made only now");
            if let Err(error) = PyErr::warn(py, &py.get_type::<PyResourceWarning>(), &text, 1) {
                error.write_unraisable(py, None);
            }
        });
    }
}
