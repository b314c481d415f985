//! [`TypeStr`]: NumPy's byte order, kind and size, and their grammar.

use std::fmt;

use crate::protocol::rule::Rule;

/// The kinds of NumPy's array interface.
///
/// ```
/// use cai_dlpack::protocol::dtype::{Kind, TypeStr};
///
/// let dates = TypeStr::parse_any_order("<M8[ns]")?;
/// assert_eq!((dates.kind(), dates.kind().letter()), (Kind::DateTime, 'M'));
/// # Ok::<(), cai_dlpack::protocol::rule::Violation>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
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
    /// `V`: raw bytes, structs, and types that NumPy lacks.
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

    /// Returns the letter of the kind.
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

    /// Whether a foreign byte order means something. NumPy writes no order for raw bytes, so that a foreign one is that of
    /// a type that it lacks, of ml_dtypes.
    const fn may_be_swapped(self, size: u32) -> bool {
        self.has_order(size) || (matches!(self, Self::Void) && size > 1)
    }

    /// Whether NumPy has a type of this kind and size. That includes sizes that DLPack cannot carry,
    /// which [`TypeStr::to_dtype`] refuses by a rule of their own.
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

/// A well-formed typestr: a byte order, a kind and an item size.
///
/// ```
/// use cai_dlpack::protocol::dtype::{DType, Kind, TypeStr};
///
/// let typestr = TypeStr::parse("|u1")?;
/// assert_eq!((typestr.kind(), typestr.itemsize()), (Kind::UInt, 1));
/// assert_eq!((typestr.to_dtype()?, typestr.as_str()), (DType::U8, Some("|u1")));
///
/// let refused = TypeStr::parse("|O8")?.to_dtype().unwrap_err();
/// assert_eq!(refused.rule().id(), "typestr-object");
///
/// # let (native, other) = if cfg!(target_endian = "little") { ("<c8", ">c8") } else { (">c8", "<c8") };
/// // ">c8", where it is not this machine's order.
/// let swapped = TypeStr::parse_any_order(other)?;
/// assert!(swapped.is_swapped() && !TypeStr::parse(native)?.is_swapped());
/// assert_eq!((swapped.bits(), swapped.align()), (64, 4));
/// # Ok::<(), cai_dlpack::protocol::rule::Violation>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TypeStr {
    /// The integer as it is written: bytes, for `U` characters, for `t` bits.
    size: u32,
    kind: Kind,
    /// The byte order matters, and is not this machine's.
    swapped: bool,
    unit: Unit,
}

/// The unit of a date or time, as the text between the brackets of `<M8[ns]`; zeros fill the rest.
type Unit = [u8; 14];
const NO_UNIT: Unit = [0; 14];

impl TypeStr {
    /// Makes a typestr of native byte order from a kind and one or two digits; run by the compiler.
    pub(super) const fn native(text: &str) -> Self {
        let (kind, size) = match *text.as_bytes() {
            [kind, ones] => (kind, digit(ones)),
            [kind, tens, ones] => (kind, two_digits(tens, ones)),
            _ => panic!("a kind and a size"),
        };
        match (Kind::from_letter(kind), size) {
            (Some(kind), Some(size)) if kind.has_size(size) => Self {
                size,
                kind,
                swapped: false,
                unit: NO_UNIT,
            },
            _ => panic!("NumPy has no such type"),
        }
    }

    /// Makes the typestr of raw bytes. An item has one byte at least.
    pub(crate) const fn void(size: u32) -> Self {
        Self {
            size: if size == 0 { 1 } else { size },
            kind: Kind::Void,
            swapped: false,
            unit: NO_UNIT,
        }
    }

    /// Parses a typestr of any byte order.
    ///
    /// # Errors
    /// [`Rule::TypestrSyntax`], [`Rule::TypestrSize`].
    pub(super) fn read(text: &[u8]) -> Result<Self, Rule> {
        if let Some(typestr) = Self::read_fast(text) {
            return Ok(typestr);
        }
        let [order, letter, rest @ ..] = text else {
            return Err(Rule::TypestrSyntax);
        };
        let Some(kind) = Kind::from_letter(*letter) else {
            return Err(Rule::TypestrSyntax);
        };
        let digits = rest.iter().take_while(|b| b.is_ascii_digit()).count();
        let (size, unit) = rest.split_at_checked(digits).unwrap_or((rest, &[]));
        let unit = match kind {
            _ if unit.is_empty() => Some(NO_UNIT),
            Kind::TimeDelta | Kind::DateTime => time_unit(unit),
            _ => None,
        };
        let Some(unit) = unit.filter(|_| is_order(*order) && !size.is_empty()) else {
            return Err(Rule::TypestrSyntax);
        };
        let size = std::str::from_utf8(size).ok().and_then(|s| s.parse().ok());
        size.and_then(|size| Self::checked(*order, kind, size))
            .map(|typestr| Self { unit, ..typestr })
            .ok_or(Rule::TypestrSize)
    }

