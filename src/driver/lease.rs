//! Events and streams of the pool, while they are in use.
//!
//! An event is taken out, recorded, waited for and put back at once: `cuStreamWaitEvent` waits for
//! the mark that the event has at the time of the call, so the event is free to be marked again. What the host
//! asks about it keeps it out until the answer has come.

use super::{Context, ContextGuard, ContextId, Driver, DriverError, Event, Relaxed, twice};
use crate::protocol::stream::Stream;

/// An event taken from the pool, recorded. Given back exactly once, by drop.
pub(crate) struct Lease<'d> {
    driver: &'d dyn Driver,
    context: Context,
    id: ContextId,
    event: Event,
}

impl<'d> Lease<'d> {
    /// An event of `context`, which is current, recorded on `stream`.
    ///
    /// A kept event that turns out to be dead condemns its pool. The driver refuses a stream by the same codes, so it must
    /// refuse the event once more after it has accepted a new one: a stream may be destroyed meanwhile, and another one
    /// have its handle.
    pub(crate) fn recorded(
        driver: &'d dyn Driver,
        (context, id): (Context, ContextId),
        stream: Stream,
    ) -> Result<Self, DriverError> {
        let lease = |event| Lease {
            driver,
            context,
            id,
            event,
        };
        let Some(kept) = driver.pool().take(context, id).map(lease) else {
            return Self::fresh(driver, stream).map(lease);
        };
        match driver.event_record(kept.event, stream) {
            Ok(()) => return Ok(kept),
            Err(error) if !is_death(&error) => return Err(error),
            Err(_) => {}
        }
        let fresh = Self::fresh(driver, stream).map(lease)?;
        match driver.event_record(kept.event, stream) {
            Ok(()) => {
                // Else a stream that ends while it is marked would leave one more for each mark.
                fresh.destroy();
                Ok(kept)
            }
            // One answer of two: the event goes back to the pool, and is asked again when it is next taken.
            Err(error) if !is_death(&error) => Ok(fresh),
            Err(_) => {
                // Dead: neither kept nor destroyed, nor is what was put beside it.
                std::mem::forget(kept);
                driver.pool().forget(context);
                Ok(fresh)
            }
        }
    }

    /// Creates an event of the current context, recorded on `stream`.
    fn fresh(driver: &dyn Driver, stream: Stream) -> Result<Event, DriverError> {
        let event = driver.event_create()?;
        match driver.event_record(event, stream) {
            Ok(()) => Ok(event),
            Err(error) => {
                // It may be dead as well; the record's error is the one to report.
                let _ = driver.event_destroy(event);
                Err(error)
            }
        }
    }

    /// Makes `stream` wait for the mark. A default stream is the current context's.
    pub(crate) fn wait(&self, stream: Stream) -> Result<(), DriverError> {
        self.driver.event_wait(stream, self.event)
    }

    /// Returns whether the mark has been reached; so it is if the context is gone, or has failed: nothing runs there any
    /// more.
    ///
    /// An error of the query alone is not the context's, which goes on: it is asked again. The context is waited for only
    /// if the event is dead, since that breaks a capture there; one that is gone is not, as the wait would be for another
    /// one.
    ///
    /// # Errors
    /// The driver's refusal to tell.
    pub(crate) fn is_reached(&self) -> Result<bool, DriverError> {
        let found = match twice(|| self.query()) {
            Err(error) if is_death(&error) => twice(|| self.wait_for_context()),
            told => told,
        };
        match found {
            Err(error) if error.is_end_of_context() => Ok(true),
            told => told,
        }
    }

    fn wait_for_context(&self) -> Result<bool, DriverError> {
        let driver = self.driver;
        if driver.context_id(self.context)? == self.id {
            let _there = ContextGuard::above(driver, self.context)?;
            driver.context_synchronize()?;
        }
        Ok(true)
    }

    /// Whether the context is there, in which the event was made; also if the driver does not tell.
    #[cfg(feature = "cudarc")]
    pub(crate) fn has_context(&self) -> bool {
        match twice(|| self.driver.context_id(self.context)) {
            Ok(id) => id == self.id,
            Err(error) => !error.is_end_of_context(),
        }
    }

    /// Returns whether the mark has been reached. It is asked in the event's context: no question about an event is
    /// answered without one.
    pub(crate) fn query(&self) -> Result<bool, DriverError> {
        let _there = ContextGuard::above(self.driver, self.context)?;
        self.driver.event_query(self.event)
    }

    /// Ends an event that is not kept: a capture may have recorded it, or it is one too many.
    pub(crate) fn destroy(self) {
        self.end(self.event);
        std::mem::forget(self);
    }

    /// Destroys an event of this context, in which that has to be done. A failure leaves one too many, and changes nothing for
    /// the caller.
    fn end(&self, event: Event) {
        if let Ok(_there) = ContextGuard::above(self.driver, self.context) {
            let _ = self.driver.event_destroy(event);
        }
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        if let Some(spare) = self.driver.pool().put(self.context, self.id, self.event) {
            self.end(spare);
        }
    }
}

/// The codes of a driver for an event whose context is gone: `CUDA_ERROR_INVALID_CONTEXT`,
/// `CUDA_ERROR_INVALID_HANDLE`, `CUDA_ERROR_CONTEXT_IS_DESTROYED`.
fn is_death(error: &DriverError) -> bool {
    error.is_loss_of_context() || error.code() == Some(400)
}

/// A stream of ours, on which no other thread works while this lives, and which no thread captures. It is not
/// ordered with the default streams.
pub(crate) struct PrivateStream<'d> {
    driver: &'d dyn Driver,
    context: Context,
    id: ContextId,
    stream: Stream,
    /// Whether it may still have work when this ends: then no other copy gets it, which would wait for that.
    is_busy: bool,
}

impl<'d> PrivateStream<'d> {
    /// Takes a stream of the current context, which stays current and alive as long as this.
    ///
    /// # Errors
    /// The driver's refusal; its own "invalid context" on a thread that has none.
    pub(crate) fn new(driver: &'d dyn Driver) -> Result<Self, DriverError> {
        let Some(context) = driver.current_context()? else {
            return Err(DriverError::new("cuCtxGetCurrent", 201));
        };
        let id = driver.context_id(context)?;
        let stream = match driver.pool().take_stream(context, id) {
            Some(stream) => stream,
            None => {
                let _relaxed = Relaxed::new(driver)?;
                driver.stream_create()?
            }
        };
        Ok(Self {
            driver,
            context,
            id,
            stream,
            is_busy: false,
        })
    }

    /// Takes a stream for work that may be pending when this value is dropped: the stream is destroyed then, not pooled.
    pub(crate) fn for_pending_work(driver: &'d dyn Driver) -> Result<Self, DriverError> {
        let mut made = Self::new(driver)?;
        made.is_busy = true;
        Ok(made)
    }

    pub(crate) fn stream(&self) -> Stream {
        self.stream
    }
}

impl Drop for PrivateStream<'_> {
    fn drop(&mut self) {
        let spare = match self.is_busy {
            true => Some(self.stream),
            false => {
                let pool = self.driver.pool();
                pool.put_stream(self.context, self.id, self.stream)
            }
        };
        if let Some(stream) = spare {
            // What it holds is done all the same; a failure leaves one stream too many.
            let _relaxed = Relaxed::new(self.driver);
            let _ = self.driver.stream_destroy(stream);
        }
    }
}
