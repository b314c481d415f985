//! Counts owners: those alive, those that wait, those given up on purpose.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A counter that only grows. Differences of two of them give the levels.
#[derive(Debug)]
pub(crate) struct Counter {
    /// What any thread has counted.
    shared: AtomicU64,
    /// What threads have counted that exclude one another: no locked instruction, of which each conversion would have two.
    exclusive: AtomicU64,
}

impl Counter {
    const fn new() -> Self {
        Self {
            shared: AtomicU64::new(0),
            exclusive: AtomicU64::new(0),
        }
    }

    #[inline]
    pub(crate) fn add(&self) {
        self.shared.fetch_add(1, Relaxed);
    }

    /// Like [`add`](Self::add), for a caller who holds the one lock of all who call this: the GIL.
    #[inline(always)]
    pub(crate) fn add_exclusively(&self) {
        let count = self.exclusive.load(Relaxed);
        self.exclusive.store(count.wrapping_add(1), Relaxed);
    }

    /// Counts up to another counter, after a fork.
    pub(crate) fn catch_up(&self, other: &Self) {
        let exclusive = self.exclusive.load(Relaxed);
        self.shared
            .store(other.get().wrapping_sub(exclusive), Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        let exclusive = self.exclusive.load(Relaxed);
        self.shared.load(Relaxed).wrapping_add(exclusive)
    }
}

pub(crate) static CREATED: Counter = Counter::new();
pub(crate) static RELEASED: Counter = Counter::new();
pub(crate) static QUEUED: Counter = Counter::new();
pub(crate) static DRAINED: Counter = Counter::new();
pub(crate) static LEAKED: Counter = Counter::new();
pub(crate) static OPENED: Counter = Counter::new();
pub(crate) static CLOSED: Counter = Counter::new();
pub(crate) static PANICS: Counter = Counter::new();

/// A snapshot of the counters of this copy of the library (each extension module links its own).
///
/// The fields are read one after the other, so that a snapshot taken while other threads release
/// may be off by what they did meanwhile; it is exact when they are quiet.
///
/// ```
/// use cai_dlpack::view::{Owner, stats};
///
/// let before = stats();
/// drop(Owner::new([0_u8; 16]));
/// let after = stats();
/// assert_eq!((after.live, after.released), (before.live, before.released + 1));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Owners held now by views and by exported managed tensors, queued ones included.
    pub live: u64,
    /// Owners whose managed tensor was deleted without the GIL and that wait to be released.
    pub pending: u64,
    /// Owners released since the start.
    pub released: u64,
    /// Owners given up on purpose: after the interpreter's end, or in a forked child.
    pub leaked_at_exit: u64,
    /// Panics of an owner's `drop` that were caught.
    pub panics: u64,
    /// `consume` guards whose return edge has not been made yet.
    pub open_guards: u64,
}

/// Reads the counters.
///
/// ```
/// use cai_dlpack::view::{CaiView, LiveStream, stats};
///
/// // A leak test: what a conversion makes is gone after it.
/// let before = stats();
/// let view = CaiView::from_vec([1.0_f32, 2.0], [2])?;
/// let tensor = view.to_dlpack(LiveStream::NONE)?;
/// assert!(stats().live > before.live);
/// drop((view, tensor));
/// assert_eq!(stats().live, before.live);
/// # Ok::<(), cai_dlpack::Error>(())
/// ```
#[must_use]
pub fn stats() -> Stats {
    let closed = CLOSED.get();
    let open = OPENED.get().saturating_sub(closed);
    let (released, leaked_at_exit, drained) = (RELEASED.get(), LEAKED.get(), DRAINED.get());
    Stats {
        live: CREATED.get().saturating_sub(released + leaked_at_exit),
        pending: QUEUED.get().saturating_sub(drained),
        released,
        leaked_at_exit,
        panics: PANICS.get(),
        open_guards: open,
    }
}
