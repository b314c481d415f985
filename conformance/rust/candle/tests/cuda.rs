//! Tensors of a GPU, on a machine that has one: `cargo test --features cuda`.
#![cfg(feature = "cuda")]

use cai_candle::cuda::{tensor_of, view_of};
use cai_dlpack::CaiView;
use cai_dlpack::protocol::device::Device as Place;
use cai_dlpack::view::ReturnEdge;
use candle_core::{Device, Tensor};

#[test]
fn a_tensor_is_a_view_on_candle_s_stream() {
    let device = Device::new_cuda(0).expect("a GPU");
    let values: Vec<f32> = (0..6_u8).map(f32::from).collect();
    let tensor = Tensor::from_vec(values.clone(), (2, 3), &device).expect("a tensor");
    let columns = tensor.t().expect("a transposed tensor");
    let cuda = device.as_cuda_device().expect("a CUDA device");
    let stream = cuda.cuda_stream();

    let view = view_of::<f32>(&columns).expect("a view");
    assert_eq!((view.shape(), view.elem_strides()), (&[3, 2][..], &[1, 3][..]));
    assert_eq!(view.interface().expect("of CUDA").stream().raw(), stream.cu_stream().addr() as u64);
    assert!(view.clone().typed_mut::<f32>().is_err(), "candle shares its storage");

    // Another stream waits for candle's, and candle's for that one.
    let other = stream.context().new_stream().expect("a stream");
    let guard = view.consume(&other).expect("an order");
    assert_eq!(guard.finish().expect("an edge"), ReturnEdge::Event);

    let rows = view_of::<f32>(&tensor).expect("a view");
    drop(tensor);
    let back = tensor_of(&rows.typed::<f32>().expect("floats"), cuda).expect("a tensor");
    let back = back.flatten_all().and_then(|flat| flat.to_vec1::<f32>());
    assert_eq!(back.expect("a copy"), values);
}

#[test]
fn a_view_without_elements_is_refused() {
    let device = Device::new_cuda(0).expect("a GPU");
    let cuda = device.as_cuda_device().expect("a CUDA device");
    let empty = CaiView::empty::<f32>(Place::cuda(0), [0, 3]).expect("a view");
    let refused = tensor_of(&empty.typed::<f32>().expect("floats"), cuda);
    assert!(refused.expect_err("no memory").to_string().contains("0 bytes"));
}
