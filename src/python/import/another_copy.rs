//! Passes the streams of a view from one extension's copy of this library to another's.
//!
//! Such a view is of another class, and comes by the CUDA Array Interface: its dict names the stream on which the data is
//! ready, and no more. Its producer may work on another one, which has to wait for the consumer, or on an unknown one, so that
//! the consumer has to keep the memory; and a default stream may be another context's than the dict says. The copies pass
//! this in a capsule.

use std::ffi::CStr;
use std::num::NonZeroU64;
use std::ptr::NonNull;

use pyo3::ffi;
use pyo3::prelude::*;

use crate::driver::Context;
use crate::protocol::device::{Device, DeviceType};
use crate::protocol::stream::{Plan, Stream};
use crate::python::call::options::Options;
use crate::python::call::policy;
use crate::python::class::view::follow;
use crate::python::cpython::names::names;
use crate::python::cpython::{getattr, gil};
use crate::python::import::traits::Traits;
use crate::python::import::undeclared;
use crate::view::{CaiView, PassedStreams, WorkStream, Worker};

/// The capsule's name, with the number of [`Layout`]: another number is another name, and is not read.
const NAME: &CStr = c"cai_dlpack_streams_1";

/// [`PassedStreams`] as every copy of this library lays it out.
#[repr(C)]
struct Layout {
    ready: Handles,
    producer: Handles,
    device_type: i32,
    device_id: i32,
    worker: Option<WorkStream>,
    is_producer_known: bool,
    is_undeclared: bool,
}

/// [`Stream::raw`], which is 0 for no stream; and the context of a default stream, 0 for the memory's.
#[repr(C)]
#[derive(Clone, Copy)]
struct Handles(u64, u64);

impl Handles {
    fn of((stream, context): (Stream, Option<Context>)) -> Self {
        Self(stream.raw(), context.map_or(0, |context| context.0.get()))
    }

    fn read(self) -> (Stream, Option<Context>) {
        let stream = match self.0 {
            0 => Stream::None,
            handle => Stream::from_raw(handle),
        };
        (stream, NonZeroU64::new(self.1).map(Context))
    }
}

/// Makes the capsule for other copies.
///
/// # Errors
/// Those of [`CaiView::pass_streams`]; out of memory.
pub(crate) fn capsule<'py>(py: Python<'py>, view: &CaiView) -> PyResult<Bound<'py, PyAny>> {
    let passed = view.pass_streams()?;
    let (device_type, device_id) = passed.device.to_dlpack();
    let layout = Box::into_raw(Box::new(Layout {
        ready: Handles::of(passed.ready),
        producer: passed.producer.map_or(Handles(0, 0), Handles::of),
        device_type,
        device_id,
        worker: passed.worker.map(|Worker(ask)| ask),
        is_producer_known: passed.producer.is_some(),
        is_undeclared: passed.is_undeclared,
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
    // SAFETY: Python calls this with the capsule, with the GIL.
    if let Some(layout) = unsafe { layout_of(capsule) } {
        // SAFETY: made by `capsule` of this copy, whose destructor this is; it runs once.
        drop(unsafe { Box::from_raw(layout.as_ptr()) });
    }
}

/// Finds the layout in a capsule; `None` for every other object, and a capsule that was renamed.
///
/// # Safety
/// A living object; the GIL is held.
unsafe fn layout_of(object: *mut ffi::PyObject) -> Option<NonNull<Layout>> {
    // SAFETY: a living object (this function's contract); whatever it is, no exception is set.
    if unsafe { ffi::PyCapsule_IsValid(object, NAME.as_ptr()) } == 0 {
        return None;
    }
    // SAFETY: a valid capsule of this name, so that the call cannot fail.
    let layout = unsafe { ffi::PyCapsule_GetPointer(object, NAME.as_ptr()) };
    NonNull::new(layout.cast())
}

/// Returns the streams of another copy's view; `None` for every other object, and if the caller has named a stream.
///
/// # Errors
/// Those of [`passed_by`] and [`check`].
pub(crate) fn streams_of(
    object: &Bound<'_, PyAny>,
    traits: Traits,
    options: &Options<'_, '_>,
) -> PyResult<Option<PassedStreams>> {
    if !traits.intersects(Traits::ANOTHER_COPY) || options.producer.is_some() {
        return Ok(None);
    }
    let passed = passed_by(object)?;
    if let Some(passed) = &passed {
        check(passed, object, options)?;
    }
    Ok(passed)
}

/// Reads the streams of another copy's view; `None` if it passes none of this layout.
///
/// # Errors
/// The view's own: `stream-thread` if its data is ready, or its producer works, on another thread's default stream.
pub(crate) fn passed_by(view: &Bound<'_, PyAny>) -> PyResult<Option<PassedStreams>> {
    let capsule = getattr::optional(view, &names(view.py()).streams)?;
    Ok(capsule.as_ref().and_then(read))
}

/// Refuses a view of undeclared order to a strict import.
///
/// # Errors
/// `stream-undeclared`.
pub(crate) fn check(
    passed: &PassedStreams,
    view: &Bound<'_, PyAny>,
    options: &Options<'_, '_>,
) -> PyResult<()> {
    match passed.is_undeclared {
        true => undeclared::check(view, options),
        false => Ok(()),
    }
}

fn read(capsule: &Bound<'_, PyAny>) -> Option<PassedStreams> {
    // SAFETY: a living object, with the GIL (`capsule`).
    let layout = unsafe { layout_of(capsule.as_ptr()) }?;
    // SAFETY: the name says that a `Layout` is there (premise `streams of another copy`), which lives as long as the capsule
    // and is never written.
    let layout = unsafe { layout.as_ref() };
    let producer = layout.is_producer_known.then(|| layout.producer.read());
    Some(PassedStreams {
        ready: layout.ready.read(),
        producer,
        device: Device::new(
            DeviceType::from_dlpack(layout.device_type),
            layout.device_id,
        ),
        worker: layout.worker.map(Worker),
        is_undeclared: layout.is_undeclared,
    })
}

/// Makes the ready stream wait for a producer that has moved, in an import of these traits: that of `explain` is refused
/// alike and makes nothing wait, and one of which the caller makes the wait does nothing.
///
/// # Errors
/// Those of [`follow`].
pub(crate) fn wait(view: &CaiView, traits: Traits) -> PyResult<()> {
    if traits.intersects(Traits::UNORDERED) {
        return Ok(());
    }
    if !traits.intersects(Traits::TRIED) {
        return follow(view);
    }
    match view.foresee_producer(gil::with(policy::policy)?)? {
        Some(Plan::Refuse(refused)) => Err(refused.into()),
        _ => Ok(()),
    }
}
