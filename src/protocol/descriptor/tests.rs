//! A valid tensor, one defect per case; then the ways to reinterpret it.

use rstest::rstest;

use super::*;

impl RawTensor<'static> {
    /// float32 of shape (2, 3) in C order on the first CUDA device.
    pub(crate) const EXAMPLE: Self = RawTensor {
        data: 0x7000_0000,
        byte_offset: 0,
        device: Device::cuda(0),
        code: 2,
        bits: 32,
        lanes: 1,
        shape: &[2, 3],
        strides: None,
        flags: Flags::NONE,
    };
}

const VALID: RawTensor<'static> = RawTensor::EXAMPLE;

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
#[case::device_0(RawTensor { device: Device::new(DeviceType::from_dlpack(0), 0), ..VALID }, Rule::DeviceUnknown)]
#[case::device_5(RawTensor { device: Device::new(DeviceType::from_dlpack(5), 0), ..VALID }, Rule::DeviceUnknown)]
#[case::device_22(RawTensor { device: Device::new(DeviceType::from_dlpack(22), 0), ..VALID }, Rule::DeviceUnknown)]
#[case::device_99(RawTensor { device: Device::new(DeviceType::from_dlpack(99), 0), ..VALID }, Rule::DeviceUnknown)]
#[case::device_negative(RawTensor { device: Device::new(DeviceType::from_dlpack(-2), 0), ..VALID }, Rule::DeviceUnknown)]
#[case::device_id(RawTensor { device: Device::cuda(-1), ..VALID }, Rule::DeviceId)]
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
#[case::misaligned(RawTensor { data: 0x7000_0001, ..VALID }, Rule::DataAlignment)]
#[case::misaligned_offset(RawTensor { byte_offset: 2, ..VALID }, Rule::DataAlignment)]
#[case::misaligned_lanes(RawTensor { byte_offset: 2, lanes: 4, ..VALID }, Rule::DataAlignment)]
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
#[case::unknown_flags(RawTensor { flags: Flags::from_bits(0xffff_ffff_ffff_fff8), ..VALID })]
#[case::misaligned_on_the_host(RawTensor { data: 0x7000_0001, device: Device::HOST, ..VALID })]
#[case::scalar(RawTensor { shape: &[], strides: Some(&[]), ..VALID })]
#[case::empty_null(RawTensor { data: 0, shape: &[0, 3], ..VALID })]
#[case::empty_offset(RawTensor { data: 0, byte_offset: u64::MAX, shape: &[0], ..VALID })]
#[case::empty_offset_wraps(RawTensor { byte_offset: u64::MAX, shape: &[0], ..VALID })]
#[case::last_address(RawTensor { data: u64::MAX - 24, device: Device::HOST, ..VALID })]
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

/// The device types whose data is an address; nothing is known of the others.
const ADDRESSED: [DeviceType; 7] = [
    DeviceType::CPU,
    DeviceType::CUDA,
    DeviceType::CUDA_HOST,
    DeviceType::ROCM,
    DeviceType::ROCM_HOST,
    DeviceType::CUDA_MANAGED,
    DeviceType::ONE_API,
];

/// A handle and its offset stay apart, and nothing is computed from them, on every device type but those.
#[test]
fn handles_are_no_addresses() {
    const ROOM: u64 = 64;
    let mut opaque = 0;
    for device_type in (1..32).map(DeviceType::from_dlpack) {
        let Ok(device) = Device::check(device_type, 0) else {
            continue;
        };
        for data in [VALID.data, 1, u64::MAX] {
            for strides in [None, given(&[-3, -1]), given(&[7, 2])] {
                let raw = RawTensor {
                    data,
                    device,
                    byte_offset: ROOM,
                    strides,
                    ..VALID
                };
                if ADDRESSED.contains(&device_type) {
                    if let Ok(made) = Descriptor::new(&raw) {
                        assert_eq!((made.data(), made.byte_offset()), (data + ROOM, 0));
                        assert!(made.byte_span().is_some());
                    }
                    continue;
                }
                opaque += 1;
                let made = Descriptor::new(&raw).unwrap();
                assert!(device.is_opaque());
                assert_eq!((made.data(), made.byte_offset()), (data, ROOM));
                assert_eq!((made.byte_span(), made.nbytes()), (None, 24));
                assert_eq!(made.elem_strides(), strides.unwrap_or(&[3, 1]));
                assert_eq!((made.dtype(), made.device()), (DType::F32, device));
                let same = made.clone().with_access(Access::Writable);
                assert_eq!(same, made);
                let moved = Descriptor::new(&RawTensor {
                    byte_offset: 0,
                    ..raw
                });
                assert_ne!(moved.unwrap(), made);
            }
        }
    }
    assert_eq!(opaque, 12 * 9, "device types with handles");
}

