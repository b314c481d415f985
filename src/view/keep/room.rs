//! How much has ended and is not given back yet: what a thread that finds no memory waits for.

use std::cell::Cell;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::process::thread::Thread;
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
pub(crate) fn is_ours() -> bool {
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
    on: Thread,
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
            self.tallies.push(Tally {
                ordinal,
                rounds: Vec::new(),
                round: 0,
                changes: 0,
                waiters: 0,
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
    let (on, since) = (Thread::current(), Instant::now());
    let running = Running { on, since };
    lock().running.push(running);
    let _over = Over(running);
    drop(owner);
}

/// Whether the thread is ending an owner, as others see.
#[cfg(test)]
pub(super) fn is_ending() -> bool {
    let on = Thread::current();
    lock().running.iter().any(|end| end.on == on)
}

/// Whether an owner's end takes so long that no thread should wait for what comes behind it.
pub(super) fn is_blocked() -> bool {
    lock().patience().is_zero()
}

struct Tally {
    ordinal: i32,
    /// Counts the [`Due`]s by the round in which they came; the latest is at the end, and none is empty.
    rounds: Vec<Round>,
    /// Begins anew with each thread that waits.
    round: u64,
    changes: u64,
    /// The threads that have found no memory.
    waiters: usize,
}

struct Round {
    number: u64,
    /// How many [`Due`]s may come to an end without the waiting thread.
    due: usize,
    /// How many others there are.
    stuck: usize,
}

impl Tally {
    /// How much is due, and stuck, of what came before a round.
    fn before(&self, round: u64) -> (usize, usize) {
        let rounds = self.rounds.iter().take_while(|one| one.number < round);
        rounds.fold((0, 0), |(due, stuck), one| {
            (due + one.due, stuck + one.stuck)
        })
    }

    /// Begins a round, and returns its number.
    fn begin(&mut self) -> u64 {
        self.round += 1;
        self.round
    }

    fn add(&mut self) -> u64 {
        match self.rounds.last_mut() {
            Some(last) if last.number == self.round => last.due += 1,
            _ => self.rounds.push(Round {
                number: self.round,
                due: 1,
                stuck: 0,
            }),
        }
        self.round
    }

    /// Changes the counts of a round in which something is due or stuck.
    fn with_round(&mut self, number: u64, make: impl FnOnce(&mut Round)) {
        if let Ok(at) = self.rounds.binary_search_by_key(&number, |one| one.number) {
            let round = &mut self.rounds[at];
            make(round);
            if round.due + round.stuck == 0 {
                self.rounds.remove(at);
            }
        }
    }
}

/// Memory of a device that is on its way back: counted from the end of a copy, or of an owner, until it is dropped.
#[derive(Debug)]
pub(super) struct Due {
    ordinal: i32,
    round: u64,
    is_stuck: bool,
}

impl Due {
    pub(super) fn new(ordinal: i32) -> Self {
        let round = with_tally(ordinal, Tally::add);
        Self {
            ordinal,
            round,
            is_stuck: false,
        }
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
            self.change(|round| {
                let (from, to) = match is_stuck {
                    true => (&mut round.due, &mut round.stuck),
                    false => (&mut round.stuck, &mut round.due),
                };
                *from -= 1;
                *to += 1;
            });
        }
    }

    /// Takes back what has never been stuck, and of which nothing came: no thread need try again.
    pub(super) fn cancel(self) {
        with_tally(self.ordinal, |tally| {
            tally.with_round(self.round, |round| round.due -= 1);
        });
        CHANGED.notify_all();
        std::mem::forget(self);
    }

    fn change(&self, make: impl FnOnce(&mut Round)) {
        change(self.ordinal, |tally| tally.with_round(self.round, make));
    }
}

impl Drop for Due {
    fn drop(&mut self) {
        self.change(|round| match self.is_stuck {
            true => round.stuck -= 1,
            false => round.due -= 1,
        });
    }
}

/// Has the threads that wait for memory of a device try again: something can be taken now.
pub(super) fn changed(ordinal: i32) {
    change(ordinal, |_| ());
}

/// How often a thread waits for all that is due, of what has come since it began to wait.
const ROUNDS: u32 = 8;

/// A thread that has found no memory of a device, from then until it has found some.
///
/// It waits as long as something is due that was so when it began, or when all of that was gone, but not for ever because
/// of what others go on to use and drop: that is waited for [`ROUNDS`] times, and then no longer than the limit.
#[derive(Debug)]
pub(super) struct Waiter {
    ordinal: i32,
    /// The thread waits for each [`Due`] of an earlier round.
    round: u64,
    /// How many more rounds are.
    rounds: u32,
    /// How much of it there was when the thread last looked.
    left: usize,
    /// The changes there had been, and the owners that had ended, before memory was last asked for.
    tried: (u64, u64),
    /// How many owners had been handed to those who end them, and when, when something that is waited for was last gone: an
    /// owner that only a thread with the GIL can end is no [`Due`] any more, and its memory is not back yet.
    queued: (u64, Instant),
    /// How many owners had ended when one last had, and when that was seen.
    drained: (u64, Instant),
    /// When something was last waited for, but what came later; and whether that was so when the thread last looked.
    pending: (Instant, bool),
    /// Nothing is waited for any more, and memory has been asked for once since.
    is_last: bool,
}

impl Waiter {
    pub(super) fn new(ordinal: i32) -> Self {
        let (now, drained) = (Instant::now(), stats::DRAINED.get());
        let mut state = lock();
        let tally = state.of(ordinal);
        let round = tally.begin();
        let (due, stuck) = tally.before(round);
        tally.waiters += 1;
        Self {
            ordinal,
            round,
            rounds: ROUNDS,
            left: due + stuck,
            tried: (tally.changes, drained),
            queued: (stats::QUEUED.get(), now),
            drained: (drained, now),
            pending: (now, true),
            is_last: false,
        }
    }

    /// Notes what there is before memory is asked for: what comes later is a reason to ask again.
    pub(super) fn tries(&mut self) {
        let drained = stats::DRAINED.get();
        self.tried = (with_tally(self.ordinal, |tally| tally.changes), drained);
    }

    /// Blocks until there is a reason to ask again; returns false if there is none to wait for. What is stuck is waited for
    /// as long as it takes to ask about it again: its capture may have ended.
    pub(super) fn wait(&mut self) -> bool {
        let mut state = lock();
        loop {
            let patience = state.patience();
            let (left, changes) = self.look(state.of(self.ordinal), patience);
            if (changes, self.drained.0) != self.tried {
                let is_over = left.is_zero();
                return !(std::mem::replace(&mut self.is_last, is_over) && is_over);
            }
            if left.is_zero() {
                return false;
            }
            let waited = CHANGED.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// How long to wait until the next look, and the changes there have been.
    fn look(&mut self, tally: &mut Tally, patience: Duration) -> (Duration, u64) {
        let now = Instant::now();
        let since = |moment: Instant| now.saturating_duration_since(moment);
        let drained = stats::DRAINED.get();
        if drained != self.drained.0 {
            self.drained = (drained, now);
        }
        let (all, all_stuck) = tally.before(u64::MAX);
        let (mut due, mut stuck) = tally.before(self.round);
        if due + stuck < self.left {
            // Its owner may have been handed to those who end owners.
            self.queued = (stats::QUEUED.get(), now);
        }
        // Owners end in no order: if as many have ended as were handed on, they may be others, and then the limit is waited
        // for in all.
        let is_queued = match drained < self.queued.0 {
            true => since(self.drained.1) < LIMIT,
            false => drained < stats::QUEUED.get() && since(self.queued.1) < LIMIT,
        };
        if due == 0 && !is_queued && all > 0 && self.rounds > 0 {
            self.rounds -= 1;
            self.round = tally.begin();
            (due, stuck) = (all, all_stuck);
        }
        self.left = due + stuck;
        let is_pending = due > 0 || is_queued;
        // It was so until now, or a moment ago.
        if is_pending || self.pending.1 {
            self.pending = (now, is_pending);
        }
        let left = match (due, all, all_stuck) {
            (0, ..) if is_queued => PAUSE,
            (0, 0, 0) => Duration::ZERO,
            (0, 0, _) => AGAIN.saturating_sub(since(self.pending.0)),
            (0, ..) => patience.min(LIMIT.saturating_sub(since(self.pending.0))),
            // No thread with the GIL says when it has ended one; an end may begin meanwhile.
            _ => patience.min(if is_queued { PAUSE } else { LIMIT }),
        };
        (left, tally.changes)
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        with_tally(self.ordinal, |tally| tally.waiters -= 1);
    }
}

/// Whether a thread waits for memory of a device.
pub(super) fn is_wanted(ordinal: i32) -> bool {
    with_tally(ordinal, |tally| tally.waiters > 0)
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
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc;
    use std::thread;

    use super::*;
    use crate::view::Owner;

    /// Asks for memory until there is some, as a thread that copies; returns false if there is none to wait for.
    fn find(mut waiter: Waiter, is_there: impl Fn() -> bool) -> bool {
        loop {
            waiter.tries();
            // As long as a driver's call.
            thread::sleep(Duration::from_micros(100));
            if is_there() {
                return true;
            }
            if !waiter.wait() {
                return false;
            }
        }
    }

    /// A round counts what came before it, in however many rounds, and nothing that comes later.
    #[test]
    fn what_comes_after_a_round_began_is_not_of_it() {
        let ordinal = 0x0701;
        let mut come = Vec::new();
        for rounds in 0..5 {
            let begun = with_tally(ordinal, |tally| tally.begin());
            let before = || with_tally(ordinal, |tally| tally.before(begun));
            assert_eq!(before(), (2 * rounds, 0));
            come.extend([(); 2].map(|()| Due::new(ordinal)));
            assert_eq!(before(), (2 * rounds, 0), "{rounds}");
        }
    }

    /// A thread waits as long as something is due that it need not end itself, and sees each change once.
    #[test]
    fn a_thread_waits_for_what_is_due_and_not_stuck() {
        let _patient = PATIENT.read();
        let ordinal = 0x0700;
        assert!(!Waiter::new(ordinal).wait(), "nothing is due");
        for is_stuck in [false, true] {
            let mut waiter = Waiter::new(ordinal);
            let mut due = Due::new(ordinal);
            let waits = thread::spawn(move || waiter.wait());
            thread::sleep(Duration::from_millis(5));
            assert!(!waits.is_finished());
            due.set_stuck(is_stuck);
            if !is_stuck {
                drop(due);
                assert!(waits.join().expect("no panic"));
                assert!(!Waiter::new(ordinal).wait());
                continue;
            }
            assert!(waits.join().expect("no panic"));
            assert!(!Waiter::new(ordinal).wait(), "it is stuck");
            let mut waiter = Waiter::new(ordinal);
            due.set_stuck(false);
            let other = thread::spawn(move || Waiter::new(ordinal + 1).wait());
            assert!(!other.join().expect("no panic"), "another device");
            assert!(waiter.wait());
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
            let (mut waiter, begun) = (Waiter::new(ordinal), Instant::now());
            let waits = thread::spawn(move || waiter.wait());
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
        let mut waiter = Waiter::new(ordinal);
        let waits = thread::spawn(move || waiter.wait());
        changed(ordinal);
        assert!(waits.join().expect("no panic"));
    }

    /// A change is a reason to ask once.
    #[test]
    fn a_thread_that_has_asked_waits_for_the_next_change() {
        let _patient = PATIENT.read();
        let ordinal = 0x0711;
        let _due = Due::new(ordinal);
        let mut waiter = Waiter::new(ordinal);
        changed(ordinal);
        assert!(waiter.wait());
        waiter.tries();
        let waits = thread::spawn(move || waiter.wait());
        thread::sleep(Duration::from_millis(5));
        assert!(!waits.is_finished());
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
        let (mut waiter, begun) = (Waiter::new(ordinal), Instant::now());
        let waits = thread::spawn(move || waiter.wait());
        let ends = thread::spawn(|| end_owner(Owner::new(Slow(gate))));
        assert!(!waits.join().expect("no panic"), "no change");
        let took = begun.elapsed();
        assert!(
            is_blocked() && (LIMIT..3 * LIMIT).contains(&took),
            "{took:?}"
        );
        assert!(!Waiter::new(ordinal).wait(), "it is blocked still");
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
            let waiter = Waiter::new(ordinal);
            let what = format!("due {is_due:?}, another {is_other}");
            if is_other {
                stats::QUEUED.add();
                stats::DRAINED.add();
            }
            let is_back = AtomicBool::new(false);
            thread::scope(|scope| {
                let waits = scope.spawn(|| {
                    (
                        find(waiter, || is_back.load(Ordering::Acquire)),
                        Instant::now(),
                    )
                });
                thread::sleep(2 * AGAIN);
                assert!(!waits.is_finished(), "{what}");
                let ended = Instant::now();
                is_back.store(true, Ordering::Release);
                stats::DRAINED.add();
                let (is_found, at) = waits.join().expect("no panic");
                // At the limit it would have been given up, and not found.
                assert!(is_found && at - ended < LIMIT, "{what}");
            });
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
            let begun = Instant::now();
            let (is_over, over) = mpsc::channel::<()>();
            let others = thread::spawn(move || {
                while is_other && over.try_recv() == Err(mpsc::TryRecvError::Empty) {
                    stats::QUEUED.add();
                    stats::DRAINED.add();
                }
            });
            assert!(!find(Waiter::new(ordinal), || false));
            let took = begun.elapsed();
            assert!((LIMIT..3 * LIMIT).contains(&took), "{is_other} {took:?}");
            drop(is_over);
            others.join().expect("no panic");
        }
        stats::DRAINED.add();
    }

    /// A thread waits no longer because others go on to use and drop memory, and no shorter.
    #[test]
    #[cfg_attr(miri, ignore = "takes seconds")]
    fn others_that_go_on_keep_no_thread_waiting() {
        let _alone = PATIENT.write();
        let ordinal = 0x0790;
        for (pause, comes) in [(0, false), (400, false), (0, true), (400, true)] {
            let what = format!("each {pause} ms, it comes: {comes}");
            let (is_over, is_back) = (AtomicBool::new(false), AtomicBool::new(false));
            let mut own = Due::new(ordinal);
            own.set_stuck(!comes);
            thread::scope(|scope| {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Acquire) {
                        let due = Due::new(ordinal);
                        if pause > 0 {
                            thread::sleep(Duration::from_millis(pause));
                        }
                        drop(due);
                    }
                });
                let begun = Instant::now();
                let waiter = Waiter::new(ordinal);
                let waits = scope.spawn(|| {
                    find(waiter, || {
                        // Another one just then.
                        drop(Due::new(ordinal));
                        is_back.load(Ordering::Acquire)
                    })
                });
                if comes {
                    // Longer than all the rounds of the others.
                    thread::sleep(LIMIT + Duration::from_millis(pause) * (ROUNDS + 2));
                    assert!(!waits.is_finished(), "{what}");
                    is_back.store(true, Ordering::Release);
                }
                drop(comes.then_some(own));
                assert_eq!(waits.join().expect("no panic"), comes, "{what}");
                is_over.store(true, Ordering::Release);
                let most = 3 * LIMIT + Duration::from_millis(pause) * (ROUNDS + 3);
                assert!(begun.elapsed() < most, "{what}: {:?}", begun.elapsed());
            });
        }
    }

    /// A thread waits for memory that others drop later, too.
    #[test]
    #[cfg_attr(miri, ignore = "takes seconds")]
    fn what_comes_later_is_waited_for() {
        let _alone = PATIENT.write();
        let ordinal = 0x07c0;
        let first = Due::new(ordinal);
        let mut waiter = Waiter::new(ordinal);
        let later = Due::new(ordinal);
        waiter.tries();
        drop(first);
        let waits = thread::spawn(move || find(waiter, || false));
        thread::sleep(LIMIT + LIMIT / 2);
        assert!(!waits.is_finished());
        drop(later);
        assert!(!waits.join().expect("no panic"));
    }

    /// An end between the question for memory and the wait is a reason to ask again.
    #[test]
    fn an_end_just_before_the_wait_is_not_missed() {
        let _alone = PATIENT.write();
        let ordinal = 0x07a0;
        stats::QUEUED.add();
        let mut waiter = Waiter::new(ordinal);
        waiter.tries();
        stats::DRAINED.add();
        assert!(waiter.wait());
        let due = Due::new(ordinal);
        let mut waiter = Waiter::new(ordinal);
        waiter.tries();
        drop(due);
        assert!(waiter.wait(), "once");
        waiter.tries();
        assert!(!waiter.wait());
    }

    /// Asks again about an owner that gets stuck while it is waited for, too.
    #[test]
    fn what_gets_stuck_later_may_come_loose() {
        let _patient = PATIENT.read();
        let ordinal = 0x07d0;
        let mut due = Due::new(ordinal);
        let waiter = Waiter::new(ordinal);
        let waits = thread::spawn(move || find(waiter, || false));
        thread::sleep(2 * AGAIN);
        assert!(!waits.is_finished());
        let begun = Instant::now();
        due.set_stuck(true);
        assert!(!waits.join().expect("no panic"));
        assert!(begun.elapsed() >= AGAIN, "{:?}", begun.elapsed());
    }

    /// Rounds in which nothing is due any more are forgotten.
    #[test]
    fn a_tally_has_the_rounds_of_what_is_due() {
        let ordinal = 0x07b0;
        let rounds = || with_tally(ordinal, |tally| tally.rounds.len());
        let mut held = Vec::new();
        for _ in 0..5 {
            held.push(Due::new(ordinal));
            held.push(Due::new(ordinal));
            Waiter::new(ordinal);
        }
        assert_eq!(rounds(), 5);
        held.remove(4).set_stuck(true);
        held.swap_remove(4).cancel();
        assert_eq!(rounds(), 4);
        held.clear();
        assert_eq!(rounds(), 0);
    }

    /// A thread of Python's waits for memory again once it has ended what others wait for.
    #[test]
    fn a_thread_is_one_of_ours_as_long_as_it_ends_something() {
        let ours = thread::spawn(|| {
            enter();
            is_ours()
        });
        assert!(ours.join().expect("no panic"));
        assert!(!is_ours());
        #[cfg(feature = "pyo3")]
        ending(|| {
            assert!(is_ours());
            ending(|| assert!(is_ours()));
            assert!(is_ours());
        });
        assert!(!is_ours());
    }

    #[test]
    fn memory_is_wanted_as_long_as_a_thread_waits() {
        const NOBODYS: i32 = 0x0a11;
        let waiters = [Waiter::new(NOBODYS), Waiter::new(NOBODYS)];
        for waiter in waiters {
            assert!(is_wanted(NOBODYS));
            drop(waiter);
        }
        assert!(!is_wanted(NOBODYS));
    }
}
