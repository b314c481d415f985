//! The threads that free what only a call that waits for a context can free, one for each device.
//!
//! Behind work that has nothing to do with it, such memory would pile up; so what waits here may be taken by the next
//! copy that it is large enough for, and not more than twice as large. A block that work of several devices may use goes
//! from one device's thread to the next, so that none waits for another device. What the driver refuses to wait for is
//! kept, and tried again: it is never given back before its use is over.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::block::{Block, Home, Memory, Site, Use};
use super::held::Held;
use super::room;
use crate::driver::{ContextGuard, Driver, OwnThread, Relaxed};
use crate::process::signals;

/// What waits to be freed, by the device that is waited for: one shelf for each thread.
static SHELVES: Mutex<Vec<Shelf>> = Mutex::new(Vec::new());
/// Signalled when something comes.
static CHANGED: Condvar = Condvar::new();
/// How long what is here may be taken over, or its stream be marked by a call for it, before a call waits for a context: until
/// that returns, other threads enqueue nothing there (docs/cusim.md). So they meet few of these calls, however much ends.
const GRACE: Duration = Duration::from_millis(10);
/// The pause before the driver is asked again what it has refused.
const PAUSE: Duration = Duration::from_millis(10);

struct Shelf {
    ordinal: i32,
    /// Whether it could be started. Without it, this has what callers could not end.
    has_thread: bool,
    /// The oldest first.
    waiting: VecDeque<Waiting>,
    /// What the thread waits for a device for, until it is taken.
    settling: Option<Waiting>,
}

/// What ends here, and whether work may still use it.
struct Waiting {
    held: Held,
    since: Instant,
    is_in_use: bool,
    /// The contexts that are waited for first; the call that frees a block waits for its own. `None` if they are not known
    /// yet, or the use waits for an event.
    sites: Option<Vec<Site>>,
}

type Shelves = MutexGuard<'static, Vec<Shelf>>;

fn lock() -> Shelves {
    // Nothing panics under the lock; a poisoned one still holds a sound list.
    SHELVES.lock().unwrap_or_else(PoisonError::into_inner)
}

fn wait(shelves: Shelves) -> Shelves {
    CHANGED
        .wait(shelves)
        .unwrap_or_else(PoisonError::into_inner)
}

fn wait_for(shelves: Shelves, most: Duration) -> Shelves {
    let paused = CHANGED.wait_timeout(shelves, most);
    paused.unwrap_or_else(PoisonError::into_inner).0
}

/// Ends `held` once its contexts have done their work. If `is_in_use`, its use is not over before that. Calls no driver, unless
/// there is no thread for it: then the caller waits, for no longer than the [limit](room::LIMIT) if the driver refuses that.
pub(super) fn later(mut held: Held, is_in_use: bool) {
    // It waits for something else now, and the thread is told.
    held.set_stuck(false);
    let waiting = Waiting {
        sites: (!is_in_use).then(Vec::new),
        since: Instant::now(),
        held,
        is_in_use,
    };
    let alone = put(&mut lock(), waiting);
    if let Some(alone) = alone {
        let driver = alone.held.driver();
        let _before = ContextGuard::around(driver);
        let _relaxed = Relaxed::new(driver);
        if let Some(left) = alone.finish() {
            leave(&mut lock(), left);
        }
    }
}

/// Leaves what a caller could not end, to the thread once that has been started.
fn leave(shelves: &mut Vec<Shelf>, left: Waiting) {
    let (driver, ordinal) = (left.held.driver(), left.ordinal());
    has_thread(shelves, driver, ordinal);
    shelf(shelves, ordinal).waiting.push_back(left);
    // Another call may have started the thread, which has found nothing yet.
    CHANGED.notify_all();
}

/// Has the threads look for what a thread waits for, which [has no time](GRACE).
pub(super) fn hurry() {
    // Without the lock a thread that has just looked would miss it.
    let _shelves = lock();
    CHANGED.notify_all();
}

/// Starts the thread of a device, if it could be started, so that a deleter finds it.
pub(super) fn start(driver: &'static dyn Driver, ordinal: i32) {
    has_thread(&mut lock(), driver, ordinal);
}

