//! Checks extents and strides against each other, and converts the strides into elements.

use crate::protocol::axes::{Axes, MAX_NDIM, Source, Unit};
use crate::protocol::rule::{Rule, Violation};

/// The number of elements and their order.
#[derive(Clone, Copy, Debug)]
pub(in crate::protocol) struct Summary {
    pub(in crate::protocol) len: u64,
    /// See [`Layout::is_c_contiguous`](super::Layout::is_c_contiguous).
    pub(in crate::protocol) c_contiguous: bool,
}

/// A [`Layout`](super::Layout) that borrows its extents and strides.
#[derive(Clone, Copy, Debug)]
pub(in crate::protocol) struct LayoutRef<'a> {
    /// The extents, then the strides in elements.
    pub(in crate::protocol) values: &'a [i64],
    pub(in crate::protocol) ndim: u8,
    pub(in crate::protocol) summary: Summary,
}

impl<'a> LayoutRef<'a> {
    #[inline]
    pub(in crate::protocol) fn shape(self) -> &'a [i64] {
        self.values.get(..usize::from(self.ndim)).unwrap_or(&[])
    }

    #[inline]
    fn elem_strides(self) -> &'a [i64] {
        self.values.get(usize::from(self.ndim)..).unwrap_or(&[])
    }

    /// See [`Layout::elem_span`](super::Layout::elem_span).
    #[inline]
    pub(in crate::protocol) fn elem_span(self) -> (i64, i64) {
        if self.summary.c_contiguous {
            return (0, self.summary.len.cast_signed());
        }
        let axes = self.shape().iter().zip(self.elem_strides());
        axes.fold((0, 1), |(lowest, end): (i64, i64), (extent, stride)| {
            let reach = extent.wrapping_sub(1).wrapping_mul(*stride); // fits: see Layout
            (
                lowest.wrapping_add(reach.min(0)),
                end.wrapping_add(reach.max(0)),
            )
        })
    }
}

/// Like [`Layout::from_byte_axes`](super::Layout::from_byte_axes), in place: `values` holds `ndim`
/// extents, then as many strides in bytes. Absent strides are written.
pub(in crate::protocol) fn check_bytes(
    values: &mut [i64],
    ndim: u8,
    has_strides: bool,
    itemsize: u32,
) -> Result<LayoutRef<'_>, Violation> {
    let (source, rank) = (Source::Cai, usize::from(ndim));
    let shape = values.get(..rank).unwrap_or(&[]);
    if rank > MAX_NDIM || shape.iter().any(|extent| *extent < 0) {
        return Err(Axes::refuse_shape(source, shape));
    }
    let summary = check(values, rank, has_strides, itemsize, Unit::Bytes, source)?;
    Ok(LayoutRef {
        values,
        ndim,
        summary,
    })
}

/// Checks `values`, which holds `rank` extents, then as many strides. Strides are converted into
/// elements; absent ones are written.
pub(super) fn check(
    values: &mut [i64],
    rank: usize,
    has_strides: bool,
    itemsize: u32,
    unit: Unit,
    source: Source,
) -> Result<Summary, Violation> {
    let given = values.len().saturating_sub(rank);
    let (shape, strides) = match values.split_at_mut_checked(rank) {
        Some(halves) if given == rank => halves,
        _ => return Err(source.wrong_count(given, rank)),
    };
    let (len, c_contiguous) = if !has_strides {
        (fill_c_order(shape, strides, itemsize, source)?, true)
    } else if shape.contains(&0) {
        keep_idle(strides, itemsize, unit);
        (0, true)
    } else {
        check_strides(shape, strides, itemsize, unit, source)?
    };
    Ok(Summary {
        len: len.unsigned_abs(),
        c_contiguous,
    })
}

/// Writes the strides of C order and returns the number of elements.
fn fill_c_order(
    shape: &[i64],
    strides: &mut [i64],
    itemsize: u32,
    source: Source,
) -> Result<i64, Violation> {
    let mut step: i64 = 1; // counts an extent of 0 as 1
    let mut len: i64 = 1;
    let mut overflow = false;
    for (extent, stride) in shape.iter().zip(strides.iter_mut()).rev() {
        *stride = step;
        len = len.wrapping_mul(*extent);
        let (next, lost) = step.overflowing_mul((*extent).max(1));
        step = next;
        overflow |= lost;
    }
    if !overflow && step.checked_mul(i64::from(itemsize)).is_some() {
        return Ok(len);
    }
    if shape.contains(&0) {
        // (0, 2**40, 2**40) is a legal shape; its strides mean nothing.
        strides.fill(0);
        return Ok(0);
    }
    let rule = if overflow {
        Rule::CountOverflow
    } else {
        Rule::SizeOverflow
    };
    Err(source.too_large(rule, shape))
}

