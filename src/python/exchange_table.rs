//! The C Exchange API of DLPack 1.3 as a producer offers it: a table of C functions in a capsule.
//!
//! ```text
//!   import   type(array).__dlpack_c_exchange_api__ --> Table --> owning tensor + work stream --> view
//!   export   CaiView.__dlpack_c_exchange_api__     --> our own static table
//! ```

use std::ffi::c_void;
use std::ptr::{self, NonNull};

use dlpark::ffi::{
    DLDeviceType, DLManagedTensorVersioned, DLPACK_MAJOR_VERSION, DLPackExchangeAPI,
    DLPackExchangeAPIHeader,
};
use pyo3::ffi;
use pyo3::prelude::*;

use crate::driver;
use crate::protocol::device::Device;
use crate::protocol::stream::{Request, Stream};
use crate::python::call::policy;
use crate::view::CaiView;

/// The name of the capsule that holds a table.
pub(crate) const NAME: &std::ffi::CStr = c"dlpack_exchange_api";
/// Tables of a version chain that are looked at: a chain that bites its tail comes to an end.
const LONGEST_CHAIN: usize = 16;

/// A producer's table, of major version 1.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Table(NonNull<DLPackExchangeAPI>);

// SAFETY: DLPack 1.3: a table is static, "must stay alive throughout the lifetime of the process", and is
// never written.
unsafe impl Send for Table {}
// SAFETY: DLPack 1.3: a table is static and never written, so that threads may read it together.
unsafe impl Sync for Table {}

impl Table {
    pub(crate) fn api(&self) -> &DLPackExchangeAPI {
        // SAFETY: a table of our major version (`of_capsule`), alive for ever.
        unsafe { self.0.as_ref() }
    }

    /// The table in a capsule; `None` if it holds none, or one of another version, or one that cannot export.
    pub(crate) fn of_capsule(capsule: &Bound<'_, PyAny>) -> Option<Self> {
        // SAFETY: any object may be asked; no exception is set.
        if unsafe { ffi::PyCapsule_IsValid(capsule.as_ptr(), NAME.as_ptr()) } == 0 {
            return None;
        }
        // SAFETY: valid under this name, so that this cannot fail.
        let table = unsafe { ffi::PyCapsule_GetPointer(capsule.as_ptr(), NAME.as_ptr()) };
        // SAFETY: DLPack 1.3: a capsule of this name holds a table, which begins with its header.
        let table = unsafe { our_version(table.cast()) }?;
        let api = table.api();
        let can_export = api.managed_tensor_from_py_object_no_sync.is_some();
        (can_export && api.current_work_stream.is_some()).then_some(table)
    }
}

/// The first table of a chain whose major version is ours.
///
/// # Safety
/// `header` is NULL or begins a static table, and so does every `prev_api`.
unsafe fn our_version(mut header: *const DLPackExchangeAPIHeader) -> Option<Table> {
    for _ in 0..LONGEST_CHAIN {
        // SAFETY: NULL or readable, by this function's contract.
        let this = unsafe { header.as_ref() }?;
        if this.version.major == DLPACK_MAJOR_VERSION {
            return NonNull::new(header.cast_mut().cast()).map(Table);
        }
        header = this.prev_api;
    }
    None
}

impl Table {
    /// Its address, for a cell that is read without a lock; NULL for none.
    pub(crate) fn into_raw(table: Option<Self>) -> *mut DLPackExchangeAPI {
        table.map_or(std::ptr::null_mut(), |table| table.0.as_ptr())
    }

    /// The table of an address that [`into_raw`](Self::into_raw) has given.
    #[inline(always)]
    pub(crate) fn from_raw(table: *mut DLPackExchangeAPI) -> Option<Self> {
        NonNull::new(table).map(Self)
    }
}

impl Table {
    /// An owning tensor; `None` where the function failed without an exception.
    ///
    /// # Errors
    /// The producer's own exception.
    #[inline(always)]
    pub(crate) fn tensor(
        &self,
        object: &Bound<'_, PyAny>,
    ) -> PyResult<Option<NonNull<DLManagedTensorVersioned>>> {
        let Some(export) = self.api().managed_tensor_from_py_object_no_sync else {
            return Ok(None);
        };
        let mut tensor = ptr::null_mut();
        // SAFETY: the GIL is held, `object` is of the type that the table was found on, and `tensor` is
        // a place for the answer.
        let code = unsafe { export(object.as_ptr().cast(), &raw mut tensor) };
        if code == 0 {
            return Ok(NonNull::new(tensor));
        }
        failed(object.py()).map(|()| None)
    }
}

/// The exception that a function of a table has set, or nothing.
#[cold]
pub(crate) fn failed(py: Python<'_>) -> PyResult<()> {
    PyErr::take(py).map_or(Ok(()), Err)
}

/// Where a producer says which stream it works on now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WorkStream {
    table: Table,
    device: Device,
}

impl WorkStream {
    #[inline(always)]
    pub(crate) fn new(table: Table, device: Device) -> Self {
        Self { table, device }
    }

    /// The stream; `None` where the function failed without an exception.
    #[inline]
    pub(crate) fn ask(&self) -> PyResult<Option<Stream>> {
        Ok(self.ask_handle()?.map(Stream::from_raw))
    }

    /// Its handle.
    #[inline(always)]
    pub(crate) fn ask_handle(&self) -> PyResult<Option<u64>> {
        let Some(ask) = self.table.api().current_work_stream else {
            return Ok(None);
        };
        let mut stream = ptr::null_mut::<c_void>();
        let device_type = DLDeviceType(self.device.device_type.cast_unsigned());
        // SAFETY: the GIL is held, and `stream` is a place for the answer.
        let code = unsafe { ask(device_type, self.device.id, &raw mut stream) };
        if code == 0 {
            return Ok(Some(stream.addr() as u64));
        }
        Python::attach(failed).map(|()| None)
    }

    /// Where the producer has moved to another stream since the import, the view's ready stream waits
    /// for what that one holds: the next consumer then finds both.
    ///
    /// # Errors
    /// The producer's exception, or why no order can be made.
    #[inline]
    pub(crate) fn follow(&self, py: Python<'_>, view: &CaiView) -> PyResult<()> {
        match self.moved(view)? {
            Some(now) => self.wait_for(py, now, view),
            None => Ok(()),
        }
    }

    /// The stream that the producer has moved to since the import.
    ///
    /// # Errors
    /// The producer's exception.
    #[inline]
    pub(crate) fn moved(&self, view: &CaiView) -> PyResult<Option<Stream>> {
        Ok(self.ask()?.filter(|now| *now != view.ready()))
    }

    #[cold]
    fn wait_for(&self, py: Python<'_>, now: Stream, view: &CaiView) -> PyResult<()> {
        let (request, policy) = (Request::Stream(view.ready()), policy::policy());
        // The other way about: the producer's stream of now is waited for, the ready one waits.
        let there = view.place();
        let place = driver::Place {
            thread: None,
            ready: there.requested,
            requested: there.ready,
            ..there
        };
        if driver::needed(now, request, &place, policy) {
            py.detach(|| driver::order(driver::driver()?, now, request, &place, policy))?;
        }
        Ok(())
    }
}
