//! The names and typestrs of element types, both ways, and why a type has none.

use std::ffi::CStr;
use std::fmt;

use super::table::{DType, Numpy, code};
use super::typestr::{Kind, TypeStr, is_order};
use crate::protocol::device::newer;
use crate::protocol::rule::{Field, Rule, Violation};

/// The hint for items with fields.
pub(in crate::protocol) const ONE_FIELD: &str = "view one field of it: cd.view(obj).field('name')";

impl DType {
    /// Checks the three numbers of a `DLDataType` against each other.
    ///
    /// # Errors
    /// `dtype-code`, `dtype-opaque`, `dtype-bool` and `dtype-sub-byte` (BufferError);
    /// `dtype-bits` and `dtype-lanes` (ValueError).
    #[inline]
    pub fn from_dlpack(code: u8, bits: u8, lanes: u16) -> Result<Self, Violation> {
        Self::from_dlpack_fast(code, bits, lanes).ok_or_else(|| refuse(code, bits, lanes))
    }

    /// Returns the name of one lane, as NumPy and ml_dtypes spell it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self.row() {
            Some(row) => row.name,
            None => "void",
        }
    }

    /// Returns the canonical typestr: native byte order, `|` for one byte.
    ///
    /// # Errors
    /// `cai-lanes`, `cai-sub-byte` and `cai-dtype` (BufferError) if there is none.
    #[inline]
    pub fn typestr(self) -> Result<&'static str, Violation> {
        Ok(self.numpy()?.text)
    }

    /// Like [`typestr`](Self::typestr), parsed.
    ///
    /// # Errors
    /// `cai-lanes`, `cai-sub-byte` and `cai-dtype` (BufferError) if there is none.
    #[inline]
    pub(in crate::protocol) fn to_typestr(self) -> Result<TypeStr, Violation> {
        Ok(self.numpy()?.typestr)
    }

    /// Returns the format of the buffer protocol (PEP 3118), or `None` if it has none for the type.
    ///
    /// ```
    /// use cai_dlpack::protocol::dtype::DType;
    ///
    /// assert_eq!(DType::F32.format(), Some(c"f"));
    /// assert_eq!((DType::C64.bits(), DType::C64.lanes(), DType::C64.align()), (64, 1, 4));
    /// let pairs = DType::from_name("int4x2").expect("a type of DLPack");
    /// assert_eq!((pairs.is_sub_byte(), pairs.element_bits()), (true, 8));
    /// ```
    #[must_use]
    pub fn format(self) -> Option<&'static CStr> {
        Some(self.numpy().ok()?.format)
    }

    #[inline]
    fn numpy(self) -> Result<&'static Numpy, Violation> {
        match self.row().map(|row| &row.numpy) {
            Some(Some(numpy)) if self.lanes == 1 => Ok(numpy),
            _ => Err(self.refuse_typestr()),
        }
    }

    #[cold]
    fn refuse_typestr(self) -> Violation {
        let refuse = |rule| Violation::new(rule, Field::TensorDtype, self);
        if self.lanes != 1 {
            return refuse(Rule::CaiLanes).with_hint("pass it by DLPack");
        }
        if self.is_sub_byte() {
            return refuse(Rule::CaiSubByte).with_hint("pass it by DLPack");
        }
        let raw = |dtype: &&Self| dtype.code == code::UINT && dtype.bits == self.bits;
        match Self::ALL.iter().find(raw) {
            Some(raw) => refuse(Rule::CaiDtype).with_hint(format!(
                "pass it by DLPack, or present its bits with dtype='{raw}'"
            )),
            None => refuse(Rule::CaiDtype).with_hint("pass it by DLPack"),
        }
    }

    /// Builds the refusal of numbers that are no type of DLPack.
    #[cold]
    pub(crate) fn undescribed(self) -> Violation {
        refuse(self.code, self.bits, self.lanes)
    }

    /// Finds the type of a name: NumPy's (`float32`, `half`), its letters (`f`, `?`), ml_dtypes'
    /// (`bfloat16`, `float8_e4m3fn`), or a typestr with or without its byte order (`<f4`, `f4`). Lanes
    /// follow an `x`, as [`Display`](fmt::Display) writes them, or torch's `_x` (`float4_e2m1fn_x2`).
    ///
    /// Names without a size of which NumPy, torch and C disagree are not accepted (`int`, `long`, `float`, ...).
    ///
    /// ```
    /// use cai_dlpack::protocol::dtype::DType;
    ///
    /// assert_eq!(DType::from_name("half"), Some(DType::F16));
    /// assert_eq!(DType::from_name("f4"), Some(DType::F32));
    /// assert_eq!(DType::from_name("int4x2").and_then(DType::itemsize), Some(1));
    /// assert_eq!(DType::from_name("float"), None);
    /// ```
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::scalar_of_name(name).or_else(|| {
            let (lane, lanes) = name.rsplit_once('x')?;
            let is_canonical = lanes.starts_with(|digit: char| matches!(digit, '1'..='9'));
            let lanes = lanes
                .parse()
                .ok()
                .filter(|lanes| is_canonical && *lanes > 1)?;
            let lane = Self::scalar_of_name(lane.strip_suffix('_').unwrap_or(lane))?;
            Some(Self { lanes, ..lane })
        })
    }

    /// Whether NumPy, torch and C have a type of this name, and not the same one, or not on every platform.
    #[must_use]
    pub(crate) fn is_disputed(name: &str) -> bool {
        matches!(
            name,
            "float" | "int" | "uint" | "long" | "ulong" | "l" | "L" | "int_" | "complex" | "byte"
        )
    }

    fn scalar_of_name(name: &str) -> Option<Self> {
        Self::find(|row| row.name == name || row.aliases.contains(&name)).or_else(|| {
            let typestr = match *name.as_bytes() {
                [kind, ones] => TypeStr::read_fast(&[b'=', kind, ones]),
                [kind, tens, ones] if !is_order(kind) => {
                    TypeStr::read_fast(&[b'=', kind, tens, ones])
                }
                _ => TypeStr::read_fast(name.as_bytes()),
            };
            typestr?.to_dtype().ok()
        })
    }
}

