//! Element types: NumPy's typestr on one side, DLPack's code, bits and lanes on the other.
//!
//! One table, walked both ways:
//!
//! | typestr | DLPack (code, bits) | name |
//! |---|---|---|
//! | `\|b1` | bool, 8 | `bool` |
//! | `\|i1 <i2 <i4 <i8` | int, 8 to 64 | `int8` to `int64` |
//! | `\|u1 <u2 <u4 <u8` | uint, 8 to 64 | `uint8` to `uint64` |
//! | `<f2 <f4 <f8` | float, 16 to 64 | `float16` to `float64` |
//! | `<c8 <c16` | complex, 64 and 128 | `complex64`, `complex128` |
//! | none | bfloat, 16; complex, 32; the float8, float6 and float4 codes; ints of 1, 2 and 4 bits | `bfloat16`, `complex32`, `float8_e4m3fn`, ... |
//! | `f16 c32 c4 f1 O S U M m V t` | none | refused by name |
//!
//! `f2` is float16 and never bfloat16, although some releases of torch and Paddle meant the latter:
//! `dtype=` says so where it is so, and [`reinterpret`] decides what `dtype=` may do.

use std::fmt;

use super::rule::{Field, Rule, Violation};

/// Not a code of DLPack: items with fields, which it has no words for.
const STRUCT: u8 = u8::MAX;
/// What to do about them.
pub(super) const ONE_FIELD: &str = "view one field of it: cd.view(obj).field('name')";

mod typestr;
use typestr::is_order;
pub use typestr::{Kind, TypeStr};

/// DLPack's type codes (`DLDataTypeCode`, 1.3).
pub mod code {
    #![expect(missing_docs, reason = "the names are the header's")]
    pub const INT: u8 = 0;
    pub const UINT: u8 = 1;
    pub const FLOAT: u8 = 2;
    pub const OPAQUE_HANDLE: u8 = 3;
    pub const BFLOAT: u8 = 4;
    pub const COMPLEX: u8 = 5;
    pub const BOOL: u8 = 6;
    pub const FLOAT8_E3M4: u8 = 7;
    pub const FLOAT8_E4M3: u8 = 8;
    pub const FLOAT8_E4M3B11FNUZ: u8 = 9;
    pub const FLOAT8_E4M3FN: u8 = 10;
    pub const FLOAT8_E4M3FNUZ: u8 = 11;
    pub const FLOAT8_E5M2: u8 = 12;
    pub const FLOAT8_E5M2FNUZ: u8 = 13;
    pub const FLOAT8_E8M0FNU: u8 = 14;
    pub const FLOAT6_E2M3FN: u8 = 15;
    pub const FLOAT6_E3M2FN: u8 = 16;
    pub const FLOAT4_E2M1FN: u8 = 17;
}

/// An element type of DLPack: code, bits and lanes that belong together.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct DType {
    lanes: u16,
    code: u8,
    bits: u8,
}

/// A typestr in this machine's byte order.
#[cfg(target_endian = "little")]
macro_rules! native {
    ($text:literal) => {
        concat!("<", $text)
    };
}
/// A typestr in this machine's byte order.
#[cfg(target_endian = "big")]
macro_rules! native {
    ($text:literal) => {
        concat!(">", $text)
    };
}

