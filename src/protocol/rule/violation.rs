//! [`Violation`]: one value of one field that breaks one rule.

use std::borrow::Cow;
use std::fmt::{self, Display, Write};

use super::Rule;

/// The field of a protocol, or the argument, that a value was found in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Field {
    /// The object as a whole.
    Object,
    /// Its attribute `dtype`.
    ObjectDtype,
    /// `__cuda_array_interface__`, the attribute as a whole.
    Cai,
    /// Its `version`.
    CaiVersion,
    /// Its `shape`.
    CaiShape,
    /// Its `typestr`.
    CaiTypestr,
    /// Its `descr`.
    CaiDescr,
    /// Its `data`.
    CaiData,
    /// Its `strides`, in bytes.
    CaiStrides,
    /// Its `mask`.
    CaiMask,
    /// Its `stream`.
    CaiStream,
    /// The return value of `__cuda_stream__`.
    CudaStream,
    /// A capsule.
    Capsule,
    /// `__dlpack_device__`.
    DlpackDevice,
    /// `__dlpack__`.
    DlpackCall,
    /// `__dlpack_c_exchange_api__`.
    ExchangeApi,
    /// `DLTensor.ndim`.
    TensorNdim,
    /// `DLTensor.shape`.
    TensorShape,
    /// `DLTensor.strides`, in elements.
    TensorStrides,
    /// `DLTensor.data`.
    TensorData,
    /// `DLTensor.byte_offset`.
    TensorByteOffset,
    /// `DLTensor.dtype`.
    TensorDtype,
    /// `DLTensor.device`.
    TensorDevice,
    /// `DLManagedTensorVersioned.version`.
    TensorVersion,
    /// `DLManagedTensorVersioned.flags`.
    TensorFlags,
    /// A key of `__array_interface__`.
    ArrayInterface(&'static str),
    /// An argument of a function of this library.
    Argument(&'static str),
    /// The positional arguments of a call.
    Arguments,
}

impl Field {
    /// Returns the stable name: the exception's `.field`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Object => "object",
            Self::Cai => "__cuda_array_interface__",
            Self::CaiVersion | Self::TensorVersion => "version",
            Self::CaiShape | Self::TensorShape => "shape",
            Self::CaiTypestr => "typestr",
            Self::CaiDescr => "descr",
            Self::CaiData | Self::TensorData => "data",
            Self::CaiStrides | Self::TensorStrides => "strides",
            Self::CaiMask => "mask",
            Self::CaiStream => "stream",
            Self::CudaStream => "__cuda_stream__",
            Self::Capsule => "capsule",
            Self::DlpackDevice => "__dlpack_device__",
            Self::DlpackCall => "__dlpack__",
            Self::ExchangeApi => "__dlpack_c_exchange_api__",
            Self::TensorNdim => "ndim",
            Self::TensorByteOffset => "byte_offset",
            Self::TensorDtype | Self::ObjectDtype => "dtype",
            Self::TensorDevice => "device",
            Self::TensorFlags => "flags",
            Self::ArrayInterface(name) | Self::Argument(name) => name,
            Self::Arguments => "arguments",
        }
    }
}

impl Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name();
        match self {
            Self::CaiVersion
            | Self::CaiShape
            | Self::CaiTypestr
            | Self::CaiDescr
            | Self::CaiData
            | Self::CaiStrides
            | Self::CaiMask
            | Self::CaiStream => write!(f, "__cuda_array_interface__['{name}']"),
            Self::TensorNdim
            | Self::TensorShape
            | Self::TensorStrides
            | Self::TensorData
            | Self::TensorByteOffset
            | Self::TensorDtype
            | Self::TensorDevice => write!(f, "DLTensor.{name}"),
            Self::TensorVersion | Self::TensorFlags => {
                write!(f, "DLManagedTensorVersioned.{name}")
            }
            Self::ArrayInterface(_) => write!(f, "__array_interface__['{name}']"),
            Self::Argument(_) => write!(f, "argument '{name}'"),
            Self::ObjectDtype => write!(f, "object.{name}"),
            _ => f.write_str(name),
        }
    }
}

/// One value that breaks one rule.
///
/// The size of a pointer, so that `Result<T, Violation>` adds no cost to the successful path.
///
/// ```
/// use cai_dlpack::protocol::axes::{Axes, Source};
/// use cai_dlpack::protocol::rule::Rule;
///
/// let refused = Axes::from_slices(Source::Cai, &[2, 3], Some(&[4])).unwrap_err();
/// assert_eq!(refused.rule(), Rule::StridesLength);
/// assert_eq!(refused.field().name(), "strides");
/// assert_eq!(
///     refused.to_string(),
///     "__cuda_array_interface__['strides'] = 1 strides for 2 axes: \
///      there must be one stride per axis [strides-length]"
/// );
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Violation(Box<Inner>);

