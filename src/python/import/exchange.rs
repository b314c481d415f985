//! Imports by the C Exchange API: the functions of the type's table return a tensor and a stream.

use std::mem::MaybeUninit;

use pyo3::prelude::*;

use crate::protocol::descriptor::Descriptor;
use crate::protocol::device::DeviceType;
use crate::protocol::stream::Stream;
use crate::python::call::options::Options;
use crate::python::class::beside::Beside;
use crate::python::cpython::release;
use crate::python::exchange_table::{Table, work_stream};
use crate::python::import::state::{is_no_array, is_pinned, is_refused};
use crate::python::import::traits::Traits;
use crate::python::import::undeclared::{has_no_streams, of_deaf};
use crate::view::{CaiView, Streams, Uninit};

/// Imports through the table of the object's type: writes the view, and returns what stands beside it. `None`, with
/// nothing written, if `__dlpack__` must be called instead: because it would refuse, or because the table failed
/// without an exception.
///
/// The tensor is ready on the caller's producer stream, else on the producer's work stream, on which the producer also goes on working.
/// The view is written in place, field by field: 180 instructions less (docs/performance.md).
///
/// # Errors
/// The producer's exception, and the rules of tensors.
#[inline(always)]
pub(crate) fn import(
    memory: &mut MaybeUninit<CaiView>,
    object: &Bound<'_, PyAny>,
    table: Table,
    traits: Traits,
    options: &Options<'_, '_>,
) -> PyResult<Option<Beside>> {
    if is_no_array(object, traits)? {
        return Ok(None);
    }
    release::prepare(object.py())?;
    let Some(tensor) = table.tensor(object)? else {
        return Ok(None);
    };
    // SAFETY: aligned (`Table::tensor`). DLPack 1.3: an initialised tensor, whose ownership goes to the caller.
    let imported = unsafe { release::own_tensor(tensor) };
    let view = Uninit::new(memory).import(imported)?;
    let descriptor = view.descriptor();
    if traits.intersects(Traits::STATE.union(Traits::IS_PINNED))
        && is_exported_otherwise(object, descriptor, traits)?
    {
        return Ok(None);
    }
    let Some(streams) = streams(object, table, descriptor, traits, options)? else {
        return Ok(None);
    };
    // SAFETY: DLPack: the data is valid until the deleter of the managed tensor runs, which is the owner; the producer
    // keeps its work stream alive.
    let view = unsafe { view.finish(streams) };
    view.remember_context();
    Ok(Some(Beside::default()))
}

/// Whether `__dlpack__` refuses the array, or states another device: the table states the CPU for pinned memory (torch).
///
/// # Errors
/// What reading the object's attributes raises.
#[inline(always)]
fn is_exported_otherwise(
    object: &Bound<'_, PyAny>,
    descriptor: &Descriptor,
    traits: Traits,
) -> PyResult<bool> {
    if traits.intersects(Traits::STATE) && is_refused(object, traits, descriptor.dtype())? {
        return Ok(true);
    }
    Ok(descriptor.device().device_type == DeviceType::CPU && is_pinned(object, traits)?)
}

/// Returns the streams of a tensor; `None` if the work stream cannot be read.
///
/// # Errors
/// The producer's exception; those of [`of_deaf`].
#[inline(always)]
fn streams(
    object: &Bound<'_, PyAny>,
    table: Table,
    descriptor: &Descriptor,
    traits: Traits,
    options: &Options<'_, '_>,
) -> PyResult<Option<Streams>> {
    if let Some(producer) = options.producer {
        return Ok(Some(Streams::here(producer, Some(producer))));
    }
    let device = descriptor.device();
    if has_no_streams(device) {
        return Ok(Some(Streams::here(Stream::None, Some(Stream::None))));
    }
    let Some(worker) = table.worker() else {
        return Ok(None);
    };
    let Some(handle) = work_stream(object.py(), worker, device)? else {
        return Ok(None);
    };
    let is_unknown = traits.intersects(Traits::IGNORES_STREAM)
        && Stream::from_raw(handle) == Stream::LegacyDefault;
    if is_unknown {
        return Ok(Some(of_deaf(object, descriptor, options)?));
    }
    Ok(Some(Streams::of_worker(handle, worker)))
}