fn has_thread(shelves: &mut Vec<Shelf>, driver: &'static dyn Driver, ordinal: i32) -> bool {
    if !shelves.iter().any(|shelf| shelf.ordinal == ordinal) {
        shelves.push(Shelf {
            ordinal,
            has_thread: false,
            waiting: VecDeque::new(),
            settling: None,
        });
    }
    let shelf = shelf(shelves, ordinal);
    // Under Miri there is none: every thread has to end before the process does.
    if !shelf.has_thread && !cfg!(miri) {
        let thread = std::thread::Builder::new().name("cai-dlpack-free".into());
        shelf.has_thread = thread.spawn(move || run(driver, ordinal)).is_ok();
    }
    shelf.has_thread
}

/// Puts it on the shelf of the device that it waits for; back if there is no thread for it.
fn put(shelves: &mut Vec<Shelf>, waiting: Waiting) -> Option<Waiting> {
    let ordinal = waiting.ordinal();
    if !has_thread(shelves, waiting.held.driver(), ordinal) {
        return Some(waiting);
    }
    let (of, is_stuck) = (waiting.held.ordinal(), waiting.held.is_stuck());
    shelf(shelves, ordinal).waiting.push_back(waiting);
    // No thread is told that it is still stuck.
    if !is_stuck {
        CHANGED.notify_all();
        // A thread that waits for memory may be the one that can take it.
        room::changed(of);
    }
    None
}

fn shelf(shelves: &mut [Shelf], ordinal: i32) -> &mut Shelf {
    let found = shelves.iter_mut().find(|shelf| shelf.ordinal == ordinal);
    found.expect("a shelf comes before its thread, and stays")
}

/// Takes the smallest block over that has room for `nbytes`, up to twice that, and that nothing uses any more.
pub(super) fn take(memory: Memory, nbytes: u64, home: Home) -> Option<Block> {
    let fits = nbytes..=nbytes.saturating_mul(2);
    let size_of = |waiting: &Waiting| {
        let block = waiting.held.block()?;
        let is_alike = (block.memory, block.home) == (memory, home);
        let is_free = !waiting.is_in_use && is_alike && fits.contains(&block.nbytes);
        is_free.then_some(block.nbytes)
    };
    let mut shelves = lock();
    let sizes = shelves.iter().enumerate().flat_map(|(shelf, shelves)| {
        let waiting = shelves.waiting.iter().enumerate();
        waiting.filter_map(move |(at, waiting)| Some((size_of(waiting)?, shelf, at)))
    });
    let (_, shelf, at) = sizes.min()?;
    shelves[shelf].waiting.remove(at)?.held.into_block()
}

/// Takes what waits for a whole context, as no thread of ours marks the stream that uses it: `used`, which the caller can
/// mark.
pub(super) fn take_used(used: Use) -> Vec<Held> {
    let mut taken = Vec::new();
    for shelf in lock().iter_mut() {
        let (ours, others): (VecDeque<_>, VecDeque<_>) = std::mem::take(&mut shelf.waiting)
            .into_iter()
            .partition(|waiting| waiting.is_used_by(used));
        shelf.waiting = others;
        let settling = &mut shelf.settling;
        let settling = settling.take_if(|waiting| waiting.is_used_by(used));
        taken.extend(ours.into_iter().chain(settling).map(|waiting| waiting.held));
    }
    taken
}

fn run(driver: &'static dyn Driver, ordinal: i32) {
    signals::block();
    room::enter();
    let mut own_thread = OwnThread::default();
    let mut shelves = lock();
    loop {
        let own = &mut shelf(&mut shelves, ordinal).waiting;
        let due = own.iter().position(Waiting::is_due);
        let Some(waiting) = due.and_then(|at| own.remove(at)) else {
            let soonest = own.iter().map(|waiting| waiting.since).min();
            shelves = match soonest {
                Some(since) => wait_for(shelves, GRACE.saturating_sub(since.elapsed())),
                None => wait(shelves),
            };
            continue;
        };
        own_thread.relax(driver);
        let left;
        (shelves, left) = waiting.step_on(shelves, ordinal);
        let is_stuck = left.as_ref().is_some_and(|left| left.held.is_stuck());
        if let Some(alone) = left.and_then(|left| put(&mut shelves, left)) {
            drop(shelves);
            let left = alone.finish();
            shelves = lock();
            left.into_iter().for_each(|left| leave(&mut shelves, left));
        }
        let mut waiting = shelf(&mut shelves, ordinal).waiting.iter();
        if is_stuck && waiting.all(|waiting| waiting.held.is_stuck() || !waiting.is_due()) {
            shelves = wait_for(shelves, PAUSE);
        }
    }
}

