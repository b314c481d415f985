//! `CaiView` as Python sees it.

#[cfg(not(Py_LIMITED_API))]
use std::mem::ManuallyDrop;

#[cfg(not(Py_LIMITED_API))]
use pyo3::ffi;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyInt;

use crate::protocol::descriptor::Device;
use crate::protocol::interface::Descr;
use crate::protocol::stream::{Request, Stream, SyncPolicy};
use crate::python::class::alloc;
use crate::python::class::scope::Scope;
use crate::python::cpython::release;
use crate::python::cpython::release::PYTHON;
use crate::python::import::exchange::{Imported, WorkStream};
use crate::python::import::exchange_table::Table;
use crate::view::CaiView;

/// A strided array in memory that CUDA (or, from DLPack, the host) can reach, and whose owner is kept
/// alive. Made by `view`, `from_cai` and `from_dlpack`.
///
/// It speaks both protocols: pass it to any consumer of `__dlpack__` or `__cuda_array_interface__`.
/// It is immutable and copies nothing. It has neither a length nor items, since consumers that find
/// them copy element by element.
#[pyclass(name = "CaiView", module = "cai_dlpack", frozen, weakref)]
#[derive(Debug)]
pub struct PyCaiView {
    view: CaiView,
    /// What few views have; apart, since a view's size is paid for by every one of them.
    rare: Option<Box<Rare>>,
    /// Where to ask the producer again which stream it works on, for a view that is ready there.
    table: Option<Table>,
}

#[derive(Debug, Default)]
struct Rare {
    /// A stream object that the view's ready stream belongs to.
    stream_object: Option<Py<PyAny>>,
    /// A stream object that the producer's stream belongs to, where the caller named it.
    producer_object: Option<Py<PyAny>>,
    /// The consume block that it belongs to.
    scope: Option<Scope>,
    /// The fields of a struct.
    fields: Descr,
    /// The device that the producer's table knows it by, where it goes by another name.
    known_as: Option<Device>,
}

impl Rare {
    /// Drops it with the GIL held, in a call that PyO3 does not count, where it would keep the objects until
    /// the next that it does; after the interpreter's end there is none.
    #[cfg(not(Py_LIMITED_API))]
    #[cold]
    fn end(mut self) {
        for object in [self.stream_object.take(), self.producer_object.take()] {
            let object = object.map_or(std::ptr::null_mut(), Py::into_ptr);
            // SAFETY: the GIL is held; NULL, or a reference that is ours to give up.
            unsafe { ffi::Py_XDECREF(object) };
        }
    }

    /// Nothing where there is nothing to keep.
    fn boxed(self) -> Option<Box<Self>> {
        let is_empty = self.stream_object.is_none()
            && self.producer_object.is_none()
            && self.scope.is_none()
            && self.known_as.is_none()
            && self.fields == Descr::None;
        (!is_empty).then(|| Box::new(self))
    }
}

impl PyCaiView {
    /// Wraps a view.
    #[inline(always)]
    pub(crate) fn new(view: CaiView) -> Self {
        Self {
            view,
            rare: None,
            table: None,
        }
    }

    /// Where the view stands in an object that is filled piece by piece.
    ///
    /// # Safety
    /// `place` has room for a `PyCaiView`.
    #[inline(always)]
    pub(crate) unsafe fn view_at(place: *mut Self) -> *mut CaiView {
        // SAFETY: a field of the room that this function is promised.
        unsafe { &raw mut (*place).view }
    }

    /// Drops what stands there.
    ///
    /// # Safety
    /// A `PyCaiView` stands there, which nobody uses afterwards; the GIL is held.
    #[cfg(not(Py_LIMITED_API))]
    #[inline(always)]
    pub(crate) unsafe fn end_at(place: *mut Self) {
        // SAFETY: a field of what stands there.
        let rare = unsafe { &raw mut (*place).rare };
        // SAFETY: it stands there, and is moved out once.
        let rare = unsafe { rare.read() };
        if let Some(rare) = rare {
            rare.end();
        }
        // SAFETY: as this function is promised.
        let view = unsafe { Self::view_at(place) };
        // SAFETY: a view stands there, aligned, and nobody else uses it: `ManuallyDrop` is transparent.
        let view = unsafe { &mut *view.cast::<ManuallyDrop<CaiView>>() };
        // SAFETY: nobody uses it afterwards; the GIL is held.
        unsafe { CaiView::end(view) };
    }

