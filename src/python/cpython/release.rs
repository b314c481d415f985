//! What Python owns: released at once where this thread holds the GIL, queued elsewhere.
//!
//! ```text
//!   deleter, GIL held -----------------> ended here: Py_DECREF, or the producer's own deleter
//!   deleter, anywhere else --> queue --> ended with the GIL, soon (`reaper`)
//! ```
//! Both kinds that come from Python are treated alike: a reference to an object, and a managed tensor
//! that a Python library has handed out, whose deleter may want the GIL and would wait for it.
//!
//! PyO3's own deferred drop is not used: it is emptied only by the next PyO3 call, if there is one.

use std::marker::PhantomData;
use std::ptr::{self, NonNull};

use dlpark::ManagedTensorBase;
use pyo3::exceptions::PyImportError;
use pyo3::ffi;
use pyo3::prelude::*;

pub(crate) use crate::python::cpython::gil::is_held;
use crate::python::cpython::{gil, reaper, thread_exit};
use crate::view;
use crate::view::{Abi, EndsOn, Imported, Kind, Owner, RawOwner, Vtable};

/// The vtable of owners whose payload is a strong reference to a Python object.
pub(crate) static PYTHON: Vtable = Vtable::of::<Object>();

/// AllowStructs a strong reference over as an owner's payload.
///
/// # Errors
/// The first call prepares the interpreter's end (`atexit`), which can fail; later ones cannot.
#[inline(always)]
pub(crate) fn own(object: Bound<'_, PyAny>) -> PyResult<RawOwner> {
    prepare(object.py())?;
    // SAFETY: a `Bound` is never null.
    let payload = unsafe { NonNull::new_unchecked(object.into_ptr()) };
    Ok(RawOwner::new(payload.cast(), &PYTHON))
}

/// Runs what may drop a `Py` or a `PyErr`, whether or not this call came through PyO3. Where it did not
/// (a usual call of [`vectorcall`](crate::python::cpython::fastcall), a function of the exchange table), PyO3 takes the
/// thread for one without the GIL and keeps what is dropped until it is next called, if it is. What it has
/// kept goes first.
#[cold]
pub(crate) fn dropping<R>(body: impl FnOnce() -> R) -> R {
    Python::attach(|_| body())
}

/// Drops an error now: it keeps its traceback, and by that the object that it is about.
#[cold]
pub(crate) fn drop_now(error: PyErr) {
    dropping(|| drop(error));
}

/// Does what taking over an object or a tensor needs done before, and what of it can fail.
///
/// # Errors
/// As [`own`].
#[inline]
pub(crate) fn prepare(py: Python<'_>) -> PyResult<()> {
    reaper::ensure_installed(py)
}

/// AllowStructs over a managed tensor that came from Python; [`prepare`] has been called.
///
/// # Safety
/// `tensor` is initialised, owned by the caller and given away.
#[inline]
pub(crate) unsafe fn own_tensor<M: Abi>(tensor: NonNull<M>) -> Imported<M> {
    let owner = RawOwner::new(tensor.cast(), Tensor::<M>::vtable());
    // SAFETY: initialised, and the owner's from now on.
    unsafe { Imported::held_by(Owner::from_raw(owner), tensor) }
}

/// Refuses interpreters other than the main one: the queue serves one interpreter, and references of
/// different ones must not meet.
///
/// # Errors
/// `ImportError`, in a subinterpreter.
pub(crate) fn refuse_subinterpreters(_py: Python<'_>) -> PyResult<()> {
    // SAFETY: this thread is attached.
    let interpreter = unsafe { ffi::PyInterpreterState_Get() };
    // SAFETY: a living interpreter. The main one has the id 0.
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

    fn vtable() -> &'static Vtable {
        &PYTHON
    }

    unsafe fn end(payload: NonNull<()>) {
        // Counted first: what follows can run any Python code, and that may look at the counters.
        view::RELEASED.add();
        let object = payload.cast::<ffi::PyObject>().as_ptr();
        // SAFETY: the GIL is held (`WITH_GIL`).
        let py = unsafe { Python::assume_attached() };
        // SAFETY: the GIL is held; the reference is ours to give up.
        keeping_exception(py, || unsafe { ffi::Py_DECREF(object) });
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
        view::RELEASED.add();
        let tensor = payload.cast::<M>().as_ptr();
        // SAFETY: the GIL is held (`WITH_GIL`).
        let py = unsafe { Python::assume_attached() };
        // SAFETY: initialised and ours; `drop_raw` calls its deleter once, or nothing if it is NULL.
        keeping_exception(py, || unsafe { M::drop_raw(tensor) });
    }
}

const WITH_GIL: EndsOn = EndsOn::Only {
    here: gil::is_held,
    later: reaper::enqueue,
};

/// Runs `end` without disturbing an exception that is on its way. Not by `PyErr::take`, which goes on
/// panicking where the exception is another extension's Rust panic.
#[inline]
pub(crate) fn keeping_exception(_py: Python<'_>, end: impl FnOnce()) {
    thread_exit::guard();
    // SAFETY: the GIL is held.
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
    // SAFETY: the GIL is held (`keeping_exception`); three places to write to.
    unsafe { ffi::PyErr_Fetch(&raw mut class, &raw mut value, &raw mut traceback) };
    end();
    // SAFETY: the GIL is held; the three references are what `PyErr_Fetch` gave.
    unsafe { ffi::PyErr_Restore(class, value, traceback) };
}
