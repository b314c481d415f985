//! Imports by the C Exchange API: the functions of the type's table return a tensor and a stream.

use std::mem::MaybeUninit;
use std::ptr;

use pyo3::ffi;
use pyo3::prelude::*;

use crate::protocol::device::Device;
use crate::protocol::dtype::{DType, code};
use crate::protocol::rule::{Field, Rule, Violation};
use crate::protocol::stream::{Platform, Stream};
use crate::python::call::options::Options;
use crate::python::class::beside::Beside;
use crate::python::cpython::int::type_name;
use crate::python::cpython::names::names;
use crate::python::cpython::recursion::Level;
use crate::python::cpython::release;
use crate::python::exchange_table::{Table, WorkStream};
use crate::python::import::traits::Traits;
use crate::python::import::undeclared;
use crate::view::{CaiView, Streams, Uninit};

/// Imports through the table of the object's type: writes the view, and returns what stands beside it. `None`, with
/// nothing written, if `__dlpack__` must be called instead: because it would refuse, or because the table failed
/// without an exception.
///
/// The tensor is ready on the caller's producer stream, else on the producer's work stream, on which the producer also goes on working.
/// The view is written in place, field by field: 180 instructions less (by the table: 1.98 of the floor, budget 2.0:
/// docs/performance.md).
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
    // SAFETY: DLPack 1.3: an initialised tensor, whose ownership goes to the caller.
    let imported = unsafe { release::own_tensor(tensor) };
    let view = Uninit::new(memory).import(imported)?;
    let descriptor = view.descriptor();
    let device = descriptor.device();
    if traits.intersects(Traits::STATE) && is_refused(object, traits, descriptor.dtype())? {
        return Ok(None);
    }
    if device.device_type == Device::CPU && is_pinned(object, traits)? {
        // The table states the CPU for pinned memory; `__dlpack_device__` states pinned memory (torch).
        return Ok(None);
    }
    let Some((streams, work)) = streams(object, table, device, traits, options)? else {
        return Ok(None);
    };
    // SAFETY: DLPack: the data is valid until the deleter of the managed tensor runs, which is the owner; the producer
    // keeps its work stream alive.
    let view = unsafe { view.finish(streams) };
    view.remember_context();
    Ok(Some(Beside::of_table(work)))
}

/// Returns the streams of a tensor, and the table if its work stream is to be read again; `None` if it cannot be read.
///
/// # Errors
/// The producer's exception; those of [`undeclared::unknown`].
#[inline(always)]
fn streams(
    object: &Bound<'_, PyAny>,
    table: Table,
    device: Device,
    traits: Traits,
    options: &Options<'_, '_>,
) -> PyResult<Option<(Streams, Option<Table>)>> {
    if let Some(producer) = options.producer {
        return Ok(Some((Streams::here(producer, Some(producer)), None)));
    }
    if has_no_streams(device) {
        return Ok(Some((
            Streams::here(Stream::None, Some(Stream::None)),
            None,
        )));
    }
    let Some(handle) = WorkStream::new(table, device).read_handle()? else {
        return Ok(None);
    };
    let is_unknown = traits.intersects(Traits::IGNORES_STREAM)
        && Stream::from_raw(handle) == Stream::LegacyDefault;
    if is_unknown {
        let assumed = undeclared::unknown(object, options)?;
        return Ok(Some((Streams::here(assumed, None), None)));
    }
    Ok(Some((Streams::of_handle(handle), Some(table))))
}

/// Whether the device has no streams.
#[inline(always)]
pub(crate) fn has_no_streams(device: Device) -> bool {
    matches!(
        Platform::from_device_type(device.device_type),
        None | Some(Platform::Host)
    )
}

/// Whether the object's own `__dlpack__` refuses these elements, which the table's functions do not check (torch,
/// paddle).
///
/// # Errors
/// `values-lazy` for a lazy negation, which `__dlpack__` does not refuse either.
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

/// Whether the object is sparse: the table's functions treat every tensor as strided.
#[inline(always)]
pub(super) fn is_no_array(object: &Bound<'_, PyAny>, traits: Traits) -> PyResult<bool> {
    is_true(object, traits, Traits::IS_SPARSE)
}

/// Whether an array is pinned, which its table states to be on the CPU.
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

/// Reads an attribute of [`Traits`]: a property, or a method without arguments. False if the type does not have it.
#[inline(always)]
fn is_true(object: &Bound<'_, PyAny>, traits: Traits, state: Traits) -> PyResult<bool> {
    Ok(traits.intersects(state) && read_state(object, traits, state)?)
}

#[inline(never)]
fn read_state(object: &Bound<'_, PyAny>, traits: Traits, state: Traits) -> PyResult<bool> {
    let _level = Level::begin(object.py())?;
    let py = object.py();
    let names = names(py);
    let name = match state {
        Traits::REQUIRES_GRAD => &names.requires_grad,
        Traits::IS_CONJ => &names.is_conj,
        Traits::IS_NEG => &names.is_neg,
        Traits::IS_SPARSE => &names.is_sparse,
        _ => &names.is_pinned,
    };
    let value = if traits.intersects(state.method()) {
        let argument = object.as_ptr();
        // SAFETY: a str, and one argument (the object), both alive during the call; the GIL is held.
        let answer = unsafe {
            ffi::PyObject_VectorcallMethod(name.as_ptr(), &raw const argument, 1, ptr::null_mut())
        };
        // SAFETY: a new reference, or NULL with an exception set.
        unsafe { Bound::from_owned_ptr_or_err(py, answer) }?
    } else {
        object.getattr(name)?
    };
    value.is_truthy()
}
