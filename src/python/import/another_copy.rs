//! Takes over from the view of another extension's copy of this library what its dict leaves out.
//!
//! Such a view is of another class, and comes by the CUDA Array Interface: its dict names the stream on which the data is
//! ready, and no more. Its producer may work on another one, which has to wait for the consumer, or on an unknown one, so that
//! the consumer has to keep the memory. The copies pass this in a capsule.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::num::NonZeroU64;

use pyo3::ffi;
use pyo3::prelude::*;

use crate::driver::Context;
use crate::protocol::device::{Device, DeviceType};
use crate::protocol::stream::Stream;
use crate::python::call::options::Options;
use crate::python::cpython::getattr;
use crate::python::cpython::names::names;
use crate::python::import::traits::Traits;
use crate::python::import::undeclared;
use crate::view::{Beyond, CaiView, WorkStream, Worker};

/// The capsule's name, with the number of [`Layout`]: another number is another name, and is not read.
const NAME: &CStr = c"cai_dlpack_streams_1";

/// [`Beyond`] as every copy of this library lays it out.
#[repr(C)]
struct Layout {
    /// [`Stream::raw`] of the producer's; 0 is no stream.
    producer: u64,
    /// The context of a default stream; 0 is the memory's.
    context: u64,
    device_type: i32,
    device_id: i32,
    worker: Option<WorkStream>,
    is_producer_known: bool,
    is_undeclared: bool,
}

/// Makes the capsule for other copies.
///
/// # Errors
/// Those of [`CaiView::beyond_dict`]; out of memory.
pub(crate) fn capsule<'py>(py: Python<'py>, view: &CaiView) -> PyResult<Bound<'py, PyAny>> {
    let told = view.beyond_dict()?;
    let (device_type, device_id) = told.device.to_dlpack();
    let layout = Box::into_raw(Box::new(Layout {
        producer: told.producer.map_or(0, Stream::raw),
        context: told.context.map_or(0, |context| context.0.get()),
        device_type,
        device_id,
        worker: told.worker.map(|Worker(ask)| ask),
        is_producer_known: told.producer.is_some(),
        is_undeclared: told.is_undeclared,
    }));
    // SAFETY: the pointer is not NULL, the name is static, and `destroy` takes a capsule of this layout.
    let capsule = unsafe { ffi::PyCapsule_New(layout.cast(), NAME.as_ptr(), Some(destroy)) };
    // SAFETY: a new reference, or NULL with an exception set.
    unsafe { Bound::from_owned_ptr_or_err(py, capsule) }.inspect_err(|_| {
        // SAFETY: made above, and owned here, as there is no capsule.
        drop(unsafe { Box::from_raw(layout) });
    })
}

/// The capsule's destructor.
unsafe extern "C" fn destroy(capsule: *mut ffi::PyObject) {
    // SAFETY: Python calls this with the capsule, whose name nobody else knows: no exception is set.
    let layout = unsafe { ffi::PyCapsule_GetPointer(capsule, NAME.as_ptr()) };
    if !layout.is_null() {
        // SAFETY: the box of `capsule`, of this copy; the destructor runs once.
        drop(unsafe { Box::from_raw(layout.cast::<Layout>()) });
    }
}

/// Returns what the dict of another copy's view leaves out; `None` for every other object, and if the caller has named a
/// stream, whose word it is.
///
/// # Errors
/// What the view raises: `stream-thread` if its producer works on another thread's default stream. `stream-undeclared` if the
/// import is strict.
pub(crate) fn told_by(
    object: &Bound<'_, PyAny>,
    traits: Traits,
    options: &Options<'_, '_>,
) -> PyResult<Option<Beyond>> {
    if !traits.intersects(Traits::ANOTHER_COPY) || options.producer.is_some() {
        return Ok(None);
    }
    let capsule = getattr::optional(object, &names(object.py()).streams)?;
    let told = capsule.as_ref().and_then(read);
    if told.is_some_and(|told| told.is_undeclared) {
        undeclared::check(object, options)?;
    }
    Ok(told)
}

fn read(capsule: &Bound<'_, PyAny>) -> Option<Beyond> {
    // SAFETY: a living object; whatever it is, no exception is set.
    if unsafe { ffi::PyCapsule_IsValid(capsule.as_ptr(), NAME.as_ptr()) } == 0 {
        return None;
    }
    // SAFETY: a valid capsule of this name, so that the call cannot fail.
    let layout = unsafe { ffi::PyCapsule_GetPointer(capsule.as_ptr(), NAME.as_ptr()) };
    // SAFETY: the name says that a `Layout` is there, which lives as long as the capsule and is never written.
    let layout = unsafe { &*layout.cast::<Layout>() };
    let producer = match layout.producer {
        0 => Stream::None,
        handle => Stream::from_raw(handle),
    };
    Some(Beyond {
        producer: layout.is_producer_known.then_some(producer),
        context: NonZeroU64::new(layout.context).map(Context),
        device: Device::new(
            DeviceType::from_dlpack(layout.device_type),
            layout.device_id,
        ),
        worker: layout.worker.map(Worker),
        is_undeclared: layout.is_undeclared,
    })
}

/// Tells a view that was made of the dict of another copy's what that leaves out. Drops it if that fails.
///
/// # Safety
/// The view is written, and not used after an error.
///
/// # Errors
/// The driver's, if it is asked for the memory's context.
pub(crate) unsafe fn tell(memory: &mut MaybeUninit<CaiView>, told: Beyond) -> PyResult<()> {
    // SAFETY: this function's contract.
    let added = unsafe { memory.assume_init_mut() }.add_beyond(told);
    if added.is_err() {
        // SAFETY: this function's contract.
        unsafe { memory.assume_init_drop() };
    }
    Ok(added?)
}
