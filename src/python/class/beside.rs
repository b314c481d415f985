//! The fields of a Python view beside the Rust view.

use std::sync::Arc;

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyInt;

use crate::protocol::stream::Stream;
use crate::python::call::use_stream;
use crate::python::class::recall::Recall;
use crate::python::class::scope::Scope;
use crate::python::cpython::release;

/// The fields of a Python view beside the Rust view; empty for most views.
#[derive(Debug, Default)]
pub(crate) struct Beside {
    /// Boxed, as few views have them and each pays for its size.
    rare: Option<Box<Rare>>,
}

#[derive(Debug, Default)]
pub(crate) struct Rare {
    /// The object that the ready stream belongs to.
    pub(crate) stream_object: Option<Py<PyAny>>,
    /// The object that the producer's stream belongs to, if the caller named it.
    pub(crate) producer_object: Option<Py<PyAny>>,
    /// The consume block that the view belongs to.
    pub(crate) scope: Option<Scope>,
    /// The tensor that a refusal takes back.
    pub(crate) recall: Option<Arc<Recall>>,
}

impl Beside {
    /// Boxes `rare`, if it holds anything.
    pub(crate) fn new(rare: Rare) -> Self {
        let is_empty = rare.stream_object.is_none()
            && rare.producer_object.is_none()
            && rare.scope.is_none()
            && rare.recall.is_none();
        Self {
            rare: (!is_empty).then(|| Box::new(rare)),
        }
    }

    #[inline(always)]
    pub(crate) fn rare(&self) -> Option<&Rare> {
        self.rare.as_deref()
    }

    /// Keeps the caller's stream objects alive as long as the view. An int keeps nothing alive.
    #[inline(always)]
    pub(crate) fn keeping(
        self,
        ready: Option<&Bound<'_, PyAny>>,
        producer: Option<&Bound<'_, PyAny>>,
    ) -> Self {
        match (ready, producer) {
            (None, None) => self,
            _ => self.keep(ready, producer),
        }
    }

    /// As a drop does.
    #[inline(always)]
    pub(crate) fn let_go(&mut self) {
        if let Some(rare) = self.rare.take() {
            Rare::end(rare);
        }
    }

    /// Ends the view with a `consume` block.
    #[cold]
    pub(crate) fn within(mut self, scope: &Scope) -> Self {
        self.rare.get_or_insert_default().scope = Some(scope.clone());
        self
    }

    /// Keeps the object of the `use_stream` block on whose stream the view is ready: the block may end before the view.
    ///
    /// # Errors
    /// Those of [`use_stream::object_of`].
    #[cold]
    pub(crate) fn keeping_work_stream(self, py: Python<'_>, ready: Stream) -> PyResult<Self> {
        if self.rare().is_some_and(|rare| rare.stream_object.is_some()) {
            return Ok(self);
        }
        let object = use_stream::object_of(py, ready)?;
        Ok(self.keeping(object.as_ref(), None))
    }

    /// Like [`keeping`](Self::keeping), of `(object, is_same)`: a stream that is the same as before goes on to be kept by the
    /// object that keeps it, if the caller has named it by its number.
    #[inline(always)]
    pub(crate) fn keeping_renamed(
        self,
        ready: (Option<&Bound<'_, PyAny>>, bool),
        producer: (Option<&Bound<'_, PyAny>>, bool),
    ) -> Self {
        let [ready, producer] = [ready, producer].map(|(object, is_same)| {
            object.filter(|object| !is_same || !object.is_exact_instance_of::<PyInt>())
        });
        self.keeping(ready, producer)
    }

    #[cold]
    fn keep(
        mut self,
        ready: Option<&Bound<'_, PyAny>>,
        producer: Option<&Bound<'_, PyAny>>,
    ) -> Self {
        let mut rare = self.rare.take().map_or_else(Rare::default, |rare| *rare);
        release::dropping(|| {
            if ready.is_some() {
                rare.stream_object = kept(ready);
            }
            if producer.is_some() {
                rare.producer_object = kept(producer);
            }
            Self::new(rare)
        })
    }

    /// Shows the collector the stream objects.
    pub(crate) fn visit(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        let Some(rare) = &self.rare else {
            return Ok(());
        };
        visit.call(&rare.stream_object)?;
        visit.call(&rare.producer_object)
    }
}

impl Drop for Beside {
    #[inline(always)]
    fn drop(&mut self) {
        self.let_go();
    }
}

impl Rare {
    /// As [`PyCaiView::check_alive`](crate::python::class::view::PyCaiView::check_alive).
    pub(crate) fn check(&self) -> PyResult<()> {
        self.scope.as_ref().map_or(Ok(()), Scope::check)?;
        (self.recall.as_deref()).map_or(Ok(()), Recall::check)
    }

    /// As [`PyCaiView::check_scope`](crate::python::class::view::PyCaiView::check_scope).
    pub(crate) fn take(&self) -> PyResult<()> {
        self.scope.as_ref().map_or(Ok(()), Scope::check)?;
        (self.recall.as_deref()).map_or(Ok(()), Recall::take)
    }

    /// Lets go of the stream objects, which the end of the array may use, after it (`PyCaiView` drops its array first). A
    /// `Py`'s own drop would not wait for an array that has to wait, and would keep them in a call that PyO3 does not count.
    #[cold]
    #[inline(never)]
    #[expect(
        clippy::boxed_local,
        reason = "a view that has none makes no room for it on the stack"
    )]
    fn end(mut rare: Box<Self>) {
        let objects = [rare.stream_object.take(), rare.producer_object.take()];
        for object in objects.into_iter().flatten() {
            release::end(object);
        }
    }
}

/// Returns a new reference to a stream object; `None` for an int.
#[inline]
pub(crate) fn kept(stream: Option<&Bound<'_, PyAny>>) -> Option<Py<PyAny>> {
    stream
        .filter(|stream| !stream.is_exact_instance_of::<PyInt>())
        .map(|stream| stream.clone().unbind())
}
