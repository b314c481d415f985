//! The stream that a return edge goes to beside the import's: the one on which the producer works now.
//!
//! The stream of an import need not be the producer's later: a library has a current stream, which its user changes. What
//! it writes next is enqueued there; what it frees is used anew in the order of the stream that the import has found.
//! So a return edge goes to both, and [`CaiView::producer_moved`] alone tells the second one, when the edge is made.

use super::CaiView;
use super::detach::{defaults_now, detach};
use super::streams::Placed;
#[cfg(feature = "pyo3")]
use super::streams::is_elsewhere;
use super::worker::{self, Worker};
use crate::driver::{self, Context, Defaults, DriverError, Place};
use crate::error::Error;
use crate::protocol::device::{Device, DeviceType};
#[cfg(feature = "pyo3")]
use crate::protocol::rule::{Field, Rule, Violation};
#[cfg(feature = "pyo3")]
use crate::protocol::stream::Plan;
use crate::protocol::stream::{Stream, SyncPolicy};

/// What a dict leaves out of the streams of a view, as every copy of this library in the process knows it.
#[cfg(feature = "pyo3")]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Beyond {
    /// The stream on which the producer works, as the import has found it; `None` if it is unknown.
    pub(crate) producer: Option<Stream>,
    /// Whose the producer's is, if it is a default stream; `None` for the memory's.
    pub(crate) context: Option<Context>,
    /// How the producer is asked which one it is later.
    pub(crate) worker: Option<Worker>,
    /// By which name the producer knows the memory.
    pub(crate) device: Device,
    pub(crate) is_undeclared: bool,
}

#[cfg(feature = "pyo3")]
impl CaiView {
    /// Returns what the dict leaves out of the streams.
    ///
    /// # Errors
    /// `stream-thread` if the producer's is another thread's default stream; the driver's, if it is asked for a context.
    #[cold]
    pub(crate) fn beyond_dict(&self) -> Result<Beyond, Error> {
        let placed = self.streams.placed_producer();
        let context = match placed {
            Some(placed) => self.context_passed(placed)?,
            None => None,
        };
        Ok(Beyond {
            producer: placed.map(|placed| placed.stream),
            context,
            worker: self.streams.worker(),
            device: self.streams.asked_about().unwrap_or(self.device()),
            is_undeclared: self.is_undeclared(),
        })
    }

    fn context_passed(&self, producer: Placed) -> Result<Option<Context>, Error> {
        let Placed {
            stream,
            thread,
            whose,
        } = producer;
        if is_elsewhere(thread) {
            let field = Field::Argument("producer_stream");
            let hint = "v.on(stream) on that thread, and then cd.view(v, producer_stream=stream), names one of every thread";
            return Err(Violation::new(Rule::StreamThread, field, stream)
                .with_hint(hint)
                .into());
        }
        match whose {
            _ if !stream.is_default() => Ok(None),
            Defaults::Of(context) => Ok(Some(context)),
            _ => match self.context_by(self.device()) {
                Err(refused) if refused.is_absent() => Ok(None),
                context => Ok(Some(context?)),
            },
        }
    }

    /// Adds what the dict of another view, of which this one was made, leaves out.
    ///
    /// # Errors
    /// The driver's, if it is asked for a context.
    #[cold]
    pub(crate) fn add_beyond(&mut self, told: Beyond) -> Result<(), DriverError> {
        let placed = |stream| match told.context {
            // As the ready stream is written, with which it may be the same.
            Some(context)
                if !self.is_shared_by_contexts() && self.context_by(self.device())? == context =>
            {
                Ok(self.placed(stream))
            }
            Some(context) => Ok(Placed::here(stream).of(Defaults::Of(context))),
            None => Ok(Placed::here(stream)),
        };
        let producer = told.producer.map(placed).transpose()?;
        let asked_about = (told.device != self.device()).then_some(told.device);
        self.streams = self
            .streams
            .with_worker(producer, told.worker, asked_about)
            .declared_if(!told.is_undeclared);
        Ok(())
    }
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
            _ if device == self.device() || !stream.is_default() => return Ok(self.placed(stream)),
            // That of the memory's own context is none that has to be remembered.
            DeviceType::CUDA_HOST | DeviceType::CUDA_MANAGED => match defaults_now() {
                Defaults::Of(now) if self.context_by(self.device()) == Ok(now) => {
                    return Ok(self.placed(stream));
                }
                whose => whose,
            },
            DeviceType::CUDA => Defaults::Of(self.context_by(device)?),
            _ => return Ok(self.placed(stream)),
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
