//! How much has ended and is not given back yet: what a thread that finds no memory waits for.

use std::cell::Cell;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use crate::view::stats;

static STATE: Mutex<State> = Mutex::new(State {
    tallies: Vec::new(),
    running: Vec::new(),
});
/// Long enough for each question about what is stuck to be asked again.
const AGAIN: Duration = Duration::from_millis(20);
/// How long an owner's end may take, or the GIL to come to those who end owners: it may need what the waiting thread holds.
pub(super) const LIMIT: Duration = Duration::from_secs(1);
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

struct State {
    /// One for each device.
    tallies: Vec<Tally>,
    /// The owners' ends that run now on threads of ours, and since when.
    running: Vec<Running>,
}

#[derive(Clone, Copy, PartialEq)]
struct Running {
    on: ThreadId,
    since: Instant,
}

impl State {
    /// How long the threads of ours may still be waited for: what comes behind an owner's end waits for that.
    fn patience(&self) -> Duration {
        let oldest = self.running.iter().map(|end| end.since.elapsed()).max();
        oldest.map_or(Duration::MAX, |elapsed| LIMIT.saturating_sub(elapsed))
    }

    fn of(&mut self, ordinal: i32) -> &mut Tally {
        let found = self
            .tallies
            .iter()
            .position(|tally| tally.ordinal == ordinal);
        let at = found.unwrap_or_else(|| {
            let (due, stuck, changes) = (0, 0, 0);
            self.tallies.push(Tally {
                ordinal,
                due,
                stuck,
                changes,
            });
            self.tallies.len() - 1
        });
        &mut self.tallies[at]
    }
}

/// Drops an owner, or what keeps a stream, on a thread of ours: code of its own, which may take locks.
pub(super) fn end_owner<T>(owner: T) {
    struct Over(Running);
    impl Drop for Over {
        fn drop(&mut self) {
            let running = &mut lock().running;
            // An end may end other owners of this thread.
            if let Some(at) = running.iter().rposition(|end| *end == self.0) {
                running.swap_remove(at);
            }
        }
    }
    let (on, since) = (thread::current().id(), Instant::now());
    let running = Running { on, since };
    lock().running.push(running);
    let _over = Over(running);
    drop(owner);
}

