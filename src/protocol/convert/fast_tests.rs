//! A `PlainDict` becomes what a `CaiInterface` becomes, for every small array and for the numbers at
//! the limits.

use super::*;
use crate::protocol::axes::{Axes, Source};
use crate::protocol::interface::Parts;
use crate::protocol::rule::Class;

fn fast(
    dtype: DType,
    data: u64,
    shape: &[i64],
    strides: Option<&[i64]>,
) -> Result<Descriptor, Violation> {
    let mut values: Vec<i64> = shape.to_vec();
    values.extend(strides.map_or_else(|| vec![0; shape.len()], <[i64]>::to_vec));
    let plain = PlainDict {
        data,
        read_only: true,
        dtype,
        values: &mut values,
        ndim: shape.len() as u8,
        has_strides: strides.is_some(),
    };
    Ok(plain.checked()?.descriptor(Device::cuda(1)))
}

fn full(
    dtype: DType,
    data: u64,
    shape: &[i64],
    strides: Option<&[i64]>,
) -> Result<Descriptor, Violation> {
    let parts = Parts {
        version: Version::V3,
        typestr: TypeStr::parse(dtype.typestr()?)?,
        descr: Descr::None,
        axes: Axes::from_slices(Source::Cai, shape, strides)?,
        data,
        read_only: true,
        stream: Stream::None,
    };
    CaiInterface::new(parts)?.into_descriptor(None, Device::cuda(1))
}

/// The rules of what a dict can say and DLPack cannot.
const DLPACKS: [Rule; 2] = [Rule::StridesMultiple, Rule::DataAlignment];

fn compare(dtype: DType, data: u64, shape: &[i64], strides: Option<&[i64]>) {
    let case = format!("{dtype} at {data:#x}, {shape:?}, {strides:?}");
    match (
        fast(dtype, data, shape, strides),
        full(dtype, data, shape, strides),
    ) {
        (Ok(fast), Ok(full)) => {
            assert_eq!(fast, full, "{case}");
            assert_eq!(fast.layout().len(), full.layout().len(), "{case}");
            let contiguous = full.layout().is_c_contiguous();
            assert_eq!(fast.layout().is_c_contiguous(), contiguous, "{case}");
        }
        // The full way reads all of the dict before it asks what DLPack can say of it.
        (Err(fast), Err(full)) if DLPACKS.contains(&fast.rule()) => {
            let is_malformed = full.rule().class() == Class::Value;
            assert!(is_malformed || fast.rule() == full.rule(), "{case}: {full}");
        }
        (Err(fast), Err(full)) => assert_eq!(fast.rule(), full.rule(), "{case}"),
        (fast, full) => panic!("{case}: {fast:?} and {full:?}"),
    }
}

#[test]
#[cfg_attr(miri, ignore = "exhaustive, over safe code alone")]
fn plain_dict_agrees_with_the_full_way() {
    const EXTENTS: [i64; 7] = [0, 1, 2, 3, -1, 1 << 31, i64::MAX];
    const STRIDES: [i64; 9] = [0, 4, 8, 12, -4, 3, 1 << 40, i64::MAX - 3, i64::MIN];
    let data = [0, 0x1000, 0x1002, u64::MAX - 7];
    for dtype in [DType::F32, DType::U8, DType::C128] {
        for data in data {
            compare(dtype, data, &[], None);
            for first in EXTENTS {
                compare(dtype, data, &[first], None);
                for stride in STRIDES {
                    compare(dtype, data, &[first], Some(&[stride]));
                }
                for second in EXTENTS {
                    compare(dtype, data, &[first, second], None);
                    for stride in STRIDES {
                        for other in STRIDES {
                            compare(dtype, data, &[first, second], Some(&[stride, other]));
                        }
                    }
                }
            }
        }
    }
}

/// No typestr names a type of more lanes than one, but a caller may hand one in: strides count whole elements.
#[test]
fn a_type_of_several_lanes_is_checked_in_full() {
    for lanes in 2..9 {
        for dtype in [DType::U8, DType::F32, DType::C64] {
            let dtype = DType::from_dlpack(dtype.code(), dtype.bits(), lanes).unwrap();
            let itemsize = i64::from(dtype.itemsize().unwrap());
            let made = fast(dtype, 0x1000, &[3, 2], Some(&[2 * itemsize, itemsize])).unwrap();
            assert!(made.layout().is_c_contiguous(), "{dtype}");
            assert_eq!(made.layout().elem_strides(), [2, 1], "{dtype}");
        }
    }
}

/// The product of three extents wraps to a small number, and its partial ones have one high bit each.
#[test]
fn extents_whose_product_wraps_are_refused() {
    let (shape, strides) = ([1 << 22; 3], [1 << 44, 1 << 22, 1]);
    for dtype in [DType::U8, DType::F32] {
        let size = i64::from(dtype.itemsize().expect("whole bytes"));
        let strides = strides.map(|stride: i64| stride * size);
        compare(dtype, 0x1000, &shape, Some(&strides));
        compare(dtype, 0x1000, &shape, None);
    }
}

/// An address below the alignment is a multiple of nothing.
#[test]
fn data_below_the_alignment_is_refused() {
    for data in 1..8 {
        compare(DType::F32, data, &[2], None);
        compare(DType::F64, data, &[2], None);
    }
}
