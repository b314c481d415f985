//! A loan of a view to one stream, and the return edge that ends it.
//!
//! ```text
//!   producer stream  ---write---*                          *---next write--->
//!                                \ event            event /
//!   consumer stream               *---read, compute------*
//!                              entry                    exit
//! ```
//! The CUDA Array Interface (v3, Synchronization) asks of a consumer that waited for the producer's
//! stream, instead of enqueuing on it, that nothing can run there until the consumer is done. The
//! exit's event is that: the producer's stream waits for it.

use std::thread::ThreadId;

use super::streams::{Placed, thread_of};
use super::{CaiView, stats};
use crate::driver::{self, Place};
use crate::error::Error;
use crate::protocol::rule::{Field, Rule, Violation};
use crate::protocol::stream::{Request, Stream, SyncPolicy};

/// What the end of a loan does for the producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReturnEdge {
    /// The producer's stream waits for the consumer's, by an event.
    Event,
    /// Nothing: the consumer works on the producer's stream.
    SameStream,
    /// Nothing: the producer has said that it has no work in any stream.
    NotNeeded,
    /// Nothing, since nobody said where the producer works: the caller has to order what comes after.
    Unknown,
}

impl ReturnEdge {
    /// The name that Python shows.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Event => "event",
            Self::SameStream => "same-stream",
            Self::NotNeeded => "not-needed",
            Self::Unknown => "unknown",
        }
    }
}

/// A view lent to a stream. Its end, by [`Consumed::finish`] or by drop, makes the return edge.
#[derive(Debug)]
#[must_use = "dropping the guard ends the loan"]
pub struct Consumed {
    view: CaiView,
    consumer: Stream,
    /// Whose per-thread default stream `consumer` is.
    thread: Option<ThreadId>,
    edge: ReturnEdge,
    /// The producer's stream where `edge` is an event.
    producer: Stream,
    policy: SyncPolicy,
    ended: bool,
}

impl CaiView {
    /// Lends the data to `stream`: it waits for the data now, and the producer's stream waits for it when
    /// the guard ends. Nothing is called where the two are the same.
    ///
    /// # Errors
    /// As [`CaiView::on`]; and a [`Violation`] where the producer works on the per-thread default stream of
    /// another thread, which nobody but that thread can make wait.
    pub fn consume(&self, stream: Stream) -> Result<Consumed, Error> {
        self.consume_with(stream, SyncPolicy::Event)
    }

    pub(crate) fn consume_with(
        &self,
        stream: Stream,
        policy: SyncPolicy,
    ) -> Result<Consumed, Error> {
        let edge = self.return_edge(stream);
        let producer = self.producer().unwrap_or(Stream::None);
        check_thread(self.streams.placed_producer())?;
        let request = Request::Stream(stream);
        if self.needs_order(request, policy) {
            let (driver, place) = (driver::driver()?, self.place());
            // Only a loan that comes back to the ready stream may enter a capture of it.
            if edge == ReturnEdge::Event && producer == self.ready() {
                driver::order_within(driver, self.ready(), request, &place, policy)?;
            } else {
                driver::order(driver, self.ready(), request, &place, policy)?;
            }
        }
        stats::OPENED.add();
        Ok(Consumed {
            view: self.ready_on(stream),
            consumer: stream,
            thread: thread_of(stream),
            edge,
            producer,
            policy,
            ended: false,
        })
    }

    /// What the end of a loan to `stream` will do.
    pub(crate) fn return_edge(&self, stream: Stream) -> ReturnEdge {
        match self.producer() {
            None => ReturnEdge::Unknown,
            Some(Stream::None) => ReturnEdge::NotNeeded,
            Some(producer) if stream == Stream::None || producer == stream => {
                ReturnEdge::SameStream
            }
            Some(_) => ReturnEdge::Event,
        }
    }
}

/// Only its own thread can make a per-thread default stream wait: here the number means another one.
fn check_thread(producer: Option<Placed>) -> Result<(), Violation> {
    match producer {
        Some(Placed { stream, thread }) if thread != thread_of(stream) => Err(Violation::new(
            Rule::StreamThread,
            Field::Argument("stream"),
            stream,
        )),
        _ => Ok(()),
    }
}

impl Consumed {
    /// The data, ready on the consumer's stream.
    #[must_use]
    pub fn view(&self) -> &CaiView {
        &self.view
    }

    /// What the end will do for the producer.
    #[must_use]
    pub fn return_edge(&self) -> ReturnEdge {
        self.edge
    }

    /// Ends the loan: what the producer enqueues from now on waits for the consumer's work so far.
    ///
    /// # Errors
    /// The driver's refusal, or a [`Violation`] where a capture forbids the edge. The loan has ended, and
    /// the producer waits for nothing: synchronise the consumer's stream before the data is written.
    pub fn finish(mut self) -> Result<ReturnEdge, Error> {
        self.end()?;
        Ok(self.edge)
    }

    /// As [`finish`](Self::finish), for a producer that has moved meanwhile to another stream of the
    /// calling thread.
    #[cfg(feature = "pyo3")]
    pub(crate) fn finish_for(mut self, moved: Option<Stream>) -> Result<ReturnEdge, Error> {
        self.end()?;
        if let Some(moved) = moved {
            self.make_wait(moved)?;
        }
        Ok(self.edge)
    }

    /// Where the consumer's stream is, as the one that the producer waits for.
    fn place(&self) -> Place {
        Place {
            thread: self.thread,
            ..self.view.place()
        }
    }

    /// Ends the loan once.
    pub(crate) fn end(&mut self) -> Result<(), Error> {
        if std::mem::replace(&mut self.ended, true) {
            return Ok(());
        }
        stats::CLOSED.add();
        if self.edge != ReturnEdge::Event {
            return Ok(());
        }
        if self.policy != SyncPolicy::None {
            check_thread(self.view.streams.placed_producer())?;
        }
        self.make_wait(self.producer)
    }

    /// Makes a stream of the producer's wait for the consumer's.
    fn make_wait(&self, producer: Stream) -> Result<(), Error> {
        let (request, place) = (Request::Stream(producer), self.place());
        if driver::needed(self.consumer, request, &place, self.policy) {
            driver::order(
                driver::driver()?,
                self.consumer,
                request,
                &place,
                self.policy,
            )?;
        }
        Ok(())
    }
}

impl Drop for Consumed {
    /// Makes the return edge. Where that fails the host waits for the consumer instead; a driver that
    /// refuses even that runs no work that could be disturbed. (A per-thread default stream can be neither
    /// waited for nor recorded on another thread: end such a loan on its own.)
    fn drop(&mut self) {
        if self.end().is_err()
            && let Ok(driver) = driver::driver()
        {
            let _ = driver::synchronize(driver, self.consumer, &self.place());
        }
    }
}
