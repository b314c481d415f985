//! A wait of the host that has begun: the thread goes on, and asks from time to time whether it is over.

use std::sync::{Arc, OnceLock};
use std::thread;

use super::{Context, ContextGuard, Driver, DriverError, Lease, Relaxed};
use crate::process::signals;

/// A wait of the host for a stream, for whole contexts, or for both. Its drop gives the wait up; nothing else changes.
pub(crate) struct Pending {
    driver: &'static dyn Driver,
    event: Option<Lease<'static>>,
    contexts: Vec<ContextWait>,
}

impl Pending {
    pub(super) fn new(
        driver: &'static dyn Driver,
        event: Option<Lease<'static>>,
        contexts: Vec<ContextWait>,
    ) -> Self {
        Self {
            driver,
            event,
            contexts,
        }
    }

    /// Returns whether nothing is left to wait for. Does not block; the calling thread's context is current again
    /// afterwards.
    ///
    /// # Errors
    /// The driver's: of the work that is waited for, too.
    pub(crate) fn is_over(&self) -> Result<bool, DriverError> {
        let is_reached = self.event.as_ref().map_or(Ok(true), |event| {
            // A capture on another thread forbids the question, and would be invalidated by it.
            let _relaxed = Relaxed::new(self.driver)?;
            event.query()
        })?;
        let mut is_over = is_reached;
        for context in &self.contexts {
            is_over &= context.is_over()?;
        }
        Ok(is_over)
    }
}

/// A wait for all work of a context, on a thread of its own: the driver has no call that asks.
///
/// **A road not taken**: an event on the legacy default stream, which does not wait for non-blocking streams.
pub(super) struct ContextWait(Arc<OnceLock<Result<(), DriverError>>>);

impl ContextWait {
    /// Starts the thread. Without one, the caller waits.
    pub(super) fn begin(driver: &'static dyn Driver, context: Context) -> Self {
        let outcome = Arc::new(OnceLock::new());
        let wait = move || {
            let _there = ContextGuard::above(driver, context)?;
            driver.context_synchronize()
        };
        let of_thread = Arc::clone(&outcome);
        let started = thread::Builder::new()
            .name("cai-dlpack-wait".into())
            .spawn(move || {
                signals::block();
                of_thread.get_or_init(wait);
            });
        if started.is_err() {
            outcome.get_or_init(wait);
        }
        Self(outcome)
    }

    fn is_over(&self) -> Result<bool, DriverError> {
        match self.0.get() {
            None => Ok(false),
            Some(outcome) => outcome.map(|()| true),
        }
    }
}

#[cfg(test)]
mod tests;
