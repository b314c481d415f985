//! A view as a Python object, in one step.
//!
//! PyO3 makes an object by calling `object.__new__`, which clears memory and shows it to the collector
//! before anything stands there: 130 instructions more than what is done here. How PyO3 lays its objects out
//! is its own business, so the first view is made by PyO3 and looked at; where it is not laid out as
//! [`Object`], every view is made so.

use std::mem::{ManuallyDrop, offset_of};
use std::ptr::NonNull;
#[cfg(not(Py_LIMITED_API))]
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::{AtomicU8, Ordering};

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::type_object::PyTypeInfo;
use pyo3::types::PyType;

use crate::python::class::view::PyCaiView;
#[cfg(not(Py_LIMITED_API))]
use crate::python::cpython::thread_exit;

/// A view as PyO3 lays it out.
#[repr(C)]
struct Object {
    head: ffi::PyObject,
    value: PyCaiView,
    weak_references: *mut ffi::PyObject,
}

/// Whether views look so: not known yet, yes, or no.
static LAYOUT: AtomicU8 = AtomicU8::new(UNKNOWN);
const UNKNOWN: u8 = 0;
const AS_SAID: u8 = 1;
const ANOTHER: u8 = 2;

/// An object whose value is to be written. Dropped before, it takes its memory with it, and no value.
pub(crate) struct Room<'py> {
    object: NonNull<Object>,
    py: Python<'py>,
}

impl<'py> Room<'py> {
    /// `None` where PyO3 must make the object.
    ///
    /// # Errors
    /// Out of memory.
    #[inline(always)]
    pub(crate) fn new(py: Python<'py>) -> PyResult<Option<Self>> {
        if LAYOUT.load(Ordering::Relaxed) != AS_SAID {
            return Ok(None);
        }
        let class = PyCaiView::type_object_raw(py);
        // SAFETY: a class of the collector's, of no variable size (`is_as_said`); a new object that nobody
        // has seen, of which the head is set, or NULL with an exception set.
        let object = unsafe { ffi::PyObject_GC_New::<Object>(class) };
        match NonNull::new(object) {
            Some(object) => Ok(Some(Self { object, py })),
            None => Err(PyErr::fetch(py)),
        }
    }

    /// Where the value is to stand.
    #[inline(always)]
    pub(crate) fn value(&self) -> *mut PyCaiView {
        // SAFETY: a field of the object that we hold.
        unsafe { &raw mut (*self.object.as_ptr()).value }
    }

    /// The object; the collector is shown those that may be in a cycle.
    ///
    /// # Safety
    /// The value has been written.
    #[inline(always)]
    pub(crate) unsafe fn filled(self, may_be_in_a_cycle: bool) -> Bound<'py, PyCaiView> {
        let this = ManuallyDrop::new(self);
        let object = this.object.as_ptr();
        // SAFETY: a field of the object that we hold.
        let weak_references = unsafe { &raw mut (*object).weak_references };
        // SAFETY: room for it.
        unsafe { weak_references.write(std::ptr::null_mut()) };
        if may_be_in_a_cycle {
            // SAFETY: every field is set, and nobody has shown it to the collector yet.
            unsafe { ffi::PyObject_GC_Track(object.cast()) };
        }
        // SAFETY: the reference that `new` got.
        let object = unsafe { Bound::from_owned_ptr(this.py, object.cast()) };
        // SAFETY: an object of the class itself.
        unsafe { object.cast_into_unchecked() }
    }
}

impl Drop for Room<'_> {
    #[cold]
    fn drop(&mut self) {
        let object = self.object.as_ptr();
        // SAFETY: the GIL is held (`py`), and the head is set.
        let class = unsafe { ffi::Py_TYPE(object.cast()) };
        // SAFETY: from `PyObject_GC_New`, never shown to the collector, with the one reference that is ours.
        unsafe { ffi::PyObject_GC_Del(object.cast()) };
        // SAFETY: the reference that an object of a heap type has to its class.
        unsafe { ffi::Py_DECREF(class.cast()) };
    }
}

