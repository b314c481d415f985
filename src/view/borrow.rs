//! A ledger of the memory that is borrowed now, and of which borrows are exclusive.
//!
//! `&` and `&mut` of views show nothing of the memory behind them: two views may be of the same elements, and the
//! arguments of a Python function are extracted one after the other, without a look at their neighbours. So each
//! [`MemoryBorrow`], and each argument of a function (`python::In`, `python::InOut`), stands in a ledger as long as
//! it lives, and an exclusive borrow that meets another one is refused: `add(a, b, out=a)`, the same array in
//! another thread, a callback that comes back with it. As with `&` and `&mut`, many may share.
//!
//! **Other threads.** A borrow that meets one of another thread is refused, or waits for that one's end, or stands beside it:
//! as the newcomer's [`Meeting`] has it. One that meets a borrow of its own thread is refused: it would wait for itself.
//!
//! **What counts as meeting**: bytes of one element inside bytes of another. Two arrays that only
//! interleave, such as two columns of a matrix, do not meet if their strides show it (a common
//! divisor of all strides keeps their elements apart).
//!
//! **What is wrongly refused**: arrays that interleave in a way that needs more number theory; in a forked
//! child, what a thread of the parent borrowed as it forked.
//!
//! **Other views** are in no ledger: [`View`](super::View) is copied like a pointer. They are compared with the arguments
//! that are in it when they are lent ([`CaiView::typed`], [`CaiView::typed_mut`]), and not with a [`MemoryBorrow`], whose
//! holder goes on to use the view.
//!
//! **What is not seen**: views that were lent before an argument came; arrays held by other extensions and by other copies
//! of this crate, which have ledgers of their own; and one memory that is mapped at two addresses.

use std::cell::{Cell, UnsafeCell};
use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, Ordering};

use super::CaiView;
use crate::process::fork;
use crate::protocol::descriptor::Descriptor;
use crate::protocol::layout::gcd;
use crate::protocol::rule::{Field, Rule, Violation};

/// A borrow of an array's memory, in the ledger until it is dropped. It holds no reference to the memory itself.
///
/// ```
#[doc = floats!()]
/// let view = floats();
/// let (first, second) = (view.borrow_memory()?, view.clone());
/// assert!(second.borrow_memory_mut().is_err()); // the same elements
/// drop(first);
/// let _written = second.borrow_memory_mut()?;
/// # Ok::<(), cai_dlpack::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "dropping it ends the borrow"]
pub struct MemoryBorrow<'a> {
    place: NonNull<Borrow>,
    view: PhantomData<&'a CaiView>,
}

// SAFETY: only the ledger reads the borrow behind the pointer, under its lock, whichever thread drops it.
unsafe impl Send for MemoryBorrow<'_> {}
// SAFETY: a shared reference gives no access to the borrow behind the pointer.
unsafe impl Sync for MemoryBorrow<'_> {}

impl CaiView {
    /// Borrows the memory of the elements, to be read.
    ///
    /// # Errors
    /// `view-in-use` if an exclusive borrow of the same memory is in the ledger.
    ///
    /// ```
    #[doc = floats!()]
    /// let view = floats();
    /// let _first = view.borrow_memory()?;
    /// assert!(view.borrow_memory().is_ok()); // readers share it
    /// # Ok::<(), cai_dlpack::Error>(())
    /// ```
    pub fn borrow_memory(&self) -> Result<MemoryBorrow<'_>, Violation> {
        MemoryBorrow::new(self, false)
    }

    /// Borrows the memory of the elements, to be written; see [`MemoryBorrow`].
    ///
    /// # Errors
    /// `view-in-use` if any borrow of the same memory is in the ledger.
    ///
    /// ```
    #[doc = floats!()]
    /// // The halves of a row share no element.
    /// let (first, second) = floats().index(0, 0)?.split(0, 1)?;
    /// let _written = first.borrow_memory_mut()?;
    /// assert!(second.borrow_memory_mut().is_ok() && first.borrow_memory().is_err());
    /// # Ok::<(), cai_dlpack::Error>(())
    /// ```
    pub fn borrow_memory_mut(&self) -> Result<MemoryBorrow<'_>, Violation> {
        MemoryBorrow::new(self, true)
    }
}

