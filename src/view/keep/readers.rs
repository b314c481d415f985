//! The streams that still read the memory of owners, for a writer on another stream, which has to come after them.
//!
//! If the producer has a stream, the end of each reader comes back to it, and a writer waits there. If it has none, or the
//! driver has refused that, the reader's owner is kept until its work is done ([`until_done`](super::poll::until_done)); as
//! long as that is so, the reader stands here.

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::block::{StreamMark, Use};
use crate::driver::{self, Context, Driver, DriverError, Relaxed, twice};
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

/// The driver's answer about an event that was recorded in a capture which has ended.
const INVALID_VALUE: u32 = 1;

struct Readers {
    /// By the owner whose memory they read ([`Owner::shared_payload`]).
    of: BTreeMap<usize, Of>,
    /// For how many owners there is room, before those are taken out that nothing reads any more.
    room: usize,
}

/// Those of one owner.
#[derive(Default)]
struct Of {
    readers: Vec<Reader>,
    /// For how many there is room, if they are not [few](FEW), before those are taken out that read no more.
    room: usize,
}

/// As many are looked at whenever one comes.
const FEW: usize = 64;

struct Reader {
    work: Work,
    /// Gone once the owner is kept no more.
    kept: Weak<()>,
}

enum Work {
    /// Has a mark after it, which is gone once it has been reached.
    Marked(Use, Weak<StreamMark>, Recorded),
    /// Cannot be marked, as its stream was captured.
    Unmarked,
    /// May be in these contexts, of which the driver has told nothing more, or else in this one, and any that is known; the
    /// owner is kept for ever.
    Lost(Option<Use>, Option<Context>),
}

/// When a mark was recorded: after the one moment, and before the other. Threads that record on one stream note that
/// in any order.
#[derive(Clone, Copy)]
struct Recorded {
    after: Moment,
    before: Moment,
}

/// A point in time: each is larger than all that were taken before.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
pub(super) struct Moment(u64);

impl Moment {
    pub(super) fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::SeqCst))
    }
}

impl Reader {
    /// Whether it may still read.
    fn reads(&self) -> bool {
        let count = match &self.work {
            Work::Marked(_, mark, _) => mark.strong_count(),
            Work::Unmarked | Work::Lost(..) => self.kept.strong_count(),
        };
        count > 0
    }

    /// Whether it is done once `later` is: both are marks of one stream, recorded one after the other.
    fn is_before(&self, later: &Self) -> bool {
        match (&self.work, &later.work) {
            (Work::Marked(one, _, first), Work::Marked(other, _, second)) => {
                one.is_of_one_stream() && one == other && first.before < second.after
            }
            _ => false,
        }
    }
}

fn lock() -> MutexGuard<'static, Readers> {
    // Nothing panics under the lock.
    READERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Notes work that reads the owner's memory, and its mark, which was recorded after `begun`: the reader stands here as long as
/// the mark, or if there is none what is returned.
pub(super) fn note(
    owner: &Owner,
    used: Use,
    mark: Option<&Arc<StreamMark>>,
    begun: Moment,
) -> Arc<()> {
    let recorded = Recorded {
        after: begun,
        before: Moment::next(),
    };
    let mut readers = lock();
    let of = readers.of(owner);
    let Some(mark) = mark else {
        let mut others = of
            .readers
            .iter()
            .filter(|at| matches!(at.work, Work::Unmarked));
        if let Some(kept) = others.find_map(|at| at.kept.upgrade()) {
            return kept;
        }
        return of.put(Work::Unmarked);
    };
    of.put(Work::Marked(used, Arc::downgrade(mark), recorded))
}

/// Notes work of which the driver has told nothing: in `context`, if that is known. Nothing in a forked child, where another
/// thread of the parent's may have had the lock.
pub(super) fn note_lost(owner: &Owner, context: Option<Context>) {
    if let Ok(driver) = driver::driver() {
        let used = Use::lost(driver, context).ok();
        std::mem::forget(lock().of(owner).put(Work::Lost(used, context)));
    }
}

impl Of {
    fn put(&mut self, work: Work) -> Arc<()> {
        let kept = Arc::new(());
        let reader = Reader {
            work,
            kept: Arc::downgrade(&kept),
        };
        if self.readers.len() < FEW || self.readers.len() >= self.room {
            self.readers
                .retain(|earlier| earlier.reads() && !earlier.is_before(&reader));
            self.room = 2 * self.readers.len();
        }
        self.readers.push(reader);
        kept
    }
}

