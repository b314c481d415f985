//! Shapes and strides: one defect per case, then every small array against an oracle that lists
//! the addresses one by one.

use std::collections::BTreeSet;

use rstest::rstest;

use super::*;
use crate::protocol::axes::Source;
use crate::protocol::rule::Rule;

fn axes(source: Source, shape: &[i64], strides: Option<&[i64]>) -> Result<Axes, Violation> {
    let mut axes = Axes::new(source);
    for extent in shape {
        axes.push_extent(*extent)?;
    }
    if let Some(strides) = strides {
        axes.expect_strides(strides.len())?;
        for stride in strides {
            axes.push_stride(*stride)?;
        }
    }
    Ok(axes)
}

fn from_bytes(shape: &[i64], strides: Option<&[i64]>, itemsize: u32) -> Result<Layout, Violation> {
    Layout::from_byte_axes(axes(Source::Cai, shape, strides)?, itemsize)
}

fn from_elems(shape: &[i64], strides: Option<&[i64]>, itemsize: u32) -> Result<Layout, Violation> {
    Layout::from_elem_axes(axes(Source::Tensor, shape, strides)?, itemsize)
}

fn given(strides: &[i64]) -> Option<&[i64]> {
    Some(strides)
}

const HUGE: i64 = 1 << 40;

#[rstest]
#[case::extent_negative(&[2, -1], None, 4, Rule::ShapeExtent, "shape")]
#[case::extent_lowest(&[i64::MIN], None, 4, Rule::ShapeExtent, "shape")]
#[case::axes_65(&[1; 65], None, 4, Rule::NdimLimit, "shape")]
#[case::count(&[HUGE, HUGE], None, 4, Rule::CountOverflow, "shape")]
#[case::count_with_strides(&[HUGE, HUGE], given(&[0, 0]), 4, Rule::CountOverflow, "shape")]
#[case::size(&[i64::MAX / 2], None, 4, Rule::SizeOverflow, "shape")]
#[case::size_with_strides(&[i64::MAX / 2], given(&[0]), 4, Rule::SizeOverflow, "shape")]
#[case::strides_few(&[2, 3], given(&[4]), 4, Rule::StridesLength, "strides")]
#[case::strides_many(&[2], given(&[4, 4]), 4, Rule::StridesLength, "strides")]
#[case::strides_empty(&[2], given(&[]), 4, Rule::StridesLength, "strides")]
#[case::strides_of_scalar(&[], given(&[4]), 4, Rule::StridesLength, "strides")]
#[case::stride_odd(&[2, 3], given(&[12, 2]), 4, Rule::StridesMultiple, "strides")]
#[case::stride_odd_negative(&[2], given(&[-6]), 4, Rule::StridesMultiple, "strides")]
#[case::stride_odd_item12(&[2], given(&[16]), 12, Rule::StridesMultiple, "strides")]
#[case::span(&[HUGE], given(&[HUGE]), 4, Rule::SpanOverflow, "strides")]
#[case::span_lowest(&[2], given(&[i64::MIN]), 4, Rule::SpanOverflow, "strides")]
#[case::span_lowest_bytes(&[2], given(&[i64::MIN]), 1, Rule::SpanOverflow, "strides")]
#[case::span_both_ways(&[2, 2], given(&[i64::MAX - 3, -8]), 4, Rule::SpanOverflow, "strides")]
fn byte_axes_malformed(
    #[case] shape: &[i64],
    #[case] strides: Option<&[i64]>,
    #[case] itemsize: u32,
    #[case] rule: Rule,
    #[case] key: &str,
) {
    let violation = from_bytes(shape, strides, itemsize).unwrap_err();
    assert_eq!(violation.rule(), rule, "{violation}");
    assert_eq!(violation.field().name(), key);
    assert!(
        violation
            .to_string()
            .starts_with("__cuda_array_interface__[")
    );
}

