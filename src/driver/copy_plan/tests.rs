//! Strided copies against an element-by-element gather.

use rstest::rstest;

use super::*;
use crate::driver::script::Script;

const ITEMSIZE: usize = 2;
/// Where the first element is in the source: strides go both ways from here.
const ORIGIN: usize = 400;

/// The bytes of the array in C order, one element at a time.
fn gather(source: &[u8], shape: &[i64], byte_strides: &[i64]) -> Vec<u8> {
    let mut offsets = vec![ORIGIN as i64];
    for (&extent, &stride) in shape.iter().zip(byte_strides) {
        let step = |offset: &i64| {
            (0..extent)
                .map(|index| offset + index * stride)
                .collect::<Vec<_>>()
        };
        offsets = offsets.iter().flat_map(step).collect();
    }
    let item = |offset: i64| &source[offset as usize..][..ITEMSIZE];
    offsets.into_iter().flat_map(item).copied().collect()
}

/// What the driver would do with the plan's rectangles.
fn carry_out(plan: &CopyPlan, source: &[u8], nbytes: usize) -> Vec<u8> {
    let mut target = vec![0xee; nbytes];
    for at in 0..plan.calls() {
        let copy = plan.rectangle(at, 0, ORIGIN as u64);
        assert!(
            copy.height == 1 || copy.width <= copy.from_pitch.min(copy.to_pitch),
            "{copy:?}"
        );
        for row in 0..copy.height {
            let from = (copy.from + row * copy.from_pitch) as usize;
            let to = (copy.to + row * copy.to_pitch) as usize;
            let width = copy.width as usize;
            target[to..to + width].copy_from_slice(&source[from..from + width]);
        }
    }
    target
}

#[test]
#[cfg_attr(miri, ignore = "exhaustive, over safe code alone")]
fn every_small_layout_is_copied_as_a_gather_would() {
    let source: Vec<u8> = (0..800_u32).map(|at| (at * 7 + at / 251) as u8).collect();
    let axes: Vec<(i64, i64)> = [0, 1, 2, 3]
        .into_iter()
        .flat_map(|extent| [-24, -2, 0, 2, 4, 6, 12, 24, 36].map(|stride| (extent, stride)))
        .collect();
    let mut tried = 0;
    for ndim in 0..=3 {
        for choice in 0..axes.len().pow(ndim) {
            let picked = (0..ndim).map(|axis| axes[choice / axes.len().pow(axis) % axes.len()]);
            let (shape, strides): (Vec<_>, Vec<_>) = picked.unzip();
            let expected = gather(&source, &shape, &strides);
            let copied = match CopyPlan::new(&shape, &strides, ITEMSIZE as u64) {
                Some(plan) => carry_out(&plan, &source, expected.len()),
                None => Vec::new(),
            };
            assert_eq!(
                copied, expected,
                "shape {shape:?}, byte strides {strides:?}"
            );
            tried += 1;
        }
    }
    assert_eq!(tried, 1 + 36 + 36 * 36 + 36 * 36 * 36);
}

#[rstest]
#[case::scalar(&[], &[], 1)]
#[case::contiguous(&[4, 5, 6], &[60, 12, 2], 1)]
#[case::rows_of_a_matrix(&[4, 5], &[100, 2], 1)]
#[case::every_second_element(&[1000], &[4], 1)]
#[case::transposed(&[6, 1000], &[2, 12], 6)]
#[case::transposed_the_other_way(&[1000, 6], &[2, 2000], 6)]
#[case::reversed(&[10], &[-2], 10)]
#[case::broadcast(&[10, 4], &[0, 2], 10)]
#[case::window_of_a_volume(&[3, 4, 5], &[1000, 100, 2], 3)]
#[case::planes_of_a_volume(&[3, 4, 5], &[400, 100, 2], 1)]
#[case::every_second_of_a_volume(&[3, 4, 5], &[80, 20, 4], 1)]
#[case::a_batch_of_windows(&[7, 3, 4, 5], &[3000, 1000, 100, 2], 4)]
#[case::windows_that_overlap(&[1000, 100, 25], &[200, 2, 2], 100)]
#[case::windows_of_windows(&[4, 3, 3], &[16, 4, 2], 3)]
#[case::reversed_volume(&[3, 4, 5], &[-40, -10, -2], 60)]
fn the_number_of_calls(#[case] shape: &[i64], #[case] byte_strides: &[i64], #[case] calls: u64) {
    let plan = CopyPlan::new(shape, byte_strides, 2).expect("not empty");
    assert_eq!(plan.calls(), calls);
}

#[test]
fn a_pitch_beyond_the_hardware_is_copied_by_rows() {
    let plan = CopyPlan::new(&[2], &[1 << 31], 4).expect("not empty");
    assert_eq!(plan.calls(), 2);
    let within = CopyPlan::new(&[2], &[(1 << 31) - 1], 4).expect("not empty");
    assert_eq!(within.calls(), 1);
}

#[rstest]
#[case::contiguous(&[4, 5], &[20, 4], true)]
#[case::one_element(&[1], &[400], true)]
#[case::rows(&[4, 5], &[40, 4], false)]
#[case::rows_of_planes(&[3, 4, 5], &[1000, 100, 4], false)]
#[case::planes_of_one_row(&[3, 5], &[1 << 31, 4], false)]
fn one_row_is_all(#[case] shape: &[i64], #[case] byte_strides: &[i64], #[case] expected: bool) {
    let plan = CopyPlan::new(shape, byte_strides, 4).expect("not empty");
    assert_eq!(plan.is_one_row(), expected);
}

#[test]
fn nothing_is_copied_of_size_zero() {
    assert_eq!(CopyPlan::new(&[3, 0], &[8, 4], 4), None);
}

#[test]
fn rectangles_and_rows_are_the_drivers_calls() {
    let script = Script::new();
    let stream = Stream::from_raw(0x50);
    let matrix = CopyPlan::new(&[3, 4], &[32, 4], 4).expect("not empty");
    // SAFETY: the scripted driver copies nothing.
    unsafe { copy_strided(&script, &matrix, 0x1000, 0x2000, stream) }.expect("a copy");
    assert_eq!(
        script.take_calls(),
        ["cuMemcpy2DAsync 0x1000/16 0x2000/32 16x3 0x50"]
    );
    let reversed = CopyPlan::new(&[2, 4], &[-16, 4], 4).expect("not empty");
    // SAFETY: the scripted driver copies nothing.
    unsafe { copy_strided(&script, &reversed, 0x1000, 0x2010, stream) }.expect("a copy");
    assert_eq!(
        script.take_calls(),
        [
            "cuMemcpyAsync 0x1000 0x2010 16 0x50",
            "cuMemcpyAsync 0x1010 0x2000 16 0x50"
        ]
    );
    script.fault("cuMemcpyAsync", 1, 700);
    // SAFETY: the scripted driver copies nothing.
    let failed = unsafe { copy_strided(&script, &reversed, 0x1000, 0x2010, stream) };
    assert_eq!(failed, Err(DriverError::new("cuMemcpyAsync", 700)));
}
