//! The stream on which a producer works now, for producers that can be asked: by the C Exchange API of DLPack.
//!
//! The stream of an import need not be the producer's later: a library has a current stream, which its user changes. What
//! it writes next is enqueued there; what it frees is used anew in the order of the stream that the import has found.
//! So a return edge goes to both, and [`CaiView::producer_moved`] alone tells the second one, when the edge is made.

use std::ffi::{c_int, c_void};
use std::sync::OnceLock;

use dlpark::ffi::DLDeviceType;

use super::CaiView;
use super::streams::Placed;
use crate::error::Error;
use crate::protocol::device::Device;
use crate::protocol::stream::{Stream, SyncPolicy};

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

impl CaiView {
    /// Returns the stream on which the producer works now, if it is another one than the import has found, and the
    /// producer can be asked. It is that of the calling thread.
    ///
    /// # Errors
    /// [`Error::Producer`].
    #[inline]
    pub(super) fn producer_moved(&self) -> Result<Option<Placed>, Error> {
        match self.streams.worker() {
            None => Ok(None),
            Some(worker) => self.asked(worker),
        }
    }

    /// Returns the stream on which the producer works now, as far as is known; `None` if that is unknown.
    ///
    /// # Errors
    /// [`Error::Producer`].
    pub(crate) fn producer_now(&self) -> Result<Option<Stream>, Error> {
        let moved = self.producer_moved()?.map(|moved| moved.stream);
        Ok(moved.or_else(|| self.producer_number()))
    }

    #[cold]
    fn asked(&self, worker: Worker) -> Result<Option<Placed>, Error> {
        let device = self.streams.asked_about();
        let Some(ask) = ASK.get() else {
            return Ok(None);
        };
        let now = ask(worker, device.unwrap_or_else(|| self.device()))?;
        let now = now.map(|now| self.placed(now));
        Ok(now.filter(|_| now != self.streams.placed_producer()))
    }

    /// Makes the ready stream wait for the producer's, if it is the one that the import has found, and the producer has
    /// moved to another one since. `policy` is asked for if so.
    ///
    /// # Errors
    /// [`Error::Producer`]; why no order can be made; what `policy` raises.
    #[inline]
    pub(crate) fn follow<E: From<Error>>(
        &self,
        policy: impl FnOnce() -> Result<SyncPolicy, E>,
    ) -> Result<(), E> {
        if self.streams.worker().is_none() || self.producer_number() != Some(self.ready_number()) {
            return Ok(());
        }
        match self.producer_moved()? {
            None => Ok(()),
            Some(now) => Ok(self.wait_for(now, policy()?)?),
        }
    }
}

#[cfg(test)]
mod tests;