/// Whether an owner's end takes so long that no thread should wait for what comes behind it.
pub(super) fn is_blocked() -> bool {
    lock().patience().is_zero()
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

    pub(super) const fn ordinal(&self) -> i32 {
        self.ordinal
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
    at: Instant,
}

impl Seen {
    /// What there is now; what there was `before` if nothing has changed: another thread might hand owners on for ever.
    pub(super) fn now(ordinal: i32, before: Option<Self>) -> Self {
        let changes = with_tally(ordinal, |tally| tally.changes);
        before
            .filter(|before| before.changes == changes)
            .unwrap_or_else(|| Self {
                changes,
                queued: stats::QUEUED.get(),
                at: Instant::now(),
            })
    }
}

/// Blocks until there is a change that was not `seen`; returns false if there is none to wait for. What is stuck is waited
/// for as long as it takes to ask about it again: its capture may have ended.
pub(super) fn wait(ordinal: i32, seen: Seen) -> bool {
    let (mut state, begun, mut was_queued) = (lock(), Instant::now(), false);
    let mut queue = Progress::new();
    loop {
        let is_queued = queue.is_before(&seen);
        let patience = state.patience();
        let tally = state.of(ordinal);
        let left = match (tally.due, tally.stuck) {
            _ if was_queued && !is_queued && queue.has_moved => return true,
            (0, _) if is_queued => PAUSE,
            (0, 0) => Duration::ZERO,
            (0, _) => AGAIN.saturating_sub(begun.elapsed()),
            // No thread with the GIL says when it has ended one; an end may begin meanwhile.
            _ => patience.min(if is_queued { PAUSE } else { LIMIT }),
        };
        if tally.changes != seen.changes || left.is_zero() {
            return tally.changes != seen.changes;
        }
        was_queued |= is_queued;
        let waited = CHANGED.wait_timeout(state, left);
        state = waited.unwrap_or_else(PoisonError::into_inner).0;
    }
}

/// How far those have come who end the owners that are handed to them.
struct Progress {
    drained: u64,
    since: Instant,
    has_moved: bool,
}

impl Progress {
    fn new() -> Self {
        Self {
            drained: stats::DRAINED.get(),
            since: Instant::now(),
            has_moved: false,
        }
    }

    /// Whether an owner may not have ended that was handed on before `seen`. They end in no order: if as many have ended, they
    /// may be others, and then a moment is waited for without any. Neither wait is longer than the limit.
    fn is_before(&mut self, seen: &Seen) -> bool {
        let drained = stats::DRAINED.get();
        if drained != self.drained {
            let (since, has_moved) = (Instant::now(), true);
            *self = Self {
                drained,
                since,
                has_moved,
            };
        }
        match drained < seen.queued {
            true => self.since.elapsed() < LIMIT,
            false => drained < stats::QUEUED.get() && seen.at.elapsed() < LIMIT,
        }
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
    body(lock().of(ordinal))
}

fn lock() -> MutexGuard<'static, State> {
    // Nothing panics under the lock; a poisoned one still holds sound numbers.
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Held for writing by a test in which all that waits gives up; for reading by those that wait.
#[cfg(test)]
pub(super) static PATIENT: std::sync::RwLock<()> = std::sync::RwLock::new(());

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::view::Owner;

    /// A thread waits as long as something is due that it need not end itself, and sees each change once.
    #[test]
    fn a_thread_waits_for_what_is_due_and_not_stuck() {
        let _patient = PATIENT.read();
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
        let _patient = PATIENT.read();
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
        let _patient = PATIENT.read();
        let ordinal = 0x0710;
        let _due = Due::new(ordinal);
        let seen = Seen::now(ordinal, None);
        let waits = thread::spawn(move || wait(ordinal, seen));
        changed(ordinal);
        assert!(waits.join().expect("no panic"));
    }

    /// An owner's end that takes long is waited for no longer than the limit, whatever else is due.
    #[test]
    #[cfg_attr(miri, ignore = "takes seconds")]
    fn a_thread_does_not_wait_for_an_end_for_ever() {
        let _alone = PATIENT.write();
        struct Slow(mpsc::Receiver<()>);
        impl Drop for Slow {
            fn drop(&mut self) {
                let _ = self.0.recv();
            }
        }
        let ordinal = 0x0730;
        let _due = Due::new(ordinal);
        let (go_on, gate) = mpsc::channel();
        let (seen, begun) = (Seen::now(ordinal, None), Instant::now());
        let waits = thread::spawn(move || wait(ordinal, seen));
        let ends = thread::spawn(|| end_owner(Owner::new(Slow(gate))));
        assert!(!waits.join().expect("no panic"), "no change");
        let took = begun.elapsed();
        assert!(
            is_blocked() && (LIMIT..3 * LIMIT).contains(&took),
            "{took:?}"
        );
        assert!(!wait(ordinal, seen), "it is blocked still");
        go_on.send(()).expect("it waits");
        ends.join().expect("no panic");
        assert!(!is_blocked());
    }

    /// An owner that waits for the GIL is waited for, whatever else is due or stuck, until it has ended itself: another one
    /// that was handed on later may end first.
    #[test]
    #[cfg_attr(miri, ignore = "takes a second")]
    fn a_thread_waits_for_an_owner_that_only_the_gil_ends() {
        let _alone = PATIENT.write();
        let ordinal = 0x0740;
        for (is_due, is_other) in [None, Some(false), Some(true)]
            .into_iter()
            .flat_map(|due| [false, true].map(|other| (due, other)))
        {
            let mut due = is_due.map(|_| Due::new(ordinal));
            if let (Some(due), Some(false)) = (&mut due, is_due) {
                due.set_stuck(true);
            }
            stats::QUEUED.add();
            let seen = Seen::now(ordinal, None);
            let what = format!("due {is_due:?}, another {is_other}");
            if is_other {
                stats::QUEUED.add();
                stats::DRAINED.add();
            }
            let waits = thread::spawn(move || (wait(ordinal, seen), Instant::now()));
            thread::sleep(2 * AGAIN);
            assert!(!waits.is_finished(), "{what}");
            let ended = Instant::now();
            stats::DRAINED.add();
            let (is_again, at) = waits.join().expect("no panic");
            assert!(is_again && at - ended < LIMIT / 2, "{what}");
        }
    }

    /// Nor is it waited for longer than the limit, nor because of those that come later.
    #[test]
    #[cfg_attr(miri, ignore = "takes seconds")]
    fn a_thread_does_not_wait_for_the_gil_for_ever() {
        let _alone = PATIENT.write();
        let ordinal = 0x0750;
        stats::QUEUED.add();
        for is_other in [false, true] {
            let (begun, mut seen) = (Instant::now(), None);
            let (is_over, over) = mpsc::channel::<()>();
            let others = thread::spawn(move || {
                while is_other && over.try_recv() == Err(mpsc::TryRecvError::Empty) {
                    stats::QUEUED.add();
                    stats::DRAINED.add();
                }
            });
            loop {
                let now = Seen::now(ordinal, seen);
                seen = Some(now);
                if !wait(ordinal, now) {
                    break;
                }
            }
            let took = begun.elapsed();
            assert!((LIMIT..3 * LIMIT).contains(&took), "{is_other} {took:?}");
            drop(is_over);
            others.join().expect("no panic");
        }
        stats::DRAINED.add();
    }
}
