//! `check_fast` returns what `check` returns, or nothing.

use super::*;

/// Whether `check_fast` accepted it.
fn compare(raw: &RawTensor<'_>) -> bool {
    let full = Descriptor::check(raw);
    let Some(fast) = Descriptor::check_fast(raw) else {
        return false;
    };
    let full = full.unwrap_or_else(|refusal| panic!("{raw:?}: {refusal}"));
    assert_eq!(fast, full, "{raw:?}");
    let contiguous = full.layout().is_c_contiguous();
    assert_eq!(fast.layout().is_c_contiguous(), contiguous, "{raw:?}");
    assert_eq!(fast.byte_span(), full.byte_span(), "{raw:?}");
    true
}

#[test]
#[cfg_attr(miri, ignore = "exhaustive, over safe code alone")]
fn check_fast_agrees_with_check() {
    const EXTENTS: [i64; 8] = [0, 1, 2, 3, -1, 1 << 16, 1 << 32, i64::MAX];
    const STRIDES: [i64; 8] = [0, 1, 2, 3, -1, -3, 1 << 40, i64::MIN];
    const TYPES: [(u8, u8, u16); 6] = [
        (2, 32, 1),
        (0, 8, 1),
        (5, 128, 1),
        (0, 4, 2),
        (2, 32, 3),
        (9, 9, 1),
    ];
    let mut taken = 0;
    for (code, bits, lanes) in TYPES {
        for (data, byte_offset) in [
            (0, 0),
            (0x1000, 0),
            (16, 8),
            (u64::MAX - 7, 0),
            (0x1000, 1 << 63),
        ] {
            for (device_type, id, flags) in [
                (2, 0, Flags::READ_ONLY),
                (13, 3, Flags::SUBBYTE_PADDED),
                (2, 1, Flags::LEGACY),
                (5, 0, Flags::NONE),
                (2, -1, Flags::NONE),
                (7, 0, Flags::NONE),
            ] {
                let scalar = RawTensor {
                    data,
                    byte_offset,
                    device: Device::new(DeviceType::from_dlpack(device_type), id),
                    code,
                    bits,
                    lanes,
                    shape: &[],
                    strides: None,
                    flags,
                };
                taken += u32::from(compare(&scalar));
                for first in EXTENTS {
                    for second in EXTENTS {
                        let shape = &[first, second];
                        taken += u32::from(compare(&RawTensor { shape, ..scalar }));
                        for stride in STRIDES {
                            for other in STRIDES {
                                let strides = Some(&[stride, other][..]);
                                let raw = RawTensor {
                                    shape,
                                    strides,
                                    ..scalar
                                };
                                taken += u32::from(compare(&raw));
                            }
                        }
                    }
                }
            }
        }
    }
    assert!(taken > 1000, "{taken}");
}

/// Products that wrap, to small numbers: an extent and a stride whose high bits are the same, so that one hides the other.
#[test]
fn numbers_that_wrap_to_small_ones() {
    for (shape, strides) in [
        ([1 << 62, 4], [(1 << 62) + 5, 10]),
        ([1 << 62, 4], [1 << 62, 1]),
        ([(1 << 32) + 1, 2], [1 << 32, 1]),
        ([1 << 32, 1 << 32], [1 << 32, 1]),
    ] {
        let raw = RawTensor {
            shape: &shape,
            strides: Some(&strides),
            bits: 8,
            code: 1,
            ..RawTensor::EXAMPLE
        };
        assert!(!compare(&raw), "{shape:?} {strides:?}");
    }
}

#[test]
fn four_axes_and_five() {
    let shape = [2, 3, 1, 4, 2];
    let strides = [48, 16, 9, 4, 1];
    for rank in 0..=shape.len() {
        let (shape, strides) = (&shape[..rank], &strides[..rank]);
        for strides in [None, Some(strides)] {
            let raw = RawTensor {
                data: 0x1000,
                byte_offset: 0,
                device: Device::cuda(1),
                code: 2,
                bits: 16,
                lanes: 1,
                shape,
                strides,
                flags: Flags::NONE,
            };
            let has_single = rank > 2 && strides.is_some();
            assert_eq!(compare(&raw), rank <= 4 && !has_single, "{rank}");
            assert_eq!(Descriptor::new(&raw).unwrap().shape(), shape);
        }
    }
}
