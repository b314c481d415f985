//! The stream that a return edge goes to beside the import's: the one on which the producer works now.
//!
//! The stream of an import need not be the producer's later: a library has a current stream, which its user changes. What
//! it writes next is enqueued there; what it frees is used anew in the order of the stream that the import has found.
//! So a return edge goes to both, and [`CaiView::producer_moved`] alone tells the second one, when the edge is made.

use super::CaiView;
use super::streams::Placed;
use super::worker::{self, Worker};
use crate::error::Error;
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

    #[cold]
    fn asked(&self, worker: Worker) -> Result<Option<Placed>, Error> {
        let device = self.streams.asked_about();
        let now = worker::ask(worker, device.unwrap_or_else(|| self.device()))?;
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
