//! Ends a guard that was dropped: by the return edge, else by a wait of the host, else by nothing, which it tells.

use std::fmt;

use super::{ConsumeGuard, ReturnEdge, place_back};
use crate::driver::{self, Done, twice};
use crate::error::Error;
use crate::protocol::stream::{Stream, SyncPolicy};
use crate::view::streams::{Placed, is_elsewhere};
use crate::view::{CaiView, with_driver};

/// The outcome of a dropped guard's end; displayed, the words of its warning.
#[derive(Debug)]
pub(crate) enum Dropped {
    /// The producer's stream waits for the consumer.
    Edge,
    /// The host has waited for the consumer; instead of the return edge, if that was refused.
    HostWaited(Option<Error>),
    /// Nothing, and nothing is missing.
    NotNeeded,
    /// Nothing, for this reason: the caller orders what comes after.
    Nothing(&'static str),
    /// Nothing: the return edge was refused, and so was the wait of the host.
    Refused(Error, Error),
}

impl fmt::Display for Dropped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Edge => f.write_str("its return edge was made only now"),
            Self::HostWaited(None) => f.write_str("the host has waited for its consumer only now"),
            Self::HostWaited(Some(edge)) => {
                let text =
                    "the host has waited for its consumer only now, as no return edge can be made";
                write!(f, "{text}: {edge}")
            }
            Self::NotNeeded => f.write_str("nothing has to wait for its consumer"),
            Self::Nothing(why) => write!(f, "nothing waits for its consumer: {why}"),
            Self::Refused(edge, wait) => {
                let text = "nothing waits for its consumer: no return edge can be made";
                write!(f, "{text} ({edge}), and the host cannot wait ({wait})")
            }
        }
    }
}

impl ConsumeGuard {
    /// Ends a guard whose block was not left, in the first way that is not refused.
    pub(crate) fn end_dropped(&mut self) -> Dropped {
        let (consumer, mut done) = (self.nameable(), None);
        let made = self.close(CaiView::producer_moved, |guard, producer| {
            done = twice(|| guard.make_wait_for(consumer, producer))?.or(done);
            Ok(())
        });
        if let Err(edge) = made {
            let there = self.view.place();
            let place = place_back(there, consumer, there.requested);
            let wait = |driver| twice(|| driver::synchronize(driver, consumer.stream, &place));
            return match with_driver(wait) {
                Ok(()) => Dropped::HostWaited(Some(edge)),
                Err(wait) => Dropped::Refused(edge, wait),
            };
        }
        match (self.consumer.edge, self.consumer.policy, done) {
            (ReturnEdge::Unknown, ..) => Dropped::Nothing("the producer's stream is unknown"),
            (ReturnEdge::Event, SyncPolicy::None, _) => Dropped::Nothing("the policy is \"none\""),
            (_, _, Some(Done::Event(_) | Done::InGraph(..))) => Dropped::Edge,
            (_, _, Some(Done::HostWait(_))) => Dropped::HostWaited(None),
            (_, _, None | Some(Done::Nothing(_))) => Dropped::NotNeeded,
        }
    }

    /// Returns the consumer's stream as this thread can name it: for the default stream of another thread the legacy one
    /// of its context, which waits for it.
    fn nameable(&self) -> Placed {
        let placed = self.consumer.placed;
        match is_elsewhere(placed.thread) {
            false => placed,
            true => Placed {
                stream: Stream::LegacyDefault,
                thread: None,
                ..placed
            },
        }
    }
}

impl Drop for ConsumeGuard {
    /// Makes the return edge. If that is refused the host waits for the consumer instead. Both are refused in a capture, and by a
    /// driver that refuses each of them again: then nothing waits. On another thread than that of the
    /// consumer's per-thread default stream, the default streams of all threads are waited for.
    fn drop(&mut self) {
        self.end_dropped();
    }
}
