//! A valid tensor, one defect per case; then the way to CAI and back.

use dlpark::ffi::DLDeviceType as Header;
use rstest::rstest;

use super::*;
use crate::protocol::interface::Version;
use crate::protocol::rule::Class;

/// float32 of shape (2, 3) in C order on the first CUDA device.
const VALID: RawTensor<'static> = RawTensor {
    data: 0x7000_0000,
    byte_offset: 0,
    device_type: Device::CUDA,
    device_id: 0,
    code: 2,
    bits: 32,
    lanes: 1,
    shape: &[2, 3],
    strides: None,
    flags: 0,
};

fn valid() -> Descriptor {
    Descriptor::new(&VALID).unwrap()
}

#[test]
fn valid_tensor() {
    let made = valid();
    assert_eq!(made.data(), VALID.data);
    assert_eq!(made.device(), Device::cuda(0));
    assert_eq!(made.dtype(), DType::F32);
    assert_eq!(made.flags(), Flags::NONE);
    assert_eq!((made.ndim(), made.len(), made.nbytes()), (2, 6, 24));
    assert_eq!(made.shape(), [2, 3]);
    assert_eq!(made.elem_strides(), [3, 1]);
    assert_eq!(made.byte_strides().unwrap().collect::<Vec<_>>(), [12, 4]);
    assert_eq!(made.byte_span(), Some((VALID.data, VALID.data + 24)));
}

#[rstest]
#[case::device_0(RawTensor { device_type: 0, ..VALID }, Rule::DeviceUnknown)]
#[case::device_5(RawTensor { device_type: 5, ..VALID }, Rule::DeviceUnknown)]
#[case::device_19(RawTensor { device_type: 19, ..VALID }, Rule::DeviceUnknown)]
#[case::device_99(RawTensor { device_type: 99, ..VALID }, Rule::DeviceUnknown)]
#[case::device_negative(RawTensor { device_type: -2, ..VALID }, Rule::DeviceUnknown)]
#[case::device_id(RawTensor { device_id: -1, ..VALID }, Rule::DeviceId)]
#[case::code_99(RawTensor { code: 99, ..VALID }, Rule::DtypeCode)]
#[case::code_handle(RawTensor { code: 3, bits: 64, ..VALID }, Rule::DtypeOpaque)]
#[case::bits_13(RawTensor { bits: 13, ..VALID }, Rule::DtypeBits)]
#[case::bits_0(RawTensor { bits: 0, ..VALID }, Rule::DtypeBits)]
#[case::lanes_0(RawTensor { lanes: 0, ..VALID }, Rule::DtypeLanes)]
#[case::bool_1(RawTensor { code: 6, bits: 1, ..VALID }, Rule::DtypeBool)]
#[case::fp4_of_8(RawTensor { code: 17, bits: 8, ..VALID }, Rule::DtypeSubByte)]
#[case::fp6_of_8(RawTensor { code: 15, bits: 8, ..VALID }, Rule::DtypeSubByte)]
#[case::extent(RawTensor { shape: &[2, -1], ..VALID }, Rule::ShapeExtent)]
#[case::axes(RawTensor { shape: &[1; 65], ..VALID }, Rule::NdimLimit)]
#[case::count(RawTensor { shape: &[1 << 40, 1 << 40], ..VALID }, Rule::CountOverflow)]
#[case::size(RawTensor { shape: &[1 << 61], ..VALID }, Rule::SizeOverflow)]
#[case::strides_few(RawTensor { strides: Some(&[1]), ..VALID }, Rule::StridesLength)]
#[case::span(RawTensor { strides: Some(&[1 << 62, 1]), ..VALID }, Rule::SpanOverflow)]
#[case::data_null(RawTensor { data: 0, ..VALID }, Rule::DataPointerNull)]
#[case::data_null_offset(RawTensor { data: 0, byte_offset: 8, ..VALID }, Rule::DataPointerNull)]
#[case::offset(RawTensor { byte_offset: (1 << 63) + 1, ..VALID }, Rule::ByteOffset)]
#[case::offset_limit(RawTensor { byte_offset: 1 << 63, ..VALID }, Rule::ByteOffset)]
#[case::offset_of_high_data(RawTensor { data: 1 << 63, byte_offset: 1 << 63, ..VALID }, Rule::ByteOffset)]
#[case::offset_negative(RawTensor { data: 1 << 63, byte_offset: u64::MAX - 7, ..VALID }, Rule::ByteOffset)]
#[case::offset_wraps(RawTensor { data: u64::MAX, byte_offset: 8, ..VALID }, Rule::ByteOffset)]
#[case::end_of_memory(RawTensor { data: u64::MAX - 8, ..VALID }, Rule::AddressRange)]
#[case::start_of_memory(RawTensor { data: 8, strides: Some(&[-3, 1]), ..VALID }, Rule::AddressRange)]
#[case::start_of_memory_packed(
    RawTensor { data: 1, code: 17, bits: 4, strides: Some(&[-3, 1]), ..VALID },
    Rule::AddressRange
)]
fn tensor_malformed(#[case] raw: RawTensor<'_>, #[case] rule: Rule) {
    let violation = Descriptor::new(&raw).unwrap_err();
    assert_eq!(violation.rule(), rule, "{violation}");
    assert!(
        violation.to_string().starts_with("DLTensor."),
        "{violation}"
    );
}

