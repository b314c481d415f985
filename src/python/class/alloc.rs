//! The memory of a view's object, written in place.
//!
//! PyO3 makes an object by calling `object.__new__`, which clears memory and shows it to the collector before
//! anything stands there: 130 instructions more than here. PyO3's layout of objects is its own business, so it is
//! compared with [`Object`] once, by what the class tells of it. If it differs, PyO3 makes every view.

use std::mem::{ManuallyDrop, MaybeUninit, offset_of};
use std::ptr::NonNull;
#[cfg(not(Py_LIMITED_API))]
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::{AtomicU8, Ordering};

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::type_object::PyTypeInfo;
use pyo3::types::PyType;

use crate::python::class::beside::Beside;
use crate::python::class::view::PyCaiView;
#[cfg(not(Py_LIMITED_API))]
use crate::python::cpython::thread_exit;
use crate::view::CaiView;

/// A view as PyO3 lays it out.
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

/// A view's object whose value is not written yet. Dropped, it frees its memory and drops no value.
pub(crate) enum NewView<'py> {
    /// CPython's memory, if PyO3 lays views out as [`Object`].
    Object(Unwritten<'py>),
    /// Memory from which PyO3 moves the value into an object of its own.
    Value(Python<'py>, Box<MaybeUninit<PyCaiView>>),
}

/// An object of which only the head is written.
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
        // SAFETY: a class of the collector's, of no variable size (`matches`); a new object with a written head,
        // to which nothing refers yet, or NULL with an exception set.
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

    /// The memory for the view.
    #[inline(always)]
    pub(crate) fn view(&mut self) -> &mut MaybeUninit<CaiView> {
        PyCaiView::fields_of(self.value()).0
    }

    /// Writes what stands beside the view, and returns the object. The collector tracks it if it may be in a
    /// cycle.
    ///
    /// # Errors
    /// Out of memory, if PyO3 makes the object.
    ///
    /// # Safety
    /// The view has been written.
    #[inline(always)]
    pub(crate) unsafe fn finish(mut self, beside: Beside) -> PyResult<Bound<'py, PyCaiView>> {
        PyCaiView::fields_of(self.value()).1.write(beside);
        match self {
            // SAFETY: both fields of the value are written.
            Self::Object(object) => Ok(unsafe { object.written() }),
            // SAFETY: both fields of the value are written.
            Self::Value(py, value) => Bound::new(py, unsafe { *value.assume_init() }),
        }
    }
}

impl<'py> Unwritten<'py> {
    #[inline(always)]
    fn value(&mut self) -> &mut MaybeUninit<PyCaiView> {
        // SAFETY: inside the object's memory; nothing is read.
        let value = unsafe { &raw mut (*self.object.as_ptr()).value };
        // SAFETY: aligned and ours, as nothing else refers to the object, and without demands on what stands there.
        unsafe { &mut *value }
    }

    /// # Safety
    /// The value has been written.
    #[inline(always)]
    unsafe fn written(self) -> Bound<'py, PyCaiView> {
        let mut this = ManuallyDrop::new(self);
        let object = this.object.as_ptr();
        // SAFETY: inside the object's memory; nothing is read.
        let weak_references = unsafe { &raw mut (*object).weak_references };
        // SAFETY: aligned and ours; nothing stands there that would have to be dropped.
        unsafe { weak_references.write(std::ptr::null_mut()) };
        // SAFETY: the value has been written (this function's contract).
        if unsafe { this.value().assume_init_ref() }.may_be_in_a_cycle() {
            // SAFETY: every field is written, and the collector does not track the object yet.
            unsafe { ffi::PyObject_GC_Track(object.cast()) };
        }
        // SAFETY: the reference that `PyObject_GC_New` gave.
        let object = unsafe { Bound::from_owned_ptr(this.py, object.cast()) };
        // SAFETY: an object of the class itself.
        unsafe { object.cast_into_unchecked() }
    }
}

impl Drop for Unwritten<'_> {
    #[cold]
    fn drop(&mut self) {
        let object = self.object.as_ptr();
        // SAFETY: the GIL is held (`py`), and the head is written.
        let class = unsafe { ffi::Py_TYPE(object.cast()) };
        // SAFETY: from `PyObject_GC_New`, not tracked, with the one reference that is ours.
        unsafe { ffi::PyObject_GC_Del(object.cast()) };
        // SAFETY: the reference of an object of a heap type to its class.
        unsafe { ffi::Py_DECREF(class.cast()) };
    }
}