/// Forgets a mark that a capture has recorded: it tells nothing of the work before.
pub(super) fn forget(mark: &Arc<StreamMark>) {
    for reader in lock().of.values_mut().flat_map(|of| &mut of.readers) {
        if matches!(&reader.work, Work::Marked(_, at, _) if Weak::as_ptr(at) == Arc::as_ptr(mark)) {
            reader.work = Work::Unmarked;
        }
    }
}

impl Readers {
    fn of(&mut self, owner: &Owner) -> &mut Of {
        if self.of.len() >= self.room {
            self.of.retain(|_, of| of.readers.iter().any(Reader::reads));
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

/// Whether something may read the owner's memory still, so that a writer has to [come after](Before) it.
pub(crate) fn are_there(owner: &Owner) -> bool {
    let reads = |of| {
        let readers = lock();
        let of = readers.of.get(&of);
        of.is_some_and(|of| of.readers.iter().any(Reader::reads))
    };
    id(owner).is_some_and(reads)
}

/// The readers that a writer has to wait for: nothing has waited yet. What keeps their streams may end with it, and run any code.
#[derive(Default)]
pub(crate) struct Before {
    marks: Vec<Arc<StreamMark>>,
    /// The marks that need no wait.
    over: Vec<Arc<StreamMark>>,
    lost: Vec<(Option<Use>, Option<Context>, Weak<()>)>,
}

fn are_reached(driver: &dyn Driver, marks: &[Arc<StreamMark>]) -> Result<bool, DriverError> {
    // A capture forbids to ask about events, but in this mode.
    let _relaxed = Relaxed::new(driver)?;
    Ok(marks.iter().all(|mark| mark.query() == Ok(true)))
}

impl Before {
    /// Finds what still reads the owner's memory, for a writer on `stream`, whose context is current.
    ///
    /// # Errors
    /// `capture-consumer` or its like if a capture forbids to wait for it, or if a reader cannot be waited for whose stream was
    /// captured meanwhile, until it is done; the driver's refusal to tell.
    pub(crate) fn find(
        &mut self,
        driver: &'static dyn Driver,
        stream: Stream,
        owner: &Owner,
    ) -> Result<(), Error> {
        for reader in lock().of(owner).readers.iter().filter(|at| at.reads()) {
            match &reader.work {
                Work::Marked(_, mark, _) => self.marks.extend(mark.upgrade()),
                Work::Lost(used, context) => {
                    self.lost.push((*used, *context, reader.kept.clone()));
                }
                Work::Unmarked => return Err(unmarked(stream)),
            }
        }
        // Nothing runs in a context that is gone.
        let marks = std::mem::take(&mut self.marks).into_iter();
        (self.marks, self.over) = marks.partition(|mark| mark.has_context());
        if !self.marks.is_empty()
            && let Some(refused) = refuse_wait(stream, driver.capture(stream)?)
        {
            if !are_reached(driver, &self.marks)? {
                return Err(refused.into());
            }
            self.over.append(&mut self.marks);
        }
        Ok(())
    }

    /// Whether all of it is done by now.
    ///
    /// # Errors
    /// The driver's refusal to tell.
    pub(crate) fn is_over(&self, driver: &dyn Driver) -> Result<bool, DriverError> {
        Ok(self.lost.is_empty() && are_reached(driver, &self.marks)?)
    }

    /// Makes the writer's stream wait for it, and for work of which nothing is known the host.
    ///
    /// # Errors
    /// The driver's refusal; `capture-consumer` for the mark of a capture.
    pub(crate) fn wait(
        &self,
        driver: &'static dyn Driver,
        stream: Stream,
        owner: &Owner,
    ) -> Result<(), Error> {
        if !self.lost.is_empty() {
            let _relaxed = Relaxed::new(driver)?;
            for (used, context, _) in &self.lost {
                let used = used.map_or_else(|| Use::lost(driver, *context), Ok)?;
                for site in used.sites(driver)? {
                    site.wait(driver)?;
                }
            }
            let is_lost = |at: &Reader| self.lost.iter().any(|(.., kept)| kept.ptr_eq(&at.kept));
            lock().of(owner).readers.retain(|at| !is_lost(at));
        }
        // Once more: a refusal says nothing of the mark unless it is told again.
        let waits = (self.marks.iter()).try_for_each(|mark| twice(|| mark.wait(stream)));
        waits.map_err(|error| match error.code() {
            // The mark is of a capture that began and ended after its stream was asked.
            Some(INVALID_VALUE) => unmarked(stream),
            _ => error.into(),
        })
    }
}

fn unmarked(stream: Stream) -> Error {
    Violation::new(Rule::CaptureConsumer, Field::Argument("stream"), stream)
        .with_hint(UNMARKED)
        .into()
}

#[cfg(test)]
mod tests;