/// Makes the object of a view.
///
/// # Errors
/// Out of memory.
#[inline(always)]
pub(crate) fn of(py: Python<'_>, value: PyCaiView) -> PyResult<Bound<'_, PyCaiView>> {
    let Some(room) = Room::new(py)? else {
        return by_pyo3(py, value);
    };
    let is_in_cycles = value.may_be_in_a_cycle();
    // SAFETY: room for a value.
    unsafe { room.value().write(value) };
    // SAFETY: just written.
    Ok(unsafe { room.filled(is_in_cycles) })
}

#[cold]
#[inline(never)]
fn by_pyo3(py: Python<'_>, value: PyCaiView) -> PyResult<Bound<'_, PyCaiView>> {
    let object = Bound::new(py, value)?;
    if LAYOUT.load(Ordering::Relaxed) == UNKNOWN {
        let is_as_said = is_as_said(&object)?;
        #[cfg(not(any(Py_LIMITED_API, Py_GIL_DISABLED)))]
        if is_as_said {
            let class = object.get_type().as_type_ptr();
            // SAFETY: the class of views; the GIL is held, and no view is being ended.
            unsafe { (*class).tp_dealloc = Some(dealloc) };
        }
        let layout = if is_as_said { AS_SAID } else { ANOTHER };
        LAYOUT.store(layout, Ordering::Relaxed);
    }
    Ok(object)
}

/// What has to be done before any view is made, where other threads may end one while the first is looked
/// at. An extension that does not call it leaves the end of views to PyO3, which is right, and slower.
///
/// # Errors
/// What reading the class's attributes raises.
#[cfg(Py_GIL_DISABLED)]
pub(crate) fn prepare(class: &Bound<'_, PyType>) -> PyResult<()> {
    // Between head and weak references there is room for the value and nothing else: it stands there.
    if LAYOUT.load(Ordering::Relaxed) == UNKNOWN && is_class_as_said(class)? {
        // SAFETY: the class of views, of which there is none yet; nobody else has been given the class.
        unsafe { (*class.as_type_ptr()).tp_dealloc = Some(dealloc) };
    }
    Ok(())
}

/// Ends a view, as PyO3 does, less the bookkeeping of a call: a release that has the GIL need not ask for it.
#[cfg(not(Py_LIMITED_API))]
unsafe extern "C" fn dealloc(object: *mut ffi::PyObject) {
    thread_exit::stays();
    let this = object.cast::<Object>();
    // SAFETY: CPython calls this attached, with a view that nobody refers to any more. Does nothing to one
    // that was never shown to the collector.
    unsafe { ffi::PyObject_GC_UnTrack(object.cast()) };
    // SAFETY: an object of our class (`is_as_said`).
    let weak_references = unsafe { &raw mut (*this).weak_references };
    // SAFETY: a field of a living object, which others change as an atomic, if at all: without the GIL, a
    // thread that drops a weak reference at this moment.
    let weak_references = unsafe { AtomicPtr::from_ptr(weak_references) };
    if !weak_references.load(Ordering::Acquire).is_null() {
        // SAFETY: an object of our class, whose value is still whole.
        unsafe { ffi::PyObject_ClearWeakRefs(object) };
    }
    // SAFETY: an object of our class.
    let value = unsafe { &raw mut (*this).value };
    // SAFETY: the value stands there; the GIL is held.
    unsafe { PyCaiView::end_at(value) };
    // SAFETY: the head is whole.
    let class = unsafe { ffi::Py_TYPE(object) };
    // SAFETY: memory of the collector's, out of its lists.
    unsafe { ffi::PyObject_GC_Del(object.cast()) };
    // SAFETY: the reference that an object of a heap type has to its class.
    unsafe { ffi::Py_DECREF(class.cast()) };
}

/// Whether a view that PyO3 has made, and its class, are laid out as [`Object`], with nothing else in it.
fn is_as_said(object: &Bound<'_, PyCaiView>) -> PyResult<bool> {
    let value = std::ptr::from_ref(object.get()).addr() - object.as_ptr().addr();
    Ok(value == offset_of!(Object, value) && is_class_as_said(&object.get_type())?)
}

fn is_class_as_said(class: &Bound<'_, PyType>) -> PyResult<bool> {
    let says = |name| class.getattr(name)?.extract::<usize>();
    // SAFETY: a class.
    let flags = unsafe { ffi::PyType_GetFlags(class.as_type_ptr()) };
    Ok(flags & ffi::Py_TPFLAGS_HAVE_GC != 0
        && says("__basicsize__")? == size_of::<Object>()
        && says("__itemsize__")? == 0
        && says("__dictoffset__")? == 0
        && says("__weakrefoffset__")? == offset_of!(Object, weak_references))
}