impl<'a> MemoryBorrow<'a> {
    fn new(view: &'a CaiView, exclusive: bool) -> Result<Self, Violation> {
        watch_forks();
        let mut borrow = Box::new(Borrow::of(view.descriptor(), exclusive));
        borrow.itemsize |= BY_HAND;
        let this = Self {
            place: NonNull::from(Box::leak(borrow)),
            view: PhantomData,
        };
        // SAFETY: fresh, so in no ledger, and in a box of its own until `drop` has ended it.
        unsafe { Borrow::begin(this.place) }.map(|()| this)
    }
}

impl Drop for MemoryBorrow<'_> {
    fn drop(&mut self) {
        // SAFETY: as `begin` left it in `new`; it is not used any more.
        unsafe { Borrow::end(self.place) };
        // SAFETY: leaked by `new`, and out of the ledger, so that nobody else points to it.
        drop(unsafe { Box::from_raw(self.place.as_ptr()) });
    }
}

/// Marks the size of a borrow that is no argument's. No element is so large.
const BY_HAND: u32 = 1 << 31;

/// What becomes of a borrow that meets one of another thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meeting {
    /// It is refused.
    Refused,
    /// It waits for the end of that one.
    Waits,
    /// It stands beside that one, if that one is such, too; else it waits.
    Trusts,
}

/// The number of a thread; a later thread may have that of one that has ended.
type Thread = usize;

/// Returns the number of this thread.
#[inline(always)]
fn here() -> Thread {
    // SAFETY: takes and touches nothing.
    (unsafe { libc::pthread_self() }) as Thread
}

/// One borrow: its bytes, and the grid that its elements lie on. While it is in the ledger its neighbours
/// point to it.
#[derive(Debug)]
pub(crate) struct Borrow {
    start: u64,
    /// 0: of an array without elements, which is never in the ledger.
    end: u64,
    /// The first byte of the element of index 0.
    data: u64,
    /// Elements begin at multiples of this from `data`; 0 for a single element.
    grid: u64,
    /// With [`BY_HAND`] for a [`MemoryBorrow`].
    itemsize: u32,
    exclusive: bool,
    meeting: Meeting,
    /// The process by which it was made: no thread of a parent's ends a borrow in a forked child.
    process: u32,
    /// The thread by which it was made.
    thread: Thread,
    /// Of the search for circles ([`List::ends_before`]), which begins anew each time.
    mark: Cell<Mark>,
    previous: *mut Self,
    next: *mut Self,
}

/// How far a search has got with a borrow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    /// Not met.
    New,
    /// In the queue: it must begin, but what it waits for has not been looked at.
    Met,
    /// Nothing is left to be looked at.
    Done,
}

/// Refuses to lend an array of which an argument of a function forbids it, now: an `InOut`; or, to be written, an `In` too.
///
/// # Errors
/// `view-in-use`.
pub(super) fn check_lent(descriptor: &Descriptor, exclusive: bool) -> Result<(), Violation> {
    watch_forks();
    let borrow = Borrow::of(descriptor, exclusive);
    if borrow.end == 0 || !LEDGER.with(|list| list.is_lent(&borrow)) {
        return Ok(());
    }
    Err(lent(&borrow))
}

#[cold]
fn lent(borrow: &Borrow) -> Violation {
    in_use(borrow).with_hint(match borrow.exclusive {
        true => "an argument of a function uses this memory",
        false => "an argument of a function writes this memory",
    })
}

/// All borrows, the newest first.
struct Ledger {
    /// A lock of our own, since a child that is forked must find it open, and the standard library's cannot
    /// be opened by anyone but its guard. It is held for as long as it takes to look at the other arguments.
    taken: AtomicBool,
    list: UnsafeCell<List>,
}

struct List {
    first: *mut Borrow,
    /// Those that wait for the end of others, and are not borrows yet.
    waiting: *mut Borrow,
    /// The number of exclusive ones: without any, a shared one meets none.
    exclusive: usize,
}

// SAFETY: `list` is reached by `Ledger::with` only, by one thread at a time. The borrows in it belong to
// arguments, which may be on any thread; none of them ends without leaving the list first.
unsafe impl Sync for Ledger {}

static LEDGER: Ledger = Ledger {
    taken: AtomicBool::new(false),
    list: UnsafeCell::new(List {
        first: ptr::null_mut(),
        waiting: ptr::null_mut(),
        exclusive: 0,
    }),
};

