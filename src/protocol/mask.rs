//! The masks of masked arrays, which DLPack lacks: their forms, and which mask fits which array.
//!
//! A value is valid if its mask element is not 0.
//!
//! | form | typestr | shape | described as |
//! |---|---|---|---|
//! | bytes, one for each value | `\|b1`, `\|u1`, `\|i1` | broadcasts to that of the values | `bool`, as it is |
//! | bits, one for each value, the lowest first | `\|t1` | counts bits | `uint8`, one axis of bytes |
//! | the same, as cuDF labels it | `\|u1` | counts bytes: n/8 rounded up, or that padded to 64 | `uint8`, as it is |

use super::axes::{Axes, Source};
use super::descriptor::Descriptor;
use super::device::{Device, Flags};
use super::dtype::{DType, Kind};
use super::interface::CaiInterface;
use super::layout::Layout;
use super::rule::{Field, Rule, Violation};

/// cuDF allocates bit masks in multiples of 64 bytes.
const PADDED_TO: u64 = 64;

/// The form of a mask.
///
/// ```
/// use cai_dlpack::protocol::axes::{Axes, Source};
/// use cai_dlpack::protocol::dtype::TypeStr;
/// use cai_dlpack::protocol::interface::{CaiInterface, Parts};
/// use cai_dlpack::protocol::mask::MaskForm;
///
/// // One byte could be the mask of one value, or the bits of one: the caller decides.
/// let axes = Axes::from_slices(Source::Cai, &[1], None)?;
/// let mask = CaiInterface::new(Parts::new(0x7000_0000, TypeStr::parse("|u1")?, axes))?;
/// assert_eq!(MaskForm::of(&mask, &[1], None).unwrap_err().rule().id(), "mask-ambiguous");
/// assert_eq!(MaskForm::of(&mask, &[1], Some(MaskForm::Bits))?, MaskForm::Bits);
/// # Ok::<(), cai_dlpack::protocol::rule::Violation>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaskForm {
    /// One bit for each value, the lowest bit first.
    Bits,
    /// One byte for each value.
    Bytes,
}

impl MaskForm {
    /// Finds the form of `mask` for values of shape `shape`; `asked` decides if both fit.
    ///
    /// ```
    /// use cai_dlpack::protocol::axes::{Axes, Source};
    /// use cai_dlpack::protocol::dtype::TypeStr;
    /// use cai_dlpack::protocol::interface::{CaiInterface, Parts};
    /// use cai_dlpack::protocol::mask::MaskForm;
    ///
    /// let axes = Axes::from_slices(Source::Cai, &[13], None)?;
    /// let mask = CaiInterface::new(Parts::new(0x7000_0000, TypeStr::parse("|u1")?, axes))?;
    /// assert_eq!(MaskForm::of(&mask, &[100], None)?, MaskForm::Bits); // 13 bytes hold 100 bits
    /// assert_eq!(MaskForm::of(&mask, &[7, 13], None)?, MaskForm::Bytes);
    /// let refused = MaskForm::of(&mask, &[99, 2], None).unwrap_err();
    /// assert_eq!(refused.rule().id(), "mask-shape");
    /// # Ok::<(), cai_dlpack::protocol::rule::Violation>(())
    /// ```
    ///
    /// # Errors
    /// `mask-dtype` and, if both forms fit and none is asked for, `mask-ambiguous` (BufferError);
    /// `mask-shape` (ValueError).
    pub fn of(mask: &CaiInterface, shape: &[i64], asked: Option<Self>) -> Result<Self, Violation> {
        let (bits, bytes) = match mask.typestr().kind() {
            Kind::Bit => (fits_bits(mask, shape), false),
            Kind::Bool => (false, broadcasts(mask.shape(), shape)),
            Kind::UInt | Kind::Int if mask.typestr().itemsize() == 1 => {
                (fits_packed(mask, shape), broadcasts(mask.shape(), shape))
            }
            _ => {
                let typestr = mask.typestr();
                let found = format_args!("'{typestr}'");
                return Err(Violation::new(Rule::MaskDtype, Field::CaiMask, found));
            }
        };
        match (asked, bits, bytes) {
            (Some(Self::Bits), true, _) | (None, true, false) => Ok(Self::Bits),
            (Some(Self::Bytes), _, true) | (None, false, true) => Ok(Self::Bytes),
            (None, true, true) => Err(refuse(Rule::MaskAmbiguous, mask, shape)
                .with_hint("say which it is by mask=\"bit\" or mask=\"byte\"")),
            _ => Err(refuse(Rule::MaskShape, mask, shape)),
        }
    }

