//! Keeps events for the next order: creating and destroying one costs as much as recording it.
//!
//! An event is taken out, recorded, waited for and put back at once: `cuStreamWaitEvent` waits for
//! the mark that the event has at the time of the call, so the event is free to be marked again.
//! While it is out no other thread has it. The lock is held to pop and to push, never across a driver
//! call, and nothing that runs under it can call back.
//!
//! Events belong to their context and die with it. A pool is kept per context *identity*
//! (`cuCtxGetId`): a new context may get a dead one's handle, and then a kept event would be a
//! handle to nothing, or to another library's event. What a dead context leaves behind is forgotten, not
//! destroyed: the driver has done that.

#[cfg(test)]
mod tests;

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{Context, ContextId, Driver, DriverError, Event};
use crate::protocol::stream::Stream;

/// Events kept per context; more than this many orders at one moment is rare, and costs a create.
const KEPT: usize = 64;

/// The idle events of one driver.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    contexts: Mutex<Vec<Kept>>,
}

#[derive(Debug)]
struct Kept {
    context: Context,
    id: ContextId,
    events: Vec<Event>,
}

impl Pool {
    /// An empty pool.
    pub(crate) const fn new() -> Pool {
        Pool {
            contexts: Mutex::new(Vec::new()),
        }
    }

    /// The idle events, over all contexts.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.lock().iter().map(|kept| kept.events.len()).sum()
    }

    /// Whether no event is kept.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// An idle event of this very context. Events of a dead one with the same handle are forgotten.
    fn take(&self, context: Context, id: ContextId) -> Option<Event> {
        let mut contexts = self.lock();
        let at = contexts.iter().position(|kept| kept.context == context)?;
        if contexts[at].id != id {
            contexts.swap_remove(at);
            return None;
        }
        contexts[at].events.pop()
    }

    /// Keeps an event; hands it back if there are enough, to be destroyed outside the lock.
    fn put(&self, context: Context, id: ContextId, event: Event) -> Option<Event> {
        let mut contexts = self.lock();
        let kept = match contexts.iter().position(|kept| kept.context == context) {
            Some(at) => &mut contexts[at],
            None => {
                contexts.push(Kept {
                    context,
                    id,
                    events: Vec::new(),
                });
                contexts.last_mut()?
            }
        };
        if kept.id != id {
            // Another thread has met the context's successor: this event is dead.
            return None;
        }
        if kept.events.len() >= KEPT {
            return Some(event);
        }
        kept.events.push(event);
        None
    }

    /// Drops a context's events without a call: the context is gone, and they with it.
    fn forget(&self, context: Context) {
        self.lock().retain(|kept| kept.context != context);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Kept>> {
        // Nothing panics under the lock; a poisoned one still holds a sound list.
        self.contexts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An event taken from the pool, recorded. Given back exactly once, by drop.
pub(super) struct Lease<'d> {
    driver: &'d dyn Driver,
    context: Context,
    id: ContextId,
    event: Event,
}

impl<'d> Lease<'d> {
    /// An event of `context`, which is current, recorded on `stream`.
    ///
    /// A record that fails as for a dead event is tried with a new one, once. If that succeeds the kept ones are dead
    /// and forgotten; else the stream is at fault, and they stay.
    pub(super) fn recorded(
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
        let Some(event) = driver.pool().take(context, id) else {
            return new_event(driver, stream).map(lease);
        };
        let kept = lease(event);
        match driver.event_record(event, stream) {
            Ok(()) => return Ok(kept),
            Err(error) if !is_death(&error) => return Err(error),
            Err(_) => {}
        }
        let new = new_event(driver, stream)?;
        std::mem::forget(kept);
        driver.pool().forget(context);
        Ok(lease(new))
    }

    /// Makes `stream` wait for the mark.
    pub(super) fn wait(self, stream: Stream) -> Result<(), DriverError> {
        self.driver.event_wait(stream, self.event)
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        if let Some(event) = self.driver.pool().put(self.context, self.id, self.event) {
            // One event too many; a failure to destroy it changes nothing for the caller.
            let _ = self.driver.event_destroy(event);
        }
    }
}

/// A new event of the current context, recorded on `stream`.
fn new_event(driver: &dyn Driver, stream: Stream) -> Result<Event, DriverError> {
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

/// The codes of a driver for an event whose context is gone: `CUDA_ERROR_INVALID_CONTEXT`,
/// `CUDA_ERROR_INVALID_HANDLE`, `CUDA_ERROR_CONTEXT_IS_DESTROYED`.
fn is_death(error: &DriverError) -> bool {
    matches!(error.code(), Some(201 | 400 | 709))
}
