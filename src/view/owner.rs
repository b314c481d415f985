//! Keeps the memory of a view or of a managed tensor alive, and releases it once.
//!
//! ```text
//!   Owner (inline in a CaiView)          Node (inside a managed tensor's block)
//!     raw: payload + vtable                raw: payload + vtable
//!     shared: null, or the Arc that        next: used by the release queue,
//!             took the payload over              once the deleter has run
//! ```
//!
//! **Who frees, where, how often.** Exactly one of these holds a payload at any time, and its end
//! releases it exactly once, on whatever thread that happens. Its [kind](super::payload::Kind) decides how: a
//! Rust value is dropped at once; a Python object is released at once if this thread holds the GIL and is
//! queued otherwise (`python::cpython::release`). A forked child releases nothing that its parent owned
//! ([`fork`]).

use std::mem::ManuallyDrop;
use std::ptr::{self, NonNull};
use std::sync::atomic::{Ordering, fence};

use super::kinds::Boxed;
use super::loom::{Arc, AtomicPtr};
use super::payload::{EndsOn, Kind, RawOwner, Shows, Vtable};
use super::stats;
use crate::process::fork;

/// Keeps memory alive; releases what it holds when dropped, on any thread, exactly once.
///
/// An owner is unique until it is first shared ([`Owner::share`]); then an [`Arc`]
/// holds its payload and sharing again costs one atomic increment. No interpreter is needed for either.
///
/// ```
/// use std::sync::Arc;
/// use cai_dlpack::view::Owner;
///
/// // Anything that is `Send` can own memory: here the count of an `Arc` tells when it has gone.
/// let values = Arc::new([1.0_f32; 6]);
/// let owner = Owner::new(Arc::clone(&values));
/// let second = owner.share();
/// drop(owner);
/// assert_eq!(Arc::strong_count(&values), 2);
/// drop(second);
/// assert_eq!(Arc::strong_count(&values), 1);
/// ```
pub struct Owner {
    raw: RawOwner,
    /// Null, or an `Arc<Shared>` that took `raw` over.
    shared: AtomicPtr<Shared>,
}

pub(super) struct Shared(RawOwner);

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: `Shared` was made by taking the payload over, and the last `Arc` is ending.
        unsafe { self.0.release() };
    }
}

impl Kind for Shared {
    const ENDS_ON: EndsOn = EndsOn::AnyThread;

    // A count of an `Arc` is this process's own memory, even if the parent made it; the payload in the `Arc` knows its
    // own process.
    const SURVIVES_FORK: bool = true;

    const SHOWS: Shows = Shows::Owners;

    fn vtable() -> &'static Vtable {
        &SHARED
    }

    unsafe fn end(payload: NonNull<()>) {
        let arc = payload.cast::<Self>().as_ptr().cast_const();
        // SAFETY: one count, which came from `Arc::into_raw` or `increment_strong_count`.
        unsafe { Arc::decrement_strong_count(arc) };
    }

    unsafe fn kept_in(payload: NonNull<()>) -> Option<RawOwner> {
        // SAFETY: a count of an `Arc<Shared>`, which lives (this function's contract).
        Some(unsafe { payload.cast::<Self>().as_ref() }.0)
    }
}

static SHARED: Vtable = Vtable::of::<Shared>();

/// Two owners, of which the first ends first.
struct Pair(Owner, Owner);

impl Kind for Pair {
    const ENDS_ON: EndsOn = EndsOn::AnyThread;

    const SHOWS: Shows = Shows::Owners;

    fn vtable() -> &'static Vtable {
        &PAIR
    }

    unsafe fn end(payload: NonNull<()>) {
        stats::RELEASED.add();
        // SAFETY: `Owner::beside` leaked this box, and a payload ends once.
        drop(unsafe { Box::from_raw(payload.cast::<Self>().as_ptr()) });
    }
}

static PAIR: Vtable = Vtable::of::<Pair>();

