//! Masks of both forms against the shapes of their values.

use rstest::rstest;

use super::*;
use crate::protocol::dtype::TypeStr;
use crate::protocol::interface::{Descr, Parts, Version};
use crate::protocol::stream::Stream;

fn mask(typestr: &str, shape: &[i64], strides: Option<&[i64]>) -> CaiInterface {
    CaiInterface::new(Parts {
        version: Version::V3,
        typestr: TypeStr::parse_any_order(typestr).unwrap(),
        descr: Descr::None,
        axes: Axes::from_slices(Source::Cai, shape, strides).unwrap(),
        data: 0x7000_0000,
        read_only: false,
        stream: Stream::None,
    })
    .unwrap()
}

#[rstest]
#[case::bytes("|b1", &[100], &[100], MaskForm::Bytes)]
#[case::signed_bytes("|i1", &[100], &[100], MaskForm::Bytes)]
#[case::broadcast("|u1", &[4, 1], &[4, 6], MaskForm::Bytes)]
#[case::broadcast_of_fewer_axes("|u1", &[6], &[4, 6], MaskForm::Bytes)]
#[case::scalar("|b1", &[], &[4, 6], MaskForm::Bytes)]
#[case::bits("|t1", &[100], &[100], MaskForm::Bits)]
#[case::bits_to_spare("|t1", &[128], &[100], MaskForm::Bits)]
#[case::bits_of_two_axes("|t1", &[24], &[4, 6], MaskForm::Bits)]
#[case::packed("|u1", &[13], &[100], MaskForm::Bits)]
#[case::packed_and_padded("|u1", &[64], &[100], MaskForm::Bits)]
fn forms(#[case] typestr: &str, #[case] of: &[i64], #[case] shape: &[i64], #[case] form: MaskForm) {
    let mask = mask(typestr, of, None);
    assert_eq!(MaskForm::of(&mask, shape, None), Ok(form));
    assert_eq!(MaskForm::of(&mask, shape, Some(form)), Ok(form));
}

#[rstest]
#[case::floats("<f4", &[100], None, Rule::MaskDtype)]
#[case::wide_ints("<u4", &[100], None, Rule::MaskDtype)]
#[case::bytes_too_few("|b1", &[99], None, Rule::MaskShape)]
#[case::bytes_of_more_axes("|b1", &[1, 100], None, Rule::MaskShape)]
#[case::bits_too_few("|t1", &[99], None, Rule::MaskShape)]
#[case::bits_of_two_axes("|t1", &[10, 10], None, Rule::MaskShape)]
#[case::packed_too_few("|u1", &[12], None, Rule::MaskShape)]
#[case::packed_too_many("|u1", &[65], None, Rule::MaskShape)]
#[case::packed_with_gaps("|u1", &[13], Some(&[2][..]), Rule::MaskShape)]
#[cfg(target_endian = "little")]
fn refused(
    #[case] typestr: &str,
    #[case] of: &[i64],
    #[case] strides: Option<&[i64]>,
    #[case] rule: Rule,
) {
    let violation = MaskForm::of(&mask(typestr, of, strides), &[100], None).unwrap_err();
    assert_eq!(violation.rule(), rule, "{violation}");
    let shown = format!("mask'] = '{typestr}'");
    assert!(violation.to_string().contains(&shown), "{violation}");
}

/// Both forms fit: the caller decides.
#[rstest]
#[case::one_value(&[1])]
#[case::padded(&[64])]
fn ambiguous(#[case] shape: &[i64]) {
    let mask = mask("|u1", shape, None);
    let violation = MaskForm::of(&mask, shape, None).unwrap_err();
    assert_eq!(violation.rule(), Rule::MaskAmbiguous);
    for form in [MaskForm::Bits, MaskForm::Bytes] {
        assert_eq!(MaskForm::of(&mask, shape, Some(form)), Ok(form));
    }
}

#[test]
fn the_form_that_was_asked_for_does_not_fit() {
    let (bytes, bits) = (mask("|u1", &[100], None), mask("|u1", &[13], None));
    for (mask, asked) in [(bytes, MaskForm::Bits), (bits, MaskForm::Bytes)] {
        let violation = MaskForm::of(&mask, &[100], Some(asked)).unwrap_err();
        assert_eq!(violation.rule(), Rule::MaskShape);
    }
}

#[test]
fn shape_of_a_refused_mask() {
    assert_eq!(check_shape(&mask("|b1", &[3, 1], None), &[2, 3, 4]), Ok(()));
    let violation = check_shape(&mask("|b1", &[2], None), &[2, 3, 4]).unwrap_err();
    assert_eq!(violation.rule(), Rule::MaskShape);
}

#[test]
fn described_as_arrays() {
    let device = Device::cuda(1);
    let bits = MaskForm::Bits
        .describe(&mask("|t1", &[9], None), device)
        .unwrap();
    assert_eq!((bits.dtype(), bits.shape()), (DType::U8, &[2][..]));
    let bytes = MaskForm::Bytes
        .describe(&mask("|i1", &[4, 1], None), device)
        .unwrap();
    assert_eq!((bytes.dtype(), bytes.shape()), (DType::BOOL, &[4, 1][..]));
    assert_eq!((bytes.device(), bytes.data()), (device, 0x7000_0000));
}
