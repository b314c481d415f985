//! A borrowed description: what a table says of an array, without a tensor to give back.
//!
//! It holds while the object is alive and nobody changes it, which no view can promise: torch's tensors
//! can be given other memory. So views take the owning path, and `explain`, which keeps nothing, this one.
//! Without the GIL another thread can do so while it is read: there `explain` asks for a tensor too, and
//! gives it back.

#[cfg(not(Py_GIL_DISABLED))]
use std::mem::MaybeUninit;

use pyo3::prelude::*;

use crate::protocol::descriptor::{Descriptor, Device};
use crate::protocol::stream::Stream;
#[cfg(Py_GIL_DISABLED)]
use crate::python::cpython::release;
#[cfg(not(Py_GIL_DISABLED))]
use crate::python::import::exchange::failed;
use crate::python::import::exchange::{is_no_array, is_pinned, is_refused};
use crate::python::import::known_types::{Table, Traits};
#[cfg(not(Py_GIL_DISABLED))]
use crate::view::read_tensor;

/// What a table says of an array.
pub(crate) enum Said {
    /// What it is, and what it is ready on.
    Array(Descriptor, Stream),
    /// Nothing: the table has no borrowed descriptions.
    Nothing,
    /// Not the truth: the array goes by `__dlpack__`, as [`import`](crate::python::import::exchange::import) has it.
    LessThanDlpack,
}

/// Asks a table for a description.
///
/// # Errors
/// What [`import`](crate::python::import::exchange::import) raises.
pub(crate) fn look(object: &Bound<'_, PyAny>, table: Table, traits: Traits) -> PyResult<Said> {
    if is_no_array(object, traits)? {
        return Ok(Said::LessThanDlpack);
    }
    let Some(descriptor) = describe(object, table)? else {
        return Ok(Said::Nothing);
    };
    if is_refused(object, traits, descriptor.dtype())? {
        return Ok(Said::LessThanDlpack);
    }
    let device = descriptor.device();
    if device.device_type == Device::CPU && is_pinned(object, traits)? {
        return Ok(Said::LessThanDlpack);
    }
    Ok(match table.ready(device, traits, None)? {
        Some((ready, _)) => Said::Array(descriptor, ready),
        None => Said::LessThanDlpack,
    })
}

#[cfg(not(Py_GIL_DISABLED))]
fn describe(object: &Bound<'_, PyAny>, table: Table) -> PyResult<Option<Descriptor>> {
    let Some(borrow) = table.api().dltensor_from_py_object_no_sync else {
        return Ok(None);
    };
    let mut tensor = MaybeUninit::uninit();
    // SAFETY: the GIL is held, `object` is of the type that the table was found on, and `tensor` is a place
    // for the answer.
    let code = unsafe { borrow(object.as_ptr().cast(), tensor.as_mut_ptr()) };
    if code != 0 {
        return failed(object.py()).map(|()| None);
    }
    // SAFETY: DLPack 1.3: on 0 the tensor is filled.
    let tensor = unsafe { tensor.assume_init() };
    // SAFETY: shape and strides are the object's, which is alive, and no Python code runs meanwhile.
    Ok(Some(unsafe { read_tensor(&tensor, 0) }?))
}

#[cfg(Py_GIL_DISABLED)]
fn describe(object: &Bound<'_, PyAny>, table: Table) -> PyResult<Option<Descriptor>> {
    release::prepare(object.py())?;
    let Some(tensor) = table.tensor(object)? else {
        return Ok(None);
    };
    // SAFETY: DLPack 1.3: the call gives an initialised tensor whose ownership is the caller's.
    let imported = unsafe { release::own_tensor(tensor) };
    Ok(Some(imported.descriptor()?))
}
