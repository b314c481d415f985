//! Copies host memory that may be written meanwhile, by another thread or a device.
//!
//! A plain or volatile read beside a write is a data race, which is undefined behaviour whatever is done with the value.
//! Relaxed atomic loads are none: they return old or new units. Loads and stores that race must be of one size, so that
//! the units are those of the element type's alignment ([`DType::align`](crate::protocol::dtype::DType::align)), and
//! writers in Rust are asked to use them too (the contract of [`CaiView::new`](super::CaiView::new)).
//!
//! Source: `std::sync::atomic`, "Memory model for atomic accesses" and "Atomic accesses to read-only memory". An atomic load
//! needs a `&Atomic`, which the older of the two models of aliasing (stacked borrows) forbids to make of a pointer that came
//! of a `&`; tree borrows, the newer one, allows it.

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};

/// Copies at least this many bytes by one instruction, if there is one.
#[cfg(any(test, all(target_arch = "x86_64", not(miri))))]
const LONG: usize = 512;

/// Copies `nbytes` by loads of `unit` bytes, of fewer if `from` is not aligned to them.
///
/// # Safety
/// - `nbytes` are readable at `from`, writable at `to`, and the two do not overlap.
/// - Writes to `from` meanwhile are atomic ones of `unit` bytes, or not Rust's.
#[inline]
pub(super) unsafe fn copy(from: *const u8, to: *mut u8, nbytes: usize, unit: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if nbytes >= LONG {
        // SAFETY: this function's contract.
        return unsafe { copy_string(from, to, nbytes) };
    }
    match 1 << (from.addr() | nbytes | unit | 8).trailing_zeros() {
        // SAFETY: this function's contract; both divide the alignment of `from` and the size.
        8 => unsafe { copy_by::<AtomicU64>(from, to, nbytes) },
        // SAFETY: as for 8, with units of 4.
        4 => unsafe { copy_by::<AtomicU32>(from, to, nbytes) },
        // SAFETY: as for 8, with units of 2.
        2 => unsafe { copy_by::<AtomicU16>(from, to, nbytes) },
        // SAFETY: every address and size are multiples of 1.
        _ => unsafe { copy_by::<AtomicU8>(from, to, nbytes) },
    }
}

/// Copies bytes by the processor's own instruction, as fast as `memcpy`.
///
/// The compiler does not look into it, so that for Rust's memory model it may be a loop of atomic loads.
///
/// # Safety
/// As [`copy`].
#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn copy_string(from: *const u8, to: *mut u8, nbytes: usize) {
    // SAFETY: reads `nbytes` at `from` and writes them at `to`, which this function's contract allows; the direction flag
    // is clear on entry to an `asm!` block; no stack is used, and no flag changes.
    unsafe {
        std::arch::asm!(
            "rep movsb",
            inout("rcx") nbytes => _,
            inout("rsi") from => _,
            inout("rdi") to => _,
            options(nostack, preserves_flags)
        );
    }
}

/// An atomic integer.
trait Unit {
    type Value;

    fn load(&self) -> Self::Value;
}

macro_rules! units {
    ($($unit:ty => $value:ty;)*) => {$(
        impl Unit for $unit {
            type Value = $value;

            #[inline(always)]
            fn load(&self) -> $value {
                self.load(Relaxed)
            }
        }
    )*};
}

units! {
    AtomicU8 => u8;
    AtomicU16 => u16;
    AtomicU32 => u32;
    AtomicU64 => u64;
}

/// # Safety
/// As [`copy`]; and `from` and `nbytes` are multiples of the unit's size.
#[inline(always)]
unsafe fn copy_by<U: Unit>(from: *const u8, to: *mut u8, nbytes: usize) {
    let (from, to) = (from.cast::<U>(), to.cast::<U::Value>());
    for at in 0..nbytes / size_of::<U>() {
        // SAFETY: readable and aligned, by this function's contract; a shared reference to an atomic asks for no more,
        // as only loads are made.
        let unit = unsafe { &*from.wrapping_add(at) };
        // SAFETY: writable, by this function's contract.
        unsafe { to.wrapping_add(at).write_unaligned(unit.load()) };
    }
}

#[cfg(test)]
mod tests;
