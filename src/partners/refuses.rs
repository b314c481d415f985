//! What calls refuse, as conditions on an array's description.

use std::fmt;

use super::reads::Reads;
use crate::protocol::descriptor::Descriptor;
use crate::protocol::device::{Access, Flags};
use crate::protocol::dtype::TypeStr;

/// An array that a [`Call`](super::Call) refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refuses {
    /// Read-only data.
    ReadOnly,
    /// Negative strides.
    NegativeStrides,
    /// Strides that leave gaps, overlap or run backwards; the axes may have any order.
    Gaps,
    /// Anything but C and Fortran order.
    NotContiguous,
    /// Anything but C order.
    NotCOrder,
    /// Arrays without axes.
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
    /// The element type of this name.
    OneDType(&'static str),
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
            Self::NegativeStrides => array.layout().has_negative_strides(),
            Self::Gaps => !is_contiguous() && !is_compact(array),
            Self::NotContiguous => !is_contiguous() && !layout.is_f_contiguous(),
            Self::NotCOrder => !is_contiguous(),
            Self::NoAxes => array.ndim() == 0,
            Self::AxesAbove(most) => array.ndim() > most,
            Self::Empty => array.len() == 0,
            Self::BeyondDlpack => (array.cai_only()).is_some_and(|only| {
                only.dtype().is_none() || array.elem_strides().len() != array.ndim()
            }),
            Self::BeyondNumpy => (array.cai_only()).is_some_and(|only| !is_numpys(only.typestr())),
            Self::SubByte => array.dtype().is_sub_byte(),
            Self::Packed => array.dtype().is_sub_byte() && !is_padded(array),
            Self::Padded => array.dtype().is_sub_byte() && is_padded(array),
            Self::DType(prefix) => array.type_name().starts_with(prefix),
            Self::OneDType(name) => array.type_name() == name,
        }
    }
}

impl fmt::Display for Refuses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ReadOnly => f.write_str("read-only data"),
            Self::NegativeStrides => f.write_str("negative strides"),
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
            Self::DType(name) | Self::OneDType(name) => f.write_str(name),
        }
    }
}

fn is_padded(array: &Descriptor) -> bool {
    array.flags().contains(Flags::SUBBYTE_PADDED)
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
    if array.elem_strides().len() != array.ndim() {
        return false; // a stride is no whole number of elements
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
