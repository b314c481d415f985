//! candle's tensors as views, and back: of the CPU, and by the feature `cuda` of a GPU.

#[cfg(feature = "cuda")]
pub mod cuda;

use cai_dlpack::CaiView;
use cai_dlpack::protocol::descriptor::{Descriptor, RawTensor};
use cai_dlpack::protocol::device::{Device, Flags};
use cai_dlpack::protocol::stream::Stream;
use cai_dlpack::view::{Element, Owner, View};
use candle_core::{Error, Result, Storage, Tensor, WithDType};

/// A tensor of the CPU as a view, without a copy. It is read-only: candle shares its storage.
///
/// # Errors
/// A tensor that is not on the CPU, or of another type than `T`.
pub fn view_of<T: Element + WithDType>(tensor: &Tensor) -> Result<CaiView> {
    let (storage, layout) = tensor.storage_and_layout();
    let Storage::Cpu(cpu) = &*storage else {
        candle_core::bail!("a tensor of the CPU is wanted");
    };
    let elements = cpu.as_slice::<T>()?;
    let shape: Vec<i64> = layout.dims().iter().map(|extent| *extent as i64).collect();
    let strides: Vec<i64> = layout.stride().iter().map(|stride| *stride as i64).collect();
    let data = elements.as_ptr().expose_provenance() as u64;
    let raw = RawTensor::new(data, Device::HOST, <T as Element>::DTYPE, &shape)
        .with_byte_offset((layout.start_offset() * size_of::<T>()) as u64)
        .with_elem_strides(&strides)
        .with_flags(Flags::READ_ONLY);
    let descriptor = Descriptor::new(&raw).map_err(Error::wrap)?;
    drop(storage);
    // SAFETY: the owner keeps the tensor, and the tensor its storage, which candle neither moves nor
    // writes once it is shared (in-place operations of candle want a `Var`); ready: it is the CPU's.
    Ok(unsafe { CaiView::new(descriptor, Stream::None, Owner::new(tensor.clone())) })
}

/// A copy of a view as a tensor of the CPU: candle has no tensors over foreign memory.
///
/// # Errors
/// A view that the host cannot read.
pub fn tensor_of<T: Element + WithDType>(view: &View<'_, T>) -> Result<Tensor> {
    let elements = view.copy_to_vec().map_err(Error::wrap)?;
    Tensor::from_vec(elements, view.shape(), &candle_core::Device::Cpu)
}