/// The reason why [`DType::from_dlpack`] refuses.
#[cold]
fn refuse(code: u8, bits: u8, lanes: u16) -> Violation {
    let mut of_code = DType::ALL.iter().filter(|dtype| dtype.code == code);
    let rule = match code {
        code::OPAQUE_HANDLE => Rule::DtypeOpaque,
        _ if of_code.clone().next().is_none() => Rule::DtypeCode,
        _ if lanes == 0 => Rule::DtypeLanes,
        code::BOOL => Rule::DtypeBool,
        _ if of_code.all(|dtype| dtype.is_sub_byte()) => Rule::DtypeSubByte,
        _ => Rule::DtypeBits,
    };
    let found = format_args!("(code {code}, bits {bits}, lanes {lanes})");
    let refused = Violation::new(rule, Field::TensorDtype, found);
    match rule {
        Rule::DtypeCode => refused.with_hint(newer("type codes", DType::LAST_CODE.into())),
        _ => refused,
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

impl TypeStr {
    /// Parses a typestr of native byte order.
    ///
    /// # Errors
    /// `typestr-syntax` and `typestr-size` (ValueError), `typestr-byte-order` (BufferError).
    pub fn parse(text: &str) -> Result<Self, Violation> {
        let typestr = Self::parse_any_order(text)?;
        if typestr.is_swapped() {
            return Err(refuse_text(Rule::TypestrByteOrder, text));
        }
        Ok(typestr)
    }

    /// Parses a typestr of any byte order, as the fields of a struct may have it.
    ///
    /// # Errors
    /// `typestr-syntax` and `typestr-size` (ValueError).
    ///
    /// ```
    /// use cai_dlpack::protocol::dtype::TypeStr;
    ///
    /// let swapped = TypeStr::parse_any_order(if cfg!(target_endian = "little") { ">f8" } else { "<f8" })?;
    /// assert!(swapped.is_swapped() && swapped.to_dtype().is_err());
    /// assert_eq!((swapped.bits(), swapped.align(), swapped.kind().letter()), (64, 8, 'f'));
    /// assert_eq!(TypeStr::parse("|u1")?.as_str(), Some("|u1"));
    /// # Ok::<(), cai_dlpack::protocol::rule::Violation>(())
    /// ```
    pub fn parse_any_order(text: &str) -> Result<Self, Violation> {
        Self::read(text.as_bytes()).map_err(|rule| refuse_text(rule, text))
    }

    /// Returns the canonical typestr of a type that DLPack has too; `None` for any other.
    #[must_use]
    pub fn as_str(self) -> Option<&'static str> {
        self.to_dtype().ok()?.typestr().ok()
    }

    /// Returns DLPack's type.
    ///
    /// # Errors
    /// The `typestr-...` rules of class BufferError, with a hint.
    #[inline]
    pub fn to_dtype(self) -> Result<DType, Violation> {
        if self.is_swapped() {
            return Err(self.refuse());
        }
        let is_same = |numpy: &Numpy| numpy.typestr == self;
        DType::find(|row| row.numpy.as_ref().is_some_and(is_same)).ok_or_else(|| self.refuse())
    }

    /// Returns the type of ml_dtypes that a typestr outside NumPy probably means.
    #[cfg(feature = "pyo3")]
    pub(crate) fn meant(self) -> Option<DType> {
        match (self.kind(), self.itemsize()) {
            (Kind::Float, 1) => Some(DType::F8_E5M2),
            (Kind::Complex, 4) if !self.is_swapped() => Some(DType::C32),
            _ => None,
        }
    }

    #[cold]
    pub(super) fn refuse(self) -> Violation {
        let (rule, hint) = match (self.kind(), self.itemsize()) {
            _ if self.is_swapped() => (
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
                "pass dtype= with its type, such as 'float8_e4m3fn' or 'uint8'",
            ),
            (Kind::Void, 2) => (
                Rule::TypestrVoid,
                "pass dtype='bfloat16' if that is its type",
            ),
            (Kind::Void, _) => (
                Rule::TypestrVoid,
                "pass dtype= with its type, if that is a number of its size",
            ),
            (Kind::Float, 1) => (
                Rule::TypestrFloat8,
                "pass dtype='float8_e5m2' if that is its type",
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

/// Refuses a text, with the typestr of the type that it names otherwise.
#[cold]
fn refuse_text(rule: Rule, text: &str) -> Violation {
    let violation = Violation::new(rule, Field::CaiTypestr, format_args!("'{text}'"));
    let named = DType::from_name(text).and_then(|dtype| dtype.typestr().ok());
    match named {
        Some(typestr) if rule == Rule::TypestrSyntax => {
            violation.with_hint(format!("this one would be '{typestr}'"))
        }
        _ => violation,
    }
}
