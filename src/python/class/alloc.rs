//! Allocates the objects of views, and writes the view in place.
//!
//! PyO3 makes an object by `object.__new__`, which clears the memory and tracks the object before its value is written:
//! 130 instructions more than here. PyO3's layout of objects is not documented, so it is compared with [`Object`] once,
//! by the attributes of the class. If it differs, PyO3 makes every view.

use std::mem::{ManuallyDrop, MaybeUninit, offset_of};
use std::ptr::NonNull;
#[cfg(not(Py_LIMITED_API))]
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::{AtomicU8, Ordering};

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::type_object::PyTypeInfo;
use pyo3::types::PyType;

use crate::python::call::blocks;
use crate::python::class::beside::Beside;
use crate::python::class::view::PyCaiView;
use crate::python::cpython::own_module;
#[cfg(not(Py_LIMITED_API))]
use crate::python::cpython::thread_exit;
use crate::view::CaiView;

/// The layout of PyO3's object of a view.
#[repr(C)]
struct Object {
    head: ffi::PyObject,
    value: MaybeUninit<PyCaiView>,
    weak_references: *mut ffi::PyObject,
}

/// Whether PyO3 lays views out as [`Object`]; unknown until the first one is made.
#[derive(Clone, Copy, PartialEq)]
#[repr(u8)]
enum LayoutMatches {
    Unknown,
    Yes,
    No,
}

static LAYOUT: AtomicU8 = AtomicU8::new(LayoutMatches::Unknown as u8);

/// An object of a view whose value is not written yet. Its drop frees the memory and drops no value.
pub(crate) enum NewView<'py> {
    /// CPython's memory, if PyO3's layout is [`Object`].
    Object(Unwritten<'py>),
    /// Memory from which the value is moved into an object of PyO3.
    Value(Python<'py>, Box<MaybeUninit<PyCaiView>>),
}

/// An object with a written head and an unwritten value.
pub(crate) struct Unwritten<'py> {
    object: NonNull<Object>,
    py: Python<'py>,
}

impl<'py> NewView<'py> {
    /// # Errors
    /// Out of memory.
    #[inline(always)]
    pub(crate) fn new(py: Python<'py>) -> PyResult<Self> {
        if LAYOUT.load(Ordering::Relaxed) != LayoutMatches::Yes as u8 && !learn_layout(py)? {
            return Ok(Self::Value(py, Box::new(MaybeUninit::uninit())));
        }
        let class = PyCaiView::type_object_raw(py);
        // SAFETY: the class has the flag of the collector and no items (`class_matches`).
        let object = unsafe { ffi::PyObject_GC_New::<Object>(class) };
        match NonNull::new(object) {
            Some(object) => Ok(Self::Object(Unwritten { object, py })),
            None => Err(PyErr::fetch(py)),
        }
    }

    #[inline(always)]
    fn value(&mut self) -> &mut MaybeUninit<PyCaiView> {
        match self {
            Self::Object(object) => object.value(),
            Self::Value(_, value) => value,
        }
    }

    /// Returns the memory for the view.
    #[inline(always)]
    pub(crate) fn view(&mut self) -> &mut MaybeUninit<CaiView> {
        PyCaiView::fields_of(self.value()).0
    }