#[rstest]
#[case::extent_negative(&[-1], None, 4, Rule::ShapeExtent, "DLTensor.shape")]
#[case::axes_65(&[1; 65], None, 4, Rule::NdimLimit, "DLTensor.ndim")]
#[case::count(&[HUGE, HUGE], None, 1, Rule::CountOverflow, "DLTensor.shape")]
#[case::size(&[1 << 61], None, 4, Rule::SizeOverflow, "DLTensor.shape")]
#[case::stride_of_bytes(&[2], given(&[1 << 62]), 4, Rule::SpanOverflow, "DLTensor.strides")]
#[case::span(&[3], given(&[1 << 61]), 4, Rule::SpanOverflow, "DLTensor.strides")]
#[case::stride_lowest(&[2], given(&[i64::MIN]), 1, Rule::SpanOverflow, "DLTensor.strides")]
#[case::strides_few(&[2, 3], given(&[1]), 4, Rule::StridesLength, "DLTensor.strides")]
fn elem_axes_malformed(
    #[case] shape: &[i64],
    #[case] strides: Option<&[i64]>,
    #[case] itemsize: u32,
    #[case] rule: Rule,
    #[case] field: &str,
) {
    let violation = from_elems(shape, strides, itemsize).unwrap_err();
    assert_eq!(violation.rule(), rule, "{violation}");
    assert_eq!(violation.field().to_string(), field);
}

#[test]
fn stride_refusal_names_the_axis() {
    let violation = from_bytes(&[4, 2, 3], Some(&[24, 6, 4]), 4).unwrap_err();
    assert_eq!(violation.found(), "6 on axis 1, where an item has 4 bytes");
}

/// `push_stride` alone, without the announcement, must not run past the axes either.
#[test]
fn strides_unannounced() {
    let mut axes = axes(Source::Cai, &[2], None).unwrap();
    axes.push_stride(4).unwrap();
    assert_eq!(axes.push_stride(4).unwrap_err().rule(), Rule::StridesLength);
    assert_eq!(axes.strides(), Some(&[4][..]));
    assert_eq!(axes.shape(), &[2]);
}

/// The announcement is refused by itself, before any stride is read.
#[test]
fn strides_announced_wrongly() {
    for count in [0, 1, 3, usize::MAX] {
        let mut axes = axes(Source::Cai, &[2, 3], None).unwrap();
        let violation = axes.expect_strides(count).unwrap_err();
        assert_eq!(violation.rule(), Rule::StridesLength);
        assert_eq!(violation.found(), format!("{count} strides for 2 axes"));
    }
}

#[test]
fn axes_64_are_taken() {
    let layout = from_bytes(&[1; 64], None, 4).unwrap();
    assert_eq!((layout.ndim(), layout.len()), (64, 1));
    assert_eq!(layout.elem_strides(), &[1; 64]);
}

#[rstest]
#[case::scalar(&[], None, &[])]
#[case::scalar_empty_strides(&[], given(&[]), &[])]
#[case::c_order(&[2, 3, 4], None, &[12, 4, 1])]
#[case::transposed(&[3, 2], given(&[4, 12]), &[1, 3])]
#[case::negative(&[3], given(&[-8]), &[-2])]
#[case::broadcast(&[3, 4], given(&[0, 4]), &[0, 1])]
#[case::single_odd(&[1, 3], given(&[7, 4]), &[3, 1])]
#[case::single_lowest(&[1], given(&[i64::MIN]), &[i64::MIN / 4])]
#[case::single_kept(&[1, 3], given(&[4, 12]), &[1, 3])]
#[case::single_odd_strided(&[1, 3], given(&[7, 12]), &[3, 3])]
#[case::single_in_f_order(&[3, 1, 2], given(&[4, 96, 12]), &[1, 24, 3])]
#[case::torch_says_one(&[1, 3], given(&[4, 4]), &[1, 1])]
#[case::empty_odd(&[0, 4], given(&[7, -1]), &[0, 0])]
#[case::empty_kept(&[0, 4], given(&[8, -4]), &[2, -1])]
#[case::empty_last(&[4, 0], None, &[1, 1])]
#[case::empty_large(&[HUGE, 0, 2], None, &[2, 2, 1])]
#[case::empty_huge(&[HUGE, 0, HUGE], None, &[0, 0, 0])]
#[case::empty_of_huge_bytes(&[0, 1 << 62], None, &[0, 0])]
#[case::empty_too_huge(&[0, 1 << 62, 1 << 62, 4], None, &[0, 0, 0, 0])]
fn elem_strides_of(#[case] shape: &[i64], #[case] bytes: Option<&[i64]>, #[case] elems: &[i64]) {
    let layout = from_bytes(shape, bytes, 4).unwrap();
    assert_eq!(layout.elem_strides(), elems);
    assert_eq!(layout.shape(), shape);
}