/// Converts the strides of an array without elements, which mean nothing: 0 for what is no number of elements.
fn keep_idle(strides: &mut [i64], itemsize: u32, unit: Unit) {
    if let Unit::Bytes = unit {
        for stride in strides {
            *stride = divide_exactly(*stride, i64::from(itemsize)).unwrap_or(0);
        }
    }
}

/// Checks the strides of an array that has elements, and converts them. The stride of an axis of extent 1 means nothing
/// and stays as it came; that of C order stands for what is no number of elements.
fn check_strides(
    shape: &[i64],
    strides: &mut [i64],
    itemsize: u32,
    unit: Unit,
    source: Source,
) -> Result<(i64, bool), Violation> {
    let itemsize = i64::from(itemsize);
    let mut step: i64 = 1; // what the stride would be in C order
    let mut reach: i64 = 1; // elements from the lowest to the end of the highest
    let mut c_contiguous = true;
    for (axis, (extent, stride)) in shape.iter().zip(strides.iter_mut()).enumerate().rev() {
        let found = *stride;
        if *extent == 1 {
            if let Unit::Bytes = unit {
                *stride = divide_exactly(found, itemsize).unwrap_or(step);
            }
            continue;
        }
        let elements = match unit {
            Unit::Bytes => divide_exactly(found, itemsize),
            Unit::Elements => found.checked_mul(itemsize).map(|_| found),
        };
        let Some(elements) = elements else {
            return Err(source.bad_stride(found, axis, itemsize, unit));
        };
        *stride = elements;
        c_contiguous &= elements == step;
        let next = step.checked_mul(*extent);
        let far = elements
            .checked_abs()
            .and_then(|s| s.checked_mul(extent.wrapping_sub(1)));
        let Some(next) = next else {
            return Err(source.too_large(Rule::CountOverflow, shape));
        };
        step = next;
        let Some(sum) = far.and_then(|far| reach.checked_add(far)) else {
            return Err(source.bad_span(found, axis));
        };
        reach = sum;
    }
    if step.checked_mul(itemsize).is_none() {
        return Err(source.too_large(Rule::SizeOverflow, shape));
    }
    if reach.checked_mul(itemsize).is_none() {
        return Err(Violation::new(
            Rule::SpanOverflow,
            source.strides(),
            format_args!("{reach} elements of {itemsize} bytes from end to end"),
        ));
    }
    Ok((step, c_contiguous))
}

/// Replaces the strides of axes of extent 1 by those of Fortran order, of an array that is in this order, so that
/// consumers that compare strides exactly see it.
pub(super) fn straighten_f_order(shape: &[i64], byte_strides: &mut [i64], itemsize: i64) {
    let mut step = itemsize;
    for (extent, stride) in shape.iter().zip(byte_strides) {
        if *extent == 1 {
            *stride = step;
        }
        step = step.wrapping_mul(*extent); // fits: the size in bytes does
    }
}

/// Whether the strides are those of Fortran order on all axes of extent above 1.
pub(super) fn follows_f_order(shape: &[i64], strides: &[i64]) -> bool {
    let mut step: i64 = 1;
    for (extent, stride) in shape.iter().zip(strides) {
        if *extent != 1 && *stride != step {
            return false;
        }
        step = step.wrapping_mul(*extent); // fits: the number of elements does
    }
    true
}

/// Returns `stride / itemsize`, or `None` if there is a remainder. Most item sizes are powers of two.
#[inline]
fn divide_exactly(stride: i64, itemsize: i64) -> Option<i64> {
    let mask = itemsize.wrapping_sub(1);
    if itemsize & mask == 0 && itemsize > 0 {
        return (stride & mask == 0).then(|| stride.wrapping_shr(itemsize.trailing_zeros()));
    }
    match stride.checked_rem(itemsize) {
        Some(0) => stride.checked_div(itemsize),
        _ => None,
    }
}