#[derive(Clone, PartialEq, Eq)]
struct Inner {
    rule: Rule,
    field: Field,
    found: String,
    hint: Option<Cow<'static, str>>,
}

/// Limits the quoted value to 200 bytes, so that a hostile `repr` cannot exhaust memory.
pub(super) const FOUND_LIMIT: usize = 200;

impl Violation {
    /// Makes a violation of `rule` by the value `found` in `field`. An empty `found` is omitted from
    /// the message, since a missing key has no value.
    #[cold]
    pub fn new(rule: Rule, field: Field, found: impl Display) -> Self {
        let mut short = Clipped(String::new());
        // If Display fails, the text written so far is kept.
        let _ = write!(short, "{found}");
        Self(Box::new(Inner {
            rule,
            field,
            found: short.0,
            hint: None,
        }))
    }

    /// Adds what to do instead.
    ///
    /// ```
    /// use cai_dlpack::protocol::rule::{Field, Rule, Violation};
    ///
    /// let refusal = Violation::new(Rule::ShapeExtent, Field::CaiShape, -1).with_hint("count the elements");
    /// assert_eq!((refusal.field().name(), refusal.found()), ("shape", "-1"));
    /// assert_eq!(refusal.hint(), Some("count the elements"));
    /// assert_eq!(refusal.rule().class().exception(), "ValueError");
    /// assert!(refusal.rule().source().contains("CAI"));
    /// ```
    #[cold]
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<Cow<'static, str>>) -> Self {
        self.0.hint = Some(hint.into());
        self
    }

    /// Replaces the text of the value.
    #[cold]
    #[must_use]
    pub(crate) fn with_found(self, found: impl Display) -> Self {
        let hint = self.0.hint;
        let mut again = Self::new(self.0.rule, self.0.field, found);
        again.0.hint = hint;
        again
    }

    /// Replaces the field, for a rule found by code that both protocols share.
    #[cold]
    #[must_use]
    pub(crate) fn in_field(mut self, field: Field) -> Self {
        self.0.field = field;
        self
    }

    /// Names the same key in the array interface that the memory has: NumPy's on the CPU, else CUDA's.
    #[cold]
    #[must_use]
    pub(crate) fn in_interface_of(self, is_on_cpu: bool) -> Self {
        const KEYS: [Field; 5] = [
            Field::CaiShape,
            Field::CaiTypestr,
            Field::CaiDescr,
            Field::CaiData,
            Field::CaiStrides,
        ];
        let (field, key) = (self.0.field, self.0.field.name());
        let named = match field {
            Field::ArrayInterface(_) if !is_on_cpu => {
                KEYS.into_iter().find(|cai| cai.name() == key)
            }
            _ if is_on_cpu && KEYS.contains(&field) => Some(Field::ArrayInterface(key)),
            _ => None,
        };
        self.in_field(named.unwrap_or(field))
    }

    /// Returns the rule that is broken.
    #[must_use]
    pub fn rule(&self) -> Rule {
        self.0.rule
    }

    /// Returns the field that the value was found in.
    #[must_use]
    pub fn field(&self) -> Field {
        self.0.field
    }

    /// Returns the value, as text.
    #[must_use]
    pub fn found(&self) -> &str {
        &self.0.found
    }

    /// Returns what to do instead, if there is something.
    #[must_use]
    pub fn hint(&self) -> Option<&str> {
        self.0.hint.as_deref()
    }
}

impl Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner {
            rule,
            field,
            found,
            hint,
        } = &*self.0;
        write!(f, "{field}")?;
        if !found.is_empty() {
            write!(f, " = {found}")?;
        }
        write!(f, ": {}", rule.sentence())?;
        if let Some(hint) = hint {
            write!(f, "; {hint}")?;
        }
        write!(f, " [{}]", rule.id())
    }
}

impl fmt::Debug for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Violation({self})")
    }
}

impl std::error::Error for Violation {}

/// A string that is cut after [`FOUND_LIMIT`] bytes.
struct Clipped(String);

impl Write for Clipped {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for letter in text.chars() {
            if self.0.len() >= FOUND_LIMIT {
                self.0.push_str("...");
                return Err(fmt::Error);
            }
            self.0.push(letter);
        }
        Ok(())
    }
}