    /// Fills what stands beside the view: a table that can be asked again where the producer works.
    ///
    /// # Safety
    /// `place` has room for a `PyCaiView`.
    #[inline(always)]
    pub(crate) unsafe fn complete_at(place: *mut Self, table: Option<Table>) {
        // SAFETY: a field of the room that this function is promised.
        let rare = unsafe { &raw mut (*place).rare };
        // SAFETY: room for it.
        unsafe { rare.write(None) };
        // SAFETY: a field of the room that this function is promised.
        let place = unsafe { &raw mut (*place).table };
        // SAFETY: room for it.
        unsafe { place.write(table) };
    }

    /// Keeps the stream objects that the caller named: a stream lives as long as the views that are
    /// ordered by it. Ints are nobody's to keep.
    #[inline(always)]
    pub(crate) fn keeping(
        mut self,
        ready: Option<&Bound<'_, PyAny>>,
        producer: Option<&Bound<'_, PyAny>>,
    ) -> Self {
        if ready.is_some() || producer.is_some() {
            self.keep(ready, producer);
        }
        self
    }

    #[cold]
    fn keep(&mut self, ready: Option<&Bound<'_, PyAny>>, producer: Option<&Bound<'_, PyAny>>) {
        let mut rare = self.rare.take().map_or_else(Rare::default, |rare| *rare);
        release::dropping(|| {
            if ready.is_some() {
                rare.stream_object = kept(ready);
            }
            if producer.is_some() {
                rare.producer_object = kept(producer);
            }
            self.rare = rare.boxed();
        });
    }

    /// Wraps what came by the route that knows the producer.
    #[inline(always)]
    pub(crate) fn from_route(found: Imported) -> Self {
        let view = Self {
            table: found.table,
            ..Self::new(found.view)
        };
        match found.fields {
            None => view,
            Some(fields) => view.with_fields(*fields),
        }
    }

    /// Says which fields the items of a struct have.
    #[cold]
    pub(crate) fn with_fields(mut self, fields: Descr) -> Self {
        let mut rare = self.rare.take().map_or_else(Rare::default, |rare| *rare);
        rare.fields = fields;
        self.rare = rare.boxed();
        self
    }

    /// The fields of a struct.
    pub(crate) fn descr(&self) -> &Descr {
        self.rare.as_ref().map_or(&Descr::None, |rare| &rare.fields)
    }

    /// The same memory described anew: in the same consume block, on the same stream, of the same producer.
    pub(crate) fn described(&self, py: Python<'_>, view: CaiView) -> Self {
        // `dtype=` makes an array of a struct.
        let fields = match view.descriptor().dtype().is_structure() {
            true => self.descr().clone(),
            false => Descr::None,
        };
        let table = self.table.filter(|_| view.ready() == self.view.ready());
        let known_as = self.known_as();
        let rare = Rare {
            stream_object: clone(py, self.stream_object()),
            producer_object: clone(py, self.producer_object()),
            scope: self.scope().cloned(),
            fields,
            known_as: (table.is_some() && known_as != view.device()).then_some(known_as),
        };
        Self {
            table,
            view,
            rare: rare.boxed(),
        }
    }

    /// A view that is ready on a consumer's stream until `scope` ends.
    pub(crate) fn consumed(
        &self,
        py: Python<'_>,
        view: &CaiView,
        stream_object: Py<PyAny>,
        scope: Scope,
    ) -> Self {
        // SAFETY: the same description of the same memory.
        let view = unsafe { view.derive(view.descriptor().clone()) };
        Self {
            view,
            rare: Some(Box::new(Rare {
                stream_object: Some(stream_object),
                producer_object: clone(py, self.producer_object()),
                scope: Some(scope),
                fields: self.descr().clone(),
                known_as: None,
            })),
            table: None,
        }
    }

    /// The view itself.
    #[must_use]
    pub fn view(&self) -> &CaiView {
        &self.view
    }

    /// The same array on a stream that waits for it already; the view itself where it is ready there.
    pub(crate) fn ready_on<'py>(
        slf: &Bound<'py, Self>,
        stream: Stream,
        object: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, Self>> {
        let this = slf.get();
        if !Request::Stream(stream).needs_order(this.view.ready()) {
            return Ok(slf.clone());
        }
        this.moved(slf.py(), stream, kept(object))
            .into_object(slf.py())
    }

    pub(crate) fn scope(&self) -> Option<&Scope> {
        self.rare.as_ref()?.scope.as_ref()
    }

