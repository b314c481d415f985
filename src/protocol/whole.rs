//! The source of a copy as it is read, and the description of the copy.

use crate::protocol::axes::{Axes, Source};
use crate::protocol::descriptor::Descriptor;
use crate::protocol::device::{Device, Flags};
use crate::protocol::layout::Layout;
use crate::protocol::rule::{Field, Rule, Violation};

/// A source as a copy reads it: items of whole bytes, apart by byte strides.
pub(crate) struct Whole {
    pub(crate) itemsize: u64,
    pub(crate) byte_strides: Vec<i64>,
    pub(crate) layout: Layout,
}

impl Whole {
    /// # Errors
    /// `copy-refused` for packed elements: a byte belongs to several; why DLPack cannot describe the elements.
    pub(crate) fn of(descriptor: &Descriptor) -> Result<Self, Violation> {
        descriptor.check_dlpack()?;
        let mut axes = Axes::new(Source::Tensor);
        for extent in descriptor.shape() {
            axes.push_extent(*extent)?;
        }
        let itemsize = descriptor.dtype().itemsize();
        let layout = Layout::from_elem_axes(axes, itemsize.unwrap_or(1))?;
        match (itemsize, descriptor.byte_strides()) {
            // Padded lanes take more than the type's whole bytes.
            (Some(itemsize), Some(strides)) if !descriptor.borrowed().is_padded() => Ok(Self {
                itemsize: u64::from(itemsize),
                byte_strides: strides.collect(),
                layout,
            }),
            _ => Err(sub_byte(descriptor)),
        }
    }

    /// Describes the copy at `data`.
    pub(crate) fn at(
        &self,
        data: u64,
        device: Device,
        source: &Descriptor,
    ) -> Result<Descriptor, Violation> {
        let layout = self.layout.clone();
        Descriptor::from_layout(data, device, source.dtype(), Flags::IS_COPIED, layout)
    }
}

/// Builds the refusal of elements that are no whole number of bytes by their type.
#[cold]
fn sub_byte(descriptor: &Descriptor) -> Violation {
    let dtype = descriptor.dtype();
    let stored = match descriptor.flags().contains(Flags::SUBBYTE_PADDED) {
        true => "padded",
        false => "packed",
    };
    let found = format_args!("True, with {stored} {dtype} elements");
    Violation::new(Rule::CopyRefused, Field::Argument("copy"), found)
}
