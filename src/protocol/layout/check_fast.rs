//! Checks an array in one pass, if it has elements and no number near a limit.
//!
//! Any other array, and a malformed one, gets the full check of `check.rs`; tests compare the two.

use super::check::Summary;
use crate::protocol::few::INLINE_AXES;

/// The distances between the elements of an array, in elements.
#[derive(Clone, Copy, Debug)]
pub(in crate::protocol) struct Reach {
    /// From the lowest element to the one of index 0.
    below: u64,
    /// From the lowest element to the end of the highest.
    whole: u64,
}

/// The state of the pass, which visits the last axis first.
///
/// Every computed number is or-ed into `all`. As long as `all` fits 32 bits, no product of two of
/// the numbers overflows; so the first number that is too large is seen in `all`, whatever becomes
/// of the later ones.
struct Pass {
    /// The stride of this axis in C order.
    step: u64,
    all: u64,
    reach: Reach,
    /// The smallest extent; on an axis of extent 1 the full check may replace the stride.
    least: u64,
    /// Not 0 if a stride is not that of C order.
    apart: u64,
    /// Not 0 if a stride is no multiple of the item size.
    rest: i64,
}

impl Pass {
    const START: Self = Self {
        step: 1,
        all: 0,
        reach: Reach { below: 0, whole: 1 },
        least: u64::MAX,
        apart: 0,
        rest: 0,
    };

    /// Visits an axis with a stride in bytes, for items of `1 << shift` bytes; a shift of 0 means
    /// that the stride is in elements.
    #[inline(always)]
    fn strided(&mut self, extent: i64, stride: i64, shift: u32) {
        let (elements, extent) = (stride.wrapping_shr(shift), extent.cast_unsigned());
        self.rest |= stride & 1_i64.wrapping_shl(shift).wrapping_sub(1);
        self.least = self.least.min(extent);
        self.apart |= elements.cast_unsigned() ^ self.step;
        let size = elements.unsigned_abs();
        let far = size.wrapping_mul(extent.wrapping_sub(1));
        if elements < 0 {
            self.reach.below = self.reach.below.wrapping_add(far);
        }
        self.reach.whole = self.reach.whole.wrapping_add(far);
        self.step = self.step.wrapping_mul(extent);
        self.all |= extent | size | self.reach.whole | self.step; // `far` is no larger than `whole`
    }

    /// Visits an axis in C order and returns its stride.
    #[inline(always)]
    fn in_order(&mut self, extent: i64) -> i64 {
        let stride = self.step.cast_signed();
        self.step = self.step.wrapping_mul(extent.cast_unsigned());
        self.reach.whole = self.step;
        self.all |= extent.cast_unsigned() | self.step;
        stride
    }

    /// Returns the result, or `None` if the array needs the full check.
    #[inline(always)]
    fn end(self) -> Option<(Summary, Reach)> {
        let c_contiguous = self.apart == 0;
        let hides_order = self.least == 1 && !c_contiguous;
        if self.step == 0 || self.all >> 32 != 0 || self.rest != 0 || hides_order {
            return None;
        }
        let summary = Summary {
            len: self.step,
            c_contiguous,
        };
        Some((summary, self.reach))
    }
}

/// Checks `values` in place: `rank` extents, then as many strides in bytes, for items of
/// `1 << shift` bytes. Given strides stay in bytes, absent ones are written in elements.
#[inline(always)]
pub(in crate::protocol) fn check_fast(
    values: &mut [i64],
    rank: usize,
    has_strides: bool,
    shift: u32,
) -> Option<(Summary, Reach)> {
    let (shape, strides) = values.split_at_mut_checked(rank)?;
    if strides.len() != rank {
        return None;
    }
    let mut pass = Pass::START;
    for (extent, stride) in shape.iter().zip(strides).rev() {
        if has_strides {
            pass.strided(*extent, *stride, shift);
        } else {
            *stride = pass.in_order(*extent);
        }
    }
    pass.end()
}

/// Checks a shape and strides in elements while it copies them into `values`.
#[inline(always)]
pub(in crate::protocol) fn copy_fast(
    values: &mut [i64; 2 * INLINE_AXES],
    shape: &[i64],
    strides: Option<&[i64]>,
) -> Option<(Summary, Reach)> {
    match shape.len() {
        0 => copy_exactly::<0>(values, shape, strides),
        1 => copy_exactly::<1>(values, shape, strides),
        2 => copy_exactly::<2>(values, shape, strides),
        3 => copy_exactly::<3>(values, shape, strides),
        INLINE_AXES => copy_exactly::<INLINE_AXES>(values, shape, strides),
        _ => None,
    }
}

/// [`copy_fast`] for `N` axes: a loop of known length is unrolled, which the import of tensors needs
/// to stay within its budget.
#[inline(always)]
fn copy_exactly<const N: usize>(
    values: &mut [i64; 2 * INLINE_AXES],
    shape: &[i64],
    strides: Option<&[i64]>,
) -> Option<(Summary, Reach)> {
    let shape: &[i64; N] = shape.try_into().ok()?;
    let (extents, rest) = values.split_first_chunk_mut::<N>()?;
    let places = rest.first_chunk_mut::<N>()?;
    *extents = *shape;
    let mut pass = Pass::START;
    if let Some(strides) = strides {
        *places = *<&[i64; N]>::try_from(strides).ok()?;
        if let Some(found) = check_c_order(shape, places) {
            return Some(found);
        }
        for (extent, stride) in shape.iter().zip(&*places).rev() {
            pass.strided(*extent, *stride, 0);
        }
    } else {
        for (extent, place) in shape.iter().zip(places).rev() {
            *place = pass.in_order(*extent);
        }
    }
    pass.end()
}

/// The pass for strides in C order, which most tensors have: it has less to compute.
#[inline(always)]
fn check_c_order<const N: usize>(shape: &[i64; N], strides: &[i64; N]) -> Option<(Summary, Reach)> {
    let mut pass = Pass::START;
    for (extent, stride) in shape.iter().zip(strides).rev() {
        pass.apart |= stride.cast_unsigned() ^ pass.step;
        pass.in_order(*extent);
    }
    if pass.apart == 0 { pass.end() } else { None }
}

/// Converts the strides after `rank` extents from bytes into elements of `1 << shift` bytes.
#[inline(always)]
pub(in crate::protocol) fn to_elements(values: &mut [i64], rank: usize, shift: u32) {
    for stride in values.iter_mut().skip(rank) {
        *stride = stride.wrapping_shr(shift);
    }
}

/// Whether elements of `itemsize` bytes, with the one of index 0 at `data`, lie within the address
/// space. `reach` is below 2^32, so that its products with an item size (below 2^21) fit.
#[inline(always)]
pub(in crate::protocol) fn is_within_memory(data: u64, reach: Reach, itemsize: u32) -> bool {
    let itemsize = u64::from(itemsize);
    let above = reach.whole.wrapping_sub(reach.below).wrapping_mul(itemsize);
    data >= reach.below.wrapping_mul(itemsize) && data.checked_add(above).is_some()
}