macro_rules! dtypes {
    (
        both { $($both:ident $b_code:ident $b_bits:literal $b_name:literal $kind:ident $size:literal $typestr:expr;)* }
        dlpack { $($only:ident $o_code:ident $o_bits:literal $o_name:literal;)* }
    ) => {
        impl DType {
            $(#[doc = concat!("`", $b_name, "`.")] pub const $both: Self = Self::scalar(code::$b_code, $b_bits);)*
            $(#[doc = concat!("`", $o_name, "`, which has no typestr.")] pub const $only: Self = Self::scalar(code::$o_code, $o_bits);)*

            /// Every scalar type, those with a typestr first.
            pub const ALL: &[Self] = &[$(Self::$both,)* $(Self::$only,)*];

            const fn is_known(code: u8, bits: u8) -> bool {
                matches!((code, bits), $((code::$b_code, $b_bits))|* | $((code::$o_code, $o_bits))|*)
            }

            /// The name of one lane, as NumPy and ml_dtypes spell it.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match (self.code, self.bits) {
                    $((code::$b_code, $b_bits) => $b_name,)*
                    $((code::$o_code, $o_bits) => $o_name,)*
                    (STRUCT, _) => "void",
                    _ => "unknown",
                }
            }

            const fn scalar_typestr(self) -> Option<&'static str> {
                match (self.code, self.bits) {
                    $((code::$b_code, $b_bits) => Some($typestr),)*
                    _ => None,
                }
            }

            /// The typestr of a type that has one; `|V1` for the others, which callers refuse before.
            #[inline]
            pub(super) const fn native_typestr(self) -> TypeStr {
                match (self.code, self.bits) {
                    $((code::$b_code, $b_bits) => TypeStr::native(Kind::$kind, $size),)*
                    _ => TypeStr::native(Kind::Void, 1),
                }
            }

            fn from_full_name(name: &str) -> Option<Self> {
                match name {
                    $($b_name => Some(Self::$both),)*
                    $($o_name => Some(Self::$only),)*
                    _ => None,
                }
            }
        }

        impl TypeStr {
            /// The canonical typestr of a type that DLPack has too, else an empty string.
            #[inline]
            pub(super) const fn canonical(self) -> &'static str {
                match (self.kind, self.size) {
                    $((Kind::$kind, $size) => $typestr,)*
                    _ => "",
                }
            }

            const fn scalar_dtype(self) -> Option<DType> {
                match (self.kind, self.size) {
                    $((Kind::$kind, $size) => Some(DType::$both),)*
                    _ => None,
                }
            }
        }
    };
}

dtypes! {
    both {
        BOOL BOOL 8 "bool" Bool 1 "|b1";
        I8 INT 8 "int8" Int 1 "|i1";
        I16 INT 16 "int16" Int 2 native!("i2");
        I32 INT 32 "int32" Int 4 native!("i4");
        I64 INT 64 "int64" Int 8 native!("i8");
        U8 UINT 8 "uint8" UInt 1 "|u1";
        U16 UINT 16 "uint16" UInt 2 native!("u2");
        U32 UINT 32 "uint32" UInt 4 native!("u4");
        U64 UINT 64 "uint64" UInt 8 native!("u8");
        F16 FLOAT 16 "float16" Float 2 native!("f2");
        F32 FLOAT 32 "float32" Float 4 native!("f4");
        F64 FLOAT 64 "float64" Float 8 native!("f8");
        C64 COMPLEX 64 "complex64" Complex 8 native!("c8");
        C128 COMPLEX 128 "complex128" Complex 16 native!("c16");
    }
    dlpack {
        BF16 BFLOAT 16 "bfloat16";
        C32 COMPLEX 32 "complex32";
        F8_E3M4 FLOAT8_E3M4 8 "float8_e3m4";
        F8_E4M3 FLOAT8_E4M3 8 "float8_e4m3";
        F8_E4M3B11FNUZ FLOAT8_E4M3B11FNUZ 8 "float8_e4m3b11fnuz";
        F8_E4M3FN FLOAT8_E4M3FN 8 "float8_e4m3fn";
        F8_E4M3FNUZ FLOAT8_E4M3FNUZ 8 "float8_e4m3fnuz";
        F8_E5M2 FLOAT8_E5M2 8 "float8_e5m2";
        F8_E5M2FNUZ FLOAT8_E5M2FNUZ 8 "float8_e5m2fnuz";
        F8_E8M0FNU FLOAT8_E8M0FNU 8 "float8_e8m0fnu";
        F6_E2M3FN FLOAT6_E2M3FN 6 "float6_e2m3fn";
        F6_E3M2FN FLOAT6_E3M2FN 6 "float6_e3m2fn";
        F4_E2M1FN FLOAT4_E2M1FN 4 "float4_e2m1fn";
        I4 INT 4 "int4";
        U4 UINT 4 "uint4";
        I2 INT 2 "int2";
        U2 UINT 2 "uint2";
        I1 INT 1 "int1";
        U1 UINT 1 "uint1";
    }
}

