//! How much has ended and is not given back yet: what a thread that finds no memory waits for.

use std::cell::Cell;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::view::stats;

/// One tally for each device.
static TALLIES: Mutex<Vec<Tally>> = Mutex::new(Vec::new());
/// Long enough for each question about what is stuck to be asked again.
const AGAIN: Duration = Duration::from_millis(20);
/// How often a thread looks whether owners have ended that wait for the GIL.
const PAUSE: Duration = Duration::from_micros(500);
/// Signalled at each change.
static CHANGED: Condvar = Condvar::new();

thread_local! {
    static IS_OURS: Cell<bool> = const { Cell::new(false) };
}

/// Says that this is a thread that ends what others wait for.
pub(super) fn enter() {
    IS_OURS.set(true);
}

/// Runs `body`, which ends what others wait for, on a thread that is another's.
#[cfg(feature = "pyo3")]
pub(crate) fn ending<R>(body: impl FnOnce() -> R) -> R {
    struct Restored(bool);
    impl Drop for Restored {
        fn drop(&mut self) {
            IS_OURS.set(self.0);
        }
    }
    let _before = Restored(IS_OURS.replace(true));
    body()
}

/// Whether this thread ends what others wait for: if an owner's end allocates on it, waiting would block it for ever.
pub(super) fn is_ours() -> bool {
    IS_OURS.get()
}

struct Tally {
    ordinal: i32,
    /// How many [`Due`]s may come to an end without the waiting thread.
    due: usize,
    /// How many others there are.
    stuck: usize,
    changes: u64,
}

/// Memory of a device that is on its way back: counted from the end of a copy, or of an owner, until it is dropped.
#[derive(Debug)]
pub(super) struct Due {
    ordinal: i32,
    is_stuck: bool,
}

impl Due {
    pub(super) fn new(ordinal: i32) -> Self {
        with_tally(ordinal, |tally| tally.due += 1);
        let is_stuck = false;
        Self { ordinal, is_stuck }
    }

    pub(super) const fn is_stuck(&self) -> bool {
        self.is_stuck
    }

    /// Says whether the end hangs on what no thread should wait for: the end of a capture, which may be the waiting
    /// thread's, or an answer that the driver refuses.
    pub(super) fn set_stuck(&mut self, is_stuck: bool) {
        if self.is_stuck != is_stuck {
            self.is_stuck = is_stuck;
            change(self.ordinal, |tally| {
                let (from, to) = match is_stuck {
                    true => (&mut tally.due, &mut tally.stuck),
                    false => (&mut tally.stuck, &mut tally.due),
                };
                *from -= 1;
                *to += 1;
            });
        }
    }

    /// Takes back what has never been stuck, and of which nothing came: no thread need try again.
    pub(super) fn cancel(self) {
        with_tally(self.ordinal, |tally| tally.due -= 1);
        CHANGED.notify_all();
        std::mem::forget(self);
    }
}

impl Drop for Due {
    fn drop(&mut self) {
        change(self.ordinal, |tally| match self.is_stuck {
            true => tally.stuck -= 1,
            false => tally.due -= 1,
        });
    }
}

/// Has the threads that wait for memory of a device try again: something can be taken now.
pub(super) fn changed(ordinal: i32) {
    change(ordinal, |_| ());
}

/// What a thread has seen of a device before it asked for memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    changes: u64,
    /// How many owners had been handed to those who end them by then: an owner that only a thread with the GIL can end
    /// is no [`Due`] any more, and its memory is not back yet.
    queued: u64,
}

impl Seen {
    /// What there is now. Without a change since `before` nothing that was handed on later is waited for: another thread
    /// might go on for ever.
    pub(super) fn now(ordinal: i32, before: Option<Self>) -> Self {
        let changes = with_tally(ordinal, |tally| tally.changes);
        match before.filter(|before| before.changes == changes) {
            Some(before) => before,
            None => Self {
                changes,
                queued: stats::QUEUED.get(),
            },
        }
    }
}

