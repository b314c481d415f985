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

impl DType {
    const fn scalar(code: u8, bits: u8) -> Self {
        Self {
            lanes: 1,
            code,
            bits,
        }
    }

    /// Checks the three numbers of a `DLDataType` against each other.
    ///
    /// # Errors
    /// `dtype-code`, `dtype-opaque`, `dtype-bool` and `dtype-sub-byte` (BufferError);
    /// `dtype-bits` and `dtype-lanes` (ValueError).
    #[inline]
    pub fn from_dlpack(code: u8, bits: u8, lanes: u16) -> Result<Self, Violation> {
        if lanes != 0 && Self::is_known(code, bits) {
            Ok(Self { lanes, code, bits })
        } else {
            Err(Self::refuse(code, bits, lanes))
        }
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
        if self.lanes == 1 {
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

/// The kinds of NumPy's array interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// `t`: a bit field; its size is in bits.
    Bit,
    /// `b`
    Bool,
    /// `i`
    Int,
    /// `u`
    UInt,
    /// `f`
    Float,
    /// `c`
    Complex,
    /// `m`
    TimeDelta,
    /// `M`
    DateTime,
    /// `O`
    Object,
    /// `S`
    Bytes,
    /// `U`: its size is in characters of 4 bytes.
    Unicode,
    /// `V`: raw bytes, structs, and the types that NumPy does not know.
    Void,
}

impl Kind {
    const fn from_letter(letter: u8) -> Option<Self> {
        Some(match letter {
            b't' => Self::Bit,
            b'b' => Self::Bool,
            b'i' => Self::Int,
            b'u' => Self::UInt,
            b'f' => Self::Float,
            b'c' => Self::Complex,
            b'm' => Self::TimeDelta,
            b'M' => Self::DateTime,
            b'O' => Self::Object,
            b'S' => Self::Bytes,
            b'U' => Self::Unicode,
            b'V' => Self::Void,
            _ => return None,
        })
    }

    /// The kind's letter.
    #[must_use]
    pub const fn letter(self) -> char {
        match self {
            Self::Bit => 't',
            Self::Bool => 'b',
            Self::Int => 'i',
            Self::UInt => 'u',
            Self::Float => 'f',
            Self::Complex => 'c',
            Self::TimeDelta => 'm',
            Self::DateTime => 'M',
            Self::Object => 'O',
            Self::Bytes => 'S',
            Self::Unicode => 'U',
            Self::Void => 'V',
        }
    }

    /// Whether items of this kind and size depend on the byte order.
    const fn has_order(self, size: u32) -> bool {
        match self {
            Self::Bit | Self::Bool | Self::Object | Self::Bytes | Self::Void => false,
            Self::Unicode => true,
            _ => size > 1,
        }
    }

    /// Whether NumPy has a type of this kind and size. Sizes that DLPack cannot carry are known
    /// here too: they get a rule of their own in [`TypeStr::to_dtype`].
    const fn has_size(self, size: u32) -> bool {
        match self {
            Self::Bool => size == 1,
            Self::Int | Self::UInt => matches!(size, 1 | 2 | 4 | 8),
            Self::Float => matches!(size, 1 | 2 | 4 | 8 | 10 | 12 | 16),
            Self::Complex => matches!(size, 4 | 8 | 16 | 20 | 24 | 32),
            Self::TimeDelta | Self::DateTime => size == 8,
            Self::Bytes => true,
            Self::Unicode => size <= u32::MAX / 4,
            Self::Bit | Self::Object | Self::Void => size > 0,
        }
    }
}

/// A well-formed typestr: a kind and an item size, in a byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TypeStr {
    /// The integer as it is written: bytes, for `U` characters, for `t` bits.
    size: u32,
    kind: Kind,
    /// The byte order is not this machine's, and it matters.
    swapped: bool,
}

impl TypeStr {
    const fn native(kind: Kind, size: u32) -> Self {
        Self {
            size,
            kind,
            swapped: false,
        }
    }

    /// Raw bytes; `None` for an item of no bytes.
    pub(super) const fn void(size: u32) -> Option<Self> {
        if size == 0 {
            None
        } else {
            Some(Self::native(Kind::Void, size))
        }
    }

