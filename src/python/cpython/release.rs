//! Owns references and tensors of Python: releases them at once if this thread holds the GIL, else queues them.
//!
//! ```text
//!   deleter, GIL held -----------------> ended here: Py_DECREF, or the producer's own deleter
//!   deleter, anywhere else --> queue --> ended with the GIL, soon (`reaper`)
//! ```
//! The same for a reference to an object, and for a managed tensor of a Python library, whose deleter may wait for the
//! GIL.
//!
//! PyO3's own deferred drop is not used: only the next call of PyO3 empties it.

use std::alloc::Layout;
use std::marker::PhantomData;
use std::ptr::{self, NonNull};

use dlpark::ManagedTensorBase;
use pyo3::exceptions::PyImportError;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::python::cpython::{gil, reaper, thread_exit};
use crate::view;
use crate::view::{Abi, EndsOn, Imported, Kind, Memory, Owner, RawOwner, Shows, Vtable};

/// The vtable of owners whose payload is a strong reference to a Python object.
pub(crate) static PYTHON: Vtable = Vtable::of::<Object>();

/// Makes an owner of a strong reference.
#[inline(always)]
pub(crate) fn own(object: Bound<'_, PyAny>) -> PyResult<RawOwner> {
    prepare(object.py())?;
    // SAFETY: a `Bound` is never null.
    let payload = unsafe { NonNull::new_unchecked(object.into_ptr()) };
    count(&view::CREATED);
    Ok(RawOwner::again(payload.cast(), &PYTHON))
}

/// Gives a strong reference up, after the owners that wait on this thread to end, which may use the object. It is not counted.
pub(crate) fn end(object: Py<PyAny>) {
    // SAFETY: a `Py` is never null.
    let payload = unsafe { NonNull::new_unchecked(object.into_ptr()) };
    // SAFETY: the reference is given up with the handle.
    unsafe { RawOwner::again(payload.cast(), &PARENT).release() };
}

/// Counts on a thread that holds the GIL, which keeps others from counting meanwhile, if there is one.
#[inline(always)]
fn count(counter: &view::Counter) {
    if gil::IS_EXCLUSIVE {
        counter.add_exclusively();
    } else {
        counter.add();
    }
}

/// CPython's allocator, for blocks whose owner is a reference (`PYTHON`): both are given up with the GIL.
///
/// It takes a third of `malloc`'s instructions, and `malloc` twice as many again where earlier blocks have left a hole.
pub(crate) struct PythonMemory;

impl Memory for PythonMemory {
    const IS_EXCLUSIVE: bool = gil::IS_EXCLUSIVE;

    #[inline(always)]
    fn may_end_here() -> bool {
        gil::is_held()
    }

    #[inline(always)]
    unsafe fn allocate(layout: Layout) -> *mut u8 {
        // SAFETY: the GIL is held: this thread may end such an owner. CPython aligns to 16 bytes, of which a block needs 8.
        unsafe { ffi::PyMem_Malloc(layout.size()) }.cast()
    }

    #[inline(always)]
    unsafe fn free(memory: *mut u8, _: Layout) {
        // SAFETY: from `PyMem_Malloc`, and not used any more; the GIL is held, as above.
        unsafe { ffi::PyMem_Free(memory.cast()) };
    }
}

/// The vtable of owners whose payload is a strong reference to a view, from which another one was derived.
pub(crate) static PARENT: Vtable = Vtable::of::<Parent>();

/// Makes an owner of a strong reference to a view. It is not counted: the view's own owner is.
///
/// # Errors
/// Those of [`prepare`].
pub(crate) fn own_parent(view: Bound<'_, PyAny>) -> PyResult<Owner> {
    prepare(view.py())?;
    // SAFETY: a `Bound` is never null.
    let payload = unsafe { NonNull::new_unchecked(view.into_ptr()) };
    Ok(Owner::from_raw(RawOwner::again(payload.cast(), &PARENT)))
}

/// Runs code that may drop a `Py` or a `PyErr`, so that the reference is given up now.
///
/// In a call that PyO3 does not count (of [`fastcall`](crate::python::cpython::fastcall), or of the exchange table) it
/// keeps dropped references until it is next called. This call gives up those first.
#[cold]
pub(crate) fn dropping<R>(body: impl FnOnce() -> R) -> R {
    gil::with(|_| body())
}

/// Drops an error now: its traceback keeps objects alive.
#[cold]
pub(crate) fn drop_now(error: PyErr) {
    dropping(|| drop(error));
}

/// Runs the fallible one-time set-up for [`own`] and [`own_tensor`].
///
/// # Errors
/// The first call registers a function with `atexit`, which can fail; later ones cannot.
#[inline]
pub(crate) fn prepare(py: Python<'_>) -> PyResult<()> {
    reaper::ensure_installed(py)
}

/// Makes an owner of a managed tensor that came from Python. The caller has called [`prepare`].
///
/// # Safety
/// `tensor` is aligned and initialised, and the caller gives up its ownership.
#[inline]
pub(crate) unsafe fn own_tensor<M: Abi>(tensor: NonNull<M>) -> Imported<M> {
    count(&view::CREATED);
    let owner = RawOwner::again(tensor.cast(), Tensor::<M>::vtable());
    // SAFETY: aligned, initialised, and owned by this owner from now on (this function's contract).
    unsafe { Imported::held_by(Owner::from_raw(owner), tensor) }
}

