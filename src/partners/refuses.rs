//! What calls refuse, as conditions on an array's description.

use std::fmt;

use super::buffer::{has_buffer, is_out_of_order};
use super::reads::Reads;
use crate::protocol::descriptor::Descriptor;
use crate::protocol::device::{Access, DeviceType, Flags};
use crate::protocol::dtype::{Kind, TypeStr};

/// An array that a [`Call`](super::Call) refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refuses {
    /// Read-only data.
    ReadOnly,
    /// Negative strides.
    NegativeStrides,
    /// Negative strides of axes with more than one element.
    Backwards,
    /// Negative strides of axes with elements, one of which is enough.
    NegativeBesideEmpty,
    /// Strides that leave gaps, overlap or run backwards; the axes may have any order.
    Gaps,
    /// Anything but C and Fortran order.
    NotContiguous,
    /// Anything but C order.
    NotCOrder,
    /// Arrays without axes, of which the lanes of a type are one.
    NoAxes,
    /// More axes than this.
    AxesAbove(usize),
    /// Arrays without elements.
    Empty,
    /// Elements smaller than a byte, packed or padded.
    SubByte,
    /// Elements smaller than a byte that share their bytes.
    Packed,
    /// Elements smaller than a byte, each of which has a byte of its own.
    Padded,
    /// Element types whose names begin so.
    DType(&'static str),
    /// Items, and strides, that a dict can state and DLPack cannot.
    BeyondDlpack,
    /// Items that a dict can state, and for which NumPy has no type.
    BeyondNumpy,
    /// Items of no whole number of bytes.
    BitItems,
    /// Arrays that are read by DLPack, as they have no contiguous buffer: negative strides, also of an axis of one
    /// element; strides of neither C nor Fortran order, also of an array without elements.
    OutOfOrder,
    /// Arrays without elements that have negative strides.
    EmptyBackwards,
    /// Records with a field of objects, or for whose items NumPy has no type.
    FieldsBeyondNumpy,
    /// The element type of this name.
    OneDType(&'static str),
    /// Element types of more than one lane.
    Lanes,
    /// Strides that are no whole number of elements, which a dict can state.
    UnevenStrides,
    /// A CPU whose id is not 0.
    OtherCpu,
    /// Handles of opaque devices with a byte offset of no whole number of elements.
    UnevenOffset,
    /// Elements of which a buffer has no format.
    NoFormat,
    /// Items of no whole number of bytes that do not lie in one piece.
    BitGaps,
    /// These arrays, but for the element type of this name.
    Except(&'static str, &'static [Refuses]),
}

impl Refuses {
    /// Whether this refuses the array, if it is read by `reads`.
    #[must_use]
    pub fn applies_to(self, array: &Descriptor, reads: Reads) -> bool {
        let layout = array.layout();
        let is_contiguous = || array.len() == 0 || layout.is_c_contiguous();
        match self {
            Self::ReadOnly => match array.access() {
                Access::Writable => false,
                Access::ReadOnly => true,
                // A dict states that it is read-only; a legacy tensor is silent.
                Access::Unknown => reads == Reads::Interface,
            },
            Self::NegativeStrides => layout.has_negative_strides(),
            Self::Backwards => array.len() > 0 && runs_backwards(array),
            Self::NegativeBesideEmpty => {
                let mut axes = array.shape().iter().zip(array.elem_strides());
                axes.any(|(extent, stride)| *extent != 0 && *stride < 0)
            }
            Self::Gaps => !is_contiguous() && !is_compact(array),
            Self::NotContiguous => !is_contiguous() && !layout.is_f_contiguous(),
            Self::NotCOrder => !is_contiguous(),
            Self::NoAxes => axes(array) == 0,
            Self::AxesAbove(most) => axes(array) > most,
            Self::Empty => array.len() == 0,
            Self::BeyondDlpack => {
                (array.cai_only()).is_some_and(|only| only.dtype().is_none() || is_uneven(array))
            }
            Self::BeyondNumpy => (array.cai_only()).is_some_and(|only| !is_numpys(only.typestr())),
            Self::FieldsBeyondNumpy => (array.cai_only()).is_some_and(|only| {
                let is_lacking = |items: TypeStr| items.kind() == Kind::Object || !is_numpys(items);
                only.descr().has_field(is_lacking)
            }),
            Self::BitItems => {
                let dtype = array.dtype();
                u32::from(dtype.bits()) * u32::from(dtype.lanes()) % 8 != 0
            }
            Self::OutOfOrder => !has_buffer(array) && is_out_of_order(array),
            Self::EmptyBackwards => array.len() == 0 && layout.has_negative_strides(),
            Self::SubByte => array.dtype().is_sub_byte(),
            Self::Packed => array.dtype().is_sub_byte() && !is_padded(array),
            Self::Padded => array.dtype().is_sub_byte() && is_padded(array),
            // `complex` is of both kinds, `complex32` of two parts of 16 bits.
            Self::DType(prefix) => match array.type_name().strip_prefix("bcomplex") {
                Some(_) => prefix.starts_with("complex") || prefix.starts_with("bcomplex"),
                None => array.type_name().starts_with(prefix),
            },
            Self::OneDType(name) => array.type_name() == name,
            Self::Lanes => array.dtype().lanes() != 1,
            Self::UnevenOffset => (array.dtype().itemsize())
                .is_some_and(|itemsize| !array.byte_offset().is_multiple_of(itemsize.into())),
            Self::NoFormat => array.dtype().format().is_none(),
            Self::BitGaps => array.itemsize().is_none() && !is_contiguous(),
            Self::Except(name, refuses) => {
                let mut refuses = refuses.iter();
                array.type_name() != name && refuses.any(|refuses| refuses.applies_to(array, reads))
            }
            Self::UnevenStrides => is_uneven(array),
            Self::OtherCpu => {
                let device = array.device();
                device.device_type == DeviceType::CPU && device.id != 0
            }
        }
    }
}

impl fmt::Display for Refuses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ReadOnly => f.write_str("read-only data"),
            Self::NegativeStrides | Self::Backwards => f.write_str("negative strides"),
            Self::NegativeBesideEmpty => {
                f.write_str("negative strides, but for those of axes without elements")
            }
            Self::Gaps => f.write_str("strides that leave gaps, repeat elements or are negative"),
            Self::NotContiguous => f.write_str("anything but C and Fortran order"),
            Self::NotCOrder => f.write_str("anything but C order"),
            Self::NoAxes => f.write_str("arrays without axes"),
            Self::AxesAbove(most) => write!(f, "more than {most} axes"),
            Self::Empty => f.write_str("arrays without elements"),
            Self::BeyondDlpack => f.write_str("types and strides that DLPack lacks"),
            Self::BeyondNumpy => f.write_str("types that NumPy lacks"),
            Self::SubByte => f.write_str("elements smaller than a byte"),
            Self::Packed => f.write_str("packed elements smaller than a byte"),
            Self::Padded => f.write_str("padded elements smaller than a byte"),
            Self::FieldsBeyondNumpy => {
                f.write_str("records with fields of objects, or of types that NumPy lacks")
            }
            Self::BitItems => f.write_str("items of no whole number of bytes"),
            Self::OutOfOrder => f.write_str(
                "without a contiguous buffer: negative strides, and what is neither in C nor in Fortran order",
            ),
            Self::EmptyBackwards => f.write_str("negative strides of arrays without elements"),
            Self::DType("complex32") => f.write_str("complex32; bcomplex32"),
            Self::DType(name) | Self::OneDType(name) => f.write_str(name),
            Self::Lanes => f.write_str("types of more than one lane"),
            Self::UnevenStrides => f.write_str("strides that are no whole number of elements"),
            Self::OtherCpu => f.write_str("a CPU of another id than 0"),
            Self::UnevenOffset => f.write_str("byte offsets of no whole number of elements"),
            Self::NoFormat => f.write_str(
                "types without a buffer format: bfloat16, float8, complex32, elements smaller than a byte, types of \
                 more than one lane",
            ),
            Self::BitGaps => {
                f.write_str("items of no whole number of bytes that do not lie in one piece")
            }
            Self::Except(name, refuses) => {
                for refuses in *refuses {
                    write!(f, "{refuses}, ")?;
                }
                write!(f, "but for {name}")
            }
        }
    }
}

