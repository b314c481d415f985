//! The element types of DLPack, one row each. Everything else about a type is derived from its row.

use std::ffi::CStr;

use super::typestr::TypeStr;

/// An element type of DLPack: a code, bits and lanes that belong together.
///
/// ```
/// use cai_dlpack::protocol::dtype::{DType, code};
///
/// let dtype = DType::from_dlpack(code::FLOAT, 32, 1)?;
/// assert_eq!((dtype, dtype.name(), dtype.itemsize()), (DType::F32, "float32", Some(4)));
/// assert_eq!(DType::from_name("float8_e4m3fn"), Some(DType::F8_E4M3FN));
/// assert!(DType::F8_E4M3FN.typestr().is_err()); // NumPy has no typestr for it
///
/// // Two lanes of four bits share a byte; a complex number is aligned as one half of it.
/// let pair = DType::from_dlpack(code::FLOAT4_E2M1FN, 4, 2)?;
/// assert_eq!((pair.code(), pair.bits(), pair.lanes()), (code::FLOAT4_E2M1FN, 4, 2));
/// assert!(pair.is_sub_byte() && pair.element_bits() == 8);
/// assert_eq!((DType::C64.itemsize(), DType::C64.align()), (Some(8), 4));
/// # Ok::<(), cai_dlpack::protocol::rule::Violation>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct DType {
    pub(super) lanes: u16,
    pub(super) code: u8,
    pub(super) bits: u8,
}

/// A row of the table.
pub(super) struct Row {
    dtype: DType,
    /// The name of one lane, as NumPy and ml_dtypes spell it.
    pub(super) name: &'static str,
    /// NumPy's other names and its letter.
    pub(super) aliases: &'static [&'static str],
    /// `None` if NumPy has no such type.
    pub(super) numpy: Option<Numpy>,
}

/// NumPy's description of a type.
pub(super) struct Numpy {
    pub(super) typestr: TypeStr,
    /// The canonical typestr: native byte order, `|` for one byte.
    pub(super) text: &'static str,
    /// The format of the buffer protocol.
    pub(super) format: &'static CStr,
}

/// Writes a typestr in this machine's byte order.
macro_rules! canonical {
    ($typestr:literal) => {
        match (
            TypeStr::native($typestr).itemsize(),
            cfg!(target_endian = "little"),
        ) {
            (1, _) => concat!("|", $typestr),
            (_, true) => concat!("<", $typestr),
            (_, false) => concat!(">", $typestr),
        }
    };
}

macro_rules! numpy {
    () => {
        None
    };
    ($typestr:literal $format:literal) => {
        Some(Numpy {
            typestr: TypeStr::native($typestr),
            text: canonical!($typestr),
            format: $format,
        })
    };
}