/// [`DType::is_known`] as a table: for each code, one bit for each number of bits.
static KNOWN: [[u8; 32]; code::FLOAT4_E2M1FN as usize + 1] = known();

#[expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "run by the compiler"
)]
const fn known() -> [[u8; 32]; code::FLOAT4_E2M1FN as usize + 1] {
    let mut table = [[0; 32]; code::FLOAT4_E2M1FN as usize + 1];
    let mut at = 0;
    while at < table.len() << 8 {
        let (code, bits) = (at >> 8, at & 255);
        if DType::is_known(code as u8, bits as u8) {
            table[code][bits >> 3] |= 1 << (bits & 7);
        }
        at += 1;
    }
    table
}

impl DType {
    const fn scalar(code: u8, bits: u8) -> Self {
        Self {
            lanes: 1,
            code,
            bits,
        }
    }

    /// Items of so many bytes that have fields: bytes to whoever looks for them, and refused by every
    /// export. `None` where there are none, or too many to count as lanes.
    pub(crate) fn structure(nbytes: u32) -> Option<Self> {
        let lanes = u16::try_from(nbytes).ok().filter(|lanes| *lanes != 0)?;
        Some(Self {
            lanes,
            code: STRUCT,
            bits: 8,
        })
    }

    /// Whether the items have fields.
    #[inline]
    pub(crate) const fn is_structure(self) -> bool {
        self.code == STRUCT
    }

    /// The type of a canonical typestr, as nearly every producer writes it; `None` for any other text.
    #[must_use]
    #[inline(always)]
    pub(super) fn of_canonical(text: &[u8]) -> Option<Self> {
        const NATIVE: u8 = if cfg!(target_endian = "little") {
            b'<'
        } else {
            b'>'
        };
        const fn three(order: u8, letter: u8, size: u8) -> u32 {
            u32::from_le_bytes([order, letter, size, 0])
        }
        macro_rules! table {
            ($($name:ident = $order:ident $letter:literal $size:literal;)*) => {{
                $(const $name: u32 = three($order, $letter, $size);)*
                match *text {
                    [order, letter, size] => match three(order, letter, size) {
                        $($name => Self::$name,)*
                        _ => return None,
                    },
                    [NATIVE, b'c', b'1', b'6'] => Self::C128,
                    _ => return None,
                }
            }};
        }
        const NONE: u8 = b'|';
        Some(table! {
            F32 = NATIVE b'f' b'4';
            F64 = NATIVE b'f' b'8';
            F16 = NATIVE b'f' b'2';
            I64 = NATIVE b'i' b'8';
            I32 = NATIVE b'i' b'4';
            I16 = NATIVE b'i' b'2';
            U64 = NATIVE b'u' b'8';
            U32 = NATIVE b'u' b'4';
            U16 = NATIVE b'u' b'2';
            C64 = NATIVE b'c' b'8';
            U8 = NONE b'u' b'1';
            I8 = NONE b'i' b'1';
            BOOL = NONE b'b' b'1';
        })
    }

    /// Checks the three numbers of a `DLDataType` against each other.
    ///
    /// # Errors
    /// `dtype-code`, `dtype-opaque`, `dtype-bool` and `dtype-sub-byte` (BufferError);
    /// `dtype-bits` and `dtype-lanes` (ValueError).
    #[inline]
    pub fn from_dlpack(code: u8, bits: u8, lanes: u16) -> Result<Self, Violation> {
        Self::known(code, bits, lanes).ok_or_else(|| Self::refuse(code, bits, lanes))
    }

    /// The same, where why not is not asked.
    #[inline(always)]
    pub(super) fn known(code: u8, bits: u8, lanes: u16) -> Option<Self> {
        let bits_known = KNOWN.get(usize::from(code))?;
        let byte = bits_known.get(usize::from(bits >> 3))?;
        let is_known = byte.wrapping_shr(u32::from(bits & 7)) & 1 != 0;
        (lanes != 0 && is_known).then_some(Self { lanes, code, bits })
    }