#[rstest]
#[case(-1, Err(Rule::NdimNegative))]
#[case(i32::MIN, Err(Rule::NdimNegative))]
#[case(65, Err(Rule::NdimLimit))]
#[case(i32::MAX, Err(Rule::NdimLimit))]
#[case(0, Ok(0))]
#[case(64, Ok(64))]
fn ndim_checked(#[case] ndim: i32, #[case] wanted: Result<usize, Rule>) {
    assert_eq!(Descriptor::check_ndim(ndim).map_err(|v| v.rule()), wanted);
}

/// What looks odd and is legal.
#[rstest]
#[case::strides_null(RawTensor { strides: None, ..VALID })]
#[case::single_axis_stride(RawTensor { shape: &[1, 3], strides: Some(&[i64::MIN, 1]), ..VALID })]
#[case::negative_stride(RawTensor { strides: Some(&[3, -1]), ..VALID })]
#[case::zero_stride(RawTensor { strides: Some(&[0, 1]), ..VALID })]
#[case::unknown_flags(RawTensor { flags: 0xffff_ffff_ffff_fff8, ..VALID })]
#[case::misaligned(RawTensor { data: 0x7000_0001, ..VALID })]
#[case::scalar(RawTensor { shape: &[], strides: Some(&[]), ..VALID })]
#[case::empty_null(RawTensor { data: 0, shape: &[0, 3], ..VALID })]
#[case::empty_offset(RawTensor { data: 0, byte_offset: u64::MAX, shape: &[0], ..VALID })]
#[case::empty_offset_wraps(RawTensor { byte_offset: u64::MAX, shape: &[0], ..VALID })]
#[case::last_address(RawTensor { data: u64::MAX - 24, ..VALID })]
fn tensor_taken(#[case] raw: RawTensor<'_>) {
    let made = Descriptor::new(&raw).unwrap();
    assert_eq!(made.shape(), raw.shape);
    assert_eq!(made.flags(), Flags::NONE);
    if made.len() == 0 {
        assert_eq!((made.data(), made.nbytes(), made.byte_span()), (0, 0, None));
    }
}

#[test]
fn byte_offset_is_added_once() {
    let raw = RawTensor {
        byte_offset: 64,
        ..VALID
    };
    assert_eq!(Descriptor::new(&raw).unwrap().data(), VALID.data + 64);
}

