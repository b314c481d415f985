//! The struct of the Python class `CaiView`, and the checks before each use.

use std::mem::{ManuallyDrop, MaybeUninit};
use std::ptr::NonNull;

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::{Borrowed, ffi};

use crate::protocol::stream::{Request, Stream, SyncPolicy};
use crate::python::call::policy;
use crate::python::class::beside::{Beside, Rare};
use crate::python::class::recall::Recall;
use crate::python::class::scope::Scope;
use crate::python::cpython::release::{PARENT, PYTHON};
use crate::python::cpython::{gil, release};
use crate::view::{CaiView, Owner, RawOwner};

/// A view of a strided array in memory that CUDA (or, from DLPack, the host) can access; keeps the owner alive.
///
/// Made by `view`, `from_cai` and `from_dlpack`. It exports by both protocols: pass it to any consumer of `__dlpack__`
/// or `__cuda_array_interface__`. It is immutable and copies nothing. It has neither a length nor items, as consumers
/// that find them copy element by element.
///
/// Attributes
/// ----------
/// shape : tuple of int
///     The extents, in elements.
/// dtype : DType
///     The element type. Equals every spelling of it, such as "float32" and `np.float32`. Of records, text, dates and
///     other items that DLPack has not, which leave by CAI alone, it is NumPy's: `np.dtype(v.dtype)`.
/// device : tuple of int
///     DLPack's device, as (type, id).
/// stream : int | None
///     The stream on which the data is ready; None if the data is ready.
/// read_only : bool | None
///     Whether consumers must not write; None if the producer could not state it.
/// owner : object | None
///     The Python object that keeps the memory alive; None if a DLPack tensor does.
///
/// Examples
/// --------
/// >>> array = torch.from_dlpack(cd.view(numba_array))  # doctest: +SKIP
#[pyclass(name = "CaiView", module = "cai_dlpack", frozen, weakref)]
#[derive(Debug)]
pub struct PyCaiView {
    view: CaiView,
    beside: Beside,
}

/// Whether the collector knows objects of this one's type, which an object keeps as long as it lives.
#[inline(always)]
fn is_collected(object: NonNull<()>) -> bool {
    // SAFETY: a living object: an owner holds a reference.
    let kind = unsafe { ffi::Py_TYPE(object.as_ptr().cast()) };
    // SAFETY: a living type.
    let flags = unsafe { ffi::PyType_GetFlags(kind) };
    flags & ffi::Py_TPFLAGS_HAVE_GC != 0
}

