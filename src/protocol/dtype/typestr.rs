//! NumPy's typestr: byte order, kind, size.

use std::fmt;

use super::DType;
use crate::protocol::rule::{Field, Rule, Violation};

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
    pub(super) size: u32,
    pub(super) kind: Kind,
    /// The byte order is not this machine's, and it matters.
    pub(super) swapped: bool,
}

impl TypeStr {
    pub(super) const fn native(kind: Kind, size: u32) -> Self {
        Self {
            size,
            kind,
            swapped: false,
        }
    }

    /// Raw bytes; `None` for an item of no bytes.
    pub(in crate::protocol) const fn void(size: u32) -> Option<Self> {
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
    #[inline(always)]
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
    #[inline(always)]
    pub(super) fn scan(text: &[u8]) -> Option<Self> {
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
    pub(super) fn refuse(self) -> Violation {
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

pub(super) const fn is_order(letter: u8) -> bool {
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
