//! Element types: NumPy's typestr on one side, DLPack's code, bits and lanes on the other.
//!
//! `dtype/table.rs` has one row for each type; docs/mapping.md lists the same rows.
//!
//! | typestr | DLPack (code, bits) | name |
//! |---|---|---|
//! | `\|b1` | bool, 8 | `bool` |
//! | `\|i1 <i2 <i4 <i8` | int, 8 to 64 | `int8` to `int64` |
//! | `\|u1 <u2 <u4 <u8` | uint, 8 to 64 | `uint8` to `uint64` |
//! | `<f2 <f4 <f8` | float, 16 to 64 | `float16` to `float64` |
//! | `<c8 <c16` | complex, 64 and 128 | `complex64`, `complex128` |
//! | none | bfloat, 16; complex, 32; the float8, float6 and float4 codes; ints of 1, 2 and 4 bits | `bfloat16`, `complex32`, `float8_e4m3fn`, ... |
//! | `f16 c32 c4 f1 O S U M m V t` | none | refused, each by a rule of its own |
//!
//! `f2` is float16 and never bfloat16, although some releases of torch and Paddle wrote it for the
//! latter: `dtype=` corrects it, and [`reinterpret()`] decides what `dtype=` may do.

mod names;
mod reinterpret;
mod table;
mod typestr;

pub use reinterpret::{reinterpret, reinterpret_typestr};
pub use table::{DType, code};
pub use typestr::{Kind, TypeStr};

pub(super) use names::ONE_FIELD;

#[cfg(test)]
mod tests;