impl Owner {
    /// Keeps `value` until the last view of it and the last managed tensor made from it are gone.
    ///
    /// The value is dropped on the thread where that happens. A panic of its `drop` is caught and
    /// counted ([`Stats::panics`](super::Stats::panics)), since DLPack deleters cannot unwind.
    ///
    /// A value that holds references to Python objects drops them there too, with the GIL or without:
    /// PyO3 then keeps them until it is next called.
    ///
    /// ```
    /// use cai_dlpack::view::{Owner, stats};
    ///
    /// let before = stats().live;
    /// let owner = Owner::new(vec![0_f32; 6]);
    /// let other = owner.share();
    /// drop(owner);
    /// assert_eq!(stats().live, before + 1);
    /// drop(other);
    /// assert_eq!(stats().live, before);
    /// ```
    pub fn new<T: Send + 'static>(value: T) -> Self {
        fork::watch();
        let payload = NonNull::from(Box::leak(Box::new(value))).cast();
        Self::from_raw(RawOwner::new(payload, Boxed::<T>::vtable()))
    }

    #[inline]
    pub(crate) fn from_raw(raw: RawOwner) -> Self {
        Self {
            raw,
            shared: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// The payload, if it is of the kind that `vtable` releases; alive as long as `self`.
    pub(crate) fn payload(&self, vtable: &'static Vtable) -> Option<NonNull<()>> {
        let raw = if ptr::eq(self.raw.vtable, &raw const SHARED) {
            // SAFETY: the payload of an owner with this vtable is a count of an `Arc<Shared>`.
            unsafe { self.raw.payload.cast::<Shared>().as_ref() }.0
        } else {
            self.raw
        };
        ptr::eq(raw.vtable, vtable).then_some(raw.payload)
    }

    /// Like [`payload`](Self::payload), also of an owner that came back in managed tensors which this library had made.
    pub(crate) fn payload_within(&self, vtable: &'static Vtable) -> Option<NonNull<()>> {
        let mut raw = self.raw;
        while !raw.is_of(vtable) {
            // SAFETY: the payload came with this vtable, and lives as long as the one before, which this owner keeps.
            raw = unsafe { (raw.vtable.kept_in)(raw.payload) }?;
        }
        Some(raw.payload)
    }

    /// Keeps `other` as long as what it keeps itself, which ends first.
    pub(crate) fn beside(self, other: Self) -> Self {
        let pair = Box::leak(Box::new(Pair(self, other)));
        Self::from_raw(RawOwner::new(NonNull::from(pair).cast(), &PAIR))
    }

    /// Whether it may hold a Python object that counts; one that it holds alone counts if `counts` returns true.
    #[inline]
    pub(crate) fn may_hold_objects(&self, counts: impl FnOnce(NonNull<()>) -> bool) -> bool {
        match self.raw.vtable.shows {
            Shows::Nothing => false,
            Shows::Object => counts(self.raw.payload),
            Shows::Owners => self.holds_objects(),
        }
    }

    #[cold]
    fn holds_objects(&self) -> bool {
        let mut found = false;
        let _ = self.held().visit_owners(false, &mut |_| {
            found = true;
            Ok::<(), ()>(())
        });
        found
    }

    /// Passes to `visit` each reference to a Python object that this owner is the only one to hold: a garbage collector
    /// may count it as held here.
    ///
    /// # Errors
    /// The first of `visit`.
    pub(crate) fn visit_objects<E>(
        &self,
        visit: &mut dyn FnMut(NonNull<()>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.held().visit_owners(true, visit)
    }

    /// Whether nothing else shares what this owner holds. What an owner that has gone did with the memory is done then.
    pub(crate) fn is_sole(&self) -> bool {
        let held = self.held();
        // SAFETY: an owner with this vtable holds a count of the `Arc`, and lives.
        let is_sole = !ptr::eq(held.vtable, &raw const SHARED) || unsafe { held.sharers() } == 1;
        fence(Ordering::Acquire);
        is_sole
    }

    /// Tells owners apart as long as one of them lives: two that share a payload are one. `None` if nothing has shared it.
    #[cfg(feature = "cudarc")]
    pub(crate) fn shared_payload(&self) -> Option<NonNull<()>> {
        let held = self.held();
        let first = if ptr::eq(held.vtable, &raw const PAIR) {
            held
        } else if ptr::eq(held.vtable, &raw const SHARED) {
            // SAFETY: the payload of an owner with this vtable is a count of an `Arc<Shared>`, and the owner lives.
            let Shared(first) = *unsafe { held.payload.cast::<Shared>().as_ref() };
            if !ptr::eq(first.vtable, &raw const PAIR) {
                return Some(held.payload);
            }
            first
        } else {
            return None;
        };
        // SAFETY: the payload of an owner with this vtable is a box of a pair, which lives as long as the owner.
        let Pair(first, _beside) = unsafe { first.payload.cast::<Pair>().as_ref() };
        first.shared_payload()
    }

    /// A second owner of the same payload, which lives until both are gone.
    #[must_use]
    pub fn share(&self) -> Self {
        Self::from_raw(RawOwner::again(self.share_arc().cast(), &SHARED))
    }

    /// One strong count of the `Arc` that holds the payload.
    fn share_arc(&self) -> NonNull<Shared> {
        let arc = if ptr::eq(self.raw.vtable, &raw const SHARED) {
            self.raw.payload.cast().as_ptr()
        } else {
            self.promote()
        };
        // SAFETY: `arc` came from `Arc::into_raw` and `self` keeps a count of it while we are here.
        unsafe { Arc::increment_strong_count(arc.cast_const()) };
        // SAFETY: pointers from `Arc::into_raw` are not null.
        unsafe { NonNull::new_unchecked(arc) }
    }

    /// Moves the payload into an `Arc` of which `self` keeps one count; once, by the first thread that asks.
    fn promote(&self) -> *mut Shared {
        let current = self.shared.load(Ordering::Acquire);
        if !current.is_null() {
            return current;
        }
        let mine = Arc::into_raw(Arc::new(ManuallyDrop::new(Shared(self.raw))))
            .cast_mut()
            .cast();
        // `Release` publishes the `Arc`'s content to the threads that load it; `Acquire` is for `theirs`.
        match self.shared.compare_exchange(
            ptr::null_mut(),
            mine,
            Ordering::AcqRel,
            Ordering::Acquire,
        ) {
            Ok(_) => mine,
            Err(theirs) => {
                // SAFETY: `mine` came from `Arc::into_raw` above, as an `Arc` of the type that does not
                // drop its content (`ManuallyDrop` is transparent), and nobody else has seen it.
                drop(unsafe { Arc::from_raw(mine.cast::<ManuallyDrop<Shared>>().cast_const()) });
                theirs
            }
        }
    }

    /// Gives the payload up unreleased, to what has owned it before, and drops what was kept beside it. `false`, and
    /// released with its last owner, if it is shared.
    pub(crate) fn give_up(self) -> bool {
        self.into_raw().give_up()
    }

    /// Moves the payload out, for a managed tensor's block. Nothing is released here.
    pub(crate) fn into_raw(self) -> RawOwner {
        ManuallyDrop::new(self).held()
    }

    /// Drops the owner on a thread where every kind of payload may end.
    ///
    /// # Safety
    /// Payloads that want the GIL may end on this thread: it is held.
    #[inline(always)]
    pub(crate) unsafe fn end(self) {
        let raw = self.into_raw();
        // SAFETY: the payload was this owner's alone; the GIL by this function's contract.
        unsafe { raw.end() };
    }

    /// What this owner holds: the payload, or its count of the `Arc` that took the payload over.
    #[inline]
    fn held(&self) -> RawOwner {
        NonNull::new(self.shared.load(Ordering::Acquire))
            .map_or(self.raw, |arc| RawOwner::again(arc.cast(), &SHARED))
    }
}

impl RawOwner {
    /// Gives the payload up unreleased, to what has owned it before, and drops what was kept beside it. `false`, with
    /// this count of it dropped, if another owner shares it.
    fn give_up(self) -> bool {
        if ptr::eq(self.vtable, &raw const PAIR) {
            stats::RELEASED.add();
            // SAFETY: `Owner::beside` leaked this box; the payload is this owner's, which does not use it afterwards.
            let Pair(first, _beside) =
                *unsafe { Box::from_raw(self.payload.cast::<Pair>().as_ptr()) };
            return first.give_up();
        }
        if !ptr::eq(self.vtable, &raw const SHARED) {
            stats::RELEASED.add();
            return true;
        }
        let arc = self.payload.cast::<ManuallyDrop<Shared>>();
        // SAFETY: one count, from `Arc::into_raw` or `increment_strong_count`, which is this owner's; `ManuallyDrop` is
        // transparent, so that the `Arc` may be taken for one of a type that does not drop its content.
        match Arc::try_unwrap(unsafe { Arc::from_raw(arc.as_ptr().cast_const()) }) {
            Ok(shared) => shared.0.give_up(),
            Err(shared) => {
                let shared = Arc::into_raw(shared).cast::<Shared>();
                // SAFETY: the count that `from_raw` took, as of the type that drops its content with the last one.
                unsafe { Arc::decrement_strong_count(shared) };
                false
            }
        }
    }

    /// Passes the references to Python objects to `visit`; with `sole` those alone that have no other holder.
    fn visit_owners<E>(
        self,
        sole: bool,
        visit: &mut dyn FnMut(NonNull<()>) -> Result<(), E>,
    ) -> Result<(), E> {
        match self.vtable.shows {
            Shows::Nothing => Ok(()),
            Shows::Object => visit(self.payload),
            Shows::Owners if ptr::eq(self.vtable, &raw const PAIR) => {
                // SAFETY: the payload of an owner with this vtable is a box of a pair, which lives as long as the owner.
                let Pair(first, second) = unsafe { self.payload.cast::<Pair>().as_ref() };
                first.held().visit_owners(sole, visit)?;
                second.held().visit_owners(sole, visit)
            }
            // SAFETY: the other payload that shows owners is one count of an `Arc`, which lives as long as the owner.
            Shows::Owners if sole && unsafe { self.sharers() } != 1 => Ok(()),
            Shows::Owners => {
                // SAFETY: as the guard above has it, one count of an `Arc`, which keeps its content.
                let Shared(first) = unsafe { self.payload.cast::<Shared>().as_ref() };
                first.visit_owners(sole, visit)
            }
        }
    }

    /// Counts the owners that share the `Arc` of which this is a count.
    ///
    /// # Safety
    /// The payload is a count of an `Arc<Shared>`, of an owner that lives.
    unsafe fn sharers(self) -> usize {
        let shared = self.payload.cast::<Shared>().as_ptr().cast_const();
        // SAFETY: a living count (this function's contract), from `Arc::into_raw` or `increment_strong_count`: borrowed
        // here, and by `ManuallyDrop` not given up.
        let arc = ManuallyDrop::new(unsafe { Arc::from_raw(shared) });
        Arc::strong_count(&arc)
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        // SAFETY: what it holds is this owner's alone, and `drop` runs once.
        unsafe { self.held().release() };
    }
}

impl std::fmt::Debug for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Owner")
            .field("payload", &self.raw.payload)
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
