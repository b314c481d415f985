//! What a view does about streams: being ready on another one, and waiting.

use super::CaiView;
use crate::driver;
use crate::error::Error;
use crate::protocol::stream::{Request, Stream, SyncPolicy};

impl CaiView {
    /// A view of the same memory that is ready on `stream`.
    ///
    /// One event is recorded on the ready stream and waited for by `stream`; none where the data is ready
    /// there already. For consumers that do not look at the ready stream: work that is enqueued on
    /// `stream` from now on finds the data ready. The producer stream stays what it is.
    ///
    /// # Errors
    /// A [`Violation`](crate::protocol::rule::Violation) where no order can be made (a graph capture
    /// forbids it, another thread's per-thread stream), or the driver's refusal.
    pub fn on(&self, stream: Stream) -> Result<Self, Error> {
        self.order(Request::Stream(stream), SyncPolicy::Event)?;
        Ok(self.ready_on(stream))
    }

    /// Blocks the calling thread until the data is ready; a view with nothing left to wait for.
    ///
    /// # Errors
    /// As [`CaiView::on`]; a stream that is being captured cannot be waited for.
    pub fn synchronize(&self) -> Result<Self, Error> {
        self.order(Request::Host, SyncPolicy::Event)?;
        Ok(self.ready_on(Stream::None))
    }

    /// The same memory with another ready stream, on which the caller has made it ready. Data that is
    /// ready everywhere stays so.
    pub(crate) fn ready_on(&self, stream: Stream) -> Self {
        if self.ready() == Stream::None {
            self.clone()
        } else {
            self.clone().with_ready(stream)
        }
    }

    /// Whether [`CaiView::order`] will do anything at all; a few comparisons.
    #[inline]
    pub(crate) fn needs_order(&self, request: Request, policy: SyncPolicy) -> bool {
        // The usual cases first: they need no `Place`.
        request.needs_order(self.ready())
            && driver::needed(self.ready(), request, &self.place(), policy)
    }

    /// Makes whoever asks wait for the data, by the policy.
    pub(crate) fn order(&self, request: Request, policy: SyncPolicy) -> Result<(), Error> {
        if self.needs_order(request, policy) {
            driver::order(
                driver::driver()?,
                self.ready(),
                request,
                &self.place(),
                policy,
            )?;
        }
        Ok(())
    }
}
