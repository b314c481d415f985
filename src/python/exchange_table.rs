//! Calls a producer's exchange table: the C functions of DLPack 1.3's C Exchange API, in a capsule.
//!
//! ```text
//!   import   type(array).__dlpack_c_exchange_api__ --> Table --> owning tensor + work stream --> view
//!   export   CaiView.__dlpack_c_exchange_api__     --> our own static table
//! ```

use std::ffi::c_void;
use std::ptr::{self, NonNull};

use dlpark::ManagedTensorBase;
use dlpark::ffi::{
    DLDeviceType, DLManagedTensorVersioned, DLPACK_MAJOR_VERSION, DLPackExchangeAPI,
    DLPackExchangeAPIHeader,
};
use pyo3::exceptions::PySystemError;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::error::Error;
use crate::protocol::device::Device;
use crate::protocol::rule::Field;
use crate::protocol::stream::Stream;
use crate::python::cpython::{gil, panic::Entry};
use crate::view::{Ticket, Worker, locate};

/// The name of the capsule that holds a table.
pub(crate) const NAME: &std::ffi::CStr = c"dlpack_exchange_api";
/// The most tables of a version chain that are read, so that a cyclic chain ends.
const LONGEST_CHAIN: usize = 16;

/// A producer's table, of major version 1.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Table(NonNull<DLPackExchangeAPI>);

// SAFETY: DLPack 1.3: a table is static ("must stay alive throughout the lifetime of the process") and never written.
unsafe impl Send for Table {}
// SAFETY: DLPack 1.3: a table is never written, so that threads may read it at the same time.
unsafe impl Sync for Table {}

impl Table {
    pub(crate) fn api(&self) -> &DLPackExchangeAPI {
        // SAFETY: a static table of major version 1 (`of_capsule`).
        unsafe { self.0.as_ref() }
    }

    /// Reads the table of a capsule; `None` if it holds none, or none of major version 1 that can export.
    pub(crate) fn of_capsule(capsule: &Bound<'_, PyAny>) -> Option<Self> {
        // SAFETY: a living object, of any type; no exception is set.
        if unsafe { ffi::PyCapsule_IsValid(capsule.as_ptr(), NAME.as_ptr()) } == 0 {
            return None;
        }
        // SAFETY: a valid capsule of this name, so that the call cannot fail.
        let table = unsafe { ffi::PyCapsule_GetPointer(capsule.as_ptr(), NAME.as_ptr()) };
        // SAFETY: DLPack 1.3: a capsule of this name holds a static table, which begins with its header; so does each
        // table of the chain.
        let table = unsafe { of_our_version(table.cast()) }?;
        let api = table.api();
        let can_export = api.managed_tensor_from_py_object_no_sync.is_some();
        (can_export && api.current_work_stream.is_some()).then_some(table)
    }
}

/// Returns the first table of a chain that has the major version of this library. A pointer that is not aligned ends the chain,
/// as NULL does: no table lies there.
///
/// # Safety
/// `header` is NULL, not aligned or begins a static table, and so does every `prev_api`.
unsafe fn of_our_version(mut header: *const DLPackExchangeAPIHeader) -> Option<Table> {
    for _ in 0..LONGEST_CHAIN {
        if !header.is_aligned() {
            return None;
        }
        // SAFETY: aligned; NULL or the header of a static table (this function's contract).
        let this = unsafe { header.as_ref() }?;
        if this.version.major == DLPACK_MAJOR_VERSION {
            return NonNull::new(header.cast_mut().cast()).map(Table);
        }
        header = this.prev_api;
    }
    None
}

impl Table {
    /// Returns the address, for an atomic cell; NULL for none.
    pub(crate) fn into_raw(table: Option<Self>) -> *mut DLPackExchangeAPI {
        table.map_or(std::ptr::null_mut(), |table| table.0.as_ptr())
    }

    /// Returns the table of an address from [`into_raw`](Self::into_raw).
    #[inline(always)]
    pub(crate) fn from_raw(table: *mut DLPackExchangeAPI) -> Option<Self> {
        NonNull::new(table).map(Self)
    }
}

impl Table {
    /// Returns the function that tells the producer's work stream.
    #[inline(always)]
    pub(crate) fn worker(&self) -> Option<Worker> {
        self.api().current_work_stream.map(Worker)
    }