/// Blocks until there is a change that was not `seen`; returns false if there is none to wait for. What is stuck is waited
/// for as long as it takes to ask about it again: its capture may have ended.
pub(super) fn wait(ordinal: i32, seen: Seen) -> bool {
    let (mut tallies, begun, mut was_queued) = (lock(), Instant::now(), false);
    loop {
        let is_queued = stats::DRAINED.get() < seen.queued;
        let tally = of(&mut tallies, ordinal);
        let left = match (tally.due, tally.stuck) {
            _ if was_queued && !is_queued => return true,
            // No thread with the GIL says when it has ended one.
            (0, 0) if is_queued => PAUSE,
            (0, 0) => Duration::ZERO,
            (0, _) => AGAIN.saturating_sub(begun.elapsed()),
            _ => Duration::MAX,
        };
        if tally.changes != seen.changes || left.is_zero() {
            return tally.changes != seen.changes;
        }
        was_queued |= is_queued;
        let waited = CHANGED.wait_timeout(tallies, left);
        tallies = waited.unwrap_or_else(PoisonError::into_inner).0;
    }
}

fn change(ordinal: i32, make: impl FnOnce(&mut Tally)) {
    with_tally(ordinal, |tally| {
        make(tally);
        tally.changes += 1;
    });
    CHANGED.notify_all();
}

fn with_tally<R>(ordinal: i32, body: impl FnOnce(&mut Tally) -> R) -> R {
    body(of(&mut lock(), ordinal))
}

fn of(tallies: &mut Vec<Tally>, ordinal: i32) -> &mut Tally {
    let found = tallies.iter().position(|tally| tally.ordinal == ordinal);
    let at = found.unwrap_or_else(|| {
        let (due, stuck, changes) = (0, 0, 0);
        tallies.push(Tally {
            ordinal,
            due,
            stuck,
            changes,
        });
        tallies.len() - 1
    });
    &mut tallies[at]
}

fn lock() -> MutexGuard<'static, Vec<Tally>> {
    // Nothing panics under the lock; a poisoned one still holds sound numbers.
    TALLIES.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    /// A thread waits as long as something is due that it need not end itself, and sees each change once.
    #[test]
    fn a_thread_waits_for_what_is_due_and_not_stuck() {
        let ordinal = 0x0700;
        assert!(!wait(ordinal, Seen::now(ordinal, None)), "nothing is due");
        for is_stuck in [false, true] {
            let seen = Seen::now(ordinal, None);
            let mut due = Due::new(ordinal);
            let waits = thread::spawn(move || wait(ordinal, seen));
            thread::sleep(Duration::from_millis(5));
            assert!(!waits.is_finished());
            due.set_stuck(is_stuck);
            if !is_stuck {
                drop(due);
                assert!(waits.join().expect("no panic"));
                assert!(!wait(ordinal, Seen::now(ordinal, None)));
                continue;
            }
            assert!(waits.join().expect("no panic"));
            assert!(!wait(ordinal, Seen::now(ordinal, None)), "it is stuck");
            let seen = Seen::now(ordinal, None);
            due.set_stuck(false);
            let other = thread::spawn(move || wait(ordinal + 1, Seen::now(ordinal + 1, None)));
            assert!(!other.join().expect("no panic"), "another device");
            assert!(wait(ordinal, seen));
        }
    }

    /// A thread waits for stuck memory as long as it takes to ask about it again.
    #[test]
    fn what_is_stuck_may_come_loose() {
        let ordinal = 0x0720;
        let mut due = Due::new(ordinal);
        due.set_stuck(true);
        for is_loose in [false, true] {
            let (seen, begun) = (Seen::now(ordinal, None), Instant::now());
            let waits = thread::spawn(move || wait(ordinal, seen));
            if is_loose {
                due.set_stuck(false);
            }
            assert_eq!(waits.join().expect("no panic"), is_loose);
            assert!(is_loose || begun.elapsed() >= AGAIN);
        }
    }

    /// A thread looks for memory that it can take, without any being given back.
    #[test]
    fn a_change_wakes_a_thread() {
        let ordinal = 0x0710;
        let _due = Due::new(ordinal);
        let seen = Seen::now(ordinal, None);
        let waits = thread::spawn(move || wait(ordinal, seen));
        changed(ordinal);
        assert!(waits.join().expect("no panic"));
    }
}
