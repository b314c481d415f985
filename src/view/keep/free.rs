//! The threads that free what only a call that waits for the device can free, one for each device.
//!
//! Behind work that has nothing to do with it, such memory would pile up; so what waits here may be taken by the next
//! copy that it is large enough for, and not more than twice as large. A block that work of several devices may use goes
//! from one device's thread to the next, so that none waits for another device. What the driver refuses to wait for is
//! kept, and tried again: it is never given back before its use is over.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::block::{Block, Home, Memory, Site, Use};
use super::held::Held;
use crate::driver::{Driver, RELAXED};
use crate::process::signals;

/// What waits to be freed, by the device that is waited for: one shelf for each thread.
static SHELVES: Mutex<Vec<Shelf>> = Mutex::new(Vec::new());
/// Signalled when a block comes, and when one has been freed.
static CHANGED: Condvar = Condvar::new();
/// The pause before the driver is asked again what it has refused.
const PAUSE: Duration = Duration::from_millis(10);
/// How many times a thread has done with what it waited for.
static ENDED: AtomicU64 = AtomicU64::new(0);

struct Shelf {
    ordinal: i32,
    /// The oldest first.
    waiting: VecDeque<Waiting>,
    /// What the thread waits for a device for, until it is taken.
    settling: Option<Waiting>,
    /// The device of what the thread is freeing, or waiting for.
    busy_with: Option<i32>,
}