impl Waiting {
    /// The device that is waited for next.
    fn ordinal(&self) -> i32 {
        let next = self.sites.as_ref().and_then(|sites| sites.last());
        next.map_or(self.held.ordinal(), |site| site.ordinal)
    }

    /// Whether its time is over, or a thread waits for its memory.
    fn is_due(&self) -> bool {
        self.since.elapsed() >= GRACE || room::is_wanted(self.held.ordinal())
    }

    /// Notes that the work which a context had at `begun` was waited for: what had ended by then is in use no more.
    fn settled_with(&mut self, site: &Site, begun: Instant) {
        if self.is_in_use && self.since < begun && site.is_of(self.held.used()) {
            self.sites = Some(Vec::new());
            self.is_in_use = false;
        }
    }

    /// Whether it waits for a context as no other thread can name the stream of this use.
    fn is_used_by(&self, used: Use) -> bool {
        self.is_in_use && self.held.used() == used
    }

    /// Takes a [step](Self::step), without the lock. While it waits for a device it stays where it can be taken.
    fn step_on(mut self, mut shelves: Shelves, ordinal: i32) -> (Shelves, Option<Self>) {
        let Some(site) = self.sites.as_mut().and_then(Vec::pop) else {
            drop(shelves);
            let left = self.step();
            return (lock(), left);
        };
        let (driver, of, is_stuck) = (
            self.held.driver(),
            self.held.ordinal(),
            self.held.is_stuck(),
        );
        // Another thread may take it meanwhile, and end it.
        let kept = self.held.kept();
        shelf(&mut shelves, ordinal).settling = Some(self);
        if !is_stuck {
            room::changed(of);
        }
        drop(shelves);
        let begun = Instant::now();
        let is_settled = site.settle(driver);
        shelves = lock();
        let own = shelf(&mut shelves, ordinal);
        if is_settled {
            let waiting = own.waiting.iter_mut();
            waiting.for_each(|waiting| waiting.settled_with(&site, begun));
        }
        let left = own.settling.take();
        let left = left.map(|left| left.settled(site, is_settled));
        if kept.is_some() {
            drop(shelves);
            room::end_owner(kept);
            shelves = lock();
        }
        (shelves, left)
    }

    /// Goes on after the wait for a device, which is waited for once more if the driver has refused that.
    fn settled(mut self, site: Site, is_settled: bool) -> Self {
        self.held.set_stuck(!is_settled);
        if let Some(sites) = &mut self.sites
            && !is_settled
        {
            sites.push(site);
        }
        self
    }

    /// Waits for one device and returns what is left to wait for; ends it if there is none.
    fn step(mut self) -> Option<Self> {
        let Some(sites) = &mut self.sites else {
            self.sites = self.held.sites_of_use().ok().flatten();
            self.held.set_stuck(self.sites.is_none());
            return Some(self);
        };
        if let Some(site) = sites.pop() {
            let is_settled = site.settle(self.held.driver());
            return Some(self.settled(site, is_settled));
        }
        // SAFETY: its use is over, or is work of contexts that were just waited for, or of the one that the call waits
        // for.
        let mut left = unsafe { self.held.end() }?;
        left.set_stuck(true);
        Some(Self { held: left, ..self })
    }

    /// Takes all steps on the caller's thread; returns what the driver refuses to wait for, as in a context that has failed.
    fn finish(self) -> Option<Self> {
        let begun = Instant::now();
        let mut left = Some(self);
        while let Some(waiting) = left {
            left = waiting.step();
            if left.as_ref().is_some_and(|left| left.held.is_stuck()) {
                if begun.elapsed() > room::LIMIT {
                    return left;
                }
                std::thread::sleep(PAUSE);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests;