    /// Describes a mask of this form: as `bool` of its own shape, or as `uint8` with one axis of
    /// bytes.
    ///
    /// # Errors
    /// The rules of layouts, for a mask that no array can describe.
    ///
    /// ```
    /// use cai_dlpack::protocol::axes::{Axes, Source};
    /// use cai_dlpack::protocol::device::Device;
    /// use cai_dlpack::protocol::dtype::TypeStr;
    /// use cai_dlpack::protocol::interface::{CaiInterface, Parts};
    /// use cai_dlpack::protocol::mask::MaskForm;
    ///
    /// let axes = Axes::from_slices(Source::Cai, &[100], None)?;
    /// let mask = CaiInterface::new(Parts::new(0x7000_0000, TypeStr::parse("|t1")?, axes))?;
    /// assert_eq!(MaskForm::Bits.describe(&mask, Device::cuda(0))?.shape(), [13]); // bytes
    /// # Ok::<(), cai_dlpack::protocol::rule::Violation>(())
    /// ```
    pub fn describe(self, mask: &CaiInterface, device: Device) -> Result<Descriptor, Violation> {
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

/// Checks that the mask of an array broadcasts to the array's shape.
///
/// # Errors
/// `mask-shape` (ValueError).
pub(crate) fn check_shape(mask: &CaiInterface, shape: &[i64]) -> Result<(), Violation> {
    if broadcasts(mask.shape(), shape) {
        Ok(())
    } else {
        Err(refuse(Rule::MaskShape, mask, shape))
    }
}

/// Whether a bit field of one axis has a bit for each value.
fn fits_bits(mask: &CaiInterface, shape: &[i64]) -> bool {
    one_axis(mask).is_some_and(|bits| bits >= count(shape))
}

/// Whether bytes of one axis hold a bit for each value: exactly enough, or as many as cuDF allocates.
fn fits_packed(mask: &CaiInterface, shape: &[i64]) -> bool {
    let exact = count(shape).div_ceil(8);
    let padded = exact.div_ceil(PADDED_TO).saturating_mul(PADDED_TO);
    one_axis(mask).is_some_and(|bytes| bytes == exact || bytes == padded)
}

/// Returns the extent of a contiguous mask of one axis.
fn one_axis(mask: &CaiInterface) -> Option<u64> {
    let layout = mask.layout();
    (layout.ndim() == 1 && layout.is_c_contiguous()).then_some(layout.len())
}

fn count(shape: &[i64]) -> u64 {
    let extents = shape.iter().map(|extent| extent.unsigned_abs());
    extents.fold(1, u64::saturating_mul)
}

/// Whether `mask` broadcasts to `shape` by NumPy's rule, without changing `shape`.
fn broadcasts(mask: &[i64], shape: &[i64]) -> bool {
    let mut aligned = shape.iter().rev().zip(mask.iter().rev());
    mask.len() <= shape.len() && aligned.all(|(array, mask)| array == mask || *mask == 1)
}

#[cold]
fn refuse(rule: Rule, mask: &CaiInterface, shape: &[i64]) -> Violation {
    let (typestr, found) = (mask.typestr(), mask.shape());
    let found = format_args!("'{typestr}' of shape {found:?} for values of shape {shape:?}");
    Violation::new(rule, Field::CaiMask, found)
}

#[cfg(test)]
mod tests;