/// Refuses every interpreter but the main one: the queue serves one interpreter, and references of two must not mix.
///
/// # Errors
/// `ImportError` in a subinterpreter.
pub(crate) fn refuse_subinterpreters(_py: Python<'_>) -> PyResult<()> {
    // SAFETY: this thread is attached (`_py`).
    let interpreter = unsafe { ffi::PyInterpreterState_Get() };
    // SAFETY: a living interpreter: this thread's. The main one has the id 0.
    if unsafe { ffi::PyInterpreterState_GetID(interpreter) } == 0 {
        return Ok(());
    }
    Err(PyImportError::new_err(
        "cai_dlpack does not support subinterpreters: import it in the main interpreter",
    ))
}

/// A strong reference to a Python object.
struct Object;

impl Kind for Object {
    const ENDS_ON: EndsOn = WITH_GIL;

    const SHOWS: Shows = Shows::Object;

    fn vtable() -> &'static Vtable {
        &PYTHON
    }

    unsafe fn end(payload: NonNull<()>) {
        // Counted first: the release can run any Python code, which may read the counters.
        count(&view::RELEASED);
        let object = payload.cast::<ffi::PyObject>().as_ptr();
        // SAFETY: the GIL is held (`WITH_GIL`).
        let py = unsafe { Python::assume_attached() };
        // SAFETY: the GIL is held, and the payload is a strong reference, which is given up once (`Kind::end`).
        keeping_exception(py, || unsafe { ffi::Py_DECREF(object) });
    }
}

/// A strong reference of a view's to another one from which it was derived, or to a stream object.
struct Parent;

impl Kind for Parent {
    const ENDS_ON: EndsOn = WITH_GIL;

    // The reference is this process's own memory, even if the parent process took it; the view's owner knows its own
    // process.
    const SURVIVES_FORK: bool = true;

    const SHOWS: Shows = Shows::Object;

    fn vtable() -> &'static Vtable {
        &PARENT
    }

    unsafe fn end(payload: NonNull<()>) {
        let view = payload.cast::<ffi::PyObject>().as_ptr();
        // SAFETY: the GIL is held (`WITH_GIL`).
        let py = unsafe { Python::assume_attached() };
        // SAFETY: the GIL is held, and the payload is a strong reference, which is given up once (`Kind::end`).
        keeping_exception(py, || unsafe { ffi::Py_DECREF(view) });
    }
}

/// A managed tensor whose producer is a Python library.
struct Tensor<M>(PhantomData<M>);

impl<M: ManagedTensorBase + 'static> Kind for Tensor<M> {
    const ENDS_ON: EndsOn = WITH_GIL;

    fn vtable() -> &'static Vtable {
        const { &Vtable::of::<Self>() }
    }

    unsafe fn end(payload: NonNull<()>) {
        count(&view::RELEASED);
        let tensor = payload.cast::<M>().as_ptr();
        // SAFETY: the GIL is held (`WITH_GIL`).
        let py = unsafe { Python::assume_attached() };
        keeping_exception(py, || {
            // SAFETY: an initialised tensor whose ownership the payload is, given up once (`Kind::end`).
            unsafe { M::drop_raw(tensor) };
            report_left(py);
        });
    }
}

const WITH_GIL: EndsOn = EndsOn::Only {
    here: gil::is_held,
    later: reaper::enqueue,
};

/// Runs `end` with no exception set, and restores a pending one. `PyErr::take` would resume a panic if the exception
/// is another extension's Rust panic.
#[inline]
pub(crate) fn keeping_exception(_py: Python<'_>, end: impl FnOnce()) {
    thread_exit::guard();
    // SAFETY: the GIL is held (`_py`).
    if unsafe { ffi::PyErr_Occurred() }.is_null() {
        end();
    } else {
        put_aside(end);
    }
}

#[cold]
#[allow(
    deprecated,
    reason = "deprecated from 3.12 on; their successors do not exist before"
)]
fn put_aside(end: impl FnOnce()) {
    let [mut class, mut value, mut traceback] = [ptr::null_mut(); 3];
    // SAFETY: the GIL is held (`keeping_exception`), and the three pointers are valid for writes.
    unsafe { ffi::PyErr_Fetch(&raw mut class, &raw mut value, &raw mut traceback) };
    end();
    // SAFETY: the GIL is held; the three references of `PyErr_Fetch`, given up here.
    unsafe { ffi::PyErr_Restore(class, value, traceback) };
}

/// Reports the exception that a foreign deleter has left, if it has, by `sys.unraisablehook`: no caller of a release can
/// raise it. An object's destructor restores what was set before (CPython, `tp_dealloc`).
#[inline]
fn report_left(_py: Python<'_>) {
    // SAFETY: the GIL is held (`_py`).
    if !unsafe { ffi::PyErr_Occurred() }.is_null() {
        // SAFETY: the GIL is held, and an exception is set; no object is named: it may have ended.
        unsafe { ffi::PyErr_WriteUnraisable(ptr::null_mut()) };
    }
}