impl PyCaiView {
    /// Makes the object of a view.
    ///
    /// # Errors
    /// Out of memory.
    #[inline(always)]
    pub(crate) fn into_object(self, py: Python<'_>) -> PyResult<Bound<'_, Self>> {
        let mut new = NewView::new(py)?;
        let (view, beside) = self.into_fields();
        new.view().write(view);
        // SAFETY: written on the line above.
        unsafe { new.finish(beside) }
    }
}

/// Compares the layout of the class with [`Object`]; returns whether it matches.
///
/// # Errors
/// What reading the class's attributes raises.
#[cold]
#[inline(never)]
fn learn_layout(py: Python<'_>) -> PyResult<bool> {
    if LAYOUT.load(Ordering::Relaxed) == LayoutMatches::No as u8 {
        return Ok(false);
    }
    let class = py.get_type::<PyCaiView>();
    let matches = class_matches(&class)?;
    #[cfg(not(any(Py_LIMITED_API, Py_GIL_DISABLED)))]
    if matches {
        // SAFETY: the class of views, of which there is none yet; the GIL is held.
        unsafe { (*class.as_type_ptr()).tp_dealloc = Some(dealloc) };
    }
    let outcome = match matches {
        true => LayoutMatches::Yes,
        false => LayoutMatches::No,
    };
    LAYOUT.store(outcome as u8, Ordering::Relaxed);
    Ok(matches)
}

/// Sets the deallocator before any view is made: without the GIL another thread may drop one while the layout is
/// compared. An extension that does not call it leaves the deallocation of views to PyO3, which is right, and
/// slower.
///
/// # Errors
/// What reading the class's attributes raises.
#[cfg(Py_GIL_DISABLED)]
pub(crate) fn prepare(class: &Bound<'_, PyType>) -> PyResult<()> {
    if LAYOUT.load(Ordering::Relaxed) == LayoutMatches::Unknown as u8 && class_matches(class)? {
        // SAFETY: the class of views, of which there is none yet; no other thread has been given the class.
        unsafe { (*class.as_type_ptr()).tp_dealloc = Some(dealloc) };
    }
    Ok(())
}

/// Deallocates a view, as PyO3 does, less the bookkeeping of a call: a release that has the GIL need not ask for
/// it.
#[cfg(not(Py_LIMITED_API))]
unsafe extern "C" fn dealloc(object: *mut ffi::PyObject) {
    thread_exit::guard();
    let this = object.cast::<Object>();
    // SAFETY: CPython calls this attached, with a view to which nothing refers any more. Does nothing to one
    // that the collector does not track.
    unsafe { ffi::PyObject_GC_UnTrack(object.cast()) };
    // SAFETY: inside an object of our class, laid out as `Object` (`learn_layout`); nothing is read.
    let weak_references = unsafe { &raw mut (*this).weak_references };
    // SAFETY: an aligned field of a living object, which others change as an atomic, if at all: without the GIL,
    // a thread that drops a weak reference at this moment.
    let weak_references = unsafe { AtomicPtr::from_ptr(weak_references) };
    if !weak_references.load(Ordering::Acquire).is_null() {
        // SAFETY: an object of our class, whose value is still whole.
        unsafe { ffi::PyObject_ClearWeakRefs(object) };
    }
    // SAFETY: inside an object of our class; nothing is read.
    let value = unsafe { &raw mut (*this).value };
    // SAFETY: aligned, and nothing else refers to the object.
    let value = unsafe { &mut *value };
    // SAFETY: the value stands there, and is not used afterwards; the GIL is held.
    unsafe { PyCaiView::end(value) };
    // SAFETY: the head is whole.
    let class = unsafe { ffi::Py_TYPE(object) };
    // SAFETY: memory of the collector's, which does not track it.
    unsafe { ffi::PyObject_GC_Del(object.cast()) };
    // SAFETY: the reference of an object of a heap type to its class.
    unsafe { ffi::Py_DECREF(class.cast()) };
}

/// Whether the objects of a class are laid out as [`Object`].
///
/// Between head and weak references there is then room for the value and nothing else, so that it stands there.
fn class_matches(class: &Bound<'_, PyType>) -> PyResult<bool> {
    let says = |name| class.getattr(name)?.extract::<usize>();
    // SAFETY: a class.
    let flags = unsafe { ffi::PyType_GetFlags(class.as_type_ptr()) };
    Ok(flags & ffi::Py_TPFLAGS_HAVE_GC != 0
        && says("__basicsize__")? == size_of::<Object>()
        && says("__itemsize__")? == 0
        && says("__dictoffset__")? == 0
        && says("__weakrefoffset__")? == offset_of!(Object, weak_references))
}