/// The number of axes, of which the lanes of a type are one.
fn axes(array: &Descriptor) -> usize {
    array.ndim() + usize::from(array.dtype().lanes() > 1)
}

fn is_padded(array: &Descriptor) -> bool {
    array.flags().contains(Flags::SUBBYTE_PADDED)
}

/// Whether an axis of more than one element has a negative stride.
fn runs_backwards(array: &Descriptor) -> bool {
    let Some(strides) = array.byte_strides() else {
        return array.layout().has_negative_strides();
    };
    let mut axes = array.shape().iter().zip(strides);
    axes.any(|(extent, stride)| *extent > 1 && stride < 0)
}

/// Whether a stride is no whole number of elements.
fn is_uneven(array: &Descriptor) -> bool {
    array.elem_strides().len() != array.ndim()
}

/// Whether NumPy has a type for these items: it has none for bit fields, float8 and complex of two float16.
fn is_numpys(items: TypeStr) -> bool {
    !matches!(
        (items.kind().letter(), items.itemsize()),
        ('t', _) | ('f', 1) | ('c', 4)
    )
}

/// Whether the elements lie side by side, whatever the order of the axes.
fn is_compact(array: &Descriptor) -> bool {
    if is_uneven(array) {
        return false;
    }
    let mut axes: Vec<_> = (array.shape().iter().zip(array.elem_strides()))
        .filter(|(extent, _)| **extent != 1)
        .collect();
    axes.sort_by_key(|(_, stride)| **stride);
    let mut next = Some(1_i64);
    for (extent, stride) in axes {
        if next != Some(*stride) {
            return false;
        }
        next = stride.checked_mul(*extent);
    }
    true
}