impl Ledger {
    #[inline(always)]
    fn take(&self) {
        while self
            .taken
            .compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed)
            .is_err()
        {
            std::thread::yield_now();
        }
    }

    #[inline(always)]
    fn leave(&self) {
        self.taken.store(false, Ordering::Release);
    }

    /// Runs `body`, which must neither panic nor call out, with the list locked.
    #[inline(always)]
    fn with<R>(&self, body: impl FnOnce(&mut List) -> R) -> R {
        self.take();
        // SAFETY: the lock is ours, so that no other thread has a reference.
        let result = body(unsafe { &mut *self.list.get() });
        self.leave();
        result
    }
}

/// Holds the ledger's lock across every `fork` from now on. Cheap after the first call.
///
/// A child keeps what the threads of its parent borrow: the thread that forked goes on there with its own.
pub(crate) fn watch_forks() {
    static WATCHED: AtomicBool = AtomicBool::new(false);
    if WATCHED.load(Ordering::Relaxed) || WATCHED.swap(true, Ordering::Relaxed) {
        return;
    }
    fork::watch();
    extern "C" fn take() {
        LEDGER.take();
    }
    extern "C" fn leave() {
        LEDGER.leave();
    }
    // SAFETY: atomic operations only. The lock is held for a moment by the thread that has it, and never by the
    // thread that forks, which would have to be in `with`.
    unsafe { fork::around_forks(take, leave) };
}