macro_rules! dtypes {
    ($(
        $code:ident = $number:literal {
            $($name:ident $bits:literal $text:literal $(, $alias:literal)* $(=> $typestr:literal $format:literal)?;)*
        }
    )*) => {
        /// DLPack's type codes (`DLDataTypeCode`, 1.3 and what has been merged since).
        pub mod code {
            #![expect(missing_docs, reason = "the names are the header's")]
            $(pub const $code: u8 = $number;)*
        }

        impl DType {
            $($(#[doc = concat!("`", $text, "`.")] pub const $name: Self = Self::scalar(code::$code, $bits);)*)*

            /// Every scalar type.
            pub const ALL: &[Self] = &[$($(Self::$name,)*)*];

            /// Like [`from_name`](Self::from_name), for a canonical typestr, which nearly every
            /// producer writes; `None` for any other text. Without it a CAI object to a capsule
            /// took 1.23 of the C floor of then instead of 1.18.
            #[must_use]
            #[inline(always)]
            pub(in crate::protocol) fn from_typestr_fast(text: &[u8]) -> Option<Self> {
                match *text {
                    [a, b, c] => Self::of_key::<3>(u32::from_le_bytes([a, b, c, 0])),
                    [a, b, c, d] => Self::of_key::<4>(u32::from_le_bytes([a, b, c, d])),
                    _ => None,
                }
            }

            /// Finds the type of a typestr of `LENGTH` letters.
            #[inline(always)]
            fn of_key<const LENGTH: usize>(key: u32) -> Option<Self> {
                $($($(
                    let (length, wanted) = const { key_of(canonical!($typestr)) };
                    if length == LENGTH && key == wanted {
                        return Some(Self::$name);
                    }
                )?)*)*
                None
            }
        }

        static ROWS: [Row; DType::ALL.len()] = [$($(
            Row {
                dtype: DType::$name,
                name: $text,
                aliases: &[$($alias),*],
                numpy: numpy!($($typestr $format)?),
            },
        )*)*];
    };
}

// CODE = number in DLPack's header {
//     CONSTANT bits "name", "alias"... => "kind and size of the typestr" c"format of the buffer protocol";
// }
//
// An int of a pointer's size (`intp`, `p`, `n`) has 64 bits, as CUDA's platforms have.
dtypes! {
    INT = 0 {
        I1 1 "int1";
        I2 2 "int2";
        I4 4 "int4";
        I8 8 "int8", "b" => "i1" c"b";
        I16 16 "int16", "h", "short" => "i2" c"h";
        I32 32 "int32", "i", "intc" => "i4" c"i";
        I64 64 "int64", "q", "longlong", "p", "n", "intp" => "i8" c"q";
    }
    UINT = 1 {
        U1 1 "uint1";
        U2 2 "uint2";
        U4 4 "uint4";
        U8 8 "uint8", "B", "ubyte" => "u1" c"B";
        U16 16 "uint16", "H", "ushort" => "u2" c"H";
        U32 32 "uint32", "I", "uintc" => "u4" c"I";
        U64 64 "uint64", "Q", "ulonglong", "P", "N", "uintp" => "u8" c"Q";
    }
    FLOAT = 2 {
        F16 16 "float16", "e", "half" => "f2" c"e";
        F32 32 "float32", "f", "single" => "f4" c"f";
        F64 64 "float64", "d", "double" => "f8" c"d";
    }
    OPAQUE_HANDLE = 3 {}
    BFLOAT = 4 {
        BF16 16 "bfloat16";
    }
    COMPLEX = 5 {
        C32 32 "complex32";
        C64 64 "complex64", "F", "csingle" => "c8" c"Zf";
        C128 128 "complex128", "D", "cdouble" => "c16" c"Zd";
    }
    BOOL = 6 {
        BOOL 8 "bool", "?", "bool_" => "b1" c"?";
    }
    FLOAT8_E3M4 = 7 { F8_E3M4 8 "float8_e3m4"; }
    FLOAT8_E4M3 = 8 { F8_E4M3 8 "float8_e4m3"; }
    FLOAT8_E4M3B11FNUZ = 9 { F8_E4M3B11FNUZ 8 "float8_e4m3b11fnuz"; }
    FLOAT8_E4M3FN = 10 { F8_E4M3FN 8 "float8_e4m3fn"; }
    FLOAT8_E4M3FNUZ = 11 { F8_E4M3FNUZ 8 "float8_e4m3fnuz"; }
    FLOAT8_E5M2 = 12 { F8_E5M2 8 "float8_e5m2"; }
    FLOAT8_E5M2FNUZ = 13 { F8_E5M2FNUZ 8 "float8_e5m2fnuz"; }
    FLOAT8_E8M0FNU = 14 { F8_E8M0FNU 8 "float8_e8m0fnu"; }
    FLOAT6_E2M3FN = 15 { F6_E2M3FN 6 "float6_e2m3fn"; }
    FLOAT6_E3M2FN = 16 { F6_E3M2FN 6 "float6_e3m2fn"; }
    FLOAT4_E2M1FN = 17 { F4_E2M1FN 4 "float4_e2m1fn"; }
    // Merged into DLPack's header after 1.3 (dmlc/dlpack #187).
    BCOMPLEX = 18 { BC32 32 "bcomplex32"; }
}

/// No row of [`ROWS`].
const ABSENT: u8 = u8::MAX;

/// For each code and number of bits the row of [`ROWS`], or [`ABSENT`].
static INDEX: [[u8; 256]; codes()] = index();

impl DType {
    /// The highest type code that DLPack has.
    pub(super) const LAST_CODE: u8 = last_code();
}

#[expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "run by the compiler"
)]
const fn last_code() -> u8 {
    let (mut last, mut at) = (0, 0);
    while at < DType::ALL.len() {
        let code = DType::ALL[at].code;
        last = if code < last { last } else { code };
        at += 1;
    }
    last
}

/// Returns the number of codes, with those that have no type.
#[expect(clippy::arithmetic_side_effects, reason = "run by the compiler")]
const fn codes() -> usize {
    last_code() as usize + 1
}

