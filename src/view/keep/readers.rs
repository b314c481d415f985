//! The streams that still read the memory of owners, for a writer on another stream, which has to come after them.
//!
//! If the producer has a stream, the end of each reader comes back to it, and a writer waits there. If it has none, or the
//! driver has refused that, the reader's owner is kept until its work is done ([`until_done`](super::poll::until_done)); as
//! long as that is so, the reader stands here.

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::block::{Site, Use};
use crate::driver::{ContextGuard, Driver, Lease, Relaxed};
use crate::error::Error;
use crate::protocol::rule::{Field, Rule, Violation};
use crate::protocol::stream::{Stream, refuse_wait};
use crate::view::Owner;

static READERS: Mutex<Readers> = Mutex::new(Readers {
    of: BTreeMap::new(),
    room: 0,
});

/// What to do about a reader whose stream was captured between its work and its end.
const UNMARKED: &str = "a reader's stream was captured before its guard ended: end the guard first, or write once it is done";

struct Readers {
    /// By the owner whose memory they read ([`Owner::shared_payload`]).
    of: BTreeMap<usize, Vec<Reader>>,
    /// For how many owners there is room, before those are taken out that nothing reads any more.
    room: usize,
}

struct Reader {
    /// `None` if the driver has told nothing of the work, and the owner is kept for ever.
    used: Option<Use>,
    /// The mark after the work; gone once it has been reached. `None` if the stream could not be marked.
    mark: Option<Weak<Lease<'static>>>,
    /// Gone once the owner is kept no more.
    kept: Weak<()>,
}

impl Reader {
    /// Whether it may still read.
    fn reads(&self) -> bool {
        let kept = || self.kept.strong_count();
        self.mark.as_ref().map_or_else(kept, Weak::strong_count) > 0
    }

    /// Whether it is done once `later` is: both are marks of one stream.
    fn is_before(&self, later: &Self) -> bool {
        let are_marked = self.mark.is_some() && later.mark.is_some();
        let is_one = self.used.is_some_and(|used| used.is_of_one_stream());
        are_marked && is_one && self.used == later.used
    }
}

fn lock() -> MutexGuard<'static, Readers> {
    // Nothing panics under the lock.
    READERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Notes work that reads the owner's memory: the reader stands here as long as the mark, or if there is none what is returned.
pub(super) fn note(
    owner: &Owner,
    used: Option<Use>,
    mark: Option<&Arc<Lease<'static>>>,
) -> Arc<()> {
    let kept = Arc::new(());
    let reader = Reader {
        used,
        mark: mark.map(Arc::downgrade),
        kept: Arc::downgrade(&kept),
    };
    let mut readers = lock();
    if readers.of.len() >= readers.room {
        readers.of.retain(|_, of| of.iter().any(Reader::reads));
        readers.room = 2 * readers.of.len() + 16;
    }
    let of = readers.of.entry(id(owner).unwrap_or(0)).or_default();
    of.retain(|earlier| earlier.reads() && !earlier.is_before(&reader));
    of.push(reader);
    kept
}

/// Forgets a mark that a capture has recorded: it tells nothing of the work before.
pub(super) fn forget(mark: &Arc<Lease<'static>>) {
    for reader in lock().of.values_mut().flatten() {
        let is_it = |other: &mut Weak<_>| Weak::as_ptr(other) == Arc::as_ptr(mark);
        reader.mark.take_if(is_it);
    }
}

fn id(owner: &Owner) -> Option<usize> {
    owner
        .shared_payload()
        .map(|payload| NonNull::addr(payload).get())
}

/// Whether something may read the owner's memory still, so that a writer has to [come after](writes_after) it.
pub(crate) fn are_there(owner: &Owner) -> bool {
    let reads = |of| {
        lock()
            .of
            .get(&of)
            .is_some_and(|of| of.iter().any(Reader::reads))
    };
    id(owner).is_some_and(reads)
}

/// Makes `stream`, whose context is current, wait for what still reads the owner's memory.
///
/// # Errors
/// The driver's refusal; `capture-consumer` or its like if a capture forbids the wait, or if a reader cannot be waited for
/// whose stream was captured meanwhile, until it is done.
pub(crate) fn writes_after(
    driver: &'static dyn Driver,
    stream: Stream,
    owner: &Owner,
) -> Result<(), Error> {
    let (mut marks, mut is_known) = (Vec::new(), true);
    let of = id(owner).unwrap_or(0);
    for reader in lock()
        .of
        .get(&of)
        .into_iter()
        .flatten()
        .filter(|at| at.reads())
    {
        match (&reader.mark, reader.used) {
            (Some(mark), _) => marks.extend(mark.upgrade()),
            (None, Some(_)) => {
                let refused =
                    Violation::new(Rule::CaptureConsumer, Field::Argument("stream"), stream);
                return Err(refused.with_hint(UNMARKED).into());
            }
            (None, None) => is_known = false,
        }
    }
    if !is_known {
        let _relaxed = Relaxed::new(driver)?;
        Site::here(driver)?.wait(driver)?;
    }
    match (&marks[..], refuse_wait(stream, driver.capture(stream)?)) {
        (marks, None) => Ok(marks.iter().try_for_each(|mark| mark.wait(stream))?),
        (marks, Some(refused)) => {
            let _before = ContextGuard::around(driver)?;
            for mark in marks {
                if !mark.is_reached()? {
                    return Err(refused.into());
                }
            }
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests;
