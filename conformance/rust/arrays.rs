//! Arrays in host memory, owned by their views.

use cai_dlpack::CaiView;
use cai_dlpack::protocol::descriptor::{Descriptor, RawTensor};
use cai_dlpack::protocol::device::{Device, Flags};
use cai_dlpack::protocol::stream::Stream;
use cai_dlpack::view::{Element, Owner};

/// What a test says about an array; the rest is plain.
pub(crate) struct Array<'a> {
    pub(crate) shape: &'a [i64],
    pub(crate) elem_strides: Option<&'a [i64]>,
    /// Where the element of index 0 is, in bytes from the start of the values.
    pub(crate) byte_offset: u64,
    pub(crate) read_only: bool,
    pub(crate) device: Device,
}

impl<'a> Array<'a> {
    pub(crate) fn of_shape(shape: &'a [i64]) -> Self {
        Self {
            shape,
            elem_strides: None,
            byte_offset: 0,
            read_only: false,
            device: Device::HOST,
        }
    }

    /// A view of `values`, which it owns.
    pub(crate) fn over<T: Element + Send>(&self, values: Vec<T>) -> CaiView {
        let data = values.as_ptr().expose_provenance() as u64;
        let mut raw = RawTensor::new(data, self.device, T::DTYPE, self.shape)
            .with_byte_offset(self.byte_offset);
        raw.strides = self.elem_strides;
        if self.read_only {
            raw.flags = Flags::READ_ONLY;
        }
        let descriptor = Descriptor::new(&raw).expect("a tensor");
        // SAFETY: the owner keeps the values, and the tests describe elements among them (or do not
        // follow the address).
        unsafe { CaiView::new(descriptor, Stream::None, Owner::new(values)) }
    }
}

/// A contiguous array of `values`.
pub(crate) fn array<T: Element + Send>(values: Vec<T>, shape: &[i64]) -> CaiView {
    Array::of_shape(shape).over(values)
}