    /// The device that the producer's table knows the memory by.
    fn known_as(&self) -> Device {
        let rare = self.rare.as_ref().and_then(|rare| rare.known_as);
        rare.unwrap_or_else(|| self.view.device())
    }

    fn work(&self) -> Option<WorkStream> {
        let table = self.table?;
        Some(WorkStream::new(table, self.known_as()))
    }

    fn stream_object(&self) -> Option<&Py<PyAny>> {
        self.rare.as_ref()?.stream_object.as_ref()
    }

    /// Whether the collector can see anything in it: an import by DLPack holds no Python object.
    #[inline(always)]
    pub(crate) fn may_be_in_a_cycle(&self) -> bool {
        self.rare.is_some() || self.view.owner().payload(&PYTHON).is_some()
    }

    /// The object of a view.
    ///
    /// # Errors
    /// Out of memory.
    #[inline(always)]
    pub(crate) fn into_object(self, py: Python<'_>) -> PyResult<Bound<'_, Self>> {
        alloc::of(py, self)
    }

    fn producer_object(&self) -> Option<&Py<PyAny>> {
        self.rare.as_ref()?.producer_object.as_ref()
    }

    /// Refuses a view whose consume block has ended: nothing orders its use any more.
    #[inline]
    pub(crate) fn check_scope(&self) -> PyResult<()> {
        self.scope().map_or(Ok(()), Scope::check)
    }

    /// Refuses what no consumer can be given: a view whose consume block has ended, a struct as a whole.
    #[inline]
    pub(crate) fn check_array(&self) -> PyResult<()> {
        match &self.rare {
            None => Ok(()),
            Some(rare) => {
                self.check_scope()?;
                rare.fields.refusal().map_or(Ok(()), |why| Err(why.into()))
            }
        }
    }

    /// What goes before every export: [`check_array`](Self::check_array), [`prepare`](Self::prepare).
    #[inline]
    pub(crate) fn prepare_array(&self, py: Python<'_>) -> PyResult<()> {
        self.check_array()?;
        self.follow(py)
    }

    /// What goes before every use: the consume block has not ended, and the ready stream knows of all that the
    /// producer has done.
    ///
    /// # Errors
    /// `scope-ended`; what the producer's table raises; why no order can be made.
    #[inline]
    pub(crate) fn prepare(&self, py: Python<'_>) -> PyResult<()> {
        self.check_scope()?;
        self.follow(py)
    }

    /// Has the ready stream wait where the producer has moved to another one.
    #[inline]
    pub(crate) fn follow(&self, py: Python<'_>) -> PyResult<()> {
        match self.work() {
            None => Ok(()),
            Some(work) => work.follow(py, &self.view),
        }
    }

    /// The stream that the producer has moved to since the import, where it can be asked.
    ///
    /// # Errors
    /// What the producer's table raises.
    pub(crate) fn producer_moved(&self) -> PyResult<Option<Stream>> {
        match self.work() {
            None => Ok(None),
            Some(work) => work.moved(&self.view),
        }
    }

    /// Shows the collector the stream objects.
    pub(crate) fn visit_rare(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        let Some(rare) = &self.rare else {
            return Ok(());
        };
        visit.call(&rare.stream_object)?;
        visit.call(&rare.producer_object)
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
        if !this.view.needs_order(request, SyncPolicy::Event) {
            return Ok(slf.clone());
        }
        py.detach(|| this.view.order(request, SyncPolicy::Event))?;
        this.moved(py, stream, object).into_object(py)
    }

    /// The same view on another ready stream, by then ordered there.
    fn moved(&self, py: Python<'_>, stream: Stream, stream_object: Option<Py<PyAny>>) -> Self {
        Self {
            view: self.view.ready_on(stream),
            rare: Rare {
                stream_object,
                producer_object: clone(py, self.producer_object()),
                scope: self.scope().cloned(),
                fields: self.descr().clone(),
                known_as: None,
            }
            .boxed(),
            table: None,
        }
    }
}

/// A stream object to keep; nothing for an int.
#[inline]
pub(crate) fn kept(stream: Option<&Bound<'_, PyAny>>) -> Option<Py<PyAny>> {
    stream
        .filter(|stream| !stream.is_exact_instance_of::<PyInt>())
        .map(|stream| stream.clone().unbind())
}

#[inline]
fn clone(py: Python<'_>, object: Option<&Py<PyAny>>) -> Option<Py<PyAny>> {
    object.map(|object| object.clone_ref(py))
}