impl Borrow {
    /// The borrow of nothing.
    #[expect(
        clippy::declare_interior_mutable_const,
        reason = "each use is a value of its own"
    )]
    pub(crate) const NONE: Self = Self {
        start: 0,
        end: 0,
        data: 0,
        grid: 0,
        itemsize: 0,
        exclusive: false,
        meeting: Meeting::Refused,
        process: 0,
        thread: 0,
        mark: Cell::new(Mark::New),
        previous: ptr::null_mut(),
        next: ptr::null_mut(),
    };

    /// Makes the borrow of an array by this thread, which is in no ledger yet.
    #[inline(always)]
    pub(crate) fn of(descriptor: &Descriptor, exclusive: bool) -> Self {
        Self {
            process: fork::generation(),
            thread: here(),
            ..Self::of_memory(descriptor, exclusive)
        }
    }

    /// Returns the borrow with another choice for meetings.
    #[inline(always)]
    pub(crate) fn meeting(self, meeting: Meeting) -> Self {
        Self { meeting, ..self }
    }

    #[inline(always)]
    fn of_memory(descriptor: &Descriptor, exclusive: bool) -> Self {
        let dtype = descriptor.dtype();
        let Some(itemsize) = dtype.itemsize().filter(|_| !dtype.is_sub_byte()) else {
            return Self::spread(descriptor, exclusive);
        };
        if !descriptor.layout().is_c_contiguous() || descriptor.device().is_opaque() {
            return Self::spread(descriptor, exclusive);
        }
        // Fits: the descriptor's promise. Nothing without elements, where the data pointer is 0.
        let size = descriptor.len().wrapping_mul(u64::from(itemsize));
        Self {
            start: descriptor.data(),
            end: descriptor.data().wrapping_add(size),
            data: descriptor.data(),
            grid: u64::from(itemsize),
            itemsize,
            exclusive,
            ..Self::NONE
        }
    }

    /// Like [`Borrow::of`], for any array.
    #[inline(never)]
    fn spread(descriptor: &Descriptor, exclusive: bool) -> Self {
        if descriptor.device().is_opaque() {
            return Self::of_handle(descriptor.data(), exclusive);
        }
        let Some((start, end)) = descriptor.byte_span() else {
            return Self::NONE;
        };
        let itemsize = descriptor.itemsize();
        let Some(itemsize) = itemsize.filter(|_| descriptor.cai_only().is_none()) else {
            // All bytes from end to end: what lies between the items, or in a byte of packed ones, is not looked into.
            return Self {
                start,
                end,
                data: descriptor.data(),
                grid: 1,
                itemsize: 1,
                exclusive,
                ..Self::NONE
            };
        };
        let grid = if descriptor.layout().is_c_contiguous() {
            u64::from(itemsize)
        } else {
            let axes = descriptor.shape().iter().zip(descriptor.elem_strides());
            axes.filter(|(extent, _)| **extent > 1)
                .map(|(_, stride)| stride.unsigned_abs().saturating_mul(u64::from(itemsize)))
                .fold(0, gcd)
        };
        Self {
            start,
            end,
            data: descriptor.data(),
            grid,
            itemsize,
            exclusive,
            ..Self::NONE
        }
    }

    /// Borrows all that an opaque handle stands for: the offset and the strides tell nothing about its bytes.
    fn of_handle(handle: u64, exclusive: bool) -> Self {
        match handle {
            0 => Self::NONE,
            _ => Self {
                start: handle,
                end: handle.saturating_add(1),
                data: handle,
                grid: 1,
                itemsize: 1,
                exclusive,
                ..Self::NONE
            },
        }
    }

    /// The size of an element, in bytes.
    fn item(&self) -> u64 {
        u64::from(self.itemsize & !BY_HAND)
    }

    /// Whether the two may not be at once.
    fn excludes(&self, other: &Self) -> bool {
        (self.exclusive || other.exclusive) && !self.trusts(other) && self.meets(other)
    }

    /// Whether the order of streams is all that keeps the two apart.
    fn trusts(&self, other: &Self) -> bool {
        let (one, two) = (self.meeting, other.meeting);
        (one, two) == (Meeting::Trusts, Meeting::Trusts) && self.thread != other.thread
    }

    /// Whether the two are of the same elements.
    pub(crate) fn is_of_memory_of(&self, other: &Self) -> bool {
        let of = |borrow: &Self| {
            (
                borrow.start,
                borrow.end,
                borrow.data,
                borrow.grid,
                borrow.item(),
            )
        };
        of(self) == of(other)
    }

    /// Whether a byte may belong to both.
    fn meets(&self, other: &Self) -> bool {
        if self.end <= other.start || other.end <= self.start {
            return false;
        }
        let grid = gcd(self.grid, other.grid);
        if grid == 0 {
            return true;
        }
        // Seen from one of our elements, theirs begin at this offset in each cell of the grid.
        let offset = if other.data >= self.data {
            (other.data - self.data) % grid
        } else {
            (grid - (self.data - other.data) % grid) % grid
        };
        offset < self.item() || offset + other.item() > grid
    }

    /// Puts the borrow into the ledger, if it has elements.
    ///
    /// # Errors
    /// `view-in-use` if it meets another one and either of the two is exclusive; it becomes
    /// [`NONE`](Self::NONE).
    ///
    /// # Safety
    /// `this` is in no ledger, and stands where it is until [`Borrow::end`].
    #[inline(always)]
    pub(crate) unsafe fn begin(this: NonNull<Self>) -> Result<(), Violation> {
        // SAFETY: initialised, and ours: it is in no list.
        if unsafe { (*this.as_ptr()).end } == 0 {
            return Ok(());
        }
        // SAFETY: initialised, in no list, and in its place until `end` takes it out of the list.
        if LEDGER.with(|list| unsafe { list.insert(this) }) {
            return Ok(());
        }
        // SAFETY: ours: it is in no list.
        Err(in_use(&unsafe { this.replace(Self::NONE) }))
    }

    /// Puts the borrow into the ledger as soon as those are gone that it meets, if it may wait for them. `pause` is called
    /// between two looks, with the lock open.
    ///
    /// # Errors
    /// `view-in-use` if one of those does not end before this one: of this thread, of one that waits for this thread, or of a
    /// thread that a fork has left behind; what `pause` returns. It becomes [`NONE`](Self::NONE).
    ///
    /// # Safety
    /// As [`Borrow::begin`].
    #[cold]
    pub(crate) unsafe fn begin_late<E: From<Violation>>(
        this: NonNull<Self>,
        mut pause: impl FnMut() -> Result<(), E>,
    ) -> Result<(), E> {
        // SAFETY: initialised, in no list, and in its place until `Queued` or `end` takes it out of one.
        LEDGER.with(|list| unsafe { list.queue(this) });
        let queued = Queued(this);
        loop {
            // SAFETY: queued above.
            match LEDGER.with(|list| unsafe { list.look_again(this) }) {
                Look::Later => {}
                found => {
                    std::mem::forget(queued);
                    if let Look::Begun = found {
                        return Ok(());
                    }
                    break;
                }
            }
            // Given up, also by a panic: `queued` leaves.
            pause()?;
        }
        // SAFETY: ours: it is in no list.
        let borrow = unsafe { this.replace(Self::NONE) };
        Err(waits_for_itself(&borrow).into())
    }

    /// Takes the borrow out of the ledger, if it is there.
    ///
    /// # Safety
    /// `this` is as [`Borrow::begin`] left it, and is not used any more.
    #[inline(always)]
    pub(crate) unsafe fn end(this: NonNull<Self>) {
        // SAFETY: set before it was shown to anyone, and not changed since.
        if unsafe { (*this.as_ptr()).end } != 0 {
            // SAFETY: in the list, as it is one of elements.
            LEDGER.with(|list| unsafe { list.remove(this) });
        }
    }
}