/// Returns the `consume` block of an object, if it is a view of one.
#[inline(always)]
pub(crate) fn scope_of<'a>(object: &'a Bound<'_, PyAny>) -> Option<&'a Scope> {
    match object.is_exact_instance_of::<PyCaiView>() {
        true => object.cast::<PyCaiView>().ok()?.get().scope(),
        false => None,
    }
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

    /// Splits memory for a `PyCaiView` into its two fields, to be written one by one.
    #[inline(always)]
    pub(crate) fn fields_of(
        memory: &mut MaybeUninit<Self>,
    ) -> (&mut MaybeUninit<CaiView>, &mut MaybeUninit<Beside>) {
        let memory = memory.as_mut_ptr();
        // SAFETY: a field of memory for a `PyCaiView`; nothing is read.
        let view = unsafe { &raw mut (*memory).view };
        // SAFETY: a field of memory for a `PyCaiView`; nothing is read.
        let beside = unsafe { &raw mut (*memory).beside };
        // SAFETY: aligned, within memory that is borrowed mutably; `MaybeUninit` may be uninitialised.
        let view = unsafe { &mut *view.cast::<MaybeUninit<CaiView>>() };
        // SAFETY: aligned, within memory that is borrowed mutably, and disjoint from `view`; `MaybeUninit` may be
        // uninitialised.
        let beside = unsafe { &mut *beside.cast::<MaybeUninit<Beside>>() };
        (view, beside)
    }

    /// Drops the value on a thread that holds the GIL, in a call that PyO3 does not count.
    ///
    /// # Safety
    /// `memory` is initialised, and not used afterwards; the GIL is held.
    #[cfg(not(Py_LIMITED_API))]
    #[inline(always)]
    pub(crate) unsafe fn end(memory: &mut MaybeUninit<Self>) {
        let (view, beside) = Self::fields_of(memory);
        // SAFETY: aligned, initialised (this function's contract) and borrowed mutably; `ManuallyDrop` is laid out as
        // its value.
        let view = unsafe { &mut *view.as_mut_ptr().cast::<ManuallyDrop<CaiView>>() };
        // The end of the array may use the streams, whose objects end after it.
        // SAFETY: the view is not used afterwards, and the GIL is held (this function's contract).
        unsafe { CaiView::end(view) };
        // Nothing is left to drop then, and drop glue would be a call.
        // SAFETY: initialised (this function's contract).
        unsafe { beside.assume_init_mut() }.let_go();
    }

    /// Wraps a view that was derived from this one: of the same memory, in the same consume block, on the same streams.
    ///
    /// # Errors
    /// Those of [`kept_by_parent`].
    pub(crate) fn derive(slf: &Bound<'_, Self>, view: CaiView) -> PyResult<Self> {
        let view = kept_by_parent(slf, view)?;
        Ok(slf.get().wrap(slf.py(), view))
    }

    /// Wraps a view as [`derive`](Self::derive) does, with the owner that it has.
    pub(crate) fn wrap(&self, py: Python<'_>, view: CaiView) -> Self {
        let rare = Rare {
            stream_object: clone(py, self.stream_object()),
            producer_object: clone(py, self.producer_object()),
            scope: self.scope().cloned(),
            recall: None,
        };
        Self::with(view, Beside::new(rare))
    }

    /// Makes a view that is ready on a consumer's stream until `scope` ends.
    ///
    /// # Errors
    /// Those of [`kept_by_parent`].
    pub(crate) fn consumed(
        slf: &Bound<'_, Self>,
        view: &CaiView,
        stream_object: Py<PyAny>,
        scope: Scope,
    ) -> PyResult<Self> {
        let this = slf.get();
        let rare = Rare {
            stream_object: Some(stream_object),
            producer_object: clone(slf.py(), this.producer_object()),
            scope: Some(scope),
            recall: None,
        };
        let view = kept_by_parent(slf, view.clone())?;
        Ok(Self::with(view, Beside::new(rare)))
    }

    /// Returns the Rust view, which may have ended ([`check_scope`](Self::check_scope)).
    pub(crate) fn view(&self) -> &CaiView {
        &self.view
    }

    pub(crate) fn scope(&self) -> Option<&Scope> {
        self.beside.rare()?.scope.as_ref()
    }

    fn stream_object(&self) -> Option<&Py<PyAny>> {
        self.beside.rare()?.stream_object.as_ref()
    }

    /// Whether the view holds a Python object that the collector can follow; an import by DLPack holds none.
    #[inline(always)]
    pub(crate) fn may_be_in_a_cycle(&self) -> bool {
        self.beside.rare().is_some() || self.view.owner().may_hold_objects(is_collected)
    }

    /// Whether the view holds no stream objects, and ends with no block and no tensor that is taken back.
    pub(crate) fn is_plain(&self) -> bool {
        self.beside.rare().is_none()
    }

    fn producer_object(&self) -> Option<&Py<PyAny>> {
        self.beside.rare()?.producer_object.as_ref()
    }

    /// Whether the view keeps this stream object alive.
    pub(crate) fn keeps_stream(&self, object: &Py<PyAny>) -> bool {
        self.stream_objects().any(|own| own.is(object))
    }

    fn stream_objects(&self) -> impl Iterator<Item = &Py<PyAny>> {
        let own = [self.stream_object(), self.producer_object()];
        own.into_iter().flatten()
    }

    /// Refuses a view that has ended: its consume block, after which nothing orders its use, or its tensor is in its
    /// capsule again. After this use the view may keep the memory for someone else.
    #[inline]
    pub(crate) fn check_scope(&self) -> PyResult<()> {
        self.beside.rare().map_or(Ok(()), Rare::take)
    }

    /// Refuses a view that has ended, before a use that may be refused, or that shares the owner ([`keep`](Self::keep),
    /// [`lend`](Self::lend)).
    #[inline]
    pub(crate) fn check_alive(&self) -> PyResult<()> {
        self.beside.rare().map_or(Ok(()), Rare::check)
    }

    fn recall(&self) -> Option<&Recall> {
        self.beside.rare()?.recall.as_deref()
    }

    /// As [`check_scope`](Self::check_scope), of a view whose order does not matter.
    pub(crate) fn give_address(&self) -> PyResult<()> {
        self.recall().map_or(Ok(()), Recall::take)
    }

    /// Returns an owner that keeps the memory and the stream objects for a tensor: a reference to the view, for which no
    /// shared count is needed; shares of both if the view may end before.
    ///
    /// # Errors
    /// `scope-ended`, also if the view has ended since it was checked; those of [`release::own`].
    #[inline(always)]
    pub(crate) fn keep(slf: Borrowed<'_, '_, Self>) -> PyResult<RawOwner> {
        match slf.get().beside.rare() {
            None => release::own(slf.to_owned().into_any()),
            Some(rare) => Self::keep_checked(slf, rare),
        }
    }

    #[cold]
    fn keep_checked(slf: Borrowed<'_, '_, Self>, rare: &Rare) -> PyResult<RawOwner> {
        rare.check()?;
        match rare.recall.as_deref() {
            None => release::own(slf.to_owned().into_any()),
            Some(recall) => slf.get().share(slf.py(), recall),
        }
    }

    fn share(&self, py: Python<'_>, recall: &Recall) -> PyResult<RawOwner> {
        let mut owner = recall.share(|| self.view.owner().share())?;
        for object in self.stream_objects() {
            let kept = release::own(object.bind(py).clone())?;
            owner = owner.beside(Owner::from_raw(kept));
        }
        Ok(owner.into_raw())
    }

    /// Returns a view of the same memory, which shares its owner, and keeps the stream objects.
    ///
    /// # Errors
    /// Those of [`release::own`]; `scope-ended`.
    #[inline(always)]
    pub(crate) fn lend(&self, py: Python<'_>) -> PyResult<CaiView> {
        match self.is_plain() {
            true => Ok(self.view.clone()),
            false => self.lend_with_streams(py),
        }
    }

    #[cold]
    fn lend_with_streams(&self, py: Python<'_>) -> PyResult<CaiView> {
        self.check_alive()?;
        let mut view = match self.recall() {
            None => self.view.clone(),
            Some(recall) => recall.share(|| self.view.clone())?,
        };
        for object in self.stream_objects() {
            let kept = release::own(object.bind(py).clone())?;
            view.keep_beside(Owner::from_raw(kept));
        }
        Ok(view)
    }

    /// Notes a capsule of [`keep`](Self::keep) or [`lend`](Self::lend).
    #[inline(always)]
    pub(crate) fn note(&self, capsule: &Bound<'_, PyAny>) {
        if let Some(recall) = self.recall() {
            recall.note(capsule);
        }
    }

    /// Refuses a view that DLPack cannot export: one that has ended, or of items that only CAI can describe.
    #[inline]
    pub(crate) fn check_array(&self) -> PyResult<()> {
        self.check_alive()?;
        Ok(self.view.descriptor().check_dlpack()?)
    }

    /// Runs the check of every use, and orders the ready stream after a producer that has moved.
    ///
    /// # Errors
    /// `scope-ended`; those of [`follow`](Self::follow).
    #[inline]
    pub(crate) fn prepare(&self) -> PyResult<()> {
        self.check_scope()?;
        self.follow()
    }

    /// As [`prepare`](Self::prepare), for an order that follows no policy: one that the caller requests by name, or the
    /// host's wait.
    ///
    /// # Errors
    /// Those of [`prepare`](Self::prepare).
    #[inline]
    pub(crate) fn prepare_by_name(&self, request: Request) -> PyResult<()> {
        self.check_scope()?;
        self.follow_by_name(request)
    }

    /// Makes the ready stream wait for the producer's stream, if the producer has moved to another one.
    ///
    /// # Errors
    /// The exceptions of the producer's table; the rules of order; the driver's; `scope-ended` if the table's code has ended the
    /// view.
    #[inline]
    pub(crate) fn follow(&self) -> PyResult<()> {
        match self.view.can_ask() {
            false => Ok(()),
            true => self.followed(follow(&self.view)),
        }
    }

    /// As [`follow`](Self::follow), whatever the policy, for an order of `request`.
    ///
    /// # Errors
    /// Those of [`follow_before`]; `scope-ended`.
    #[inline]
    pub(crate) fn follow_by_name(&self, request: Request) -> PyResult<()> {
        let policy = |_: Python<'_>| Ok(SyncPolicy::Event);
        match self.view.can_ask() {
            false => Ok(()),
            true => self.followed(follow_before(&self.view, request, policy)),
        }
    }

    #[cold]
    fn followed(&self, made: PyResult<()>) -> PyResult<()> {
        made?;
        self.check_alive()
    }

    /// Shows the collector the stream objects, and what keeps the memory.
    pub(crate) fn visit(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.beside.visit(visit)?;
        self.view.owner().visit_objects(&mut |payload| {
            // SAFETY: the collector runs with the GIL; the token is used for the next line alone.
            let py = unsafe { Python::assume_attached() };
            // SAFETY: the payload is a strong reference, which is borrowed: `ManuallyDrop` does not give it up.
            let object = unsafe { Bound::from_owned_ptr(py, payload.as_ptr().cast()) };
            visit.call(&*ManuallyDrop::new(object.unbind()))
        })
    }

    /// Returns the Python object that keeps the memory alive; `None` if there is none.
    pub(crate) fn owner<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        let owner = self.view.owner();
        if let Some(object) = owner.payload(&PYTHON) {
            // SAFETY: the payload of this kind is a strong reference to an object, which lives as long as the view.
            return Some(unsafe { Bound::from_borrowed_ptr(py, object.as_ptr().cast()) });
        }
        // SAFETY: the payload of this kind is a strong reference to a view, which lives as long as this one.
        let parent =
            unsafe { Bound::from_borrowed_ptr(py, owner.payload(&PARENT)?.as_ptr().cast()) };
        // SAFETY: an owner of this kind is of a `PyCaiView` (`kept_by_parent`).
        unsafe { parent.cast_unchecked::<Self>() }.get().owner(py)
    }

    /// Makes a view that is ready on another stream, which the caller has ordered.
    ///
    /// # Errors
    /// Those of [`kept_by_parent`].
    pub(crate) fn moved(
        slf: &Bound<'_, Self>,
        stream: Stream,
        stream_object: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let this = slf.get();
        // The same stream goes on to be kept, if the caller has named it by its number.
        let own = this.stream_object();
        let own = own.filter(|_| stream_object.is_none() && this.view.ready_number() == stream);
        let rare = Rare {
            stream_object: stream_object.or_else(|| clone(slf.py(), own)),
            producer_object: clone(slf.py(), this.producer_object()),
            scope: this.scope().cloned(),
            recall: None,
        };
        let view = kept_by_parent(slf, this.view.ready_on(stream))?;
        Ok(Self::with(view, Beside::new(rare)))
    }
}

