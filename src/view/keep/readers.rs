//! The streams that still read the memory of owners, for a writer on another stream, which has to come after them.
//!
//! If the producer has a stream, the end of each reader comes back to it, and a writer waits there. If it has none, or the
//! driver has refused that, the reader's owner is kept until its work is done ([`until_done`](super::poll::until_done)); as
//! long as that is so, the reader stands here.

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::block::Use;
use crate::driver::{self, ContextGuard, Driver, Lease, Relaxed};
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

/// What the driver answers about an event that was recorded in a capture which has ended.
const INVALID_VALUE: u32 = 1;

struct Readers {
    /// By the owner whose memory they read ([`Owner::shared_payload`]).
    of: BTreeMap<usize, Vec<Reader>>,
    /// For how many owners there is room, before those are taken out that nothing reads any more.
    room: usize,
}

struct Reader {
    work: Work,
    /// Gone once the owner is kept no more.
    kept: Weak<()>,
}

enum Work {
    /// Has a mark after it, which is gone once it has been reached.
    Marked(Use, Weak<Lease<'static>>),
    /// Cannot be marked, as its stream was captured.
    Unmarked,
    /// May be in these contexts, of which the driver has told nothing more; the owner is kept for ever.
    Lost(Option<Use>),
}

impl Reader {
    /// Whether it may still read.
    fn reads(&self) -> bool {
        let count = match &self.work {
            Work::Marked(_, mark) => mark.strong_count(),
            Work::Unmarked | Work::Lost(_) => self.kept.strong_count(),
        };
        count > 0
    }

    /// Whether it is done once `later` is: both are marks of one stream.
    fn is_before(&self, later: &Self) -> bool {
        match (&self.work, &later.work) {
            (Work::Marked(one, _), Work::Marked(other, _)) => {
                one.is_of_one_stream() && one == other
            }
            _ => false,
        }
    }
}

fn lock() -> MutexGuard<'static, Readers> {
    // Nothing panics under the lock.
    READERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Notes work that reads the owner's memory: the reader stands here as long as the mark, or if there is none what is returned.
pub(super) fn note(owner: &Owner, used: Use, mark: Option<&Arc<Lease<'static>>>) -> Arc<()> {
    let mut readers = lock();
    let of = readers.of(owner);
    let Some(mark) = mark else {
        let others = of.iter().filter(|at| matches!(at.work, Work::Unmarked));
        if let Some(kept) = others.filter_map(|at| at.kept.upgrade()).next() {
            return kept;
        }
        return put(of, Work::Unmarked);
    };
    put(of, Work::Marked(used, Arc::downgrade(mark)))
}

/// Notes work of which the driver has told nothing. Nothing in a forked child, where another thread of the parent's may have
/// had the lock.
pub(super) fn note_lost(owner: &Owner) {
    if let Ok(driver) = driver::driver() {
        let used = Use::anywhere(driver, None).ok();
        std::mem::forget(put(lock().of(owner), Work::Lost(used)));
    }
}

fn put(of: &mut Vec<Reader>, work: Work) -> Arc<()> {
    let kept = Arc::new(());
    let reader = Reader {
        work,
        kept: Arc::downgrade(&kept),
    };
    of.retain(|earlier| earlier.reads() && !earlier.is_before(&reader));
    of.push(reader);
    kept
}

/// Forgets a mark that a capture has recorded: it tells nothing of the work before.
pub(super) fn forget(mark: &Arc<Lease<'static>>) {
    for reader in lock().of.values_mut().flatten() {
        if matches!(&reader.work, Work::Marked(_, at) if Weak::as_ptr(at) == Arc::as_ptr(mark)) {
            reader.work = Work::Unmarked;
        }
    }
}

impl Readers {
    /// Those of an owner.
    fn of(&mut self, owner: &Owner) -> &mut Vec<Reader> {
        if self.of.len() >= self.room {
            self.of.retain(|_, of| of.iter().any(Reader::reads));
            self.room = 2 * self.of.len() + 16;
        }
        self.of.entry(id(owner).unwrap_or(0)).or_default()
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
    let (mut marks, mut lost) = (Vec::new(), Vec::new());
    for reader in lock().of(owner).iter().filter(|at| at.reads()) {
        match &reader.work {
            Work::Marked(_, mark) => marks.extend(mark.upgrade()),
            Work::Lost(used) => lost.push((*used, reader.kept.clone())),
            Work::Unmarked => return Err(unmarked(stream)),
        }
    }
    if !lost.is_empty() {
        let (_before, _relaxed) = (ContextGuard::around(driver)?, Relaxed::new(driver)?);
        for (used, _) in &lost {
            let used = used.map_or_else(|| Use::anywhere(driver, None), Ok)?;
            for site in used.sites(driver)? {
                site.wait(driver)?;
            }
        }
        let is_lost = |at: &Reader| lost.iter().any(|(_, kept)| kept.ptr_eq(&at.kept));
        lock().of(owner).retain(|at| !is_lost(at));
    }
    if marks.is_empty() {
        return Ok(());
    }
    // Nothing runs in a context that is gone.
    marks.retain(|mark| mark.has_context());
    match refuse_wait(stream, driver.capture(stream)?) {
        None => marks
            .iter()
            .try_for_each(|mark| mark.wait(stream))
            .map_err(|error| match error.code() {
                // The mark is of a capture that began and ended after its stream was asked.
                Some(INVALID_VALUE) => unmarked(stream),
                _ => error.into(),
            }),
        Some(refused) => {
            // A capture forbids to ask about events, but in this mode.
            let (_before, _relaxed) = (ContextGuard::around(driver)?, Relaxed::new(driver)?);
            let is_reached = |mark: &Arc<Lease<'static>>| mark.query() == Ok(true);
            match marks.iter().all(is_reached) {
                true => Ok(()),
                false => Err(refused.into()),
            }
        }
    }
}

fn unmarked(stream: Stream) -> Error {
    Violation::new(Rule::CaptureConsumer, Field::Argument("stream"), stream)
        .with_hint(UNMARKED)
        .into()
}

#[cfg(test)]
mod tests;