#[rstest]
#[case::c_order(None, 0, 24)]
#[case::reversed(given(&[-3, -1]), -20, 4)]
#[case::row_reversed(given(&[3, -1]), -8, 16)]
#[case::broadcast(given(&[0, 1]), 0, 12)]
#[case::strided(given(&[10, 2]), 0, 60)]
fn span(#[case] strides: Option<&[i64]>, #[case] start: i64, #[case] end: u64) {
    let made = Descriptor::new(&RawTensor { strides, ..VALID }).unwrap();
    let start = VALID.data.checked_add_signed(start).unwrap();
    assert_eq!(made.byte_span(), Some((start, VALID.data + end)));
}

fn given(strides: &[i64]) -> Option<&[i64]> {
    Some(strides)
}

/// Three rows of five: packed together, or a byte each.
#[rstest]
#[case::fp4(17, 4, 1, 0, 8)]
#[case::fp4_padded(17, 4, 1, 4, 15)]
#[case::fp4_pairs(17, 4, 2, 0, 15)]
#[case::fp4_pairs_padded(17, 4, 2, 4, 30)]
#[case::fp6(15, 6, 1, 0, 12)]
#[case::bits(1, 1, 1, 0, 2)]
#[case::padded_means_nothing_for_whole_bytes(2, 32, 1, 4, 60)]
fn nbytes(
    #[case] code: u8,
    #[case] bits: u8,
    #[case] lanes: u16,
    #[case] flags: u64,
    #[case] wanted: u64,
) {
    let raw = RawTensor {
        code,
        bits,
        lanes,
        flags,
        shape: &[3, 5],
        ..VALID
    };
    let made = Descriptor::new(&raw).unwrap();
    assert_eq!(made.nbytes(), wanted);
    assert_eq!(made.byte_span(), Some((VALID.data, VALID.data + wanted)));
}

/// The header's numbers, by dlpark's transcription of it.
#[rstest]
#[case(Device::CPU, Header::CPU)]
#[case(Device::CUDA, Header::CUDA)]
#[case(Device::CUDA_HOST, Header::CUDAHOST)]
#[case(Device::OPENCL, Header::OPENCL)]
#[case(Device::VULKAN, Header::VULKAN)]
#[case(Device::METAL, Header::METAL)]
#[case(Device::VPI, Header::VPI)]
#[case(Device::ROCM, Header::ROCM)]
#[case(Device::ROCM_HOST, Header::ROCMHOST)]
#[case(Device::EXT_DEV, Header::EXTDEV)]
#[case(Device::CUDA_MANAGED, Header::CUDAMANAGED)]
#[case(Device::ONE_API, Header::ONEAPI)]
#[case(Device::WEBGPU, Header::WEBGPU)]
#[case(Device::HEXAGON, Header::HEXAGON)]
#[case(Device::MAIA, Header::MAIA)]
#[case(Device::TRN, Header::TRN)]
fn device_types_are_the_headers(#[case] ours: i32, #[case] header: Header) {
    assert_eq!(i64::from(ours), i64::from(header.0));
    assert_ne!(Device::check(ours, 0).unwrap().type_name(), "unknown");
}

#[test]
fn device_types_no_others() {
    let known = (-5..=25).filter(|number| Device::check(*number, 0).is_ok());
    assert_eq!(known.count(), 16);
    let violation = Device::check(99, 0).unwrap_err();
    assert_eq!(
        violation.to_string(),
        "__dlpack_device__ = (99, 0): no such device type [device-unknown]"
    );
}

#[test]
fn flags_are_the_headers() {
    assert_eq!(
        Flags::READ_ONLY.bits(),
        u64::from(dlpark::ffi::DLPACK_FLAG_BITMASK_READ_ONLY)
    );
    assert_eq!(
        Flags::IS_COPIED.bits(),
        u64::from(dlpark::ffi::DLPACK_FLAG_BITMASK_IS_COPIED)
    );
    assert_eq!(
        Flags::SUBBYTE_PADDED.bits(),
        u64::from(dlpark::ffi::DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED)
    );
}