/// What ends here, and whether work may still use it.
struct Waiting {
    held: Held,
    is_in_use: bool,
    /// The devices that are waited for first; the call that frees a block waits for its own. `None` if they are not known
    /// yet.
    sites: Option<Vec<Site>>,
    /// Whether the driver has just refused to wait, or to name the devices.
    is_stuck: bool,
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

/// Ends `held` once its device has done its work. If `is_in_use`, its use is not over before that. On a thread whose
/// context may change.
pub(super) fn later(held: Held, is_in_use: bool) {
    let sites = match is_in_use {
        true => held.sites_of_use().ok(),
        false => Some(Vec::new()),
    };
    let waiting = Waiting {
        held,
        is_in_use,
        sites,
        is_stuck: false,
    };
    let alone = put(&mut lock(), waiting);
    if let Some(alone) = alone {
        alone.finish();
    }
}

/// Puts it on the shelf of the device that it waits for; back if there is no thread for it.
fn put(shelves: &mut Vec<Shelf>, waiting: Waiting) -> Option<Waiting> {
    let ordinal = waiting.ordinal();
    if !shelves.iter().any(|shelf| shelf.ordinal == ordinal) {
        let driver = waiting.held.driver();
        let thread = std::thread::Builder::new().name("cai-dlpack-free".into());
        if thread.spawn(move || run(driver, ordinal)).is_err() {
            return Some(waiting);
        }
        shelves.push(Shelf {
            ordinal,
            waiting: VecDeque::new(),
            settling: None,
            busy_with: None,
        });
    }
    shelf(shelves, ordinal).waiting.push_back(waiting);
    CHANGED.notify_all();
    None
}

fn shelf(shelves: &mut [Shelf], ordinal: i32) -> &mut Shelf {
    let found = shelves.iter_mut().find(|shelf| shelf.ordinal == ordinal);
    found.expect("a shelf comes before its thread, and stays")
}

/// Takes the smallest block over that has room for `nbytes`, up to twice that, and that nothing uses any more.
pub(super) fn take(memory: Memory, nbytes: u64, home: Home) -> Option<Block> {
    let fits = nbytes..=nbytes.saturating_mul(2);
    let size_of = |waiting: &Waiting| match &waiting.held {
        Held::Memory(block) => {
            let is_alike = (block.memory, block.home) == (memory, home);
            let is_free = !waiting.is_in_use && is_alike && fits.contains(&block.nbytes);
            is_free.then_some(block.nbytes)
        }
        Held::Owner(_) => None,
    };
    let mut shelves = lock();
    let sizes = shelves.iter().enumerate().flat_map(|(shelf, shelves)| {
        let waiting = shelves.waiting.iter().enumerate();
        waiting.filter_map(move |(at, waiting)| Some((size_of(waiting)?, shelf, at)))
    });
    let (_, shelf, at) = sizes.min()?;
    match shelves[shelf].waiting.remove(at)?.held {
        Held::Memory(block) => Some(block),
        Held::Owner(_) => None,
    }
}

/// Takes what waits for a whole device, as no other thread can name the stream that uses it, and that this thread can
/// name: `used` is its own.
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

/// Returns a number that grows whenever something has been freed.
pub(super) fn ended() -> u64 {
    ENDED.load(Ordering::Acquire)
}

/// Blocks until something is freed that is not among those `seen`, or [can be taken](take_used) by the calling thread,
/// whose use is `used`; returns false if nothing of the device waits here but what the driver refuses to wait for.
pub(super) fn wait_for(ordinal: i32, used: Use, seen: u64) -> bool {
    let is_ours = |shelf: &Shelf| {
        let mut waiting = shelf.waiting.iter().chain(&shelf.settling);
        waiting.any(|waiting| !waiting.is_stuck && waiting.is_used_by(used))
    };
    let is_of_it = |shelf: &Shelf| {
        let mut waiting = shelf.waiting.iter();
        shelf.busy_with == Some(ordinal)
            || waiting.any(|waiting| !waiting.is_stuck && waiting.held.ordinal() == ordinal)
    };
    let mut shelves = lock();
    while ended() == seen && shelves.iter().any(is_of_it) {
        if used.is_of_thread() && shelves.iter().any(is_ours) {
            return true;
        }
        shelves = wait(shelves);
    }
    ended() != seen
}

fn run(driver: &'static dyn Driver, ordinal: i32) {
    signals::block();
    // What this thread calls is no call that a capture elsewhere forbids.
    let _ = driver.exchange_capture_mode(RELAXED);
    let mut shelves = lock();
    loop {
        let own = shelf(&mut shelves, ordinal);
        let Some(waiting) = own.waiting.pop_front() else {
            shelves = wait(shelves);
            continue;
        };
        // No thread waits for what is stuck, and none is told that it still is.
        let was_stuck = waiting.is_stuck;
        own.busy_with = (!was_stuck).then_some(waiting.held.ordinal());
        let left;
        (shelves, left) = waiting.step_on(shelves, ordinal);
        let is_stuck = left.as_ref().is_some_and(|left| left.is_stuck);
        shelf(&mut shelves, ordinal).busy_with = None;
        if !is_stuck {
            ENDED.fetch_add(1, Ordering::Release);
        }
        if let Some(alone) = left.and_then(|left| put(&mut shelves, left)) {
            drop(shelves);
            alone.finish();
            shelves = lock();
        }
        if !(was_stuck && is_stuck) {
            CHANGED.notify_all();
        }
        let mut waiting = shelf(&mut shelves, ordinal).waiting.iter();
        if is_stuck && waiting.all(|waiting| waiting.is_stuck) {
            let paused = CHANGED.wait_timeout(shelves, PAUSE);
            shelves = paused.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Waiting {
    /// The device that is waited for next.
    fn ordinal(&self) -> i32 {
        let next = self.sites.as_ref().and_then(|sites| sites.last());
        next.map_or(self.held.ordinal(), |site| site.ordinal)
    }

    /// Whether it waits for a device as no other thread can name the stream of this use.
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
        let driver = self.held.driver();
        shelf(&mut shelves, ordinal).settling = Some(self);
        // A thread that waits for room may be the one that can take it.
        CHANGED.notify_all();
        drop(shelves);
        let is_settled = site.settle(driver);
        shelves = lock();
        let left = shelf(&mut shelves, ordinal).settling.take();
        let left = left.map(|left| left.settled(site, is_settled));
        (shelves, left)
    }

    /// Goes on after the wait for a device, which is waited for once more if the driver has refused that.
    fn settled(mut self, site: Site, is_settled: bool) -> Self {
        self.is_stuck = !is_settled;
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
            self.sites = self.held.sites_of_use().ok();
            self.is_stuck = self.sites.is_none();
            return Some(self);
        };
        if let Some(site) = sites.pop() {
            let is_settled = site.settle(self.held.driver());
            return Some(self.settled(site, is_settled));
        }
        // SAFETY: its use is over, or is work of devices that were just waited for, or of the one that the call waits
        // for.
        let left = unsafe { self.held.end() }?;
        Some(Self {
            held: left,
            is_stuck: true,
            ..self
        })
    }

    fn finish(self) {
        let mut left = Some(self);
        while let Some(waiting) = left {
            left = waiting.step();
            if left.as_ref().is_some_and(|left| left.is_stuck) {
                std::thread::sleep(PAUSE);
            }
        }
    }
}