    #[cold]
    fn refuse(code: u8, bits: u8, lanes: u16) -> Violation {
        let rule = match code {
            code::OPAQUE_HANDLE => Rule::DtypeOpaque,
            _ if code > code::FLOAT4_E2M1FN => Rule::DtypeCode,
            _ if lanes == 0 => Rule::DtypeLanes,
            code::BOOL => Rule::DtypeBool,
            code::FLOAT6_E2M3FN | code::FLOAT6_E3M2FN | code::FLOAT4_E2M1FN => Rule::DtypeSubByte,
            _ => Rule::DtypeBits,
        };
        let found = format_args!("(code {code}, bits {bits}, lanes {lanes})");
        Violation::new(rule, Field::TensorDtype, found)
    }

    /// `DLDataType.code`.
    #[must_use]
    pub const fn code(self) -> u8 {
        self.code
    }

    /// `DLDataType.bits`: of one lane.
    #[must_use]
    pub const fn bits(self) -> u8 {
        self.bits
    }

    /// `DLDataType.lanes`: 1, or the length of a short vector.
    #[must_use]
    pub const fn lanes(self) -> u16 {
        self.lanes
    }

    /// The bits of one element, all lanes.
    #[must_use]
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "255 * 65535 is less than 2**32"
    )]
    pub const fn element_bits(self) -> u32 {
        self.bits as u32 * self.lanes as u32
    }

    /// The bytes of one element, all lanes; `None` where an element is no whole number of bytes.
    #[must_use]
    #[inline]
    pub const fn itemsize(self) -> Option<u32> {
        let bits = self.element_bits();
        if bits & 7 == 0 { Some(bits >> 3) } else { None }
    }

    /// Whether one lane is smaller than a byte.
    #[must_use]
    pub const fn is_sub_byte(self) -> bool {
        self.bits < 8
    }

    /// The alignment of one element in bytes: of its scalar, and for complex numbers of half.
    #[must_use]
    #[inline]
    pub const fn align(self) -> u32 {
        let bits = if self.code == code::COMPLEX {
            self.bits >> 1
        } else {
            self.bits
        };
        if bits < 8 { 1 } else { (bits >> 3) as u32 }
    }

    /// The canonical typestr: native byte order, `|` for one byte.
    ///
    /// # Errors
    /// `cai-lanes`, `cai-sub-byte` and `cai-dtype` (BufferError) where there is none.
    #[inline]
    pub fn typestr(self) -> Result<&'static str, Violation> {
        match self.scalar_typestr() {
            Some(text) if self.lanes == 1 => Ok(text),
            _ => Err(self.refuse_typestr()),
        }
    }

    #[cold]
    fn refuse_typestr(self) -> Violation {
        if self.is_structure() {
            return self.refuse_structure();
        }
        let refuse = |rule| Violation::new(rule, Field::TensorDtype, self);
        if self.lanes != 1 {
            return refuse(Rule::CaiLanes).with_hint("pass it by DLPack");
        }
        match self.bits {
            ..8 => refuse(Rule::CaiSubByte).with_hint("pass it by DLPack"),
            8 => refuse(Rule::CaiDtype)
                .with_hint("pass it by DLPack, or present its bits with dtype='uint8'"),
            _ if self == Self::BF16 => refuse(Rule::CaiDtype)
                .with_hint("pass it by DLPack, or present its bits with dtype='uint16'"),
            _ => refuse(Rule::CaiDtype).with_hint("pass it by DLPack"),
        }
    }

    /// Why items with fields are not exchanged.
    #[cold]
    pub(crate) fn refuse_structure(self) -> Violation {
        Violation::new(Rule::DescrFields, Field::TensorDtype, self).with_hint(ONE_FIELD)
    }

    /// The type of a name: NumPy's (`float32`, `half`), its letters (`f`, `?`), ml_dtypes'
    /// (`bfloat16`, `float8_e4m3fn`), or a typestr with or without its byte order (`<f4`, `f4`).
    ///
    /// `float`, `int` and `long` are not among them: NumPy, torch and C disagree about them.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "?" | "bool_" => Self::BOOL,
            "b" => Self::I8,
            "B" => Self::U8,
            "h" => Self::I16,
            "H" => Self::U16,
            "i" => Self::I32,
            "I" => Self::U32,
            "q" => Self::I64,
            "Q" => Self::U64,
            "e" | "half" => Self::F16,
            "f" | "single" => Self::F32,
            "d" | "double" => Self::F64,
            "F" => Self::C64,
            "D" => Self::C128,
            _ => return Self::from_full_name(name).or_else(|| Self::from_typestr(name.as_bytes())),
        })
    }

    /// The type of `<f4` or `f4`.
    fn from_typestr(text: &[u8]) -> Option<Self> {
        let typestr = match *text {
            [letter, ones] => TypeStr::scan(&[b'=', letter, ones]),
            [letter, tens, ones] if !is_order(letter) => TypeStr::scan(&[b'=', letter, tens, ones]),
            _ => TypeStr::scan(text),
        };
        typestr
            .filter(|typestr| !typestr.swapped)
            .and_then(TypeStr::scalar_dtype)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        if self.is_structure() {
            write!(f, "{}", self.element_bits())
        } else if self.lanes == 1 {
            Ok(())
        } else {
            write!(f, "x{}", self.lanes)
        }
    }
}

