//! Tensors of a GPU as views, without a copy and in stream order, and views as tensors, by a copy on candle's stream.

use cai_dlpack::CaiView;
use cai_dlpack::protocol::descriptor::{Descriptor, RawTensor};
use cai_dlpack::protocol::device::{Device, Flags};
use cai_dlpack::protocol::stream::Stream;
use cai_dlpack::view::{Element, Owner, View};
use candle_core::cuda_backend::cudarc::driver::{DevicePtr, DeviceRepr};
use candle_core::cuda_backend::{CudaDType, CudaDevice, CudaStorage};
use candle_core::op::BackpropOp;
use candle_core::{Error, Result, Storage, Tensor, WithDType};

/// A tensor of a GPU as a view, without a copy. It is read-only: candle shares its storage.
///
/// It is ready on candle's stream, after the last write; and candle's stream waits for its users.
///
/// # Errors
/// A tensor that is not on a GPU, or of another type than `T`.
pub fn view_of<T: Element + WithDType + CudaDType>(tensor: &Tensor) -> Result<CaiView> {
    let (storage, layout) = tensor.storage_and_layout();
    let Storage::Cuda(cuda) = &*storage else {
        candle_core::bail!("a tensor of a GPU is wanted");
    };
    let slice = cuda.as_cuda_slice::<T>()?;
    let (stream, ordinal) = (slice.stream(), slice.context().ordinal());
    // Has the stream wait for the last write, if that was on another one.
    let (data, read) = slice.device_ptr(stream);
    drop(read);
    let shape: Vec<i64> = layout.dims().iter().map(|extent| *extent as i64).collect();
    let strides: Vec<i64> = layout.stride().iter().map(|stride| *stride as i64).collect();
    let device = Device::cuda(ordinal as i32);
    let raw = RawTensor::new(data, device, <T as Element>::DTYPE, &shape)
        .with_byte_offset((layout.start_offset() * size_of::<T>()) as u64)
        .with_elem_strides(&strides)
        .with_flags(Flags::READ_ONLY);
    let descriptor = Descriptor::new(&raw).map_err(Error::wrap)?;
    let ready = Stream::from_cudarc(stream).map_err(Error::wrap)?;
    drop(storage);
    // SAFETY: the owner keeps the tensor, and the tensor its storage, with the stream that the storage is freed on; candle
    // does not write it once it is shared (in-place operations of candle want a `Var`).
    let view = unsafe { CaiView::new(descriptor, ready, Owner::new(tensor.clone())) };
    // SAFETY: the same stream, which the owner keeps; candle frees the memory in its order.
    Ok(unsafe { view.with_producer(ready) })
}

/// A copy of a view as a tensor of a GPU, made on candle's stream: candle has no tensors over foreign memory.
///
/// The host waits for nothing; the producer's stream waits for the copy.
///
/// # Errors
/// A view without elements, for which the driver allocates no memory; one that is not in C order, or not in memory of the
/// device.
pub fn tensor_of<T>(view: &View<'_, T>, device: &CudaDevice) -> Result<Tensor>
where
    T: Element + WithDType + CudaDType + DeviceRepr,
{
    if view.is_empty() {
        candle_core::bail!("candle has no memory of 0 bytes on a GPU");
    }
    let stream = device.cuda_stream();
    let on_stream = view.clone().c_order().map_err(Error::wrap)?.on(&stream);
    let mut there = on_stream.map_err(Error::wrap)?;
    // SAFETY: every element is written by the copy below, on the same stream.
    let mut copy = unsafe { device.alloc::<T>(view.len()) }?;
    let elements = there.as_slice().map_err(Error::wrap)?;
    stream.memcpy_dtod(&elements, &mut copy).map_err(Error::wrap)?;
    drop(elements);
    there.finish().map_err(Error::wrap)?;
    let storage = Storage::Cuda(CudaStorage::wrap_cuda_slice(copy, device.clone()));
    Ok(Tensor::from_storage(storage, view.shape(), BackpropOp::none(), false))
}
