//! Which memory the arguments of running functions borrow, and which of it mutably.
//!
//! PyO3 extracts one argument after the other, and nothing shows an argument its neighbours. So each
//! [`In`](super::In) and [`InOut`](super::InOut) writes down what it borrows for as long as it lives,
//! and an exclusive borrow that meets another one is refused: `add(a, b, out=a)`, the same array in
//! another thread, a callback that comes back with it. As `&` and `&mut` do, many may share.
//!
//! **What counts as meeting**: bytes of one element inside bytes of another. Two arrays that only
//! interleave, such as two columns of a matrix, do not meet where their strides show it (a common
//! divisor of all strides keeps their elements apart).
//! **What is wrongly refused**: arrays that interleave in a way that needs more number theory.
//! **What is not seen**: arrays held by other extensions and by other copies of this crate, which have
//! ledgers of their own, and one memory that is mapped at two addresses.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::protocol::descriptor::Descriptor;
use crate::protocol::rule::{Field, Rule, Violation};

static LEDGER: Mutex<Vec<Entry>> = Mutex::new(Vec::new());
static NEXT: AtomicU64 = AtomicU64::new(0);

/// One borrow: its bytes, and the grid that its elements lie on.
#[derive(Clone, Copy, Debug)]
struct Entry {
    id: u64,
    exclusive: bool,
    start: u64,
    end: u64,
    /// The first byte of the element of index 0.
    data: u64,
    itemsize: u64,
    /// Elements begin at multiples of this from `data`; 0 for a single element.
    grid: u64,
}

/// A borrow that ends when this is dropped; nothing without elements.
#[derive(Debug)]
pub(crate) struct Borrow(Option<u64>);

impl Borrow {
    /// Writes the borrow down.
    ///
    /// # Errors
    /// `view-in-use` where it meets another one and either of the two is exclusive.
    #[inline]
    pub(crate) fn new(descriptor: &Descriptor, exclusive: bool) -> Result<Self, Violation> {
        let Some(mut entry) = Entry::of(descriptor, exclusive) else {
            return Ok(Self(None));
        };
        let mut ledger = ledger();
        if ledger
            .iter()
            .any(|other| (exclusive || other.exclusive) && entry.meets(other))
        {
            return Err(in_use(&entry));
        }
        entry.id = NEXT.fetch_add(1, Ordering::Relaxed);
        ledger.push(entry);
        Ok(Self(Some(entry.id)))
    }
}

impl Drop for Borrow {
    #[inline]
    fn drop(&mut self) {
        let Some(id) = self.0 else {
            return;
        };
        let mut ledger = ledger();
        // From the back: arguments are dropped soon after they are made.
        if let Some(at) = ledger.iter().rposition(|entry| entry.id == id) {
            ledger.swap_remove(at);
        }
    }
}

fn ledger() -> MutexGuard<'static, Vec<Entry>> {
    LEDGER.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cold]
fn in_use(entry: &Entry) -> Violation {
    let found = format_args!("bytes {:#x} to {:#x}", entry.start, entry.end);
    let hint = if entry.exclusive {
        "this argument is written, so no other argument may use its memory"
    } else {
        "another argument writes this memory"
    };
    Violation::new(Rule::ViewInUse, Field::Object, found).with_hint(hint)
}

impl Entry {
    /// The borrow of an array; `None` without elements.
    fn of(descriptor: &Descriptor, exclusive: bool) -> Option<Self> {
        let (start, end) = descriptor.byte_span()?;
        let itemsize = u64::from(descriptor.dtype().element_bits().div_ceil(8));
        let grid = if descriptor.layout().is_c_contiguous() {
            itemsize
        } else {
            let axes = descriptor.shape().iter().zip(descriptor.elem_strides());
            axes.filter(|(extent, _)| **extent > 1)
                .map(|(_, stride)| stride.unsigned_abs().saturating_mul(itemsize))
                .fold(0, common_divisor)
        };
        Some(Self {
            id: 0,
            exclusive,
            start,
            end,
            data: descriptor.data(),
            itemsize,
            grid,
        })
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
        let offset = other.data.wrapping_sub(self.data);
        let offset = if other.data >= self.data {
            offset % grid
        } else {
            (grid - (self.data - other.data) % grid) % grid
        };
        offset < self.itemsize || offset + other.itemsize > grid
    }
}

fn common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::{Borrow, Entry};
    use crate::protocol::descriptor::{Descriptor, RawTensor};
    use crate::protocol::dtype::code;
    use crate::protocol::rule::Rule;

    fn floats(data: u64, shape: &[i64], strides: &[i64]) -> Descriptor {
        let raw = RawTensor {
            data,
            byte_offset: 0,
            device_type: 2,
            device_id: 0,
            code: code::FLOAT,
            bits: 32,
            lanes: 1,
            shape,
            strides: Some(strides),
            flags: 0,
        };
        Descriptor::new(&raw).expect("a tensor")
    }

    #[rstest]
    #[case::the_same(floats(0x1000, &[4], &[1]), floats(0x1000, &[4], &[1]), true)]
    #[case::apart(floats(0x1000, &[4], &[1]), floats(0x1010, &[4], &[1]), false)]
    #[case::one_element(floats(0x1000, &[5], &[1]), floats(0x1010, &[4], &[1]), true)]
    #[case::even_and_odd(floats(0x1000, &[4], &[2]), floats(0x1004, &[4], &[2]), false)]
    #[case::odd_and_even(floats(0x1004, &[4], &[2]), floats(0x1000, &[4], &[2]), false)]
    #[case::a_column_twice(floats(0x1000, &[4], &[3]), floats(0x100c, &[3], &[3]), true)]
    #[case::columns(floats(0x1000, &[4, 1], &[3, 1]), floats(0x1008, &[4, 1], &[3, 1]), false)]
    #[case::a_row_and_a_column(floats(0x1000, &[3], &[1]), floats(0x1000, &[4], &[3]), true)]
    #[case::backwards(floats(0x101c, &[4], &[-2]), floats(0x1000, &[4], &[2]), false)]
    #[case::backwards_onto(floats(0x1018, &[4], &[-2]), floats(0x1000, &[4], &[2]), true)]
    #[case::scalars(floats(0x1000, &[], &[]), floats(0x1000, &[], &[]), true)]
    #[case::strides_without_a_common_divisor(floats(0x1000, &[4], &[2]), floats(0x1004, &[2], &[3]), true)]
    fn meeting(#[case] one: Descriptor, #[case] other: Descriptor, #[case] expected: bool) {
        let (one, other) = (Entry::of(&one, true), Entry::of(&other, false));
        let (one, other) = (one.expect("elements"), other.expect("elements"));
        assert_eq!(one.meets(&other), expected);
        assert_eq!(other.meets(&one), expected);
    }

    #[test]
    fn many_share_and_one_writes() {
        let array = floats(0x7000_0000, &[4], &[1]);
        let first = Borrow::new(&array, false).expect("shared");
        let second = Borrow::new(&array, false).expect("shared");
        let refused = Borrow::new(&array, true).expect_err("in use");
        assert_eq!(refused.rule(), Rule::ViewInUse);
        drop((first, second));
        let writer = Borrow::new(&array, true).expect("alone");
        assert!(Borrow::new(&array, false).is_err());
        drop(writer);
        assert!(Borrow::new(&array, false).is_ok());
    }

    #[test]
    fn no_elements_meet_nobody() {
        let empty = floats(0x1000, &[0, 4], &[4, 1]);
        let _first = Borrow::new(&empty, true).expect("nothing is borrowed");
        assert!(Borrow::new(&empty, true).is_ok());
    }
}