/// A borrow in the queue, which it leaves on drop, and is one of nothing then.
struct Queued(NonNull<Borrow>);

impl Drop for Queued {
    fn drop(&mut self) {
        // SAFETY: in the queue: one that has left it is forgotten.
        LEDGER.with(|list| unsafe { list.leave_queue(self.0) });
        // SAFETY: ours: it is in no list.
        unsafe { self.0.write(Borrow::NONE) };
    }
}

/// No reference to a borrow outlives the lock: its neighbours' threads change it as soon as that is open.
impl List {
    /// Inserts a borrow, unless another one forbids it; returns whether it did.
    ///
    /// # Safety
    /// `this` is initialised, is in no list, and stands where it is until it is removed.
    #[inline(always)]
    unsafe fn insert(&mut self, this: NonNull<Borrow>) -> bool {
        // SAFETY: initialised, and ours: it is in no list.
        let borrow = unsafe { &mut *this.as_ptr() };
        if (borrow.exclusive || self.exclusive > 0) && self.has_rival(borrow) {
            return false;
        }
        self.exclusive += usize::from(borrow.exclusive);
        borrow.next = self.first;
        if let Some(next) = NonNull::new(self.first) {
            // SAFETY: in the list, so that it is alive, and another one than `borrow`.
            unsafe { (*next.as_ptr()).previous = this.as_ptr() };
        }
        self.first = this.as_ptr();
        true
    }

    /// Puts a borrow among those that wait.
    ///
    /// # Safety
    /// As [`List::insert`]; it stands where it is until it has left the queue and the list.
    unsafe fn queue(&mut self, this: NonNull<Borrow>) {
        // SAFETY: initialised, and ours: it is in no list.
        unsafe { (*this.as_ptr()).next = self.waiting };
        self.waiting = this.as_ptr();
    }

    /// Takes a borrow out of the queue.
    ///
    /// # Safety
    /// `this` is in the queue.
    unsafe fn leave_queue(&mut self, this: NonNull<Borrow>) {
        let mut at = &raw mut self.waiting;
        loop {
            // SAFETY: the head of the queue, or the field of a borrow in it, which is alive.
            let here = unsafe { *at };
            if here == this.as_ptr() {
                break;
            }
            // SAFETY: `this` is further on in the queue, so that `here` is one before it.
            at = unsafe { &raw mut (*here).next };
        }
        // SAFETY: in the queue, so that it is alive.
        let next = unsafe { (*this.as_ptr()).next };
        // SAFETY: the head of the queue, or the field of a borrow in it, which is alive.
        unsafe { *at = next };
        // SAFETY: alive, and out of the queue: ours.
        unsafe { (*this.as_ptr()).next = ptr::null_mut() };
    }

    /// Begins a borrow that waits, if nothing excludes it any more.
    ///
    /// # Safety
    /// `this` is in the queue. If the borrow has begun, it is in the list afterwards; if it would wait for ever, in neither.
    unsafe fn look_again(&mut self, this: NonNull<Borrow>) -> Look {
        // SAFETY: in the queue, so that it is alive; nobody changes it, as the lock is held.
        let borrow = unsafe { this.as_ref() };
        if self.has_rival(borrow) {
            if self.ends_before(borrow) {
                return Look::Later;
            }
            // At once, so that of a circle of those who wait one is refused.
            // SAFETY: in the queue.
            unsafe { self.leave_queue(this) };
            return Look::Forever;
        }
        // SAFETY: in the queue.
        unsafe { self.leave_queue(this) };
        // SAFETY: initialised, in no list, and in its place until it is removed.
        let has_begun = unsafe { self.insert(this) };
        debug_assert!(has_begun, "it has no rival");
        Look::Begun
    }