    /// Exports an owning tensor; `None` if the function fails without an exception.
    ///
    /// # Errors
    /// The producer's exception; `tensor-alignment`, with nothing of the tensor read: then it is left to the producer, as
    /// its deleter cannot be read either.
    #[inline(always)]
    pub(crate) fn tensor(
        &self,
        object: &Bound<'_, PyAny>,
    ) -> PyResult<Option<NonNull<DLManagedTensorVersioned>>> {
        let Some(export) = self.api().managed_tensor_from_py_object_no_sync else {
            return Ok(None);
        };
        let mut tensor = ptr::null_mut();
        // SAFETY: the GIL is held, `object` is of the table's type, and `tensor` is valid for a write.
        let code = unsafe { export(object.as_ptr().cast(), &raw mut tensor) };
        if code == 0 {
            return match tensor.is_null() {
                true => Ok(None),
                false => Ok(Some(locate(tensor, Field::ExchangeApi)?)),
            };
        }
        failed(object.py()).map(|()| None)
    }
}

impl Table {
    /// Whether the library imports tensors by its table.
    pub(crate) fn can_import(&self) -> bool {
        self.api().managed_tensor_to_py_object_no_sync.is_some()
    }

    /// Passes a tensor of [`build_in_capsule`](crate::view::build_in_capsule) to the library, and returns its own object.
    ///
    /// DLPack does not state who owns the tensor after a failure. The ticket tells: the deleter is called here, unless
    /// the library has called it.
    ///
    /// # Errors
    /// The library's exception; `SystemError` if it fails without one.
    #[inline(always)]
    pub(crate) fn object<'py>(
        &self,
        py: Python<'py>,
        (tensor, ticket): (NonNull<DLManagedTensorVersioned>, Ticket),
    ) -> PyResult<Bound<'py, PyAny>> {
        let mut object = ptr::null_mut();
        let code = match self.api().managed_tensor_to_py_object_no_sync {
            // SAFETY: the GIL is held, the tensor is initialised and its ownership given up, and `object` is valid for a
            // write.
            Some(import) => unsafe { import(tensor.as_ptr(), &raw mut object) },
            None => -1,
        };
        if code == 0 && !object.is_null() {
            // SAFETY: DLPack 1.3: a new reference.
            return Ok(unsafe { Bound::from_owned_ptr(py, object.cast()) });
        }
        let error = PyErr::take(py);
        if ticket.is_valid() {
            // SAFETY: initialised, and its deleter has not been called (the ticket is valid).
            unsafe { DLManagedTensorVersioned::drop_raw(tensor.as_ptr()) };
        }
        Err(error.unwrap_or_else(|| {
            PySystemError::new_err("an exchange table failed without an exception")
        }))
    }
}

/// Returns the exception that a function of a table has set, if any.
#[cold]
pub(crate) fn failed(py: Python<'_>) -> PyResult<()> {
    PyErr::take(py).map_or(Ok(()), Err)
}

/// Reads the stream on which a producer works on a device, as the driver's handle; `None` if the function fails without
/// an exception.
///
/// # Errors
/// The producer's exception.
#[inline(always)]
pub(crate) fn work_stream(
    py: Python<'_>,
    Worker(current): Worker,
    device: Device,
) -> PyResult<Option<u64>> {
    let mut stream = ptr::null_mut::<c_void>();
    let (device_type, id) = device.to_dlpack();
    let device_type = DLDeviceType(device_type.cast_unsigned());
    // SAFETY: the GIL is held, and `stream` is valid for a write.
    let code = unsafe { current(device_type, id, &raw mut stream) };
    if code == 0 {
        return Ok(Some(stream.addr() as u64));
    }
    failed(py).map(|()| None)
}

/// Asks a producer for the view's sake ([`set_ask`](crate::view::set_ask)), on a thread that CPython has a state for:
/// on any other one the producer has no work.
///
/// # Errors
/// [`Error::Producer`], with the exception.
pub(crate) fn ask(worker: Worker, device: Device) -> Result<Option<Stream>, Error> {
    // An exception that is a panic of this library's own would leave an edge unmade: it is the producer's failure.
    let asked = gil::attached(|py| PyResult::run(|| work_stream(py, worker, device)));
    let handle = asked.unwrap_or(Ok(None));
    let handle = handle.map_err(|raised| Error::Producer(Box::new(raised)))?;
    Ok(handle.map(Stream::from_raw))
}