#[test]
fn a_handle_is_reinterpreted_with_its_offset() {
    let raw = RawTensor {
        data: 3,
        byte_offset: 64,
        device: Device::new(DeviceType::VULKAN, 0),
        code: 1,
        bits: 8,
        shape: &[24],
        ..VALID
    };
    let made = Descriptor::new(&raw).unwrap();
    let floats = made.with_shape(DType::F32, &[2, 3]).unwrap();
    assert_eq!((floats.data(), floats.byte_offset()), (3, 64));
    assert_eq!((floats.dtype(), floats.shape()), (DType::F32, &[2, 3][..]));
}

#[rstest]
#[case::null(0, 0, Err(Rule::DataPointerNull))]
#[case::null_offset(0, 64, Err(Rule::DataPointerNull))]
#[case::largest(u64::MAX, (1 << 63) - 1, Ok(()))]
#[case::offset_limit(1, 1 << 63, Err(Rule::ByteOffset))]
fn handle_checked(#[case] data: u64, #[case] byte_offset: u64, #[case] wanted: Result<(), Rule>) {
    let raw = RawTensor {
        data,
        byte_offset,
        device: Device::new(DeviceType::OPENCL, 0),
        ..VALID
    };
    let found = Descriptor::new(&raw).map(drop).map_err(|v| v.rule());
    assert_eq!(found, wanted);
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
        flags: Flags::from_bits(flags),
        shape: &[3, 5],
        ..VALID
    };
    let made = Descriptor::new(&raw).unwrap();
    assert_eq!(made.nbytes(), wanted);
    assert_eq!(made.byte_span(), Some((VALID.data, VALID.data + wanted)));
}

#[test]
fn the_access_is_replaced_alone() {
    let raw = RawTensor {
        flags: Flags::from_bits(3),
        ..VALID
    };
    let mut made = Descriptor::new(&raw).unwrap();
    assert_eq!(made.access(), Access::ReadOnly);
    for (access, bits) in [
        (Access::Writable, 2),
        (Access::Unknown, 3),
        (Access::ReadOnly, 3),
        (Access::Unknown, 3),
        (Access::Writable, 2),
    ] {
        made = made.with_access(access);
        assert_eq!((made.access(), made.flags().bits()), (access, bits));
    }
}

#[test]
fn a_tensor_without_flags_is_neither_writable_nor_read_only() {
    let legacy = RawTensor {
        flags: Flags::LEGACY,
        ..VALID
    };
    let made = Descriptor::new(&legacy).unwrap();
    assert_eq!(made.access(), Access::Unknown);
    assert_ne!(made, Descriptor::new(&VALID).unwrap());
    // Another shape or device of it is as silent.
    let other = made.with_shape(DType::F32, &[6]).unwrap();
    assert_eq!(
        other.with_device(Device::HOST).unwrap().access(),
        Access::Unknown
    );
}

#[test]
fn device_can_be_renamed() {
    let managed = Device::new(DeviceType::CUDA_MANAGED, 0);
    assert_eq!(valid().with_device(managed).unwrap().device(), managed);
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
#[case::bytes_as_fp4(1, 8, DType::F4_E2M1FN, &[6, 8])]
#[case::bytes_as_fp6(1, 8, DType::F6_E3M2FN, &[32])]
#[case::bytes_as_int4(1, 8, DType::I4, &[48])]
#[case::odd_number_of_int4(1, 8, DType::I4, &[47])]
#[case::bits(1, 8, DType::U1, &[192])]
#[case::fp4_as_fp4(17, 4, DType::F4_E2M1FN, &[4, 6])]
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
        (dtype, shape, if bits == 8 { 24 } else { 12 })
    );
    assert_eq!(made.data(), VALID.data);
}