    /// Writes the whole value, with what the open blocks have it keep, and returns the object.
    ///
    /// # Errors
    /// Out of memory, if PyO3 makes the object; those of [`Beside::keeping_work_stream`].
    #[inline(always)]
    pub(crate) fn filled(self, value: PyCaiView) -> PyResult<Bound<'py, PyCaiView>> {
        let value = value.in_blocks(self.py())?;
        self.written(value)
    }

    #[inline(always)]
    fn written(mut self, value: PyCaiView) -> PyResult<Bound<'py, PyCaiView>> {
        let (view, beside) = value.into_fields();
        self.view().write(view);
        // SAFETY: written on the line above.
        unsafe { self.complete(beside) }
    }

    /// Writes the fields beside the view, with what the open blocks have it keep, and returns the object.
    ///
    /// # Errors
    /// Out of memory, if PyO3 makes the object; those of [`Beside::keeping_work_stream`].
    ///
    /// # Safety
    /// The view has been written.
    #[inline(always)]
    pub(crate) unsafe fn finish(mut self, mut beside: Beside) -> PyResult<Bound<'py, PyCaiView>> {
        if blocks::are_open() {
            // SAFETY: this function's contract.
            beside = unsafe { self.in_blocks(beside) }?;
        }
        // SAFETY: this function's contract.
        unsafe { self.complete(beside) }
    }

    /// Writes the fields beside the view, and returns the object. Tracks it if it may be in a cycle.
    ///
    /// # Errors
    /// Out of memory, if PyO3 makes the object.
    ///
    /// # Safety
    /// The view has been written.
    #[inline(always)]
    unsafe fn complete(mut self, beside: Beside) -> PyResult<Bound<'py, PyCaiView>> {
        PyCaiView::fields_of(self.value()).1.write(beside);
        match self {
            // SAFETY: both fields of the value are written.
            Self::Object(object) => Ok(unsafe { object.written() }),
            // SAFETY: both fields of the value are written.
            Self::Value(py, value) => Bound::new(py, unsafe { *value.assume_init() }),
        }
    }

    fn py(&self) -> Python<'py> {
        match self {
            Self::Object(object) => object.py,
            Self::Value(py, _) => *py,
        }
    }

    /// Adds what the open blocks have the view keep. Drops the view if that fails.
    ///
    /// # Safety
    /// The view has been written, and is not used after an error.
    #[cold]
    unsafe fn in_blocks(&mut self, beside: Beside) -> PyResult<Beside> {
        let py = self.py();
        let view = self.view();
        // SAFETY: written (this function's contract).
        let ready = unsafe { view.assume_init_ref() }.ready_number();
        let kept = beside.keeping_work_stream(py, ready);
        if kept.is_err() {
            // SAFETY: written, and not used after an error (this function's contract).
            unsafe { view.assume_init_drop() };
        }
        kept
    }
}

impl<'py> Unwritten<'py> {
    #[inline(always)]
    fn value(&mut self) -> &mut MaybeUninit<PyCaiView> {
        // SAFETY: a field of the object's memory; nothing is read.
        let value = unsafe { &raw mut (*self.object.as_ptr()).value };
        // SAFETY: aligned, and referred to by nothing else; `MaybeUninit` may be uninitialised.
        unsafe { &mut *value }
    }

    /// # Safety
    /// The value has been written.
    #[inline(always)]
    unsafe fn written(self) -> Bound<'py, PyCaiView> {
        let mut this = ManuallyDrop::new(self);
        let object = this.object.as_ptr();
        // SAFETY: a field of the object's memory; nothing is read.
        let weak_references = unsafe { &raw mut (*object).weak_references };
        // SAFETY: aligned, and referred to by nothing else; a pointer needs no drop.
        unsafe { weak_references.write(std::ptr::null_mut()) };
        // SAFETY: the value has been written (this function's contract).
        if unsafe { this.value().assume_init_ref() }.may_be_in_a_cycle() {
            // SAFETY: every field is written, and the object is not tracked yet.
            unsafe { ffi::PyObject_GC_Track(object.cast()) };
        }
        // SAFETY: not null; the reference of `PyObject_GC_New`, given up by `ManuallyDrop`.
        let object = unsafe { Bound::from_owned_ptr(this.py, object.cast()) };
        // SAFETY: an object of this class (`new`).
        unsafe { object.cast_into_unchecked() }
    }
}

impl Drop for Unwritten<'_> {
    #[cold]
    fn drop(&mut self) {
        let object = self.object.as_ptr();
        // SAFETY: the head is written.
        let class = unsafe { ffi::Py_TYPE(object.cast()) };
        // SAFETY: from `PyObject_GC_New`, not tracked, and referred to by nothing else.
        unsafe { ffi::PyObject_GC_Del(object.cast()) };
        // SAFETY: the GIL is held (`py`); an object of a heap type owns a reference to its class, given up once.
        unsafe { ffi::Py_DECREF(class.cast()) };
    }
}

