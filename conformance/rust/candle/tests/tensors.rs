//! candle's CPU tensors: pointers, strides, owners, and the way back.

use cai_candle::{tensor_of, view_of};
use cai_dlpack::CaiView;
use cai_dlpack::protocol::device::Access;
use cai_dlpack::view::LiveStream;
use candle_core::{Device, Result, Tensor};

fn matrix() -> Result<Tensor> {
    Tensor::arange(0_f32, 6.0, &Device::Cpu)?.reshape((2, 3))
}

fn values(view: &CaiView) -> Vec<f32> {
    view.typed::<f32>().and_then(|typed| typed.copy_to_vec()).expect("float32 of the CPU")
}

#[test]
fn a_tensor_is_seen_where_it_is() -> Result<()> {
    let view = view_of::<f32>(&matrix()?)?;
    assert_eq!(view.descriptor().shape(), [2, 3]);
    assert_eq!(view.descriptor().access(), Access::ReadOnly);
    assert_eq!(values(&view), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    Ok(())
}

#[test]
fn strides_and_offsets_are_kept() -> Result<()> {
    let matrix = matrix()?;
    let whole = view_of::<f32>(&matrix)?;
    let part = view_of::<f32>(&matrix.narrow(1, 1, 2)?.t()?)?;
    assert_eq!(part.descriptor().data(), whole.descriptor().data() + 4);
    assert_eq!(part.descriptor().elem_strides(), [1, 3]);
    assert_eq!(values(&part), [1.0, 4.0, 2.0, 5.0]);
    let broadcast = view_of::<f32>(&matrix.narrow(0, 0, 1)?.broadcast_as((2, 3))?)?;
    assert_eq!(values(&broadcast), [0.0, 1.0, 2.0, 0.0, 1.0, 2.0]);
    Ok(())
}

#[test]
fn a_tensor_lives_in_dlpack_after_candle_let_go() -> Result<()> {
    let view = view_of::<f32>(&matrix()?)?;
    let tensor = view.to_dlpack(LiveStream::NONE).expect("a managed tensor");
    drop(view);
    let again = CaiView::from_dlpack(tensor, LiveStream::NONE).expect("a view");
    assert_eq!(values(&again).len(), 6);
    Ok(())
}

#[test]
fn bfloat16_keeps_its_name() -> Result<()> {
    let tensor = matrix()?.to_dtype(candle_core::DType::BF16)?;
    let view = view_of::<half::bf16>(&tensor)?;
    assert!(view.typed::<half::f16>().is_err());
    assert!(view_of::<f32>(&tensor).is_err());
    Ok(())
}

#[test]
fn there_and_back() -> Result<()> {
    let view = view_of::<f32>(&matrix()?.t()?)?;
    let typed = view.typed::<f32>().expect("float32");
    let back = tensor_of(&typed)?;
    assert_eq!(back.dims(), [3, 2]);
    assert_eq!(back.to_vec2::<f32>()?, matrix()?.t()?.to_vec2::<f32>()?);
    Ok(())
}

#[test]
fn no_elements_are_a_tensor_too() -> Result<()> {
    let view = view_of::<f32>(&Tensor::zeros((0, 3), candle_core::DType::F32, &Device::Cpu)?)?;
    assert_eq!(view.shape(), [0, 3]);
    let back = tensor_of(&view.typed::<f32>().expect("float32"))?;
    assert_eq!(back.dims(), [0, 3]);
    Ok(())
}
