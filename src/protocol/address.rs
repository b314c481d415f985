//! Checks a data pointer against shape, strides and item size.
//!
//! Sizes are in bits, since DLPack packs elements smaller than a byte.

use super::dtype::TypeStr;
use super::layout::{Layout, LayoutRef};
use super::rule::{Field, Rule, Violation};

/// Checks the address of the element of index 0. Returns it, or 0 for an array without elements.
pub(super) fn check(
    field: Field,
    data: u64,
    layout: LayoutRef<'_>,
    bits: u64,
    align: u32,
) -> Result<u64, Violation> {
    if check_null(field, data, layout)? == 0 {
        return Ok(0);
    }
    check_align(field, data, align)?;
    match byte_span(data, layout, bits) {
        Some(_) => Ok(data),
        None => Err(refuse_range(field, data)),
    }
}

/// Checks that there is a pointer if there are elements. Returns it, or 0 for an array without elements.
#[inline]
pub(super) fn check_null(field: Field, data: u64, layout: LayoutRef<'_>) -> Result<u64, Violation> {
    match data {
        _ if layout.summary.len == 0 => Ok(0),
        0 => Err(refuse_null(field, layout.shape())),
        data => Ok(data),
    }
}

/// Checks that `data` is a multiple of `align`, a power of two.
#[inline]
pub(super) fn check_align(field: Field, data: u64, align: u32) -> Result<(), Violation> {
    if data & u64::from(align.wrapping_sub(1)) == 0 {
        Ok(())
    } else {
        Err(refuse_align(field, data, align))
    }
}

/// Like [`check`], for the items of a dict, whose address may be any.
#[inline]
pub(super) fn check_items(data: u64, layout: &Layout, typestr: TypeStr) -> Result<u64, Violation> {
    let data = check_null(Field::CaiData, data, layout.borrowed())?;
    match items_span(data, layout, typestr) {
        None if data != 0 => Err(refuse_range(Field::CaiData, data)),
        _ => Ok(data),
    }
}

/// Like [`byte_span`], for the items of a dict. Bit fields are packed only if they are contiguous.
#[inline]
pub(super) fn items_span(data: u64, layout: &Layout, typestr: TypeStr) -> Option<(u64, u64)> {
    let bits = match layout.is_c_contiguous() {
        true => typestr.bits(),
        false => u64::from(typestr.itemsize()) << 3,
    };
    let Some((lowest, end)) = layout.uneven_reach() else {
        return byte_span(data, layout.borrowed(), bits);
    };
    let start = data.checked_sub(lowest.unsigned_abs())?;
    Some((start, data.checked_add(end.unsigned_abs())?))
}

/// Returns the bytes that `elements` elements take, rounded up.
#[inline]
pub(super) fn nbytes(elements: u64, bits: u64) -> u64 {
    if bits & 7 == 0 {
        // Fits: the layout was checked with this size.
        return elements.saturating_mul(bits >> 3);
    }
    let bits = u128::from(elements).saturating_mul(u128::from(bits));
    u64::try_from(bits.div_ceil(8)).unwrap_or(u64::MAX)
}

/// Returns the first byte of the lowest element and the end of the highest one. `None` without
/// elements, and if they exceed the address space.
#[inline(always)]
pub(super) fn byte_span(data: u64, layout: LayoutRef<'_>, bits: u64) -> Option<(u64, u64)> {
    if layout.summary.len == 0 {
        return None;
    }
    let (lowest, end) = layout.elem_span();
    let start = data.checked_sub(nbytes(lowest.unsigned_abs(), bits))?;
    let end = data.checked_add(nbytes(end.unsigned_abs(), bits))?;
    Some((start, end))
}

#[cold]
fn refuse_null(field: Field, shape: &[i64]) -> Violation {
    let found = format_args!("0 with shape {shape:?}");
    Violation::new(Rule::DataPointerNull, field, found)
}

#[cold]
fn refuse_range(field: Field, data: u64) -> Violation {
    Violation::new(Rule::AddressRange, field, format_args!("{data:#x}"))
}

#[cold]
fn refuse_align(field: Field, data: u64, align: u32) -> Violation {
    let found = format_args!("{data:#x}, to be aligned to {align} bytes");
    Violation::new(Rule::DataAlignment, field, found)
}