/// Packed elements have no bytes of their own; padded ones have one each.
#[rstest]
#[case::packed_with_shape(0, 1, DType::U8, Some(&[3, 4][..]), true)]
#[case::packed_without_shape(0, 1, DType::U8, None, false)]
#[case::packed_as_signed_bytes(0, 1, DType::I8, Some(&[12][..]), false)]
#[case::padded_without_shape(4, 1, DType::U8, None, true)]
#[case::padded_with_shape(4, 1, DType::U8, Some(&[4, 6][..]), true)]
#[case::padded_as_its_own_type(4, 1, DType::I4, Some(&[4, 6][..]), true)]
#[case::padded_as_another_type(4, 1, DType::F8_E5M2, None, false)]
#[case::padded_as_another_packed_type(4, 1, DType::U4, Some(&[48][..]), false)]
#[case::pairs_without_shape(0, 2, DType::U8, None, true)]
#[case::padded_pairs(4, 2, DType::U8, None, false)]
#[case::padded_pairs_with_shape(4, 2, DType::U8, Some(&[48][..]), false)]
fn bytes_of_small_elements(
    #[case] flags: u64,
    #[case] lanes: u16,
    #[case] dtype: DType,
    #[case] shape: Option<&[i64]>,
    #[case] is_taken: bool,
) {
    let raw = RawTensor {
        code: 0,
        bits: 4,
        lanes,
        flags: Flags::from_bits(flags),
        shape: &[24],
        ..VALID
    };
    let small = Descriptor::new(&raw).unwrap();
    let nbytes = small.nbytes();
    let made = match shape {
        None => small.with_dtype(dtype),
        Some(shape) => small.with_shape(dtype, shape),
    };
    match made {
        Ok(made) => {
            assert!(is_taken, "{made:?}");
            assert_eq!((made.dtype(), made.nbytes()), (dtype, nbytes));
            let keeps_padding = dtype == DType::I4;
            assert_eq!(made.flags() != Flags::NONE, keeps_padding);
        }
        Err(violation) => {
            assert!(!is_taken, "{violation}");
            assert_eq!(violation.rule(), Rule::DtypeOverride);
        }
    }
}

#[rstest]
#[case::too_few(VALID.data, None, DType::F32, &[5], Rule::ShapeOverride)]
#[case::too_many(VALID.data, None, DType::F32, &[7], Rule::ShapeOverride)]
#[case::strided(VALID.data, given(&[2]), DType::F32, &[6], Rule::ShapeOverride)]
#[case::extent(VALID.data, None, DType::F32, &[-6], Rule::ShapeExtent)]
#[case::misaligned(VALID.data + 2, None, DType::F32, &[6], Rule::DataAlignment)]
#[case::fp4(VALID.data, None, DType::F4_E2M1FN, &[49], Rule::ShapeOverride)]
#[case::fp6(VALID.data, None, DType::F6_E2M3FN, &[30], Rule::ShapeOverride)]
#[case::fp4_strided(VALID.data, given(&[2]), DType::F4_E2M1FN, &[48], Rule::ShapeOverride)]
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

/// Memory of CUDA is read by code that wants its scalars aligned; of any other memory the address may be any.
#[rstest]
#[case::host(DeviceType::CPU, true)]
#[case::rocm(DeviceType::ROCM, true)]
#[case::opaque(DeviceType::VULKAN, true)]
#[case::cuda(DeviceType::CUDA, false)]
#[case::pinned(DeviceType::CUDA_HOST, false)]
#[case::managed(DeviceType::CUDA_MANAGED, false)]
fn every_description_takes_the_same_addresses(
    #[case] device_type: DeviceType,
    #[case] is_taken: bool,
) {
    let at = |bits, shape| RawTensor {
        data: VALID.data + 1,
        device: Device::new(device_type, 0),
        code: 1,
        bits,
        shape,
        ..VALID
    };
    let bytes = || Descriptor::new(&at(8, &[24])).unwrap();
    let made = [
        Descriptor::new(&at(32, &[6])),
        bytes().with_shape(DType::F32, &[6]),
        Descriptor::new(&at(32, &[6])).and_then(|words| words.with_dtype(DType::F32)),
    ];
    for made in made {
        match made {
            Ok(made) => assert!(is_taken, "{made:?}"),
            Err(refused) => {
                assert!(!is_taken, "{refused}");
                assert_eq!(refused.rule(), Rule::DataAlignment);
            }
        }
    }
}