#[expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "run by the compiler"
)]
const fn index() -> [[u8; 256]; codes()] {
    assert!(DType::ALL.len() < ABSENT as usize);
    let mut index = [[ABSENT; 256]; codes()];
    let mut at = 0;
    while at < ROWS.len() {
        let (dtype, numpy) = (ROWS[at].dtype, &ROWS[at].numpy);
        let place = &mut index[dtype.code as usize][dtype.bits as usize];
        assert!(*place == ABSENT, "two rows have this code and bits");
        *place = at as u8;
        if let Some(numpy) = numpy {
            let bits = numpy.typestr.itemsize() * 8;
            assert!(bits == dtype.bits as u32, "the typestr has another size");
        }
        at += 1;
    }
    index
}

/// Packs a typestr of 3 or 4 letters into an int, after its length; run by the compiler.
const fn key_of(typestr: &str) -> (usize, u32) {
    match *typestr.as_bytes() {
        [a, b, c] => (3, u32::from_le_bytes([a, b, c, 0])),
        [a, b, c, d] => (4, u32::from_le_bytes([a, b, c, d])),
        _ => panic!("3 or 4 letters"),
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

    /// The placeholder in the description of items that DLPack cannot describe: no code of DLPack, and a size that is no
    /// whole number of bytes, so that no type equals it and nothing is computed with it. Their own type and size are in
    /// [`CaiOnly`](crate::protocol::cai_only::CaiOnly).
    pub(crate) const CAI_ONLY: Self = Self::scalar(u8::MAX, u8::MAX);

    /// Whether DLPack cannot describe the items.
    #[inline]
    pub(crate) const fn is_cai_only(self) -> bool {
        self.code == Self::CAI_ONLY.code
    }

    /// Like [`from_dlpack`](Self::from_dlpack), without a reason for a refusal.
    #[inline(always)]
    pub(in crate::protocol) fn from_dlpack_fast(code: u8, bits: u8, lanes: u16) -> Option<Self> {
        let dtype = Self { lanes, code, bits };
        (lanes != 0 && dtype.index().is_some()).then_some(dtype)
    }

    /// Returns the position of the scalar type in [`ALL`](Self::ALL), for a table with a place for
    /// each type; `None` for items with fields.
    #[inline(always)]
    pub(crate) fn index(self) -> Option<usize> {
        let of_code = INDEX.get(usize::from(self.code))?;
        let place = *of_code.get(usize::from(self.bits))?;
        (place != ABSENT).then_some(usize::from(place))
    }

    #[inline]
    pub(super) fn row(self) -> Option<&'static Row> {
        ROWS.get(self.index()?)
    }

    /// Whether one lane has a typestr.
    pub(crate) fn has_typestr(self) -> bool {
        self.row().is_some_and(|row| row.numpy.is_some())
    }

    /// Finds a scalar type by its row.
    pub(super) fn find(is_wanted: impl Fn(&Row) -> bool) -> Option<Self> {
        let row = ROWS.iter().find(|row| is_wanted(row))?;
        Some(row.dtype)
    }

    /// Returns `DLDataType.code`.
    #[must_use]
    pub const fn code(self) -> u8 {
        self.code
    }

    /// Returns `DLDataType.bits`: the bits of one lane.
    #[must_use]
    pub const fn bits(self) -> u8 {
        self.bits
    }

    /// Returns `DLDataType.lanes`: 1, or the length of a short vector.
    #[must_use]
    pub const fn lanes(self) -> u16 {
        self.lanes
    }

    /// Returns the type of one lane.
    #[must_use]
    pub(crate) const fn lane(self) -> Self {
        Self { lanes: 1, ..self }
    }

    /// Returns the bits of one element, all lanes.
    #[must_use]
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "255 * 65535 is less than 2**32"
    )]
    pub const fn element_bits(self) -> u32 {
        self.bits as u32 * self.lanes as u32
    }

    /// Returns the bytes of one element, all lanes; `None` if that is no whole number.
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

    /// Returns the alignment of one element in bytes: that of its scalar, and for complex numbers
    /// that of one half.
    #[must_use]
    #[inline]
    pub const fn align(self) -> u32 {
        let bits = if matches!(self.code, code::COMPLEX | code::BCOMPLEX) {
            self.bits >> 1
        } else {
            self.bits
        };
        if bits < 8 { 1 } else { (bits >> 3) as u32 }
    }
}
