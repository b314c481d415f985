//! Parts of arrays, each compared with the same part of a dense copy.

use cai_dlpack::protocol::rule::Rule;
use cai_dlpack::view::LiveStream;
use cai_dlpack::{CaiView, Error};

use crate::arrays::{Array, array};

const PROGRAMS: u64 = 2000;

struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 8) % end.max(1) as u64) as usize
    }
}

/// An array as numbers in C order.
#[derive(Clone, Debug, PartialEq)]
struct Dense {
    shape: Vec<usize>,
    values: Vec<i64>,
}

impl Dense {
    /// The array whose element at each index is that of this one at the index that `from` returns.
    fn map(&self, shape: Vec<usize>, from: impl Fn(&[usize]) -> Vec<usize>) -> Self {
        let count = shape.iter().product();
        let mut index = vec![0; shape.len()];
        let mut values = Vec::new();
        for _ in 0..count {
            let source = from(&index);
            let place = source.iter().zip(&self.shape);
            values
                .push(self.values[place.fold(0, |place, (index, extent)| place * extent + index)]);
            for (index, extent) in index.iter_mut().zip(&shape).rev() {
                *index += 1;
                if *index < *extent {
                    break;
                }
                *index = 0;
            }
        }
        Self { shape, values }
    }
}

fn dense(view: &CaiView) -> Dense {
    let typed = view.typed::<i64>().expect("integers");
    Dense {
        shape: typed
            .shape()
            .iter()
            .map(|extent| *extent as usize)
            .collect(),
        values: typed.copy_to_vec().expect("host memory"),
    }
}

/// An array of up to three axes, any of which may be walked backwards, have gaps or be empty.
fn any(random: &mut Random) -> CaiView {
    let ndim = random.below(4);
    let shape: Vec<i64> = (0..ndim).map(|_| random.below(5) as i64).collect();
    let (mut strides, mut next, mut first) = (vec![0; ndim], 1, 0);
    for axis in (0..ndim).rev() {
        next *= 1 + random.below(2) as i64;
        strides[axis] = next;
        if random.below(3) == 0 {
            first += next * (shape[axis] - 1).max(0);
            strides[axis] = -next;
        }
        next *= shape[axis].max(1);
    }
    let described = Array {
        elem_strides: Some(&strides),
        byte_offset: first as u64 * 8,
        ..Array::of_shape(&shape)
    };
    described.over((0..next.max(1)).collect())
}

/// Takes a part of both; `None` if the draw suits no such array.
fn part(
    random: &mut Random,
    view: &CaiView,
    of: &Dense,
) -> Option<(Result<CaiView, Error>, Dense)> {
    let ndim = of.shape.len();
    let axis = random.below(ndim);
    let extent = *of.shape.get(axis).unwrap_or(&0);
    let mut shape = of.shape.clone();
    match random.below(6) {
        0 => {
            let mut axes: Vec<usize> = (0..ndim).collect();
            for place in 0..ndim {
                axes.swap(place, random.below(ndim));
            }
            let shape = axes.iter().map(|axis| of.shape[*axis]).collect();
            let made = of.map(shape, |index| {
                let mut source = vec![0; ndim];
                for (at, axis) in axes.iter().enumerate() {
                    source[*axis] = index[at];
                }
                source
            });
            Some((view.permute(&axes), made))
        }
        1 => {
            shape.reverse();
            let made = of.map(shape, |index| index.iter().rev().copied().collect());
            Some((view.transpose(), made))
        }
        2 if ndim > 0 => {
            let start = random.below(extent + 1);
            let end = start + random.below(extent - start + 1);
            shape[axis] = end - start;
            let made = of.map(shape, |index| {
                let mut source = index.to_vec();
                source[axis] += start;
                source
            });
            Some((view.slice(axis, start..end), made))
        }
        3 if extent > 0 => {
            let at = random.below(extent);
            shape.remove(axis);
            let made = of.map(shape, |index| {
                let mut source = index.to_vec();
                source.insert(axis, at);
                source
            });
            Some((view.index(axis, at), made))
        }
        4 if ndim < 5 => {
            for extent in &mut shape {
                if *extent == 1 {
                    *extent = random.below(4);
                }
            }
            shape.insert(0, random.below(3));
            let made = of.map(shape.clone(), |index| {
                let own = index[1..].iter().zip(&of.shape);
                own.map(|(index, extent)| if *extent == 1 { 0 } else { *index })
                    .collect()
            });
            Some((view.broadcast(&shape), made))
        }
        5 if view.descriptor().layout().is_c_contiguous() => {
            shape = vec![of.values.len()];
            let made = Dense {
                shape: shape.clone(),
                values: of.values.clone(),
            };
            Some((view.reshape(&shape), made))
        }
        _ => None,
    }
}

