//! Hands a tensor to a library through its exchange table: neither a view nor a capsule is made.

use pyo3::prelude::*;

use crate::protocol::device::Flags;
use crate::protocol::stream::{Platform, Request, Stream};
use crate::python::call::use_stream;
use crate::python::call::use_stream::Work;
use crate::python::exchange_table::{Table, work_stream};
use crate::python::export::dlpack;
use crate::python::to::consumer::Consumer;
use crate::view::{CaiView, Heap, build_in_capsule};

/// Makes the data ready where the library works: on the stream that the caller has `named`, or on its own.
///
/// # Errors
/// The rules of what DLPack describes; those of the order; what the library's table raises; the driver's errors.
pub(super) fn order(
    py: Python<'_>,
    view: &CaiView,
    (consumer, table): (&Consumer<'_>, Table),
    named: Option<Request>,
) -> PyResult<()> {
    view.descriptor().check_dlpack()?;
    match named {
        Some(request) => dlpack::order(py, view, request),
        None => order_itself(py, view, consumer, table),
    }
}

/// Makes the order that the library needs on a stream that only its table names.
fn order_itself(
    py: Python<'_>,
    view: &CaiView,
    consumer: &Consumer<'_>,
    table: Table,
) -> PyResult<()> {
    let device = view.device();
    if Platform::of(device) != Some(Platform::Cuda) {
        // The library may read such memory on the host.
        return dlpack::order(py, view, Request::Host);
    }
    let worker = table.worker().filter(|_| consumer.names_its_stream());
    let named = match worker {
        // NULL is the legacy default stream.
        Some(worker) => work_stream(py, worker, device)?.map(Stream::from_raw),
        None => None,
    };
    let work = match named {
        Some(stream) => Work {
            stream,
            object: None,
        },
        None => use_stream::work_stream(py, device)?,
    };
    dlpack::order(py, view, Request::Stream(work.stream))
}

/// Passes a tensor, which is ready, through the table.
///
/// # Errors
/// Out of memory; what the library raises.
pub(super) fn pass(py: Python<'_>, view: CaiView, table: Table) -> PyResult<Bound<'_, PyAny>> {
    let (descriptor, owner) = view.into_parts();
    // The library shares the memory, so that the tensor is no copy.
    let flags = descriptor.flags().with(Flags::IS_COPIED, false);
    let tensor =
        // SAFETY: every thread may call this allocator.
        unsafe { build_in_capsule::<_, Heap>(descriptor.borrowed(), flags.bits(), owner) }.inspect_err(|_| {
            // SAFETY: `build_in_capsule` has failed and not taken the owner, which is released once.
            unsafe { owner.release() };
        })?;
    table.object(py, tensor)
}
