//! `CaiView` as Python sees it: the struct, and what every method needs of it.

#[cfg(not(Py_LIMITED_API))]
use std::mem::ManuallyDrop;
use std::mem::MaybeUninit;

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;

use crate::protocol::device::Device;
use crate::protocol::interface::Descr;
use crate::protocol::stream::Stream;
use crate::python::class::beside::{Beside, Rare};
use crate::python::class::scope::Scope;
use crate::python::cpython::release::PYTHON;
use crate::python::exchange_table::WorkStream;
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
    beside: Beside,
}

impl PyCaiView {
    /// Wraps a view.
    #[inline(always)]
    pub(crate) fn new(view: CaiView) -> Self {
        Self::with(view, Beside::default())
    }

    #[inline(always)]
    pub(crate) fn with(view: CaiView, beside: Beside) -> Self {
        Self { view, beside }
    }

    pub(crate) fn into_fields(self) -> (CaiView, Beside) {
        (self.view, self.beside)
    }

    /// Adds the fields of a struct.
    pub(crate) fn with_fields(self, fields: Descr) -> Self {
        Self::with(self.view, self.beside.with_fields(fields))
    }

    /// The two fields of memory for a `PyCaiView`, to be written one by one.
    #[inline(always)]
    pub(crate) fn fields_of(
        memory: &mut MaybeUninit<Self>,
    ) -> (&mut MaybeUninit<CaiView>, &mut MaybeUninit<Beside>) {
        let memory = memory.as_mut_ptr();
        // SAFETY: inside the memory for a `PyCaiView`; nothing is read.
        let view = unsafe { &raw mut (*memory).view };
        // SAFETY: inside the memory for a `PyCaiView`; nothing is read.
        let beside = unsafe { &raw mut (*memory).beside };
        // SAFETY: aligned, within memory that is borrowed mutably, and without demands on what stands there.
        let view = unsafe { &mut *view.cast::<MaybeUninit<CaiView>>() };
        // SAFETY: aligned, within memory that is borrowed mutably, apart from `view`, and without demands on
        // what stands there.
        let beside = unsafe { &mut *beside.cast::<MaybeUninit<Beside>>() };
        (view, beside)
    }

    /// Drops the value on a thread that holds the GIL, in a call that PyO3 does not count.
    ///
    /// # Safety
    /// A `PyCaiView` stands there, which is not used afterwards; the GIL is held.
    #[cfg(not(Py_LIMITED_API))]
    #[inline(always)]
    pub(crate) unsafe fn end(memory: &mut MaybeUninit<Self>) {
        let (view, beside) = Self::fields_of(memory);
        // SAFETY: written (this function's contract), and moved out once.
        unsafe { beside.assume_init_read() }.end();
        // SAFETY: a view stands there (this function's contract): `ManuallyDrop` is laid out as what it holds.
        let view = unsafe { &mut *view.as_mut_ptr().cast::<ManuallyDrop<CaiView>>() };
        // SAFETY: the view is not used afterwards, and the GIL is held (this function's contract).
        unsafe { CaiView::end(view) };
    }

    /// The fields of a struct.
    pub(crate) fn descr(&self) -> &Descr {
        self.beside.rare().map_or(&Descr::None, |rare| &rare.fields)
    }

    /// The same memory described anew: in the same consume block, on the same stream, of the same producer.
    pub(crate) fn derive(&self, py: Python<'_>, view: CaiView) -> Self {
        // `dtype=` makes an array of a struct.
        let fields = match view.descriptor().dtype().is_structure() {
            true => self.descr().clone(),
            false => Descr::None,
        };
        let table = self
            .beside
            .table
            .filter(|_| view.ready() == self.view.ready());
        let known_as = self.known_as();
        let rare = Rare {
            stream_object: clone(py, self.stream_object()),
            producer_object: clone(py, self.producer_object()),
            scope: self.scope().cloned(),
            fields,
            known_as: (table.is_some() && known_as != view.device()).then_some(known_as),
        };
        Self::with(view, Beside::new(rare, table))
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
        let rare = Rare {
            stream_object: Some(stream_object),
            producer_object: clone(py, self.producer_object()),
            scope: Some(scope),
            fields: self.descr().clone(),
            known_as: None,
        };
        Self::with(view, Beside::new(rare, None))
    }

    /// The view itself.
    #[must_use]
    pub fn view(&self) -> &CaiView {
        &self.view
    }

    pub(crate) fn scope(&self) -> Option<&Scope> {
        self.beside.rare()?.scope.as_ref()
    }

    /// The device that the producer's table knows the memory by.
    fn known_as(&self) -> Device {
        let rare = self.beside.rare().and_then(|rare| rare.known_as);
        rare.unwrap_or_else(|| self.view.device())
    }

    fn work(&self) -> Option<WorkStream> {
        let table = self.beside.table?;
        Some(WorkStream::new(table, self.known_as()))
    }

    fn stream_object(&self) -> Option<&Py<PyAny>> {
        self.beside.rare()?.stream_object.as_ref()
    }

    /// Whether the collector can see anything in it: an import by DLPack holds no Python object.
    #[inline(always)]
    pub(crate) fn may_be_in_a_cycle(&self) -> bool {
        self.beside.rare().is_some() || self.view.owner().payload(&PYTHON).is_some()
    }

    fn producer_object(&self) -> Option<&Py<PyAny>> {
        self.beside.rare()?.producer_object.as_ref()
    }

    /// Refuses a view whose consume block has ended: nothing orders its use any more.
    #[inline]
    pub(crate) fn check_scope(&self) -> PyResult<()> {
        self.scope().map_or(Ok(()), Scope::check)
    }

    /// Refuses what no consumer can be given: a view whose consume block has ended, a struct as a whole.
    #[inline]
    pub(crate) fn check_array(&self) -> PyResult<()> {
        match self.beside.rare() {
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
    pub(crate) fn visit_beside(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.beside.visit(visit)
    }

    /// The same view on another ready stream, by then ordered there.
    pub(crate) fn moved(
        &self,
        py: Python<'_>,
        stream: Stream,
        stream_object: Option<Py<PyAny>>,
    ) -> Self {
        let rare = Rare {
            stream_object,
            producer_object: clone(py, self.producer_object()),
            scope: self.scope().cloned(),
            fields: self.descr().clone(),
            known_as: None,
        };
        Self::with(self.view.ready_on(stream), Beside::new(rare, None))
    }
}

#[inline]
fn clone(py: Python<'_>, object: Option<&Py<PyAny>>) -> Option<Py<PyAny>> {
    object.map(|object| object.clone_ref(py))
}