#[rstest]
#[case::sliced(&[3, 4], &[16, 2], false)]
#[case::broadcast(&[3, 4], &[0, 1], true)]
#[case::zero_single(&[1, 4], &[0, 1], false)]
#[case::reversed(&[3, 4], &[-4, -1], false)]
#[case::window(&[3, 4], &[1, 1], true)]
#[case::coprime(&[2, 3], &[3, 2], false)]
#[case::coprime_long(&[3, 4], &[3, 2], true)]
#[case::coprime_edge(&[4, 2], &[2, 3], false)]
#[case::empty_huge(&[0, 1 << 62, 1 << 62], &[0, 0, 0], false)]
#[case::three_not_nested(&[2, 2, 2], &[4, 3, 2], true)]
fn overlap(#[case] shape: &[i64], #[case] strides: &[i64], #[case] overlaps: bool) {
    assert_eq!(
        from_elems(shape, Some(strides), 4)
            .unwrap()
            .is_self_overlapping(),
        overlaps
    );
}

/// Every element's offset in bytes, by counting through the indices.
fn offsets(shape: &[i64], byte_strides: &[i64]) -> Vec<i64> {
    let mut offsets = vec![0];
    for (extent, stride) in shape.iter().zip(byte_strides) {
        let steps = (0..*extent).map(|i| i * stride);
        offsets = steps
            .flat_map(|step| offsets.iter().map(move |o| o + step))
            .collect();
    }
    offsets.sort_unstable();
    offsets
}

/// C order's strides, from the definition: the product of the extents to the right.
fn c_strides(shape: &[i64]) -> Vec<i64> {
    (0..shape.len())
        .map(|axis| shape[axis + 1..].iter().product())
        .collect()
}

fn f_strides(shape: &[i64]) -> Vec<i64> {
    (0..shape.len())
        .map(|axis| shape[..axis].iter().product())
        .collect()
}

/// Whether two stride lists mean the same: axes of extent 1 are not walked.
fn same_walk(shape: &[i64], a: &[i64], b: &[i64]) -> bool {
    (0..shape.len()).all(|axis| shape[axis] <= 1 || a[axis] == b[axis])
}

/// All lists of `n` out of `choices`.
fn lists(choices: &[i64], n: usize) -> Vec<Vec<i64>> {
    (0..n).fold(vec![Vec::new()], |lists, _| {
        let longer = |list: &Vec<i64>| {
            let list = list.clone();
            choices
                .iter()
                .map(move |choice| [&list[..], &[*choice]].concat())
        };
        lists.iter().flat_map(longer).collect()
    })
}

const EXTENTS: &[i64] = &[0, 1, 2, 3];
const STRIDES: &[i64] = &[-16, -4, -1, 0, 1, 2, 3, 4, 6, 8, 16];

/// ndim 0 to 3, extents 0 to 3, eleven byte strides per axis, five item sizes.
#[test]
#[cfg_attr(miri, ignore = "exhaustive, over safe code alone")]
fn byte_strides_exhaustive() {
    let mut seen = [0_u32; 2];
    for ndim in 0..=3 {
        for shape in lists(EXTENTS, ndim) {
            for strides in lists(STRIDES, ndim) {
                for itemsize in [1_u32, 2, 4, 8, 16] {
                    let found = from_bytes(&shape, Some(&strides), itemsize);
                    let case = format!("shape {shape:?} strides {strides:?} itemsize {itemsize}");
                    let taken = compare(&shape, &strides, itemsize, found, &case);
                    seen[usize::from(taken)] += 1;
                }
            }
        }
    }
    assert_eq!(
        seen.iter().sum::<u32>(),
        5 * (1 + 44 + 44 * 44 + 44 * 44 * 44)
    );
    assert!(
        seen[0] > 10_000 && seen[1] > 10_000,
        "both outcomes are tried: {seen:?}"
    );
}