#[test]
fn read_only_is_set_and_cleared_alone() {
    let raw = RawTensor { flags: 7, ..VALID };
    let made = Descriptor::new(&raw).unwrap();
    assert!(made.read_only());
    let writable = made.with_read_only(false);
    assert!(!writable.read_only());
    assert_eq!(writable.flags().bits(), 6);
    assert_eq!(writable.with_read_only(true).flags().bits(), 7);
}

#[rstest]
#[case::cpu(RawTensor { device_type: 1, ..VALID }, Rule::CaiDevice)]
#[case::rocm(RawTensor { device_type: 10, ..VALID }, Rule::CaiDevice)]
#[case::metal(RawTensor { device_type: 8, ..VALID }, Rule::CaiDevice)]
#[case::bf16(RawTensor { code: 4, bits: 16, ..VALID }, Rule::CaiDtype)]
#[case::fp8(RawTensor { code: 10, bits: 8, ..VALID }, Rule::CaiDtype)]
#[case::fp4(RawTensor { code: 17, bits: 4, ..VALID }, Rule::CaiSubByte)]
#[case::lanes(RawTensor { lanes: 2, ..VALID }, Rule::CaiLanes)]
fn cai_cannot_say(#[case] raw: RawTensor<'_>, #[case] rule: Rule) {
    let violation = Descriptor::new(&raw)
        .unwrap()
        .to_interface(Stream::None)
        .unwrap_err();
    assert_eq!((violation.rule(), rule.class()), (rule, Class::Buffer));
    assert!(violation.hint().is_some(), "{violation}");
}

#[rstest]
#[case(Device::CUDA)]
#[case(Device::CUDA_HOST)]
#[case(Device::CUDA_MANAGED)]
fn cai_can_say(#[case] device_type: i32) {
    let raw = RawTensor {
        device_type,
        flags: 1,
        ..VALID
    };
    let said = Descriptor::new(&raw)
        .unwrap()
        .to_interface(Stream::LegacyDefault)
        .unwrap();
    assert_eq!(said.version(), Version::V3);
    assert_eq!(
        said.typestr_str(),
        if cfg!(target_endian = "little") {
            "<f4"
        } else {
            ">f4"
        }
    );
    assert_eq!((said.data(), said.read_only()), (VALID.data, true));
    assert_eq!(said.stream(), Stream::LegacyDefault);
    assert_eq!(said.shape(), VALID.shape);
    assert!(said.strides_for_export().is_none());
}

#[rstest]
#[case::c_order(&[2, 3], given(&[3, 1]), None)]
#[case::transposed(&[2, 3], given(&[1, 2]), Some(vec![4, 8]))]
#[case::negative(&[3], given(&[-2]), Some(vec![-8]))]
#[case::zero(&[3], given(&[0]), Some(vec![0]))]
#[case::single(&[1, 3], given(&[77, 1]), None)]
#[case::empty(&[0, 3], given(&[77, 5]), None)]
#[case::scalar(&[], None, None)]
fn strides_for_export(
    #[case] shape: &[i64],
    #[case] strides: Option<&[i64]>,
    #[case] wanted: Option<Vec<i64>>,
) {
    let made = Descriptor::new(&RawTensor {
        shape,
        strides,
        ..VALID
    })
    .unwrap();
    let said = made.to_interface(Stream::None).unwrap();
    assert_eq!(said.strides_for_export().map(Iterator::collect), wanted);
}

