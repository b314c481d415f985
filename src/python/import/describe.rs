//! Borrows an array's description from a table, without a tensor to give back.
//!
//! It holds while the object is alive and unchanged, which no view can promise: torch's tensors can be given
//! other memory. So views import an owning tensor, and `explain`, which keeps nothing, borrows.
//! Without the GIL another thread can change the object meanwhile: `explain` then asks for an owning tensor
//! too, and gives it back.

#[cfg(not(Py_GIL_DISABLED))]
use std::mem::MaybeUninit;

use pyo3::prelude::*;

use crate::protocol::descriptor::Descriptor;
use crate::protocol::device::Device;
use crate::protocol::stream::Stream;
#[cfg(Py_GIL_DISABLED)]
use crate::python::cpython::release;
#[cfg(not(Py_GIL_DISABLED))]
use crate::python::exchange_table::failed;
use crate::python::exchange_table::{Table, WorkStream};
use crate::python::import::exchange::{has_no_streams, is_no_array, is_pinned, is_refused};
use crate::python::import::traits::Traits;
#[cfg(not(Py_GIL_DISABLED))]
use crate::view::read_tensor;

/// The description of an array that a table lends.
pub(crate) enum Loan {
    /// The description, and the stream that the array is ready on.
    Array(Descriptor, Stream),
    /// The table lends no descriptions.
    NotOffered,
    /// The table leaves out what matters here: the array is imported by `__dlpack__`, as
    /// [`import`](crate::python::import::exchange::import) does it.
    Incomplete,
}

/// Asks a table for a description.
///
/// # Errors
/// What [`import`](crate::python::import::exchange::import) raises.
pub(crate) fn borrow(object: &Bound<'_, PyAny>, table: Table, traits: Traits) -> PyResult<Loan> {
    if is_no_array(object, traits)? {
        return Ok(Loan::Incomplete);
    }
    let Some(descriptor) = describe(object, table)? else {
        return Ok(Loan::NotOffered);
    };
    if is_refused(object, traits, descriptor.dtype())? {
        return Ok(Loan::Incomplete);
    }
    let device = descriptor.device();
    if device.device_type == Device::CPU && is_pinned(object, traits)? {
        return Ok(Loan::Incomplete);
    }
    if has_no_streams(device) {
        return Ok(Loan::Array(descriptor, Stream::None));
    }
    Ok(match WorkStream::new(table, device).ask()? {
        Some(ready) => Loan::Array(descriptor, ready),
        None => Loan::Incomplete,
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