fn compare(
    shape: &[i64],
    byte_strides: &[i64],
    itemsize: u32,
    found: Result<Layout, Violation>,
    case: &str,
) -> bool {
    let item = i64::from(itemsize);
    let count: i64 = shape.iter().product();
    let walked = |axis: &usize| count > 0 && shape[*axis] > 1;
    let odd = (0..shape.len())
        .filter(walked)
        .rfind(|axis| byte_strides[*axis] % item != 0);
    if let Some(axis) = odd {
        let violation = found.expect_err(case);
        assert_eq!(violation.rule(), Rule::StridesMultiple, "{case}");
        assert!(
            violation.found().contains(&format!("on axis {axis}")),
            "{case}: {violation}"
        );
        return false;
    }
    let layout = found.expect(case);
    let elems: Vec<i64> = byte_strides.iter().map(|stride| stride / item).collect();
    for (axis, stride) in layout.elem_strides().iter().enumerate() {
        let is_whole = byte_strides[axis] % item == 0;
        assert!(
            !is_whole || *stride == elems[axis],
            "{case}: as it came, on axis {axis}"
        );
    }
    let is_c = count == 0 || same_walk(shape, &elems, &c_strides(shape));
    let is_f = count == 0 || same_walk(shape, &elems, &f_strides(shape));
    assert_eq!(layout.shape(), shape, "{case}");
    assert_eq!(layout.ndim(), shape.len(), "{case}");
    assert_eq!(layout.len(), u64::try_from(count).unwrap(), "{case}");
    assert_eq!(layout.is_c_contiguous(), is_c, "{case}");
    assert_eq!(layout.is_f_contiguous(), is_f, "{case}");
    if count == 0 {
        assert_eq!(layout.elem_span(), (0, 0), "{case}");
        assert!(!layout.is_self_overlapping(), "{case}");
        return true;
    }
    assert!(same_walk(shape, layout.elem_strides(), &elems), "{case}");
    let shown = layout.interface_strides(itemsize);
    assert_eq!(shown.is_none(), is_c, "{case}: the interface");
    if let Some(shown) = shown {
        let shown: Vec<i64> = shown.iter().map(|stride| stride / item).collect();
        let wanted = if is_f {
            f_strides(shape)
        } else {
            layout.elem_strides().to_vec()
        };
        assert_eq!(shown, wanted, "{case}: the interface");
    }
    let back: Vec<i64> = layout.byte_strides(itemsize).collect();
    let wanted = offsets(shape, byte_strides);
    assert_eq!(offsets(shape, &back), wanted, "{case}: the same bytes");
    let (first, last) = (wanted[0], wanted[wanted.len() - 1]);
    assert_eq!(
        layout.elem_span(),
        (first / item, last / item + 1),
        "{case}"
    );
    let distinct: BTreeSet<i64> = wanted.iter().copied().collect();
    let really = distinct.len() < wanted.len();
    let axes = shape.iter().filter(|extent| **extent > 1).count();
    if really || axes <= 2 {
        assert_eq!(layout.is_self_overlapping(), really, "{case}");
    }
    let again = from_elems(shape, Some(layout.elem_strides()), itemsize).expect(case);
    assert_eq!(again, layout, "{case}: checked strides stay as they are");
    true
}

/// Absent strides are C order's, in bytes and in elements, for every small shape.
#[test]
fn absent_strides_exhaustive() {
    for ndim in 0..=4 {
        for shape in lists(EXTENTS, ndim) {
            for itemsize in [1_u32, 2, 4, 8, 12, 16] {
                let bytes = from_bytes(&shape, None, itemsize).unwrap();
                let elems = from_elems(&shape, None, itemsize).unwrap();
                let count: i64 = shape.iter().product();
                assert_eq!(bytes, elems, "{shape:?}");
                assert!(bytes.is_c_contiguous(), "{shape:?}");
                assert_eq!(bytes.len(), u64::try_from(count).unwrap(), "{shape:?}");
                assert_eq!(bytes.elem_span(), (0, count), "{shape:?}");
                if count > 0 {
                    assert_eq!(bytes.elem_strides(), c_strides(&shape), "{shape:?}");
                }
            }
        }
    }
}

