//! Borrows an array's description from an exchange table, without an owning tensor.
//!
//! The description is valid while the object is alive and unchanged; torch's tensors can be given other memory. So
//! views import an owning tensor, and only `explain`, which keeps nothing, borrows. It imports an owning tensor too,
//! and drops it, without the GIL, where another thread can change the object meanwhile, and for the libraries some of
//! whose arrays are read-only: a borrowed tensor has no flags.

#[cfg(not(Py_GIL_DISABLED))]
use std::mem::MaybeUninit;

use pyo3::prelude::*;

use crate::protocol::descriptor::Descriptor;
use crate::protocol::device::Device;
#[cfg(not(Py_GIL_DISABLED))]
use crate::protocol::device::Flags;
use crate::protocol::stream::Stream;
use crate::python::cpython::release;
#[cfg(not(Py_GIL_DISABLED))]
use crate::python::exchange_table::failed;
use crate::python::exchange_table::{Table, WorkStream};
use crate::python::import::exchange::has_no_streams;
use crate::python::import::state::{is_no_array, is_pinned, is_refused};
use crate::python::import::traits::Traits;
#[cfg(not(Py_GIL_DISABLED))]
use crate::view::read_tensor;

/// The description of an array, borrowed from a table.
pub(crate) enum Loan {
    /// The description, and the stream that the array is ready on.
    Array(Descriptor, Stream),
    /// The table's function failed without an exception.
    NotOffered,
    /// The table omits facts about this array, so that
    /// [`import`](crate::python::import::exchange::import) calls `__dlpack__`.
    Incomplete,
}

/// Borrows the description of an object from its table.
pub(crate) fn borrow(object: &Bound<'_, PyAny>, table: Table, traits: Traits) -> PyResult<Loan> {
    if is_no_array(object, traits)? {
        return Ok(Loan::Incomplete);
    }
    let Some(descriptor) = describe(object, table, traits)? else {
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
    Ok(match WorkStream::new(table, device).read()? {
        Some(ready) => Loan::Array(descriptor, ready),
        None => Loan::Incomplete,
    })
}

#[cfg(not(Py_GIL_DISABLED))]
fn describe(
    object: &Bound<'_, PyAny>,
    table: Table,
    traits: Traits,
) -> PyResult<Option<Descriptor>> {
    let borrow = table.api().dltensor_from_py_object_no_sync;
    let Some(borrow) = borrow.filter(|_| traits.intersects(Traits::IS_MUTABLE)) else {
        return owned(object, table);
    };
    let mut tensor = MaybeUninit::uninit();
    // SAFETY: the GIL is held, `object` is of the table's type, and `tensor` is valid for a write.
    let code = unsafe { borrow(object.as_ptr().cast(), tensor.as_mut_ptr()) };
    if code != 0 {
        return failed(object.py()).map(|()| None);
    }
    // SAFETY: DLPack 1.3: the tensor is filled if the function returns 0.
    let tensor = unsafe { tensor.assume_init() };
    // SAFETY: a filled tensor, whose shape and strides are the object's: it is alive, and no Python code runs.
    Ok(Some(unsafe { read_tensor(&tensor, Flags::NONE) }?))
}

#[cfg(Py_GIL_DISABLED)]
fn describe(object: &Bound<'_, PyAny>, table: Table, _: Traits) -> PyResult<Option<Descriptor>> {
    owned(object, table)
}

fn owned(object: &Bound<'_, PyAny>, table: Table) -> PyResult<Option<Descriptor>> {
    release::prepare(object.py())?;
    let Some(tensor) = table.tensor(object)? else {
        return Ok(None);
    };
    // SAFETY: DLPack 1.3: an initialised tensor, whose ownership goes to the caller.
    let imported = unsafe { release::own_tensor(tensor) };
    Ok(Some(imported.descriptor()?))
}