    /// Whether all that exclude `borrow` end without its own thread: none is of that thread, or of one that waits, itself or
    /// through others, for a borrow of it.
    fn ends_before(&self, borrow: &Borrow) -> bool {
        self.each(self.first, |other| other.mark.set(Mark::New));
        self.each(self.waiting, |other| other.mark.set(Mark::New));
        let (mut ends, mut is_done) = (self.mark_rivals(borrow, borrow.thread), false);
        while ends && !is_done {
            is_done = true;
            self.each(self.waiting, |waits| {
                if waits.mark.get() == Mark::Met {
                    waits.mark.set(Mark::Done);
                    is_done = false;
                    ends &= self.mark_rivals(waits, borrow.thread);
                }
            });
        }
        ends
    }

    /// Marks what must begin before `waits` can: what waits on the threads of those that exclude it. Returns whether none of
    /// those is of `thread`, or of another process, in which no thread ends it.
    fn mark_rivals(&self, waits: &Borrow, thread: Thread) -> bool {
        let process = fork::generation();
        let mut all = true;
        self.each(self.first, |rival| {
            if rival.mark.get() == Mark::New && waits.excludes(rival) {
                rival.mark.set(Mark::Done);
                all &= rival.process == process && rival.thread != thread;
                self.each(self.waiting, |next| {
                    let is_next = next.thread == rival.thread && next.process == process;
                    if is_next && next.mark.get() == Mark::New {
                        next.mark.set(Mark::Met);
                    }
                });
            }
        });
        all
    }

    /// # Safety
    /// `this` is in the list.
    #[inline(always)]
    unsafe fn remove(&mut self, this: NonNull<Borrow>) {
        // SAFETY: in the list, so that it is alive.
        let borrow = unsafe { this.as_ref() };
        self.exclusive -= usize::from(borrow.exclusive);
        match NonNull::new(borrow.previous) {
            // SAFETY: in the list, so that it is alive, and another one than `borrow`.
            Some(previous) => unsafe { (*previous.as_ptr()).next = borrow.next },
            None => self.first = borrow.next,
        }
        if let Some(next) = NonNull::new(borrow.next) {
            // SAFETY: in the list, so that it is alive, and another one than `borrow`.
            unsafe { (*next.as_ptr()).previous = borrow.previous };
        }
    }

    #[cold]
    #[inline(never)]
    fn has_rival(&self, borrow: &Borrow) -> bool {
        self.has(|other| borrow.excludes(other))
    }

    /// Whether an argument excludes `borrow`, which is in no list.
    fn is_lent(&self, borrow: &Borrow) -> bool {
        (borrow.exclusive || self.exclusive > 0)
            && self.has(|other| other.itemsize & BY_HAND == 0 && borrow.excludes(other))
    }

    fn has(&self, wanted: impl Fn(&Borrow) -> bool) -> bool {
        let mut at = self.first;
        while let Some(other) = NonNull::new(at) {
            // SAFETY: in the list, so that it is alive.
            let other = unsafe { other.as_ref() };
            if wanted(other) {
                return true;
            }
            at = other.next;
        }
        false
    }

    /// Passes each borrow from `at` on, the head of the list or of the queue.
    fn each(&self, mut at: *mut Borrow, mut see: impl FnMut(&Borrow)) {
        while let Some(other) = NonNull::new(at) {
            // SAFETY: in the list or in the queue, so that it is alive.
            let other = unsafe { other.as_ref() };
            see(other);
            at = other.next;
        }
    }
}

/// What a borrow that waits has found.
enum Look {
    /// Nothing that excludes it: it has begun.
    Begun,
    /// One that will end.
    Later,
    /// One that would end after it.
    Forever,
}

#[cold]
fn waits_for_itself(borrow: &Borrow) -> Violation {
    in_use(borrow).with_hint(
        "it is in use by this thread, by one that waits for this thread, or by one that a fork has left behind: \
         a wait would not end",
    )
}

#[cold]
fn in_use(borrow: &Borrow) -> Violation {
    let found = format_args!("bytes {:#x} to {:#x}", borrow.start, borrow.end);
    let hint = if borrow.exclusive {
        "this argument is written, so no other argument may use its memory"
    } else {
        "another argument writes this memory"
    };
    Violation::new(Rule::ViewInUse, Field::Object, found).with_hint(hint)
}

#[cfg(test)]
mod tests;