/// Extremes of extents and strides: what is taken must hold the promises of the module, computed
/// in 128 bits; what is refused must break one of them.
#[test]
#[cfg_attr(miri, ignore = "exhaustive, over safe code alone")]
fn extremes_exhaustive() {
    const FAR: &[i64] = &[0, 1, 2, 1 << 31, 1 << 32, (1 << 62) - 1, 1 << 62, i64::MAX];
    const STEPS: &[i64] = &[
        i64::MIN,
        i64::MIN + 1,
        -(1 << 61),
        -1,
        0,
        1,
        1 << 31,
        1 << 60,
        1 << 61,
        i64::MAX,
    ];
    for ndim in 0..=2 {
        for shape in lists(FAR, ndim) {
            for strides in lists(STEPS, ndim) {
                for itemsize in [1_u32, 4, 16] {
                    let found = from_elems(&shape, Some(&strides), itemsize);
                    let case = format!("shape {shape:?} strides {strides:?} itemsize {itemsize}");
                    assert_eq!(
                        found.is_ok(),
                        fits(&shape, &strides, itemsize),
                        "{case}: {found:?}"
                    );
                    if let Ok(layout) = found {
                        let bytes: Vec<i64> = layout.byte_strides(itemsize).collect();
                        assert_eq!(layout.elem_strides(), strides, "{case}: as they came");
                        for (axis, byte) in bytes.iter().enumerate() {
                            let exact = i128::from(strides[axis]) * i128::from(itemsize);
                            let is_idle = shape.contains(&0) || shape[axis] == 1;
                            let fits = i64::try_from(exact).is_ok();
                            assert!(fits || is_idle, "{case}");
                            assert_eq!(i128::from(*byte), if fits { exact } else { 0 }, "{case}");
                        }
                        let _ = (
                            layout.elem_span(),
                            layout.is_self_overlapping(),
                            layout.is_f_contiguous(),
                        );
                    }
                }
            }
        }
    }
}

fn fits(shape: &[i64], strides: &[i64], itemsize: u32) -> bool {
    let limit = i128::from(i64::MAX);
    let item = i128::from(itemsize);
    if shape.contains(&0) {
        return true;
    }
    let count = shape
        .iter()
        .fold(1_i128, |n, e| n.saturating_mul(i128::from(*e)));
    let reach = shape.iter().zip(strides).fold(1_i128, |n, (e, s)| {
        n.saturating_add((i128::from(*e) - 1).saturating_mul(i128::from(*s).abs()))
    });
    count.saturating_mul(item) <= limit && reach.saturating_mul(item) <= limit
}

#[test]
fn axes_have_the_strides_that_they_were_given() {
    for (given, shape) in [(None, [2, 3]), (Some(&[5, -1][..]), [2, 3])] {
        let pushed = axes(Source::Tensor, &shape, given).expect("axes");
        assert_eq!((pushed.shape(), pushed.strides()), (&shape[..], given));
        let taken = Axes::from_slices(Source::Tensor, &shape, given).expect("axes");
        assert_eq!((taken.shape(), taken.strides()), (&shape[..], given));
    }
}

#[test]
fn a_dict_has_at_most_64_axes() {
    for (rank, fits) in [(63_u8, true), (64, true), (65, false), (66, false)] {
        for has_strides in [false, true] {
            let mut values = vec![1; 2 * usize::from(rank)];
            let checked = check::check_bytes(&mut values, rank, has_strides, 1);
            assert_eq!(checked.is_ok(), fits, "{rank}");
        }
    }
}

