//! The stream that a return edge goes to beside the import's: the one on which the producer works now.
//!
//! The stream of an import need not be the producer's later: a library has a current stream, which its user changes. What
//! it writes next is enqueued there; what it frees is used anew in the order of the stream that the import has found.
//! So a return edge goes to both, and [`CaiView::producer_moved`] alone tells the second one, when the edge is made.

use super::CaiView;
use super::detach::{defaults_now, detach};
use super::streams::Placed;
use super::worker::{self, Worker};
use crate::driver::{self, Context, Defaults, DriverError, Place, UNTOLD};
use crate::error::Error;
use crate::protocol::device::{Device, DeviceType};
#[cfg(feature = "pyo3")]
use crate::protocol::stream::Plan;
use crate::protocol::stream::{Stream, SyncPolicy};

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

    /// Whether the producer can be asked, whose code runs then.
    #[cfg(feature = "pyo3")]
    #[inline]
    pub(crate) fn can_ask(&self) -> bool {
        self.streams.worker().is_some()
    }

    #[cold]
    fn asked(&self, worker: Worker) -> Result<Option<Placed>, Error> {
        let device = self.streams.asked_about().unwrap_or(self.device());
        let Some(now) = worker::ask(worker, device)? else {
            return Ok(None);
        };
        let before = self.streams.placed_producer();
        let now = Some(self.placed_by(device, now)?);
        Ok(now.filter(|_| now != before))
    }

    /// Returns `stream` as the calling thread means it, for this memory under the name of `device`, by which its producer
    /// knows it.
    ///
    /// # Errors
    /// The driver's, if it is asked for the context.
    fn placed_by(&self, device: Device, stream: Stream) -> Result<Placed, Error> {
        let whose = match device.device_type {
            _ if device == self.device() || !stream.is_default() => return Ok(self.placed(stream)?),
            // That of the memory's own context is none that has to be remembered.
            DeviceType::CUDA_HOST | DeviceType::CUDA_MANAGED => match defaults_now() {
                Defaults::Of(now) if self.context_by(self.device()) == Ok(now) => {
                    return Ok(self.placed(stream)?);
                }
                Defaults::Untold => return Err(UNTOLD.into()),
                whose => whose,
            },
            DeviceType::CUDA => Defaults::Of(self.context_by(device)?),
            _ => return Ok(self.placed(stream)?),
        };
        Ok(Placed::here(stream).of(whose))
    }

    /// Returns the context whose default streams those of this memory are under the name of `device`.
    pub(super) fn context_by(&self, device: Device) -> Result<Context, DriverError> {
        let place = Place::new(device, self.descriptor.data());
        let whose = self.streams.memory_defaults();
        detach(|| driver::context_meant(driver::driver()?, &place, whose))
    }

    /// Whether the ready stream is the one that the import has found the producer on.
    #[inline]
    pub(super) fn is_ready_where_produced(&self) -> bool {
        self.producer_number() == Some(self.ready_number())
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
        match self.moved_from_ready()? {
            None => Ok(()),
            Some(now) => Ok(self.wait_for(now, policy()?)?),
        }
    }

    /// Decides what [`follow`](Self::follow) would do now, and does nothing of it; `None` if the producer has not moved.
    ///
    /// # Errors
    /// [`Error::Producer`]; those of [`foresee`](Self::foresee).
    #[cfg(feature = "pyo3")]
    pub(crate) fn foresee_producer(&self, policy: SyncPolicy) -> Result<Option<Plan>, Error> {
        let moved = self.moved_from_ready()?;
        moved.map(|now| self.foresee_wait(now, policy)).transpose()
    }

    /// As [`producer_moved`](Self::producer_moved), if the data is ready on the stream that the import has found.
    #[inline]
    fn moved_from_ready(&self) -> Result<Option<Placed>, Error> {
        if self.streams.worker().is_none() || !self.is_ready_where_produced() {
            return Ok(None);
        }
        self.producer_moved()
    }
}

#[cfg(test)]
mod tests;