/// DLPack -> CAI -> DLPack, for every type that CAI can say and a few layouts: nothing is lost.
#[test]
fn round_trip() {
    const LAYOUTS: &[(&[i64], Option<&[i64]>)] = &[
        (&[], None),
        (&[2, 3], None),
        (&[2, 3], Some(&[1, 2])),
        (&[4], Some(&[-3])),
        (&[3, 4], Some(&[0, 1])),
        (&[0, 3], None),
        (&[1, 1, 5], Some(&[9, 9, 2])),
        (&[2, 2, 2, 2, 2], None),
    ];
    let mut trips = 0;
    for dtype in DType::ALL.iter().filter(|dtype| dtype.typestr().is_ok()) {
        for (shape, strides) in LAYOUTS {
            for flags in [0, 1] {
                let raw = RawTensor {
                    code: dtype.code(),
                    bits: dtype.bits(),
                    shape,
                    strides: *strides,
                    flags,
                    ..VALID
                };
                let made = Descriptor::new(&raw).unwrap();
                let said = made.to_interface(Stream::None).unwrap();
                let again = said.into_descriptor(None, made.device()).unwrap();
                assert_eq!(again, made, "{dtype} {shape:?} {strides:?}");
                trips += 1;
            }
        }
    }
    assert_eq!(trips, 14 * 8 * 2);
}

#[test]
fn device_can_be_renamed() {
    let managed = Device {
        device_type: Device::CUDA_MANAGED,
        id: 0,
    };
    assert_eq!(valid().with_device(managed).device(), managed);
    assert_eq!(managed.to_string(), "cuda_managed:0");
}

#[test]
fn dtype_can_be_reinterpreted() {
    let raw = RawTensor {
        code: 1,
        bits: 16,
        ..VALID
    };
    let bf16 = Descriptor::new(&raw)
        .unwrap()
        .with_dtype(DType::BF16)
        .unwrap();
    assert_eq!(bf16.dtype(), DType::BF16);
    let violation = valid().with_dtype(DType::I32).unwrap_err();
    assert_eq!(violation.rule(), Rule::DtypeOverride);
}

#[rstest]
#[case::bytes_as_floats(0, 8, DType::F32, &[2, 3])]
#[case::bytes_as_bf16(1, 8, DType::BF16, &[12])]
#[case::bytes_reshaped(1, 8, DType::U8, &[4, 3, 2])]
#[case::scalar(1, 8, DType::F64, &[3, 1, 1])]
fn shape_taken(#[case] code: u8, #[case] bits: u8, #[case] dtype: DType, #[case] shape: &[i64]) {
    let raw = RawTensor {
        code,
        bits,
        shape: &[24],
        ..VALID
    };
    let made = Descriptor::new(&raw)
        .unwrap()
        .with_shape(dtype, shape)
        .unwrap();
    assert_eq!(
        (made.dtype(), made.shape(), made.nbytes()),
        (dtype, shape, 24)
    );
    assert_eq!(made.data(), VALID.data);
}

#[rstest]
#[case::too_few(VALID.data, None, DType::F32, &[5], Rule::ShapeOverride)]
#[case::too_many(VALID.data, None, DType::F32, &[7], Rule::ShapeOverride)]
#[case::strided(VALID.data, given(&[2]), DType::F32, &[6], Rule::ShapeOverride)]
#[case::extent(VALID.data, None, DType::F32, &[-6], Rule::ShapeExtent)]
#[case::misaligned(VALID.data + 2, None, DType::F32, &[6], Rule::DataAlignment)]
#[case::fp4(VALID.data, None, DType::F4_E2M1FN, &[48], Rule::DtypeOverride)]
fn shape_refused(
    #[case] data: u64,
    #[case] strides: Option<&[i64]>,
    #[case] dtype: DType,
    #[case] shape: &[i64],
    #[case] rule: Rule,
) {
    let raw = RawTensor {
        data,
        strides,
        code: 1,
        bits: 8,
        shape: &[24],
        ..VALID
    };
    let violation = Descriptor::new(&raw)
        .unwrap()
        .with_shape(dtype, shape)
        .unwrap_err();
    assert_eq!(violation.rule(), rule, "{violation}");
}

#[test]
fn shape_does_not_cast() {
    let violation = valid().with_shape(DType::I32, &[6]).unwrap_err();
    assert_eq!(violation.rule(), Rule::DtypeOverride);
    assert_eq!(
        valid().with_shape(DType::F32, &[3, 2]).unwrap().shape(),
        [3, 2]
    );
}