impl PyCaiView {
    /// Makes the object of a view.
    ///
    /// # Errors
    /// Out of memory; those of [`Beside::keeping_work_stream`].
    #[inline(always)]
    pub(crate) fn into_object(self, py: Python<'_>) -> PyResult<Bound<'_, Self>> {
        // First: allocating the object may collect, and a finaliser may leave a block, which then is not found.
        let view = self.in_blocks(py)?;
        NewView::new(py)?.written(view)
    }

    /// Adds what the open blocks have the view keep.
    ///
    /// # Errors
    /// Those of [`Beside::keeping_work_stream`].
    #[inline(always)]
    pub(crate) fn in_blocks(self, py: Python<'_>) -> PyResult<Self> {
        match blocks::are_open() {
            true => self.in_open_blocks(py),
            false => Ok(self),
        }
    }

    #[cold]
    fn in_open_blocks(self, py: Python<'_>) -> PyResult<Self> {
        let (view, beside) = self.into_fields();
        let beside = beside.keeping_work_stream(py, view.ready_number())?;
        Ok(Self::with(view, beside))
    }
}

/// Compares the layout of the class with [`Object`], once, and sets its deallocator. Returns whether it matches.
#[cold]
#[inline(never)]
fn learn_layout(py: Python<'_>) -> PyResult<bool> {
    if LAYOUT.load(Ordering::Relaxed) == LayoutMatches::No as u8 {
        return Ok(false);
    }
    let class = py.get_type::<PyCaiView>();
    own_module::rename(&class);
    let matches = class_matches(&class)?;
    #[cfg(not(any(Py_LIMITED_API, Py_GIL_DISABLED)))]
    if matches {
        // SAFETY: a heap type, written under the GIL before its first object is made; its objects are laid out as
        // `dealloc` expects.
        unsafe { (*class.as_type_ptr()).tp_dealloc = Some(dealloc) };
    }
    let outcome = match matches {
        true => LayoutMatches::Yes,
        false => LayoutMatches::No,
    };
    LAYOUT.store(outcome as u8, Ordering::Relaxed);
    Ok(matches)
}

/// Sets the deallocator before any view is made: without the GIL another thread may drop a view while the layout is
/// compared. Without this call PyO3 deallocates views, correctly and slower.
#[cfg(Py_GIL_DISABLED)]
pub(crate) fn prepare(class: &Bound<'_, PyType>) -> PyResult<()> {
    if LAYOUT.load(Ordering::Relaxed) == LayoutMatches::Unknown as u8 && class_matches(class)? {
        // SAFETY: a heap type, written before it has objects or is visible to another thread; its objects are laid
        // out as `dealloc` expects.
        unsafe { (*class.as_type_ptr()).tp_dealloc = Some(dealloc) };
    }
    Ok(())
}

/// Deallocates a view like PyO3, without counting a call of PyO3: the release has the GIL.
#[cfg(not(Py_LIMITED_API))]
unsafe extern "C" fn dealloc(object: *mut ffi::PyObject) {
    thread_exit::guard();
    let this = object.cast::<Object>();
    // SAFETY: CPython calls this attached, with an object of this class to which nothing refers any more. No effect on
    // an untracked one.
    unsafe { ffi::PyObject_GC_UnTrack(object.cast()) };
    // SAFETY: a field of an object of this class, laid out as `Object` (`class_matches`); nothing is read.
    let weak_references = unsafe { &raw mut (*this).weak_references };
    // SAFETY: an aligned field of a living object, which other threads write atomically: without the GIL a thread may
    // drop a weak reference now.
    let weak_references = unsafe { AtomicPtr::from_ptr(weak_references) };
    if !weak_references.load(Ordering::Acquire).is_null() {
        // SAFETY: an object of this class, whose value is not dropped yet.
        unsafe { ffi::PyObject_ClearWeakRefs(object) };
    }
    // SAFETY: a field of an object of this class; nothing is read.
    let value = unsafe { &raw mut (*this).value };
    // SAFETY: aligned, initialised, and referred to by nothing else.
    let value = unsafe { &mut *value };
    // SAFETY: a value of an object of this class is initialised; not used afterwards; the GIL is held.
    unsafe { PyCaiView::end(value) };
    // SAFETY: the head outlives the value.
    let class = unsafe { ffi::Py_TYPE(object) };
    // SAFETY: from the collector's allocator, untracked above, and not used afterwards.
    unsafe { ffi::PyObject_GC_Del(object.cast()) };
    // SAFETY: the GIL is held; an object of a heap type owns a reference to its class, given up once.
    unsafe { ffi::Py_DECREF(class.cast()) };
}

/// Whether the objects of a class are laid out as [`Object`].
///
/// The size and the offset of the weak references then leave no other place for the value.
fn class_matches(class: &Bound<'_, PyType>) -> PyResult<bool> {
    let read = |name| class.getattr(name)?.extract::<usize>();
    // SAFETY: a living class.
    let flags = unsafe { ffi::PyType_GetFlags(class.as_type_ptr()) };
    Ok(flags & ffi::Py_TPFLAGS_HAVE_GC != 0
        && read("__basicsize__")? == size_of::<Object>()
        && read("__itemsize__")? == 0
        && read("__dictoffset__")? == 0
        && read("__weakrefoffset__")? == offset_of!(Object, weak_references))
}