/// A padded element takes a byte for each lane, whatever its lanes are in bits.
#[rstest]
#[case(4, 1, Flags::NONE, None)]
#[case(4, 1, Flags::SUBBYTE_PADDED, Some(1))]
#[case(4, 2, Flags::NONE, Some(1))]
#[case(4, 2, Flags::SUBBYTE_PADDED, Some(2))]
#[case(32, 2, Flags::SUBBYTE_PADDED, Some(8))]
fn the_size_of_an_element_is_that_in_memory(
    #[case] bits: u8,
    #[case] lanes: u16,
    #[case] flags: Flags,
    #[case] itemsize: Option<u32>,
) {
    let raw = RawTensor {
        code: 1,
        bits,
        lanes,
        flags,
        ..VALID
    };
    let made = Descriptor::new(&raw).unwrap();
    assert_eq!(made.itemsize(), itemsize);
    let strides: Option<Vec<i64>> = made.byte_strides().map(Iterator::collect);
    let size = itemsize.map(i64::from);
    let wanted = size.map(|size| {
        made.elem_strides()
            .iter()
            .map(|stride| stride * size)
            .collect()
    });
    assert_eq!(strides, wanted);
}

#[cfg(feature = "pyo3")]
#[test]
fn what_is_borrowed_is_as_contiguous_as_its_layout() {
    let values = [-3_i64, -1, 0, 1, 2, 3];
    for (rows, columns) in [(0, 3), (1, 3), (2, 1), (2, 3), (3, 2), (1, 1)] {
        for (first, second) in values.iter().flat_map(|one| values.map(|two| (*one, two))) {
            let made = Descriptor::new(&RawTensor {
                shape: &[rows, columns],
                strides: Some(&[first, second]),
                ..VALID
            });
            let made = made.expect("a valid tensor");
            let found = made.borrowed().is_c_contiguous();
            assert_eq!(found, made.layout().is_c_contiguous(), "{made:?}");
        }
    }
}

/// Equal tensors have equal hashes, however their numbers are stored; each fact makes another one, of another hash.
#[test]
fn equal_tensors_are_one_key() {
    use std::collections::HashSet;

    let hash_of = |made: &Descriptor| {
        let mut hasher = std::hash::DefaultHasher::new();
        made.hash(&mut hasher);
        hasher.finish()
    };
    let mut seen = HashSet::from([valid()]);
    assert_eq!(hash_of(&valid()), hash_of(&valid()));
    let strides = RawTensor {
        strides: Some(&[3, 1]),
        ..VALID
    };
    assert!(!seen.insert(Descriptor::new(&strides).unwrap()));
    for other in [
        RawTensor {
            data: VALID.data + 64,
            ..VALID
        },
        RawTensor {
            device: Device::cuda(1),
            ..VALID
        },
        RawTensor { code: 0, ..VALID },
        RawTensor {
            shape: &[3, 2],
            ..VALID
        },
        RawTensor {
            strides: Some(&[6, 1]),
            ..VALID
        },
        RawTensor {
            flags: Flags::READ_ONLY,
            ..VALID
        },
    ] {
        let made = Descriptor::new(&other).unwrap();
        assert_ne!(hash_of(&valid()), hash_of(&made), "{other:?}");
        assert!(seen.insert(made), "{other:?}");
    }
}

/// A descriptor's device is one that DLPack has, also after it was replaced; a handle that becomes an address is checked as one.
#[test]
fn a_device_that_replaces_another_is_checked() {
    let unknown = Device::new(DeviceType::from_dlpack(99), 0);
    let rule = |device| {
        let refused = valid().with_device(device);
        refused.unwrap_err().rule()
    };
    assert_eq!(rule(unknown), Rule::DeviceUnknown);
    assert_eq!(rule(Device::cuda(-1)), Rule::DeviceId);
    let handle = RawTensor {
        data: 0x7001,
        byte_offset: 4,
        device: Device::new(DeviceType::VULKAN, 0),
        ..VALID
    };
    let handle = Descriptor::new(&handle).unwrap();
    assert_eq!((handle.data(), handle.byte_offset()), (0x7001, 4));
    let address = handle.with_device(Device::HOST).unwrap();
    assert_eq!((address.data(), address.byte_offset()), (0x7005, 0));
    let address = valid()
        .with_device(Device::new(DeviceType::VULKAN, 0))
        .unwrap();
    assert_eq!((address.data(), address.byte_offset()), (VALID.data, 0));
}

/// Padded lanes take more bytes than packed ones: a copy of whole items would leave some out.
#[cfg(feature = "view")]
#[test]
fn padded_lanes_are_no_whole_items() {
    for (flags, is_whole) in [(Flags::NONE, true), (Flags::SUBBYTE_PADDED, false)] {
        let raw = RawTensor {
            code: 1,
            bits: 4,
            lanes: 2,
            flags,
            ..VALID
        };
        let pairs = Descriptor::new(&raw).unwrap();
        let whole = crate::protocol::whole::Whole::of(&pairs);
        assert_eq!(whole.is_ok(), is_whole);
    }
}
