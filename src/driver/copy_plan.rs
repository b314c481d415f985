//! Copying a strided array into a contiguous one with the driver's own copies, without a kernel.
//!
//! The driver copies rectangles: `height` rows of `width` bytes. The innermost axes that are
//! contiguous in the source make the row; one more axis makes the height; every combination of the
//! other axes' indices is a call. Axes that step as one are one: `a[..., :k]` of C order is one call, whatever the
//! rank, a transposed matrix one per column, and what has no rectangle (negative or zero strides) one per row.

#[cfg(test)]
mod tests;

use super::{Copy2d, Driver, DriverError};
use crate::protocol::stream::Stream;

/// `CU_DEVICE_ATTRIBUTE_MAX_PITCH` on every device so far: 2^31 - 1 bytes.
const MAX_PITCH: i64 = i32::MAX as i64;

/// An axis of both arrays, with the bytes from one index to the next in each.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
struct Axis {
    extent: u64,
    to_stride: i64,
    from_stride: i64,
}

impl Axis {
    /// Whether the next index of an outer axis is where this one would go on to.
    fn is_continued_by(&self, outer: &Axis) -> bool {
        let end = self.extent.cast_signed().checked_mul(self.from_stride);
        end == Some(outer.from_stride)
    }

    /// Whether its indices can be rows of this many bytes: forward, apart, within the pitch.
    fn is_height(&self, width: u64) -> bool {
        let fits = |stride: i64| stride >= width as i64 && stride <= MAX_PITCH;
        fits(self.from_stride) && fits(self.to_stride)
    }
}

/// The rectangles that make up one strided copy into C order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct CopyPlan {
    width: u64,
    rows: Axis,
    outer: Vec<Axis>,
}

impl CopyPlan {
    /// Plans the copy of an array of `shape` whose axes are `byte_strides` apart in the source, with
    /// items of `itemsize` bytes. `None` if there is nothing to copy (size 0).
    ///
    /// Extents are not negative, there is a stride for each, and the size in bytes fits 63 bits,
    /// as a checked descriptor has it.
    pub(crate) fn new(shape: &[i64], byte_strides: &[i64], itemsize: u64) -> Option<CopyPlan> {
        if itemsize == 0 || shape.contains(&0) {
            return None;
        }
        let (width, outer) = split_row(axes(shape, byte_strides, itemsize), itemsize);
        let mut outer = merged(outer, width);
        let rows = widest(&outer, width).map(|at| outer.remove(at));
        let rows = rows.unwrap_or(Axis {
            extent: 1,
            to_stride: 0,
            from_stride: 0,
        });
        Some(CopyPlan { width, rows, outer })
    }

    /// Returns the number of driver calls.
    pub(crate) fn calls(&self) -> u64 {
        self.outer
            .iter()
            .map(|axis| axis.extent)
            .fold(1, u64::saturating_mul)
    }

    /// Whether the source is in C order, and so one row.
    pub(crate) fn is_one_row(&self) -> bool {
        self.rows.extent == 1 && self.outer.is_empty()
    }

    /// Returns the `at`-th rectangle, `at` below [`calls`](Self::calls), of a copy between these addresses.
    pub(crate) fn rectangle(&self, at: u64, to: u64, from: u64) -> Copy2d {
        let (mut rest, mut to, mut from) = (at, to, from);
        for axis in self.outer.iter().rev() {
            let index = rest % axis.extent;
            rest /= axis.extent;
            to = advance(to, index, axis.to_stride);
            from = advance(from, index, axis.from_stride);
        }
        Copy2d {
            to,
            to_pitch: self.rows.to_stride.unsigned_abs(),
            from,
            from_pitch: self.rows.from_stride.unsigned_abs(),
            width: self.width,
            height: self.rows.extent,
        }
    }
}

/// An address some strides further. Wraps like pointer arithmetic; a checked span never does.
const fn advance(address: u64, index: u64, byte_stride: i64) -> u64 {
    address.wrapping_add(index.wrapping_mul(byte_stride as u64))
}

/// The axes that have more than one index, outermost first.
fn axes(shape: &[i64], byte_strides: &[i64], itemsize: u64) -> Vec<Axis> {
    let mut to_stride = itemsize as i64;
    let mut axes = Vec::with_capacity(shape.len());
    for (&extent, &from_stride) in shape.iter().zip(byte_strides).rev() {
        if extent != 1 {
            axes.push(Axis {
                extent: extent.unsigned_abs(),
                to_stride,
                from_stride,
            });
            to_stride = to_stride.wrapping_mul(extent);
        }
    }
    axes.reverse();
    axes
}

/// Takes off the innermost axes that the source has contiguous; the bytes of such a row.
fn split_row(mut axes: Vec<Axis>, itemsize: u64) -> (u64, Vec<Axis>) {
    let mut width = itemsize;
    while let Some(axis) = axes.pop_if(|axis| axis.from_stride == width as i64) {
        width *= axis.extent;
    }
    (width, axes)
}

/// Makes one axis of two that step as one, unless the outer one alone can be the height of a rectangle.
fn merged(axes: Vec<Axis>, width: u64) -> Vec<Axis> {
    let mut merged: Vec<Axis> = Vec::with_capacity(axes.len());
    for axis in axes.into_iter().rev() {
        match merged.last_mut() {
            Some(inner)
                if inner.is_continued_by(&axis)
                    && (inner.is_height(width) || !axis.is_height(width)) =>
            {
                inner.extent *= axis.extent;
            }
            _ => merged.push(axis),
        }
    }
    merged.reverse();
    merged
}

/// The longest axis that can be the height of a rectangle.
fn widest(axes: &[Axis], width: u64) -> Option<usize> {
    (0..axes.len())
        .filter(|&at| axes[at].is_height(width))
        .max_by_key(|&at| axes[at].extent)
}

/// Carries a plan out on `stream`; the copies are enqueued, not finished.
///
/// # Errors
/// The first call that fails; the copies before it are enqueued and run.
///
/// # Safety
/// - Every element that the plan describes is readable from `from` on, and its packed copy
///   writable from `to` on, until the copies are done, and nothing else writes to either meanwhile.
pub(crate) unsafe fn copy_strided(
    driver: &dyn Driver,
    plan: &CopyPlan,
    to: u64,
    from: u64,
    stream: Stream,
) -> Result<(), DriverError> {
    for at in 0..plan.calls() {
        let copy = plan.rectangle(at, to, from);
        if copy.height == 1 {
            // SAFETY: one row of the plan's elements, for which the caller vouches.
            unsafe { driver.copy_async(copy.to, copy.from, copy.width, stream) }?;
        } else {
            // SAFETY: rows of the plan's elements, for which the caller vouches.
            unsafe { driver.copy_2d_async(&copy, stream) }?;
        }
    }
    Ok(())
}
