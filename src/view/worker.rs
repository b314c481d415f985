//! The stream on which a producer works now, for producers that can be asked: by the C Exchange API of DLPack.

use std::ffi::{c_int, c_void};
use std::sync::OnceLock;

use dlpark::ffi::DLDeviceType;

use crate::error::Error;
use crate::protocol::device::Device;
use crate::protocol::stream::Stream;

/// `current_work_stream` of a producer's table, which is static. It is called with the interpreter's lock held.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Worker(pub(crate) WorkStream);

/// Writes the stream on which the calling thread's work on a device goes.
pub(crate) type WorkStream =
    unsafe extern "C" fn(device_type: DLDeviceType, device_id: i32, out: *mut *mut c_void) -> c_int;

/// Asks a worker about a device; `None` if it does not tell, or if there is no interpreter to ask it in.
pub(crate) type Ask = fn(Worker, Device) -> Result<Option<Stream>, Error>;

static ASK: OnceLock<Ask> = OnceLock::new();

/// Registers how to ask; the first one stays.
pub(crate) fn set_ask(ask: Ask) {
    ASK.get_or_init(|| ask);
}

/// Asks a worker about a device; `None` also if there is no interpreter to ask it in.
///
/// # Errors
/// [`Error::Producer`].
pub(super) fn ask(worker: Worker, device: Device) -> Result<Option<Stream>, Error> {
    ASK.get().map_or(Ok(None), |ask| ask(worker, device))
}

#[cfg(test)]
impl Worker {
    /// One that tells no stream.
    pub(crate) fn of_nothing() -> Self {
        unsafe extern "C" fn none(_: DLDeviceType, _: i32, _: *mut *mut c_void) -> c_int {
            -1
        }
        Self(none)
    }
}