#[test]
fn a_part_has_the_elements_of_the_same_part_of_a_copy() {
    let mut taken = 0;
    for seed in 1..=PROGRAMS {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut view = any(&mut random);
        let mut copy = dense(&view);
        for _ in 0..6 {
            let Some((made, expected)) = part(&mut random, &view, &copy) else {
                continue;
            };
            view = made.unwrap_or_else(|error| panic!("program {seed}: {copy:?}: {error}"));
            copy = expected;
            assert_eq!(dense(&view), copy, "program {seed}");
            taken += 1;
        }
    }
    assert!(taken > 3 * PROGRAMS, "{taken} parts");
}

fn rule<T>(answer: Result<T, Error>) -> Rule {
    match answer.map(drop) {
        Err(Error::Violation(violation)) => violation.rule(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_an_array_does_not_have_is_refused() {
    let view = array(vec![1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3]);
    let values = Rule::ArgumentValue;
    for axes in [&[][..], &[0], &[0, 0], &[0, 2], &[1, 0, 2]] {
        assert_eq!(rule(view.permute(axes)), values, "{axes:?}");
    }
    assert_eq!(rule(view.slice(2, ..)), values);
    assert_eq!(rule(view.slice(1, 2..5)), values);
    assert_eq!(rule(view.slice(1, ..usize::MAX)), values);
    assert_eq!(rule(view.slice(1, 0..=usize::MAX)), values);
    #[expect(clippy::reversed_empty_ranges, reason = "which is refused")]
    let reversed = view.slice(1, 2..1);
    assert_eq!(rule(reversed), values);
    assert_eq!(rule(view.index(0, 2)), values);
    assert_eq!(rule(view.index(0, usize::MAX)), values);
    assert_eq!(rule(view.split(1, 4)), values);
    for shape in [&[3][..], &[3, 3], &[2, 2], &[0, 3]] {
        assert_eq!(rule(view.broadcast(shape)), Rule::ViewShape, "{shape:?}");
    }
    for shape in [&[5][..], &[0], &[], &[usize::MAX, 2], &[1 << 62, 6]] {
        assert!(view.reshape(shape).is_err(), "{shape:?}");
    }
    let columns = view.transpose().expect("columns");
    assert_eq!(rule(columns.reshape(&[6])), Rule::ViewContiguous);
    let mut rows = view
        .index(0, 0)
        .expect("a row")
        .broadcast(&[2, 3])
        .expect("rows");
    assert_eq!(rule(rows.typed_mut::<f32>()), Rule::Overlap);
}

#[test]
fn a_part_keeps_owner_and_streams() {
    let view = array(vec![1.0_f32, 2.0, 3.0], &[3]);
    let part = view.slice(0, 1..).expect("two elements");
    assert_eq!(
        (part.ready(), part.producer()),
        (view.ready(), view.producer())
    );
    drop(view);
    let tensor = part.to_dlpack(LiveStream::NONE).expect("a tensor");
    drop(part);
    let again = CaiView::from_dlpack(tensor, LiveStream::NONE).expect("a view");
    let values = again.typed::<f32>().expect("floats").copy_to_vec();
    assert_eq!(values.expect("host memory"), [2.0, 3.0]);
}