/// Layouts are equal if each of their numbers is, and what the strides count. Unequal ones have other hashes, so that a set
/// of them finds one at once.
#[test]
fn layouts_are_compared_by_all_that_they_are() {
    let uneven = |strides: &[i64], itemsize| {
        let axes = axes(Source::Cai, &[2, 3], Some(strides)).expect("axes");
        Layout::from_dict_axes(axes, itemsize).expect("a layout")
    };
    let even = |shape, strides| from_elems(shape, strides, 1).expect("a layout");
    let different = [
        even(&[2, 3], None),
        even(&[2, 4], None),
        even(&[2, 3], given(&[1, 2])),
        even(&[6], None),
        even(&[3, 2], given(&[3, 1])),
        even(&[2, 3], given(&[7, 2])),
        uneven(&[7, 2], 4),
        uneven(&[9, 2], 4),
    ];
    let hash_of = |layout: &Layout| {
        let mut hasher = std::hash::DefaultHasher::new();
        layout.hash(&mut hasher);
        hasher.finish()
    };
    for (at, one) in different.iter().enumerate() {
        assert_eq!((one, hash_of(one)), (&one.clone(), hash_of(&one.clone())));
        for other in &different[at + 1..] {
            assert_ne!(one, other);
        }
    }
    // Equal numbers in another unit.
    assert_ne!(even(&[2, 3], given(&[7, 2])), uneven(&[7, 2], 4));
    assert_ne!(uneven(&[7, 2], 4), uneven(&[7, 2], 8));
    let hashes: BTreeSet<u64> = different.iter().map(hash_of).collect();
    assert_eq!(hashes.len(), different.len() - 1, "units are not hashed");
}

/// A refusal names the axis whose stride is no number of items, and not another one; an axis that is repeated does not run
/// backwards.
#[test]
fn an_uneven_stride_is_named_by_its_axis() {
    for (strides, axis) in [([6, 8], "axis 0"), ([8, 6], "axis 1"), ([6, 6], "axis 1")] {
        let axes = axes(Source::Cai, &[2, 3], Some(&strides)).expect("axes");
        let layout = Layout::from_dict_axes(axes, 4).expect("a layout");
        let refused = layout.check_even().expect_err("uneven").to_string();
        assert!(refused.contains(axis), "{strides:?}: {refused}");
    }
    let runs_backwards = |strides| {
        let layout = from_elems(&[2, 3], Some(strides), 4).expect("a layout");
        layout.has_negative_strides()
    };
    assert!(runs_backwards(&[3, -1]) && runs_backwards(&[-3, 0]));
    assert!(!runs_backwards(&[0, 1]) && !runs_backwards(&[0, 0]));
}

fn hashed(value: &impl std::hash::Hash) -> u64 {
    use std::hash::{DefaultHasher, Hasher};
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

#[test]
fn layouts_differ_by_their_numbers() {
    let of =
        |shape: &[i64], strides: &[i64]| from_elems(shape, given(strides), 4).expect("a layout");
    let (one, other) = (of(&[2, 3], &[3, 1]), of(&[3, 2], &[2, 1]));
    assert_eq!(one, of(&[2, 3], &[3, 1]));
    assert_ne!(one, other);
    assert_ne!(hashed(&one), hashed(&other));
}

/// The axis that is refused is the odd one, and not one beside it.
#[test]
fn the_odd_stride_is_named() {
    for (shape, strides, odd) in [
        ([2, 3], [6, 4], 6),
        ([2, 3], [16, 6], 6),
        ([2, 1], [6, 5], 6),
    ] {
        let refused = from_bytes(&shape, given(&strides), 4)
            .expect_err("odd")
            .to_string();
        assert!(refused.contains(&odd.to_string()), "{refused}");
    }
}

#[test]
fn a_stride_of_zero_is_not_negative() {
    for (stride, is_negative) in [(-1, true), (0, false), (1, false)] {
        let layout = from_elems(&[3], given(&[stride]), 4).expect("a layout");
        assert_eq!(layout.has_negative_strides(), is_negative);
    }
}

/// Strides that were announced, and of which some are missing, are not made up.
#[test]
fn a_stride_that_is_missing_is_refused() {
    let mut axes = Axes::new(Source::Tensor);
    for extent in [2, 3] {
        axes.push_extent(extent).expect("an axis");
    }
    axes.push_stride(3).expect("a stride");
    let refused = Layout::from_elem_axes(axes, 4).expect_err("one is missing");
    assert_eq!(refused.rule(), Rule::StridesLength);
}
