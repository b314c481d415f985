//! The short way of a plain dict answers what the long way answers, for every small array and for the
//! numbers at the limits.

use super::*;

fn short(
    dtype: DType,
    data: u64,
    shape: &[i64],
    strides: Option<&[i64]>,
) -> Result<Descriptor, Violation> {
    let mut values: Vec<i64> = shape.to_vec();
    values.extend(strides.map_or_else(|| vec![0; shape.len()], <[i64]>::to_vec));
    let plain = Plain {
        data,
        read_only: true,
        dtype,
        values: &mut values,
        ndim: shape.len() as u8,
        has_strides: strides.is_some(),
    };
    Ok(plain.check()?.descriptor(Device::cuda(1)))
}

fn long(
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
    Interface::new(parts)?.into_descriptor(None, Device::cuda(1))
}

fn compare(dtype: DType, data: u64, shape: &[i64], strides: Option<&[i64]>) {
    let case = format!("{dtype} at {data:#x}, {shape:?}, {strides:?}");
    match (
        short(dtype, data, shape, strides),
        long(dtype, data, shape, strides),
    ) {
        (Ok(short), Ok(long)) => {
            assert_eq!(short, long, "{case}");
            assert_eq!(short.layout().len(), long.layout().len(), "{case}");
            let contiguous = long.layout().is_c_contiguous();
            assert_eq!(short.layout().is_c_contiguous(), contiguous, "{case}");
        }
        (Err(short), Err(long)) => assert_eq!(short.rule(), long.rule(), "{case}"),
        (short, long) => panic!("{case}: {short:?} and {long:?}"),
    }
}

#[test]
fn plain_dict_agrees_with_the_long_way() {
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
