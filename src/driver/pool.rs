//! Keeps events for the next order, and streams for the next copy: creating and destroying one costs as much as
//! using it. [`lease`](super::lease) takes them out and puts them back.
//!
//! While one is out no other thread has it. The lock is held to pop and to push, never across a driver
//! call, and nothing that runs under it can call back.
//!
//! Events and streams belong to their context and die with it. A pool is kept per context *identity*
//! (`cuCtxGetId`): a new context may get a dead one's handle, and then a kept event would be a
//! handle to nothing, or to another library's event. What a dead context leaves behind is forgotten, not
//! destroyed: the driver has done that.

#[cfg(test)]
mod tests;

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{Context, ContextId, Event};
use crate::protocol::stream::Stream;

/// Events kept per context; more than this many orders at one moment is rare, and costs a create.
const KEPT: usize = 64;

/// Streams kept per context: as many threads copy to the CPU at one moment without creating one.
const STREAMS_KEPT: usize = 8;

/// The idle events and streams of one driver.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    contexts: Mutex<Vec<Kept>>,
}

#[derive(Debug)]
struct Kept {
    context: Context,
    id: ContextId,
    events: Vec<Event>,
    streams: Vec<Stream>,
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

    /// An idle event of this very context. What a dead one with the same handle had is forgotten.
    pub(super) fn take(&self, context: Context, id: ContextId) -> Option<Event> {
        self.with(context, id, |kept| kept.events.pop())?
    }

    /// Keeps an event; hands it back if there are enough, to be destroyed outside the lock.
    pub(super) fn put(&self, context: Context, id: ContextId, event: Event) -> Option<Event> {
        self.keep(context, id, |kept| keep(&mut kept.events, event, KEPT))?
    }

    /// An idle stream of this very context.
    pub(super) fn take_stream(&self, context: Context, id: ContextId) -> Option<Stream> {
        self.with(context, id, |kept| kept.streams.pop())?
    }

    /// Keeps a stream; hands it back if there are enough, to be destroyed outside the lock.
    pub(super) fn put_stream(
        &self,
        context: Context,
        id: ContextId,
        stream: Stream,
    ) -> Option<Stream> {
        self.keep(context, id, |kept| {
            keep(&mut kept.streams, stream, STREAMS_KEPT)
        })?
    }

    /// Acts on what is kept for this very context; forgets what a dead one with the same handle had.
    fn with<R>(
        &self,
        context: Context,
        id: ContextId,
        act: impl FnOnce(&mut Kept) -> R,
    ) -> Option<R> {
        let mut contexts = self.lock();
        let at = contexts.iter().position(|kept| kept.context == context)?;
        if contexts[at].id != id {
            contexts.swap_remove(at);
            return None;
        }
        Some(act(&mut contexts[at]))
    }

    /// As [`with`](Self::with), making room for a context that has none; `None` if another thread has met the
    /// context's successor: what comes back is dead then.
    fn keep<R>(
        &self,
        context: Context,
        id: ContextId,
        act: impl FnOnce(&mut Kept) -> R,
    ) -> Option<R> {
        let mut contexts = self.lock();
        let kept = match contexts.iter().position(|kept| kept.context == context) {
            Some(at) => &mut contexts[at],
            None => {
                contexts.push(Kept {
                    context,
                    id,
                    events: Vec::new(),
                    streams: Vec::new(),
                });
                contexts.last_mut()?
            }
        };
        (kept.id == id).then(|| act(kept))
    }

    /// Drops what a context has without a call: the context is gone, and they with it.
    pub(super) fn forget(&self, context: Context) {
        self.lock().retain(|kept| kept.context != context);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Kept>> {
        // Nothing panics under the lock; a poisoned one still holds a sound list.
        self.contexts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Adds `one` to those that are kept, or hands it back if there are `limit`.
fn keep<T>(kept: &mut Vec<T>, one: T, limit: usize) -> Option<T> {
    if kept.len() >= limit {
        return Some(one);
    }
    kept.push(one);
    None
}
