//! The guard makes the way back when it ends: the pointer is for work that comes before. The producer would write what is
//! still to be read.

use std::sync::Arc;

use cai_dlpack::CaiView;
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr, DevicePtrMut, result};

/// Enqueues a copy of the array.
fn launch(view: &CaiView, stream: &Arc<CudaStream>) -> CudaSlice<f32> {
    let mut copy = stream.alloc_zeros(1).unwrap();
    let pointer = view.typed::<f32>().unwrap().on(stream).unwrap().device_ptr();
    let (from, to) = (pointer.to_owned(), copy.device_ptr_mut(stream).0);
    // SAFETY: one element each.
    unsafe { result::memcpy_dtod_async(to, from, 4, stream.cu_stream()) }.unwrap();
    copy
}

fn main() {
    let context = CudaContext::new(0).unwrap();
    let [producer, consumer] = [(); 2].map(|()| context.new_stream().unwrap());
    let array = producer.clone_htod(&[1.0_f32]).unwrap();
    let pointer = array.device_ptr(&producer).0;
    let view = CaiView::from_cudarc(array, [1]).unwrap();
    let copy = launch(&view, &consumer);
    // SAFETY: the bytes of one element.
    unsafe { result::memset_d8_async(pointer, 0, 4, producer.cu_stream()) }.unwrap();
    producer.synchronize().unwrap();
    assert_eq!(consumer.clone_dtoh(&copy).unwrap(), [1.0]);
}