    /// Reads a typestr of native byte order.
    ///
    /// # Errors
    /// `typestr-syntax` and `typestr-size` (ValueError), `typestr-byte-order` (BufferError).
    #[inline]
    pub fn parse(text: &str) -> Result<Self, Violation> {
        match Self::scan(text.as_bytes()) {
            Some(typestr) if !typestr.swapped => Ok(typestr),
            _ => Self::parse_cold(text),
        }
    }

    #[cold]
    fn parse_cold(text: &str) -> Result<Self, Violation> {
        let typestr = Self::parse_any_order(text)?;
        if typestr.swapped {
            let found = format_args!("'{text}'");
            return Err(Violation::new(
                Rule::TypestrByteOrder,
                Field::CaiTypestr,
                found,
            ));
        }
        Ok(typestr)
    }

    /// Reads a typestr of any byte order: for struct fields that nobody has chosen yet.
    ///
    /// # Errors
    /// `typestr-syntax` and `typestr-size` (ValueError).
    pub fn parse_any_order(text: &str) -> Result<Self, Violation> {
        if let Some(typestr) = Self::scan(text.as_bytes()) {
            return Ok(typestr);
        }
        let refuse = |rule| Violation::new(rule, Field::CaiTypestr, format_args!("'{text}'"));
        let syntax = || match DType::from_name(text) {
            Some(dtype) => match dtype.scalar_typestr() {
                Some(typestr) => {
                    refuse(Rule::TypestrSyntax).with_hint(format!("this one would be '{typestr}'"))
                }
                None => refuse(Rule::TypestrSyntax),
            },
            None => refuse(Rule::TypestrSyntax),
        };
        let [order, letter, rest @ ..] = text.as_bytes() else {
            return Err(syntax());
        };
        let Some(kind) = Kind::from_letter(*letter) else {
            return Err(syntax());
        };
        let digits = rest.iter().take_while(|b| b.is_ascii_digit()).count();
        let (size, unit) = rest.split_at_checked(digits).unwrap_or((rest, &[]));
        let has_unit = matches!(kind, Kind::TimeDelta | Kind::DateTime) && is_time_unit(unit);
        if !is_order(*order) || size.is_empty() || !(unit.is_empty() || has_unit) {
            return Err(syntax());
        }
        let size = std::str::from_utf8(size).ok().and_then(|s| s.parse().ok());
        size.and_then(|size| Self::checked(*order, kind, size))
            .ok_or_else(|| refuse(Rule::TypestrSize))
    }

    /// The typestrs of three and four letters, which are all that arrays of numbers have.
    #[inline]
    fn scan(text: &[u8]) -> Option<Self> {
        let (order, letter, size) = match *text {
            [order, letter, ones] => (order, letter, digit(ones)?),
            [order, letter, tens, ones] => {
                let size = digit(tens)?.wrapping_mul(10).wrapping_add(digit(ones)?);
                (order, letter, size)
            }
            _ => return None,
        };
        if !is_order(order) {
            return None;
        }
        Self::checked(order, Kind::from_letter(letter)?, size)
    }

    #[inline]
    const fn checked(order: u8, kind: Kind, size: u32) -> Option<Self> {
        if !kind.has_size(size) {
            return None;
        }
        let foreign = if cfg!(target_endian = "little") {
            b'>'
        } else {
            b'<'
        };
        Some(Self {
            size,
            kind,
            swapped: order == foreign && kind.has_order(size),
        })
    }

    /// The kind.
    #[must_use]
    pub const fn kind(self) -> Kind {
        self.kind
    }

    /// The bytes of one item; for a bit field, of its bits rounded up.
    #[must_use]
    #[inline]
    pub const fn itemsize(self) -> u32 {
        match self.kind {
            Kind::Unicode => self.size.wrapping_mul(4), // has_size holds it below 2**32
            Kind::Bit => self.size.div_ceil(8),
            _ => self.size,
        }
    }

