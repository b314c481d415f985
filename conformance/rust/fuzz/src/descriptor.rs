//! Any fields of a tensor as a descriptor: what is accepted has sizes that can be computed, and survives CAI.

use cai_dlpack::protocol::descriptor::{Descriptor, RawTensor};
use cai_dlpack::protocol::device::{Device, DeviceType, Flags};
use cai_dlpack::protocol::dtype::DType;
use cai_dlpack::protocol::stream::Stream;

use crate::bytes::Bytes;

const DEVICES: [DeviceType; 8] = [
    DeviceType::CPU,
    DeviceType::CUDA,
    DeviceType::CUDA_HOST,
    DeviceType::CUDA_MANAGED,
    DeviceType::OPENCL,
    DeviceType::from_dlpack(0),
    DeviceType::from_dlpack(-1),
    DeviceType::from_dlpack(99),
];

/// Runs one input.
pub fn run(data: &[u8]) {
    let mut bytes = Bytes::new(data);
    let dtype = bytes.one_of(DType::ALL);
    let is_odd = bytes.byte() % 8 == 0;
    let shape = bytes.numbers(6);
    let strides = match bytes.byte() % 3 {
        0 => None,
        1 => Some((0..shape.len()).map(|_| bytes.number()).collect::<Vec<_>>()),
        _ => Some(bytes.numbers(6)),
    };
    let data = bytes.number().cast_unsigned();
    let byte_offset = match bytes.flag() {
        true => bytes.number().cast_unsigned(),
        false => 0,
    };
    let device = Device {
        device_type: bytes.one_of(&DEVICES),
        id: i32::from(bytes.byte().cast_signed()) % 4,
    };
    let mut raw = RawTensor::new(data, device, dtype, &shape).with_byte_offset(byte_offset);
    if is_odd {
        raw.code = bytes.byte();
        raw.bits = bytes.byte();
        raw.lanes = u16::from(bytes.byte());
    }
    raw.strides = strides.as_deref();
    raw.flags = Flags::from_bits(u64::from(bytes.byte()));
    if let Ok(descriptor) = Descriptor::new(&raw) {
        check(&descriptor, &shape);
    }
}

/// What holds for every descriptor.
pub fn check(descriptor: &Descriptor, shape: &[i64]) {
    assert_eq!(descriptor.shape(), shape);
    assert_eq!(descriptor.ndim(), descriptor.elem_strides().len());
    let product = shape.iter().try_fold(1_u128, |product, extent| {
        product.checked_mul(u128::try_from(*extent).expect("no extent is negative"))
    });
    let is_empty = shape.contains(&0);
    let length = if is_empty { Some(0) } else { product };
    assert_eq!(Some(u128::from(descriptor.len())), length);
    // DLPack 1.1: with this flag a number smaller than a byte takes one, in each lane.
    let dtype = descriptor.dtype();
    let bits = match descriptor.flags().contains(Flags::SUBBYTE_PADDED) && dtype.is_sub_byte() {
        true => u128::from(dtype.lanes()) * 8,
        false => u128::from(dtype.element_bits()),
    };
    let nbytes = (u128::from(descriptor.len()) * bits).div_ceil(8);
    assert_eq!(u128::from(descriptor.nbytes()), nbytes);
    if let Some((first, end)) = descriptor.byte_span() {
        assert!(first <= end);
        assert!(is_empty || (first <= descriptor.data() && descriptor.data() <= end));
    }
    let _ = (
        descriptor.layout().is_self_overlapping(),
        descriptor.layout().is_f_contiguous(),
    );
    let Ok(interface) = descriptor.to_interface(Stream::None) else {
        return;
    };
    assert_eq!(interface.shape(), shape);
    assert_eq!(u128::from(interface.nbytes()), nbytes);
    let back = interface
        .into_descriptor(Some(descriptor.dtype()), descriptor.device())
        .expect("an interface of ours is one that we take");
    assert_eq!(back.shape(), descriptor.shape());
    if !is_empty {
        assert_eq!(back.data(), descriptor.data());
        assert_eq!(back.byte_span(), descriptor.byte_span());
    }
}
