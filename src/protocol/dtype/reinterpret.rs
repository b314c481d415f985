//! The types that `dtype=` may present an array as.

use std::fmt;

use super::table::{DType, code};
use super::typestr::{Kind, TypeStr};
use crate::protocol::rule::{Field, Rule, Violation};

/// Checks that `dtype=` may present elements of `from` as `to`. Both must have the same size, and
/// `from` must be raw unsigned ints, or a pair that some library is known to mislabel. Never a cast.
///
/// ```
/// use cai_dlpack::protocol::dtype::{DType, reinterpret};
///
/// assert_eq!(reinterpret(DType::U16, DType::BF16)?, DType::BF16);
/// assert_eq!(reinterpret(DType::F32, DType::I32).unwrap_err().rule().id(), "dtype-override");
/// # Ok::<(), cai_dlpack::protocol::rule::Violation>(())
/// ```
///
/// # Errors
/// `dtype-override` (BufferError).
pub fn reinterpret(from: DType, to: DType) -> Result<DType, Violation> {
    if from == to {
        return Ok(to);
    }
    let same_size = from.itemsize().is_some() && from.itemsize() == to.itemsize();
    let raw = from.code() == code::UINT && from.lanes() == 1;
    // The way back: the bits of a type without typestr, which CAI can carry.
    let to_raw = to.code() == code::UINT && !from.has_typestr();
    let known = (from, to) == (DType::F16, DType::BF16);
    if same_size && (raw || to_raw || known) {
        Ok(to)
    } else {
        let has_bytes = from.itemsize() == Some(1);
        Err(refuse(to, has_bytes, format_args!("the data is {from}")))
    }
}

/// Like [`reinterpret`], from a typestr: raw bytes and dates may be reinterpreted too.
///
/// # Errors
/// `dtype-override` and `typestr-byte-order` (BufferError).
///
/// ```
/// use cai_dlpack::protocol::dtype::{DType, TypeStr, reinterpret_typestr};
///
/// // ml_dtypes exports bfloat16 as raw bytes.
/// assert_eq!(reinterpret_typestr(TypeStr::parse("|V2")?, DType::BF16)?, DType::BF16);
/// # Ok::<(), cai_dlpack::protocol::rule::Violation>(())
/// ```
pub fn reinterpret_typestr(from: TypeStr, to: DType) -> Result<DType, Violation> {
    if from.is_swapped() {
        return Err(from.refuse());
    }
    if let Ok(from) = from.to_dtype() {
        return reinterpret(from, to);
    }
    let same_size = to.itemsize() == Some(from.itemsize());
    let raw = from.kind() == Kind::Void;
    let ticks = matches!(from.kind(), Kind::TimeDelta | Kind::DateTime) && to == DType::I64;
    let float8 = from.kind() == Kind::Float && to == DType::F8_E5M2;
    let half_complex = from.kind() == Kind::Complex && to == DType::C32;
    if same_size && (raw || ticks || float8 || half_complex) {
        Ok(to)
    } else {
        Err(refuse(to, raw, format_args!("the data is '{from}'")))
    }
}

#[cold]
fn refuse(to: DType, has_bytes: bool, why: fmt::Arguments<'_>) -> Violation {
    let refusal = Violation::new(Rule::DtypeOverride, Field::Argument("dtype"), to);
    match has_bytes {
        false => refusal.with_hint(why.to_string()),
        true => refusal.with_hint(format!(
            "{why}; with shape= contiguous bytes are taken as elements of any type"
        )),
    }
}
