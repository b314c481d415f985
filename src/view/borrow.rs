//! Which memory the arguments of running functions borrow, and which of it mutably.
//!
//! PyO3 extracts one argument after the other, and nothing shows an argument its neighbours. So each
//! [`In`](crate::python::In) and [`InOut`](crate::python::InOut) stands in a ledger for as long as it lives, and an
//! exclusive borrow that meets another one is refused: `add(a, b, out=a)`, the same array in another
//! thread, a callback that comes back with it. As `&` and `&mut` do, many may share.
//!
//! **What counts as meeting**: bytes of one element inside bytes of another. Two arrays that only
//! interleave, such as two columns of a matrix, do not meet where their strides show it (a common
//! divisor of all strides keeps their elements apart).
//! **What is wrongly refused**: arrays that interleave in a way that needs more number theory; in a forked
//! child, what a thread of the parent borrowed as it forked.
//! **What is not seen**: arrays held by other extensions and by other copies of this crate, which have
//! ledgers of their own, and one memory that is mapped at two addresses.

use std::cell::UnsafeCell;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::process::fork;
use crate::protocol::descriptor::Descriptor;
use crate::protocol::rule::{Field, Rule, Violation};

/// One borrow: its bytes, and the grid that its elements lie on. While it is in the ledger its neighbours
/// point to it.
#[derive(Debug)]
pub(super) struct Borrow {
    start: u64,
    /// 0: of an array without elements, which is never in the ledger.
    end: u64,
    /// The first byte of the element of index 0.
    data: u64,
    /// Elements begin at multiples of this from `data`; 0 for a single element.
    grid: u64,
    itemsize: u32,
    exclusive: bool,
    previous: *mut Self,
    next: *mut Self,
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
    /// How many of them are exclusive: without any, nobody meets a shared one.
    exclusive: usize,
}

// SAFETY: `list` is reached by `Ledger::with` only, by one thread at a time. The borrows in it belong to
// arguments, which may be on any thread; none of them ends without leaving the list first.
unsafe impl Sync for Ledger {}

static LEDGER: Ledger = Ledger {
    taken: AtomicBool::new(false),
    list: UnsafeCell::new(List {
        first: ptr::null_mut(),
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

    /// `body` does not panic, and calls nobody.
    #[inline(always)]
    fn with<R>(&self, body: impl FnOnce(&mut List) -> R) -> R {
        self.take();
        // SAFETY: the lock is ours, so that nobody else has a reference.
        let result = body(unsafe { &mut *self.list.get() });
        self.leave();
        result
    }
}

/// Has no fork happen while the list is being changed. Called before the first argument.
///
/// A child keeps what the threads of its parent borrow: the thread that forked goes on there with its own.
pub(super) fn watch_forks() {
    extern "C" fn take() {
        LEDGER.take();
    }
    extern "C" fn leave() {
        LEDGER.leave();
    }
    // SAFETY: atomic operations only. The lock is held for a moment by whoever holds it, and never by the
    // thread that forks, which would have to be in `with`.
    unsafe { fork::around_forks(take, leave) };
}

impl Borrow {
    /// Of nothing.
    pub(super) const NONE: Self = Self {
        start: 0,
        end: 0,
        data: 0,
        grid: 0,
        itemsize: 0,
        exclusive: false,
        previous: ptr::null_mut(),
        next: ptr::null_mut(),
    };

    /// The borrow of an array, which is in no ledger yet.
    #[inline(always)]
    pub(super) fn of(descriptor: &Descriptor, exclusive: bool) -> Self {
        let Some(itemsize) = descriptor.dtype().itemsize() else {
            return Self::spread(descriptor, exclusive);
        };
        if !descriptor.layout().is_c_contiguous() {
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

    /// The same for any array.
    #[inline(never)]
    fn spread(descriptor: &Descriptor, exclusive: bool) -> Self {
        let Some((start, end)) = descriptor.byte_span() else {
            return Self::NONE;
        };
        let itemsize = descriptor.dtype().element_bits().div_ceil(8);
        let grid = if descriptor.layout().is_c_contiguous() {
            u64::from(itemsize)
        } else {
            let axes = descriptor.shape().iter().zip(descriptor.elem_strides());
            axes.filter(|(extent, _)| **extent > 1)
                .map(|(_, stride)| stride.unsigned_abs().saturating_mul(u64::from(itemsize)))
                .fold(0, common_divisor)
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

    /// Whether a byte may belong to both.
    fn meets(&self, other: &Self) -> bool {
        if self.end <= other.start || other.end <= self.start {
            return false;
        }
        let grid = common_divisor(self.grid, other.grid);
        if grid == 0 {
            return true;
        }
        // Seen from one of our elements, theirs begin at this offset in each cell of the grid.
        let offset = if other.data >= self.data {
            (other.data - self.data) % grid
        } else {
            (grid - (self.data - other.data) % grid) % grid
        };
        offset < u64::from(self.itemsize) || offset + u64::from(other.itemsize) > grid
    }

    /// Puts the borrow into the ledger, where it has elements.
    ///
    /// # Errors
    /// `view-in-use` where it meets another one and either of the two is exclusive; it becomes
    /// [`NONE`](Self::NONE).
    ///
    /// # Safety
    /// `this` is in no ledger, and stands where it is until [`Borrow::end`].
    #[inline(always)]
    pub(super) unsafe fn begin(this: NonNull<Self>) -> Result<(), Violation> {
        // SAFETY: initialised, and ours: it is in no list.
        if unsafe { (*this.as_ptr()).end } == 0 {
            return Ok(());
        }
        // SAFETY: as above; alive until `end` takes it out of the list.
        if LEDGER.with(|list| unsafe { list.insert(this) }) {
            return Ok(());
        }
        // SAFETY: ours: it is in no list.
        Err(in_use(&unsafe { this.replace(Self::NONE) }))
    }

    /// AllowStructs the borrow out of the ledger, if it is there.
    ///
    /// # Safety
    /// As [`Borrow::begin`] left it; it is not used any more.
    #[inline(always)]
    pub(super) unsafe fn end(this: NonNull<Self>) {
        // SAFETY: set before it was shown to anyone, and not changed since.
        if unsafe { (*this.as_ptr()).end } != 0 {
            // SAFETY: in the list, as it is one of elements.
            LEDGER.with(|list| unsafe { list.remove(this) });
        }
    }
}

/// No reference to a borrow outlives the lock: its neighbours' threads change it as soon as that is open.
impl List {
    /// Answers whether it has been inserted, which another borrow may forbid.
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
            // SAFETY: as above.
            unsafe { (*next.as_ptr()).previous = borrow.previous };
        }
    }

    #[cold]
    #[inline(never)]
    fn has_rival(&self, borrow: &Borrow) -> bool {
        let mut at = self.first;
        while let Some(other) = NonNull::new(at) {
            // SAFETY: in the list, so that it is alive.
            let other = unsafe { other.as_ref() };
            if (borrow.exclusive || other.exclusive) && borrow.meets(other) {
                return true;
            }
            at = other.next;
        }
        false
    }
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

fn common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests;
