//! The way from a tensor to a dict, and back.

use rstest::rstest;

use super::*;
use crate::protocol::descriptor::RawTensor;
use crate::protocol::device::DeviceType;
use crate::protocol::rule::Class;

const VALID: RawTensor<'static> = RawTensor::EXAMPLE;

#[rstest]
#[case::cpu(RawTensor { device: Device::HOST, ..VALID }, Rule::CaiDevice)]
#[case::rocm(RawTensor { device: Device::new(DeviceType::ROCM, 0), ..VALID }, Rule::CaiDevice)]
#[case::metal(RawTensor { device: Device::new(DeviceType::METAL, 0), ..VALID }, Rule::CaiDevice)]
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
#[case(DeviceType::CUDA, Flags::READ_ONLY)]
#[case(DeviceType::CUDA_HOST, Flags::READ_ONLY)]
#[case(DeviceType::CUDA_MANAGED, Flags::READ_ONLY)]
// Not known: a dict has two values, of which this is the cautious one.
#[case(DeviceType::CUDA, Flags::LEGACY)]
fn cai_can_say(#[case] device_type: DeviceType, #[case] flags: Flags) {
    let raw = RawTensor {
        device: Device::new(device_type, 0),
        flags,
        ..VALID
    };
    let said = Descriptor::new(&raw)
        .unwrap()
        .to_interface(Stream::LegacyDefault)
        .unwrap();
    assert_eq!(said.version(), Version::V3);
    assert_eq!(said.typestr().as_str(), DType::F32.typestr().ok());
    assert_eq!((said.data(), said.read_only()), (VALID.data, true));
    assert_eq!(said.stream(), Stream::LegacyDefault);
    assert_eq!(said.shape(), VALID.shape);
    assert!(said.strides_for_export().is_none());
}

#[rstest]
#[case::c_order(&[2, 3], Some(&[3, 1][..]), None)]
#[case::transposed(&[2, 3], Some(&[1, 2][..]), Some(vec![4, 8]))]
#[case::negative(&[3], Some(&[-2][..]), Some(vec![-8]))]
#[case::zero(&[3], Some(&[0][..]), Some(vec![0]))]
#[case::single(&[1, 3], Some(&[77, 1][..]), None)]
#[case::empty(&[0, 3], Some(&[77, 5][..]), None)]
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
    for dtype in DType::ALL.iter().filter(|dtype| dtype.typestr().is_ok()) {
        for (shape, strides) in LAYOUTS {
            for flags in [Flags::NONE, Flags::READ_ONLY] {
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
            }
        }
    }
}
