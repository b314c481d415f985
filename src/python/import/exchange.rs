//! Imports by the C Exchange API: the table of the object's type gives a tensor and names a stream.

use std::mem::MaybeUninit;
use std::ptr;

use pyo3::ffi;
use pyo3::prelude::*;

use crate::protocol::device::Device;
use crate::protocol::dtype::{DType, code};
use crate::protocol::rule::{Field, Rule, Violation};
use crate::protocol::stream::{Platform, Stream};
use crate::python::class::beside::Beside;
use crate::python::cpython::int::type_name;
use crate::python::cpython::names::keys;
use crate::python::cpython::release;
use crate::python::exchange_table::{Table, WorkStream};
use crate::python::import::traits::{Traits, warn_unknown};
use crate::view::{CaiView, Streams, Uninit};

/// Imports through the table of the object's type: writes the view, and returns what stands beside it. `None`, with
/// nothing written, if `__dlpack__` must be asked instead: because it would refuse, or because the table failed
/// without an exception.
///
/// The tensor is ready on the producer's work stream, which is also where it goes on working; with `producer`
/// there. The view is written piece by piece where it is to stand: 180 instructions less (by the table: 1.98 of the
/// floor, budget 2.0: docs/performance.md).
///
/// # Errors
/// The producer's own, and the rules that its tensor breaks.
#[inline(always)]
pub(crate) fn import(
    memory: &mut MaybeUninit<CaiView>,
    object: &Bound<'_, PyAny>,
    table: Table,
    traits: Traits,
    producer: Option<Stream>,
) -> PyResult<Option<Beside>> {
    if is_no_array(object, traits)? {
        return Ok(None);
    }
    release::prepare(object.py())?;
    let Some(tensor) = table.tensor(object)? else {
        return Ok(None);
    };
    // SAFETY: DLPack 1.3: the call gives an initialised tensor whose ownership is the caller's.
    let imported = unsafe { release::own_tensor(tensor) };
    let view = Uninit::new(memory).import(imported)?;
    let described = view.descriptor();
    let device = described.device();
    if traits.intersects(Traits::STATE) && is_refused(object, traits, described.dtype())? {
        return Ok(None);
    }
    if device.device_type == Device::CPU && is_pinned(object, traits)? {
        // The table calls pinned memory the CPU's; `__dlpack_device__` knows better (torch).
        return Ok(None);
    }
    let Some((streams, work)) = streams(object, table, device, traits, producer)? else {
        return Ok(None);
    };
    // SAFETY: the owner is the managed tensor, whose data is valid until its deleter runs (DLPack); its producer
    // keeps the stream that it works on.
    let view = unsafe { view.finish(streams) };
    view.remember_context();
    Ok(Some(Beside::of_table(work)))
}

/// The streams of a tensor, and the table if it can be asked again for the work stream; `None` if the work stream
/// cannot be had.
///
/// # Errors
/// The producer's own; the warning of an unknown stream, if it is an error.
#[inline(always)]
fn streams(
    object: &Bound<'_, PyAny>,
    table: Table,
    device: Device,
    traits: Traits,
    producer: Option<Stream>,
) -> PyResult<Option<(Streams, Option<Table>)>> {
    if let Some(producer) = producer {
        return Ok(Some((Streams::here(producer, Some(producer)), None)));
    }
    if has_no_streams(device) {
        return Ok(Some((
            Streams::here(Stream::None, Some(Stream::None)),
            None,
        )));
    }
    let Some(handle) = WorkStream::new(table, device).ask_handle()? else {
        return Ok(None);
    };
    let is_unknown = traits.intersects(Traits::IGNORES_STREAM)
        && Stream::from_raw(handle) == Stream::LegacyDefault;
    if is_unknown {
        warn_unknown(object)?;
        return Ok(Some((Streams::here(Stream::LegacyDefault, None), None)));
    }
    Ok(Some((Streams::of_handle(handle), Some(table))))
}

/// Whether there is nothing to ask about streams.
#[inline(always)]
pub(super) fn has_no_streams(device: Device) -> bool {
    matches!(
        Platform::from_device_type(device.device_type),
        None | Some(Platform::Host)
    )
}

/// Whether the object's own `__dlpack__` would refuse these elements: the table's functions do not look
/// (torch, paddle).
///
/// # Errors
/// `values-lazy` for what even `__dlpack__` hands out as if it were plain.
pub(super) fn is_refused(
    object: &Bound<'_, PyAny>,
    traits: Traits,
    dtype: DType,
) -> PyResult<bool> {
    if is_true(object, traits, Traits::IS_NEG)? {
        return Err(lazily_negated(object));
    }
    // Integers have no gradients, and only complex numbers a conjugate.
    let may_have_gradient = !matches!(dtype.code(), code::INT | code::UINT | code::BOOL);
    let may_be_conjugate = dtype.code() == code::COMPLEX;
    Ok(
        (may_have_gradient && is_true(object, traits, Traits::REQUIRES_GRAD)?)
            || (may_be_conjugate && is_true(object, traits, Traits::IS_CONJ)?),
    )
}

/// Whether the table's functions must not be called: they take every tensor for one with strides.
#[inline(always)]
pub(super) fn is_no_array(object: &Bound<'_, PyAny>, traits: Traits) -> PyResult<bool> {
    is_true(object, traits, Traits::IS_SPARSE)
}

/// Whether an array that its table calls the CPU's is pinned.
#[inline(always)]
pub(super) fn is_pinned(object: &Bound<'_, PyAny>, traits: Traits) -> PyResult<bool> {
    is_true(object, traits, Traits::IS_PINNED)
}

#[cold]
fn lazily_negated(object: &Bound<'_, PyAny>) -> PyErr {
    let name = type_name(object);
    let found = format_args!("an object of type {name} whose is_neg() is true");
    Violation::new(Rule::ValuesLazy, Field::Object, found)
        .with_hint("materialise it first, with resolve_neg()")
        .into()
}

/// One of the attributes that [`Traits`] knows: a property, or a method without arguments.
#[inline(always)]
fn is_true(object: &Bound<'_, PyAny>, traits: Traits, state: Traits) -> PyResult<bool> {
    Ok(traits.intersects(state) && ask(object, traits, state)?)
}

#[inline(never)]
fn ask(object: &Bound<'_, PyAny>, traits: Traits, state: Traits) -> PyResult<bool> {
    let py = object.py();
    let names = keys(py);
    let name = match state {
        Traits::REQUIRES_GRAD => &names.requires_grad,
        Traits::IS_CONJ => &names.is_conj,
        Traits::IS_NEG => &names.is_neg,
        Traits::IS_SPARSE => &names.is_sparse,
        _ => &names.is_pinned,
    };
    let value = if traits.intersects(state.method()) {
        let argument = object.as_ptr();
        // SAFETY: an interned name and one argument, the object; a new reference, or NULL with an exception
        // set. No method object is made.
        let answer = unsafe {
            ffi::PyObject_VectorcallMethod(name.as_ptr(), &raw const argument, 1, ptr::null_mut())
        };
        // SAFETY: a new reference that is ours, or NULL with an exception set.
        unsafe { Bound::from_owned_ptr_or_err(py, answer) }?
    } else {
        object.getattr(name)?
    };
    value.is_truthy()
}