    /// The alignment of the scalar in bytes, a power of two. Complex numbers have their half's,
    /// and 80-bit floats that of the words they are padded to.
    #[must_use]
    #[inline]
    pub const fn align(self) -> u32 {
        let scalar = match self.kind {
            Kind::Int | Kind::UInt | Kind::Float | Kind::TimeDelta | Kind::DateTime => self.size,
            Kind::Complex => self.size >> 1,
            Kind::Unicode => 4,
            _ => 1,
        };
        scalar & scalar.wrapping_neg()
    }

    /// The number of bits of one item of kind [`Kind::Bit`], else of its bytes.
    #[must_use]
    pub const fn bits(self) -> u64 {
        match self.kind {
            Kind::Bit => self.size as u64,
            _ => (self.itemsize() as u64) << 3,
        }
    }

    /// Whether the items are in the other byte order, so that [`to_dtype`](Self::to_dtype) refuses.
    #[must_use]
    pub const fn is_swapped(self) -> bool {
        self.swapped
    }

    /// DLPack's type for it.
    ///
    /// # Errors
    /// The `typestr-...` rules of class BufferError, by name and with a hint.
    #[inline]
    pub fn to_dtype(self) -> Result<DType, Violation> {
        match self.scalar_dtype() {
            Some(dtype) if !self.swapped => Ok(dtype),
            _ => Err(self.refuse()),
        }
    }

    #[cold]
    fn refuse(self) -> Violation {
        let (rule, hint) = match (self.kind, self.size) {
            _ if self.swapped => (
                Rule::TypestrByteOrder,
                "make a native copy with the producer",
            ),
            (Kind::Bit, _) => (Rule::TypestrBit, "pass the bytes as '|u1'"),
            (Kind::TimeDelta | Kind::DateTime, _) => {
                (Rule::TypestrDatetime, "pass dtype='int64' for the ticks")
            }
            (Kind::Object, _) => (
                Rule::TypestrObject,
                "make an array of numbers with the producer",
            ),
            (Kind::Bytes, _) => (
                Rule::TypestrBytes,
                "pass the bytes as '|u1' with one more axis",
            ),
            (Kind::Unicode, _) => (
                Rule::TypestrUnicode,
                "pass the code points as '<u4' with one more axis",
            ),
            (Kind::Void, 1) => (
                Rule::TypestrVoid,
                "pass dtype= with what it is, such as 'float8_e4m3fn' or 'uint8'",
            ),
            (Kind::Void, 2) => (
                Rule::TypestrVoid,
                "pass dtype='bfloat16' if that is what it is",
            ),
            (Kind::Void, _) => (
                Rule::TypestrVoid,
                "pass dtype= with what it is, or choose a field of the struct",
            ),
            (Kind::Float, 1) => (
                Rule::TypestrFloat8,
                "pass dtype='float8_e5m2' if that is what it is",
            ),
            (Kind::Complex, 4) => (
                Rule::TypestrHalfComplex,
                "pass the parts as '<f2' with one more axis of 2",
            ),
            _ => (
                Rule::TypestrLongDouble,
                "convert it to float64 or complex128 with the producer",
            ),
        };
        Violation::new(rule, Field::CaiTypestr, format_args!("'{self}'")).with_hint(hint)
    }
}

impl fmt::Display for TypeStr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let native_little = cfg!(target_endian = "little");
        let order = match (
            self.kind.has_order(self.size),
            self.swapped != native_little,
        ) {
            (false, _) => '|',
            (true, true) => '<',
            (true, false) => '>',
        };
        write!(f, "{order}{}{}", self.kind.letter(), self.size)
    }
}

const fn is_order(letter: u8) -> bool {
    matches!(letter, b'<' | b'>' | b'|' | b'=')
}

#[inline]
fn digit(letter: u8) -> Option<u32> {
    let value = letter.wrapping_sub(b'0');
    (value <= 9).then_some(u32::from(value))
}

/// `[ns]`, `[25s]`, `[3D/2]`.
fn is_time_unit(text: &[u8]) -> bool {
    match text {
        [b'[', unit @ .., b']'] => {
            !unit.is_empty() && unit.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'/')
        }
        _ => false,
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
    let raw = from.code == code::UINT && from.lanes == 1;
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