impl fmt::Debug for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DType({self})")
    }
}

/// Whether `dtype=` may present elements of `from` as `to`: the same size, and either raw unsigned
/// ints, or a pair in which some library is known to label the one as the other. Never a cast.
///
/// # Errors
/// `dtype-override` (BufferError).
pub fn reinterpret(from: DType, to: DType) -> Result<DType, Violation> {
    if from == to {
        return Ok(to);
    }
    check_carried(to)?;
    let same_size = from.itemsize().is_some() && from.itemsize() == to.itemsize();
    let raw = from.code == code::UINT && from.lanes == 1 || from.is_structure();
    // The way back: a type without typestr shown as its bits, so that CAI can say it.
    let to_raw = to.code == code::UINT && from.scalar_typestr().is_none();
    let known = (from, to) == (DType::F16, DType::BF16);
    if same_size && (raw || to_raw || known) {
        Ok(to)
    } else {
        Err(refuse_override(to, format_args!("the data is {from}")))
    }
}

/// [`reinterpret`], from a typestr: raw bytes and dates may be reinterpreted too.
///
/// # Errors
/// `dtype-override` and `typestr-byte-order` (BufferError).
pub fn reinterpret_typestr(from: TypeStr, to: DType) -> Result<DType, Violation> {
    if from.swapped {
        return Err(from.refuse());
    }
    if let Some(from) = from.scalar_dtype() {
        return reinterpret(from, to);
    }
    check_carried(to)?;
    let same_size = to.itemsize() == Some(from.itemsize());
    let raw = from.kind == Kind::Void;
    let ticks = matches!(from.kind, Kind::TimeDelta | Kind::DateTime) && to == DType::I64;
    let float8 = from.kind == Kind::Float && to == DType::F8_E5M2;
    if same_size && (raw || ticks || float8) {
        Ok(to)
    } else {
        Err(refuse_override(to, format_args!("the data is '{from}'")))
    }
}

/// The types that `dtype=` can name: scalars of whole bytes, and not complex32, which no library
/// is known to hide behind another typestr.
pub(super) fn check_carried(to: DType) -> Result<(), Violation> {
    let why = if to.is_sub_byte() {
        "no typestr stands for types smaller than a byte"
    } else if to == DType::C32 {
        "complex32 is not exchanged; present its parts as '<f2' with one more axis of 2"
    } else if to.lanes != 1 {
        "vector types are not exchanged; add an axis for the lanes"
    } else {
        return Ok(());
    };
    Err(refuse_override(to, format_args!("{why}")))
}

#[cold]
fn refuse_override(to: DType, why: fmt::Arguments<'_>) -> Violation {
    Violation::new(Rule::DtypeOverride, Field::Argument("dtype"), to).with_hint(why.to_string())
}

#[cfg(test)]
mod tests;
