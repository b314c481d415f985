//! The C Exchange API of DLPack 1.3 as a producer offers it: a table of C functions in a capsule.
//!
//! ```text
//!   import   type(array).__dlpack_c_exchange_api__ --> Table --> owning tensor + work stream --> view
//!   export   CaiView.__dlpack_c_exchange_api__     --> our own static table
//! ```

use std::ptr::NonNull;

use dlpark::ffi::{DLPACK_MAJOR_VERSION, DLPackExchangeAPI, DLPackExchangeAPIHeader};
use pyo3::ffi;
use pyo3::prelude::*;

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
    pub(super) fn api(&self) -> &DLPackExchangeAPI {
        // SAFETY: a table of our major version (`of_capsule`), alive for ever.
        unsafe { self.0.as_ref() }
    }

    /// The table in a capsule; `None` if it holds none, or one of another version, or one that cannot export.
    pub(super) fn of_capsule(capsule: &Bound<'_, PyAny>) -> Option<Self> {
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
    pub(super) fn into_raw(table: Option<Self>) -> *mut DLPackExchangeAPI {
        table.map_or(std::ptr::null_mut(), |table| table.0.as_ptr())
    }

    /// The table of an address that [`into_raw`](Self::into_raw) has given.
    #[inline(always)]
    pub(super) fn from_raw(table: *mut DLPackExchangeAPI) -> Option<Self> {
        NonNull::new(table).map(Self)
    }
}