/// Makes the ready stream of a view wait for a producer that has moved, by the context's policy.
///
/// # Errors
/// Those of [`PyCaiView::follow`].
#[inline(always)]
pub(crate) fn follow(view: &CaiView) -> PyResult<()> {
    view.follow(|| gil::with(policy::policy))
}

/// Makes the ready stream of `view` wait as [`PyCaiView::follow`] does, by `policy`, for an order of `request` that is not
/// refused itself.
///
/// # Errors
/// Those of [`PyCaiView::follow`]; the rules of that order: then nothing has been made to wait.
#[inline]
pub(crate) fn follow_before(
    view: &CaiView,
    request: Request,
    policy: impl FnOnce(Python<'_>) -> PyResult<SyncPolicy>,
) -> PyResult<()> {
    view.follow(|| {
        let policy = gil::with(policy)?;
        match view.refusal(request, policy)? {
            Some(refused) => Err(PyErr::from(refused)),
            None => Ok(policy),
        }
    })
}

/// Makes `view`, which shares the owner of `parent`, refer to the object of `parent` instead: the collector sees a
/// reference to an object, and does not see a share of an owner. A view that was itself derived passes its own parent
/// on, so that a view that is derived again and again keeps one parent alive and no chain.
///
/// # Errors
/// Those of [`release::prepare`].
pub(crate) fn kept_by_parent(parent: &Bound<'_, PyCaiView>, view: CaiView) -> PyResult<CaiView> {
    let parent = match parent.get().view.owner().payload(&PARENT) {
        // SAFETY: the payload of this kind is a strong reference to an object, which lives as long as `parent`.
        Some(first) => unsafe { Bound::from_borrowed_ptr(parent.py(), first.as_ptr().cast()) },
        None => parent.clone().into_any(),
    };
    let owner = release::own_parent(parent)?;
    // SAFETY: the object holds the owner that `view` shares, or one that keeps it; the streams stay as they are.
    Ok(unsafe { view.kept_by(owner) })
}

/// Returns the `owner=` that a view keeps. If it is a view that has taken the tensor of a capsule, it keeps that from now on.
///
/// # Errors
/// `scope-ended` if the tensor is in its capsule again.
pub(crate) fn kept<'py>(owner: Borrowed<'_, 'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    if let Ok(view) = owner.cast::<PyCaiView>() {
        view.get().give_address()?;
    }
    Ok(owner.to_owned())
}

#[inline]
fn clone(py: Python<'_>, object: Option<&Py<PyAny>>) -> Option<Py<PyAny>> {
    object.map(|object| object.clone_ref(py))
}
