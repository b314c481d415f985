//! The context manager of `CaiView.consume`, which makes the return edge at the end of the block.

use std::ffi::CStr;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use pyo3::exceptions::PyRuntimeError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::driver::Pending;
use crate::protocol::rule::{Field, Rule, Violation};
use crate::protocol::stream::Stream;
use crate::python::call::policy;
use crate::python::class::awaiting::{Awaitable, coroutine};
use crate::python::class::scope::Scope;
use crate::python::class::view::PyCaiView;
use crate::python::cpython::new::new_str;
use crate::python::cpython::thread_exit::entries;
use crate::python::cpython::tracing::Called;
use crate::python::cpython::warn::{self, Warning};
use crate::python::cpython::{gil, release};
use crate::python::shown;
use crate::python::trace::traced;
use crate::view::{ConsumeGuard, Consumer, Dropped};

/// The context manager that `CaiView.consume` returns, for `with` and `async with`.
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
        if (strict || policy::is_strict(view.py())?)
            && view.get().view().producer_number().is_none()
        {
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

    /// A method of the block, for the line of the trace.
    fn called<'a, 'py>(&'a self, py: Python<'py>, name: &'static CStr) -> Called<'a, 'py> {
        Called {
            name,
            array: Some(self.view.as_any().bind_borrowed(py)),
            stream: Some(self.stream_object.bind_borrowed(py)),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<(ConsumeGuard, Scope)>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check_not_open(&self) -> PyResult<()> {
        match *self.lock() {
            None => Ok(()),
            Some(_) => Err(already_open()),
        }
    }

    /// Opens the block, and returns the view that is ready on the consumer's stream.
    fn begin<'py>(&self, py: Python<'py>, guard: ConsumeGuard) -> PyResult<Bound<'py, PyCaiView>> {
        // The producer's code, which has been asked where it works, may have ended the block of this view.
        self.view.get().check_scope()?;
        let scope = Scope::begin(guard.consumer(), self.view.get().scope());
        let stream_object = self.stream_object.clone_ref(py);
        let consumed = PyCaiView::consumed(
            self.view.bind(py),
            guard.view(),
            stream_object,
            scope.clone(),
        )?;
        let consumed = consumed.into_object(py)?;
        match self.keep(guard, scope) {
            None => Ok(consumed),
            // The block has been entered meanwhile: that one stays open, and this guard ends here.
            Some((guard, scope)) => {
                scope.end();
                drop(guard);
                Err(already_open())
            }
        }
    }

    fn take(&self) -> Option<(ConsumeGuard, Scope)> {
        self.lock().take()
    }

    /// Ends the block, if it is open.
    fn end(&self) -> Option<ConsumeGuard> {
        let (guard, scope) = self.take()?;
        scope.end();
        Some(guard)
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
    Violation::new(Rule::ConsumeOpen, Field::Object, "an open consume block")
        .with_hint("call consume() again for another one")
        .into()
}

entries! {
impl PyConsume {
    fn __enter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let (py, this) = (slf.py(), slf.get());
        traced(py, this.called(py, c"__enter__"), || {
            let view = this.view.get();
            this.check_not_open()?;
            view.prepare()?;
            let (policy, stream) = (policy::policy(py)?, this.stream);
            let guard = view.view().consume_with(stream, policy)?;
            Ok(this.begin(py, guard)?.into_any())
        })
    }

    fn __exit__(
        &self,
        kind: &Bound<'_, PyAny>,
        _error: &Bound<'_, PyAny>,
        _trace: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        let py = kind.py();
        traced(py, self.called(py, c"__exit__"), || {
            if let Some(guard) = self.end() {
                guard.finish()?;
            }
            Ok(py.None().into_bound(py))
        })?;
        Ok(false)
    }

    fn __aenter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let entering = Entering {
            block: slf.clone().unbind(),
            consumer: OnceLock::new(),
        };
        coroutine(slf.py(), "Consume", "__aenter__", entering)
    }

    fn __aexit__<'py>(
        slf: &Bound<'py, Self>,
        _kind: &Bound<'_, PyAny>,
        _error: &Bound<'_, PyAny>,
        _trace: &Bound<'_, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        coroutine(slf.py(), "Consume", "__aexit__", Leaving(slf.clone().unbind()))
    }

    fn __repr__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyString>> {
        let is_open = self.lock().is_some();
        new_str(py, &shown::consume(self.view.get(), self.stream, is_open))
    }

    /// Shows view and stream object to the collector: an array that refers to its block makes a cycle.
    ///
    /// An open block shows neither, and shares the owner of its view: the collector would finalise the array or a stream
    /// object, and with it the stream, before the block makes its return edge.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        // A thread that the collector has stopped may hold the lock: it opens the block, or ends it.
        let is_open = (self.open.try_lock()).map_or(true, |open| open.is_some());
        if is_open {
            return Ok(());
        }
        visit.call(&self.view)?;
        visit.call(&self.stream_object)
    }
}
}

/// The work of `__aenter__`.
struct Entering {
    block: Py<PyConsume>,
    /// Whom the forward edge is made for.
    consumer: OnceLock<Consumer>,
}

impl Awaitable for Entering {
    fn begin(&self, py: Python<'_>) -> PyResult<Option<Pending>> {
        let block = self.block.get();
        let view = block.view.get();
        block.check_not_open()?;
        view.prepare()?;
        let policy = policy::policy(py)?;
        let (consumer, pending) = view.view().begin_consume(block.stream, policy)?;
        let _ = self.consumer.set(consumer);
        Ok(pending)
    }

    fn result(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let block = self.block.get();
        // The coroutine's frame shows the object, whose methods Python may call in any order.
        let Some(consumer) = self.consumer.get() else {
            return Err(PyRuntimeError::new_err("the block has not been entered"));
        };
        let guard = block.view.get().view().consumed(*consumer);
        Ok(block.begin(py, guard)?.into_any().unbind())
    }

    fn called<'a, 'py>(&'a self, py: Python<'py>) -> Called<'a, 'py> {
        self.block.get().called(py, c"__aenter__")
    }

    fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.block)
    }
}

/// The work of `__aexit__`.
struct Leaving(Py<PyConsume>);

impl Awaitable for Leaving {
    fn begin(&self, _py: Python<'_>) -> PyResult<Option<Pending>> {
        let block = self.0.get();
        match block.end() {
            None => Ok(None),
            Some(guard) => Ok(guard.begin_finish()?),
        }
    }

    fn result(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(py.None())
    }

    fn called<'a, 'py>(&'a self, py: Python<'py>) -> Called<'a, 'py> {
        self.0.get().called(py, c"__aexit__")
    }

    fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.0)
    }
}

impl Drop for PyConsume {
    /// Ends a block that was never left, and warns of what that has done.
    fn drop(&mut self) {
        let Some((mut guard, scope)) = self.take() else {
            return;
        };
        scope.end();
        Python::try_attach(|py| {
            // An exception may be pending in the frame that held the block.
            release::keeping_exception(py, || {
                warn(py, &guard.end_dropped());
                drop(guard);
            });
        });
    }
}

#[cold]
fn warn(py: Python<'_>, end: &Dropped) {
    let text = format!("a consume block was never left; {end}");
    let issued = new_str(py, &text).and_then(|text| warn::warn(py, Warning::Consume, &text));
    if let Err(error) = issued
        // As the interpreter ends there is no module to issue it any more.
        && !gil::is_ending()
    {
        error.write_unraisable(py, None);
    }
}
