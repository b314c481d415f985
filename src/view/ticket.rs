//! Tells whether the deleter of a tensor in a capsule has been called, also after its block is gone.
//!
//! The destructor of a capsule calls the deleter unless a consumer has renamed the capsule. But consumers exist that call
//! the deleter and leave the name (TensorFlow, if it has no such device), and the tensor's block is then gone. So each
//! tensor in a capsule takes a [`Ticket`]: a slot of a static table and the slot's generation. The deleter counts the
//! generation up and gives the slot back; the capsule holds the ticket in its context, and compares.
//!
//! **A road not taken**: two ends of the block, which frees itself after deleter and destructor both. Consumers exist
//! that take the destructor off the capsule (tvm-ffi), so that the second end never comes.
//!
//! Tensors beyond [`SLOTS`] alive at once have no ticket, and for their capsules the name alone tells.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU16, AtomicU64, AtomicUsize};

/// The slots, with number 0, which is none; untouched ones occupy no memory.
const SLOTS: usize = 1 << 16;

/// How often each slot was given back, in the bits above those of a slot's number. Written by the slot's holder alone.
static GENERATIONS: [AtomicUsize; SLOTS] = [const { AtomicUsize::new(0) }; SLOTS];

/// For each free slot of the list the next one.
static NEXT: [AtomicU16; SLOTS] = [const { AtomicU16::new(0) }; SLOTS];

/// The slot that was given back last, beside the list, for threads that exclude one another: most tensors end before the
/// next one is made, and this costs no locked instruction.
static SPARE: AtomicU16 = AtomicU16::new(0);

/// The number of the list's first slot, below a count of its changes, so that a slot that was taken and given back
/// meanwhile is not taken for the same.
static FREE: AtomicU64 = AtomicU64::new(0);

/// The number of slots that have been used.
static USED: AtomicU16 = AtomicU16::new(0);

/// A slot, which a tensor holds until its deleter is called: the slot's number, and its generation above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket(usize);

impl Ticket {
    /// Takes a slot; number 0 if there is none.
    ///
    /// `exclusive` says that the caller holds the one lock of all who say so, here and in [`end`](Self::end): the GIL.
    #[inline(always)]
    pub(crate) fn take(exclusive: bool) -> Self {
        let spare = if exclusive { replace_spare(0) } else { 0 };
        let number = if spare == 0 { take_from_list() } else { spare };
        Self(generation(number).load(Relaxed) | usize::from(number))
    }

    /// Returns the number, by which the holder gives the slot back.
    #[inline(always)]
    pub(crate) fn number(self) -> u16 {
        self.0 as u16
    }

    /// Gives a slot back: no ticket of it is valid any more. The caller holds it. Of number 0 nothing is lost.
    ///
    /// `exclusive` as for [`take`](Self::take).
    #[inline(always)]
    pub(crate) fn end(number: u16, exclusive: bool) {
        let generation = generation(number);
        generation.store(
            generation.load(Relaxed).wrapping_add(1 << u16::BITS),
            Release,
        );
        let displaced = if exclusive {
            replace_spare(number)
        } else {
            number
        };
        if displaced != 0 {
            give_to_list(displaced);
        }
    }

    /// Whether the slot has not been given back, as far as is known: without a slot it may have been, and a generation
    /// recurs.
    pub(crate) fn is_valid(self) -> bool {
        let number = self.number();
        number == 0 || generation(number).load(Acquire) | usize::from(number) == self.0
    }

    /// Returns the ticket in the size of a pointer.
    #[inline(always)]
    pub(crate) fn to_bits(self) -> usize {
        self.0
    }

    /// The inverse of [`to_bits`](Self::to_bits).
    pub(crate) fn from_bits(bits: usize) -> Self {
        Self(bits)
    }
}

#[inline(always)]
fn generation(number: u16) -> &'static AtomicUsize {
    &GENERATIONS[usize::from(number)]
}

/// Returns the spare slot, and puts another one there. In two steps, as the caller's lock keeps others from coming between.
#[inline(always)]
fn replace_spare(number: u16) -> u16 {
    let spare = SPARE.load(Relaxed);
    SPARE.store(number, Relaxed);
    spare
}

/// Returns `free` with another first slot, and one change more.
const fn with_first(free: u64, number: u16) -> u64 {
    (free >> u16::BITS).wrapping_add(1) << u16::BITS | number as u64
}

#[cold]
#[inline(never)]
fn take_from_list() -> u16 {
    let mut free = FREE.load(Acquire);
    loop {
        let first = free as u16;
        if first == 0 {
            let more = |used: u16| used.checked_add(1);
            return USED
                .fetch_update(Relaxed, Relaxed, more)
                .map_or(0, |used| used + 1);
        }
        let rest = with_first(free, NEXT[usize::from(first)].load(Relaxed));
        match FREE.compare_exchange_weak(free, rest, AcqRel, Acquire) {
            Ok(_) => return first,
            Err(now) => free = now,
        }
    }
}

#[cold]
#[inline(never)]
fn give_to_list(number: u16) {
    let mut free = FREE.load(Relaxed);
    loop {
        NEXT[usize::from(number)].store(free as u16, Relaxed);
        match FREE.compare_exchange_weak(free, with_first(free, number), AcqRel, Relaxed) {
            Ok(_) => return,
            Err(now) => free = now,
        }
    }
}

#[cfg(test)]
mod tests;