    /// Like [`read`](Self::read), for the typestrs of 3 and 4 letters that arrays of numbers have;
    /// `None` for any other text.
    #[inline]
    pub(super) fn read_fast(text: &[u8]) -> Option<Self> {
        let (order, letter, size) = match *text {
            [order, letter, ones] => (order, letter, digit(ones)?),
            [order, letter, tens, ones] => (order, letter, two_digits(tens, ones)?),
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
            swapped: order == foreign && kind.may_be_swapped(size),
            unit: NO_UNIT,
        })
    }

    /// Returns the kind.
    #[must_use]
    pub const fn kind(self) -> Kind {
        self.kind
    }

    /// Returns the bytes of one item; the bits of a bit field are rounded up.
    #[must_use]
    #[inline]
    pub const fn itemsize(self) -> u32 {
        match self.kind {
            Kind::Unicode => self.size.wrapping_mul(4), // has_size holds it below 2**32
            Kind::Bit => self.size.div_ceil(8),
            _ => self.size,
        }
    }

    /// Returns the alignment of the scalar in bytes, a power of two: for complex numbers that of one
    /// half, and for 80-bit floats that of the words they are padded to.
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

    /// Returns the bits of one item: for [`Kind::Bit`] as written, else those of its bytes.
    #[must_use]
    pub const fn bits(self) -> u64 {
        match self.kind {
            Kind::Bit => self.size as u64,
            _ => (self.itemsize() as u64) << 3,
        }
    }

    /// Whether NumPy has a dtype for it, on a platform whose long double takes 16 bytes.
    #[cfg(feature = "pyo3")]
    pub(crate) const fn has_numpy(self) -> bool {
        !matches!(
            (self.kind, self.size),
            (Kind::Bit, _) | (Kind::Float, 1 | 10 | 12) | (Kind::Complex, 4 | 20 | 24)
        )
    }

    /// Whether the items have the other byte order, which [`to_dtype`](Self::to_dtype) refuses.
    #[must_use]
    pub const fn is_swapped(self) -> bool {
        self.swapped
    }
}

impl fmt::Display for TypeStr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let native_little = cfg!(target_endian = "little");
        let order = match (
            self.swapped || self.kind.has_order(self.size),
            self.swapped != native_little,
        ) {
            (false, _) => '|',
            (true, true) => '<',
            (true, false) => '>',
        };
        write!(f, "{order}{}{}", self.kind.letter(), self.size)?;
        let unit = self.unit.split(|letter| *letter == 0).next();
        match unit.and_then(|unit| std::str::from_utf8(unit).ok()) {
            None | Some("") => Ok(()),
            Some(unit) => write!(f, "[{unit}]"),
        }
    }
}

pub(super) const fn is_order(letter: u8) -> bool {
    matches!(letter, b'<' | b'>' | b'|' | b'=')
}

const fn digit(letter: u8) -> Option<u32> {
    match letter {
        b'0'..=b'9' => Some(letter.wrapping_sub(b'0') as u32),
        _ => None,
    }
}

const fn two_digits(tens: u8, ones: u8) -> Option<u32> {
    match (digit(tens), digit(ones)) {
        (Some(tens), Some(ones)) => Some(tens.wrapping_mul(10).wrapping_add(ones)),
        _ => None,
    }
}

/// Reads a time unit, such as `[ns]`, `[25s]`, `[3D/2]`.
fn time_unit(text: &[u8]) -> Option<Unit> {
    let [b'[', unit @ .., b']'] = text else {
        return None;
    };
    let is_unit = |b: &u8| b.is_ascii_alphanumeric() || *b == b'/';
    if unit.is_empty() || !unit.iter().all(is_unit) {
        return None;
    }
    let mut stored = NO_UNIT;
    stored.get_mut(..unit.len())?.copy_from_slice(unit);
    Some(stored)
}
