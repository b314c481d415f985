//! Masks, which DLPack cannot express: described as an array beside the values.
//!
//! A mask tells which values are valid: those where it is not zero (or its bit is 1). Two forms are in use.
//!
//! | form | typestr | shape | described as |
//! |---|---|---|---|
//! | bytes, one for each value | `|b1`, `|u1`, `|i1` | broadcasts to the values' | `bool`, as it is |
//! | bits, one for each value, the lowest first | `|t1` | counts bits | `uint8`, one axis of bytes |
//! | the same, as cuDF labels it | `|u1` | counts bytes: n/8 rounded up, or that padded to 64 | `uint8`, as it is |

use super::descriptor::{Descriptor, Device, Flags};
use super::dtype::{DType, Kind};
use super::interface::Interface;
use super::layout::{Axes, Layout, Source};
use super::rule::{Field, Rule, Violation};

/// cuDF allocates masks in multiples of this.
const PADDED_TO: i64 = 64;

/// The form of a mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaskForm {
    /// One bit for each value, the lowest first.
    Bits,
    /// One byte for each value.
    Bytes,
}

impl MaskForm {
    /// Finds the form of the mask of values of `shape`; `asked` decides if both fit.
    ///
    /// ```
    /// use cai_dlpack::protocol::dtype::TypeStr;
    /// use cai_dlpack::protocol::interface::{Descr, Interface, Parts, Version};
    /// use cai_dlpack::protocol::layout::{Axes, Source};
    /// use cai_dlpack::protocol::mask::MaskForm;
    /// use cai_dlpack::protocol::stream::Stream;
    ///
    /// let mask = Interface::new(Parts {
    ///     version: Version::V3,
    ///     typestr: TypeStr::parse("|u1")?,
    ///     descr: Descr::None,
    ///     axes: Axes::from_slices(Source::Cai, &[2], None)?,
    ///     data: 0x1000,
    ///     read_only: true,
    ///     stream: Stream::None,
    /// })?;
    /// assert_eq!(MaskForm::of(&mask, &[10], None)?, MaskForm::Bits);
    /// assert_eq!(MaskForm::of(&mask, &[2], Some(MaskForm::Bytes))?, MaskForm::Bytes);
    /// # Ok::<(), cai_dlpack::protocol::rule::Violation>(())
    /// ```
    ///
    /// # Errors
    /// `mask-dtype`, `mask-shape`, and `mask-ambiguous` if nothing was asked and both forms fit.
    pub fn of(mask: &Interface, shape: &[i64], asked: Option<Self>) -> Result<Self, Violation> {
        let (bits, bytes) = match mask.typestr().kind() {
            Kind::Bit => (fits_bits(mask, shape, 1), false),
            Kind::Bool => (false, broadcasts(mask.shape(), shape)),
            Kind::UInt | Kind::Int if mask.typestr().itemsize() == 1 => {
                (fits_bits(mask, shape, 8), broadcasts(mask.shape(), shape))
            }
            _ => {
                let found = mask.typestr_str();
                return Err(Violation::new(Rule::MaskDtype, Field::CaiMask, found));
            }
        };
        let (rule, hint) = match (asked, bits, bytes) {
            (Some(Self::Bits), true, _) | (None, true, false) => return Ok(Self::Bits),
            (Some(Self::Bytes), _, true) | (None, false, true) => return Ok(Self::Bytes),
            (None, true, true) => {
                let hint = "say which it is by mask=\"bit\" or mask=\"byte\"";
                (Rule::MaskAmbiguous, Some(hint))
            }
            _ => (Rule::MaskShape, None),
        };
        let found = format_args!(
            "{} of shape {:?} for values of shape {shape:?}",
            mask.typestr_str(),
            mask.shape()
        );
        let violation = Violation::new(rule, Field::CaiMask, found);
        Err(match hint {
            Some(hint) => violation.with_hint(hint),
            None => violation,
        })
    }

    /// Describes a mask of this form: `bool` of its own shape, or `uint8` with one axis of bytes.
    ///
    /// # Errors
    /// The rules of layouts, for a mask that no array can describe.
    pub fn describe(self, mask: &Interface, device: Device) -> Result<Descriptor, Violation> {
        let layout = if mask.is_bits() {
            let mut axes = Axes::new(Source::Cai);
            axes.push_extent(i64::try_from(mask.nbytes()).unwrap_or(i64::MAX))?;
            Layout::from_elem_axes(axes, 1)?
        } else {
            mask.layout().clone()
        };
        let dtype = match self {
            Self::Bits => DType::U8,
            Self::Bytes => DType::BOOL,
        };
        let flags = Flags::NONE.with(Flags::READ_ONLY, mask.read_only());
        Descriptor::from_layout(mask.data(), device, dtype, flags, layout)
    }
}

/// Whether a mask of one axis, of `bits_each` per item, has a bit for each value: exactly enough items,
/// or as many as cuDF allocates.
fn fits_bits(mask: &Interface, shape: &[i64], bits_each: i64) -> bool {
    let [items] = mask.shape() else {
        return false;
    };
    if !mask.layout().is_c_contiguous() {
        return false;
    }
    let values = shape
        .iter()
        .fold(1_i64, |all, extent| all.saturating_mul(*extent));
    if bits_each == 1 {
        return *items >= values;
    }
    let exact = values.unsigned_abs().div_ceil(bits_each.unsigned_abs());
    let padded = exact.next_multiple_of(PADDED_TO.unsigned_abs());
    [exact, padded].contains(&items.unsigned_abs())
}

/// Whether a mask broadcasts to the values' shape, by NumPy's rule.
pub(crate) fn broadcasts(mask: &[i64], shape: &[i64]) -> bool {
    mask.len() <= shape.len()
        && shape
            .iter()
            .rev()
            .zip(mask.iter().rev())
            .all(|(array, mask)| array == mask || *mask == 1)
}
