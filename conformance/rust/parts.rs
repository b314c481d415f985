//! Parts of arrays, each compared with the same part of a dense copy.

use std::collections::HashSet;
use std::ops::Bound;
use std::sync::Arc;

use cai_dlpack::protocol::descriptor::{Descriptor, RawTensor};
use cai_dlpack::protocol::device::{Access, Device, DeviceType, Flags};
use cai_dlpack::protocol::dtype::DType;
use cai_dlpack::protocol::rule::Rule;
use cai_dlpack::protocol::stream::Stream;
use cai_dlpack::view::{LiveStream, Owner};
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
    let mut slice = vec![0; typed.len()];
    typed.copy_to_slice(&mut slice).expect("host memory");
    let shape = typed.shape();
    for (place, value) in slice.iter().enumerate() {
        let mut rest = place;
        let mut index = vec![0; shape.len()];
        for (index, extent) in index.iter_mut().zip(shape).rev() {
            (*index, rest) = (rest % extent, rest / extent);
        }
        assert_eq!(typed.get(&index).expect("host memory"), *value, "{index:?}");
    }
    assert_eq!(slice, typed.copy_to_vec().expect("host memory"));
    Dense {
        shape: typed.shape().to_vec(),
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
    match random.below(7) {
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
        6 => {
            shape.retain(|extent| *extent != 1);
            let made = Dense {
                shape,
                values: of.values.clone(),
            };
            Some((view.squeeze(), made))
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

/// Code, bits, lanes and flags of elements, and the bits that one takes: whole bytes, packed, padded to a byte for each lane.
const ELEMENTS: [(u8, u8, u16, Flags, i128); 9] = [
    (1, 8, 1, Flags::NONE, 8),
    (2, 32, 1, Flags::NONE, 32),
    (5, 128, 1, Flags::NONE, 128),
    (2, 16, 3, Flags::NONE, 48),
    (1, 4, 1, Flags::NONE, 4),
    (1, 4, 2, Flags::NONE, 8),
    (1, 4, 3, Flags::NONE, 12),
    (1, 4, 1, Flags::SUBBYTE_PADDED, 8),
    (1, 4, 2, Flags::SUBBYTE_PADDED, 16),
];
const DEVICES: [Device; 3] = [
    Device::HOST,
    Device::cuda(1),
    Device::new(DeviceType::VULKAN, 0),
];
/// Extents with which a size overflows, or nearly.
const HUGE: [i64; 4] = [1 << 20, 1 << 31, 1 << 40, i64::MAX];

impl Random {
    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    fn extent(&mut self) -> i64 {
        match self.below(12) {
            0 => 0,
            1 => self.one_of(&HUGE),
            _ => 1 + self.below(4) as i64,
        }
    }

    fn index(&mut self) -> usize {
        match self.below(20) {
            0 => usize::MAX - self.below(2),
            1 => self.one_of(&HUGE) as usize,
            _ => self.below(6),
        }
    }

    fn bound(&mut self) -> Bound<usize> {
        match self.below(4) {
            0 => Bound::Unbounded,
            1 => Bound::Excluded(self.index()),
            _ => Bound::Included(self.index()),
        }
    }
}

/// An array of any element type, with extents and strides of any size, at addresses that nothing follows.
fn of_any_layout(random: &mut Random, alive: &Arc<()>) -> Option<(CaiView, i128)> {
    let ndim = [random.below(5), 64][usize::from(random.below(40) == 0)];
    let shape: Vec<_> = (0..ndim)
        .map(|_| if ndim > 5 { 1 } else { random.extent() })
        .collect();
    let strides: Vec<_> = (0..ndim)
        .map(|_| match random.below(12) {
            0 => random.one_of(&[i64::MIN, i64::MAX, -1 << 40, 1 << 40]),
            _ => random.below(15) as i64 - 7,
        })
        .collect();
    let (code, bits, lanes, flags, stored) = random.one_of(&ELEMENTS);
    let device = random.one_of(&DEVICES);
    let data = [0x7000_0000_0000, 0x1000, 16][random.below(3)];
    let mut raw = RawTensor::new(data, device, DType::U8, &shape)
        .with_byte_offset(16 * random.below(9) as u64);
    (raw.code, raw.bits, raw.lanes, raw.flags) = (code, bits, lanes, flags);
    if random.below(3) > 0 {
        raw.strides = Some(&strides);
    }
    let access = random.one_of(&[Access::Writable, Access::ReadOnly, Access::Unknown]);
    let described = Descriptor::new(&raw).ok()?.with_access(access);
    let (ready, producer) = match device {
        Device::HOST => (Stream::None, None),
        _ => (Stream::from_raw(0x51), random.one_of(&PRODUCERS)),
    };
    // SAFETY: no test follows the address, and the streams are given to no driver.
    let mut view = unsafe { CaiView::new(described, ready, Owner::new(Arc::clone(alive))) };
    if let Some(producer) = producer {
        // SAFETY: as above.
        view = unsafe { view.with_producer(producer) };
    }
    Some((view, stored))
}

/// Streams on which a producer goes on working, which is another one than that on which the data is ready.
const PRODUCERS: [Option<Stream>; 4] = [
    None,
    Some(Stream::None),
    Some(Stream::LegacyDefault),
    Some(Stream::from_raw(0x52)),
];

/// Where the first bit of an element is.
fn place(view: &CaiView, index: &[i64], bits: i128) -> i128 {
    let array = view.descriptor();
    let first = i128::from(array.data()) + i128::from(array.byte_offset());
    let along = index.iter().zip(array.elem_strides());
    8 * first
        + bits
            * along
                .map(|(index, stride)| i128::from(*index) * i128::from(*stride))
                .sum::<i128>()
}

/// First and last indices, and some between.
fn indices(random: &mut Random, shape: &[i64]) -> Vec<Vec<i64>> {
    if shape.contains(&0) {
        return Vec::new();
    }
    let index = |random: &mut Random| {
        shape
            .iter()
            .map(|extent| match random.below(3) {
                0 => 0,
                1 => extent - 1,
                _ => random.below(*extent as usize) as i64,
            })
            .collect()
    };
    (0..12).map(|_| index(random)).collect()
}

type Model = Box<dyn Fn(&[i64]) -> Vec<i64>>;

/// The part as it must be: its shape, and the index in the whole of each of its own; `None` if there is no such part.
type Expected = Option<(Vec<i64>, Model)>;

fn sliced(shape: &[i64], axis: usize, range: (Bound<usize>, Bound<usize>)) -> Expected {
    let extent = i128::from(*shape.get(axis)?);
    let start = match range.0 {
        Bound::Included(start) => start as i128,
        Bound::Excluded(before) => before as i128 + 1,
        Bound::Unbounded => 0,
    };
    let end = match range.1 {
        Bound::Included(last) => last as i128 + 1,
        Bound::Excluded(end) => end as i128,
        Bound::Unbounded => extent,
    };
    let mut shape = shape.to_vec();
    shape[axis] = (start <= end && end <= extent).then_some((end - start) as i64)?;
    let start = start as i64;
    Some((
        shape,
        Box::new(move |index| {
            let mut index = index.to_vec();
            index[axis] += start;
            index
        }),
    ))
}

fn broadcast(own: &[i64], shape: &[usize]) -> Expected {
    let new = shape.len().checked_sub(own.len())?;
    let shape: Vec<_> = shape
        .iter()
        .map(|extent| i64::try_from(*extent).ok())
        .collect::<Option<_>>()?;
    let fits = own
        .iter()
        .zip(&shape[new..])
        .all(|(own, wanted)| *own == 1 || own == wanted);
    let is_repeated: Vec<_> = own.iter().map(|own| *own == 1).collect();
    fits.then_some((
        shape,
        Box::new(move |index: &[i64]| {
            let own = index[new..].iter().zip(&is_repeated);
            own.map(|(index, is_repeated)| if *is_repeated { 0 } else { *index })
                .collect()
        }),
    ))
}

fn reshaped(view: &CaiView, shape: &[usize]) -> Expected {
    let array = view.descriptor();
    let own = array.shape().to_vec();
    let wanted: Vec<_> = shape
        .iter()
        .map(|extent| i64::try_from(*extent).ok())
        .collect::<Option<_>>()?;
    let count = |shape: &[i64]| {
        shape
            .iter()
            .map(|extent| *extent as u128)
            .try_fold(1_u128, u128::checked_mul)
    };
    let is_as_long = match own.contains(&0) {
        true => wanted.contains(&0),
        false => count(&own) == count(&wanted),
    };
    let shape = wanted.clone();
    (is_as_long && array.layout().is_c_contiguous()).then_some((
        shape,
        Box::new(move |index: &[i64]| {
            let place = index
                .iter()
                .zip(&wanted)
                .fold(0, |place, (index, extent)| place * extent + index);
            let mut rest = place;
            let mut found: Vec<_> = own
                .iter()
                .rev()
                .map(|extent| {
                    let index = rest % extent;
                    rest /= extent;
                    index
                })
                .collect();
            found.reverse();
            found
        }),
    ))
}

/// Takes a part with arguments that may be wrong.
fn any_part(random: &mut Random, view: &CaiView) -> (String, Result<CaiView, Error>, Expected) {
    let shape = view.descriptor().shape().to_vec();
    let (ndim, beyond) = (shape.len(), usize::from(random.below(9) == 0));
    let axis = random.below(ndim + beyond);
    match random.below(8) {
        0 => {
            let mut axes: Vec<usize> = (0..ndim).collect();
            (0..ndim).for_each(|place| axes.swap(place, random.below(ndim)));
            if random.below(8) == 0 {
                axes.push(random.index());
            }
            let is_right = axes.len() == ndim;
            let wanted = axes
                .iter()
                .filter_map(|axis| shape.get(*axis))
                .copied()
                .collect();
            let named = axes.clone();
            let model = move |index: &[i64]| {
                let mut source = vec![0; index.len()];
                named
                    .iter()
                    .zip(index)
                    .for_each(|(axis, index)| source[*axis] = *index);
                source
            };
            let expected = is_right.then_some((wanted, Box::new(model) as Model));
            (format!("permute {axes:?}"), view.permute(&axes), expected)
        }
        1 => {
            let wanted = shape.into_iter().rev().collect();
            let model = |index: &[i64]| index.iter().rev().copied().collect();
            (
                "transpose".into(),
                view.transpose(),
                Some((wanted, Box::new(model))),
            )
        }
        2 | 3 => {
            let range = (random.bound(), random.bound());
            (
                format!("slice {axis} {range:?}"),
                view.slice(axis, range),
                sliced(&shape, axis, range),
            )
        }
        4 => {
            let at = random.index();
            let one = sliced(&shape, axis, (Bound::Included(at), Bound::Included(at)));
            let expected = one.map(|(mut wanted, model)| {
                wanted.remove(axis);
                let model = move |index: &[i64]| {
                    let mut index = index.to_vec();
                    index.insert(axis, 0);
                    model(&index)
                };
                (wanted, Box::new(model) as Model)
            });
            (format!("index {axis} {at}"), view.index(axis, at), expected)
        }
        5 => {
            let is_kept: Vec<_> = shape.iter().map(|extent| *extent != 1).collect();
            let wanted = shape.into_iter().filter(|extent| *extent != 1).collect();
            let model = move |index: &[i64]| {
                let mut own = index.iter();
                let kept = is_kept.iter();
                kept.map(|is_kept| is_kept.then(|| own.next().copied()).flatten().unwrap_or(0))
                    .collect()
            };
            (
                "squeeze".into(),
                view.squeeze(),
                Some((wanted, Box::new(model))),
            )
        }
        6 => {
            let mut wanted: Vec<_> = (0..random.below(3)).map(|_| random.index()).collect();
            wanted.extend(shape.iter().map(|extent| match extent {
                1 => random.index(),
                extent if random.below(20) > 0 => *extent as usize,
                _ => random.index(),
            }));
            (
                format!("broadcast {wanted:?}"),
                view.broadcast(&wanted),
                broadcast(&shape, &wanted),
            )
        }
        _ => {
            let mut wanted: Vec<_> = shape.iter().map(|extent| *extent as usize).collect();
            wanted.retain(|extent| *extent != 1 || random.below(2) == 0);
            (0..wanted.len())
                .for_each(|place| wanted.swap(place, random.below(ndim.min(place + 1))));
            if wanted.len() > 1 && random.below(2) == 0 {
                let last = wanted.pop().unwrap_or(1);
                wanted[0] = wanted[0].wrapping_mul(last);
            }
            if random.below(8) == 0 {
                wanted.push(random.index());
            }
            (
                format!("reshape {wanted:?}"),
                view.reshape(&wanted),
                reshaped(view, &wanted),
            )
        }
    }
}

/// Asserts that a part has the elements of the whole that it must have, and all else of it.
fn check(
    random: &mut Random,
    what: &str,
    (whole, part): (&CaiView, &CaiView),
    bits: i128,
    (shape, model): (Vec<i64>, Model),
) {
    let (of, array) = (whole.descriptor(), part.descriptor());
    assert_eq!(array.shape(), shape, "{what}");
    let flags = match array.len() > of.len() {
        true => of.clone().with_access(Access::ReadOnly).flags(),
        false => of.flags(),
    };
    assert_eq!(
        (array.device(), array.dtype(), array.flags()),
        (of.device(), of.dtype(), flags),
        "{what}"
    );
    assert_eq!(
        (part.ready(), part.producer()),
        (whole.ready(), whole.producer()),
        "{what}"
    );
    for index in indices(random, &shape) {
        let from = model(&index);
        assert!(
            from.iter()
                .zip(of.shape())
                .all(|(index, extent)| (0..*extent).contains(index)),
            "{what}"
        );
        assert_eq!(
            place(part, &index, bits),
            place(whole, &from, bits),
            "{what}, {index:?}"
        );
    }
    if let (Some(outer), Some(inner)) = (of.byte_span(), array.byte_span()) {
        assert!(outer.0 <= inner.0 && inner.1 <= outer.1, "{what}");
    }
}

/// The bytes of all elements of this many bytes; the most that there can be, if there are more.
fn size(shape: &[i64], itemsize: u128) -> u128 {
    let extents = shape.iter().map(|extent| *extent as u128);
    match shape.contains(&0) {
        true => 0,
        false => extents.fold(itemsize, u128::saturating_mul),
    }
}

/// Asserts that a part was refused because the array has none such, or the address is one that no descriptor has.
fn check_refusal(what: &str, view: &CaiView, refused: Error, bits: i128, expected: Expected) {
    let Error::Violation(refused) = refused else {
        panic!("{what}: {refused}");
    };
    let Some((shape, model)) = expected else {
        return;
    };
    let first = shape
        .iter()
        .all(|extent| *extent > 0)
        .then(|| model(&vec![0; shape.len()]));
    let first = first.map(|first| place(view, &first, bits));
    let array = view.descriptor();
    let is_within_a_byte =
        bits % 8 != 0 && first != Some(8 * i128::from(array.data() + array.byte_offset()));
    let is_before_the_handle = first.is_some_and(|first| first < 8 * i128::from(array.data()))
        && array.device() == DEVICES[2];
    let is_null = first == Some(0);
    let is_right = match refused.rule() {
        Rule::ViewDtype => is_within_a_byte,
        Rule::ByteOffset => is_before_the_handle,
        Rule::DataPointerNull => is_null,
        // 16 bytes are the most that an element takes.
        Rule::CountOverflow | Rule::SizeOverflow => size(&shape, 16) > i64::MAX as u128,
        Rule::NdimLimit => shape.len() > 64,
        _ => false,
    };
    assert!(is_right, "{what}: {refused}");
}

/// Asserts that the halves of an array are its slices, and share no bit if no two of its own elements do.
fn check_halves(random: &mut Random, what: &str, view: &CaiView, bits: i128) {
    let array = view.descriptor();
    let (axis, at) = (random.below(array.ndim()), random.below(6));
    let slices = (view.slice(axis, ..at), view.slice(axis, at..));
    let (Ok((first, second)), (Ok(before), Ok(after))) = (view.split(axis, at), &slices) else {
        let is_half = slices.0.is_err() || slices.1.is_err();
        assert!(is_half && view.split(axis, at).is_err(), "{what}");
        return;
    };
    assert_eq!(first.descriptor(), before.descriptor(), "{what}");
    assert_eq!(second.descriptor(), after.descriptor(), "{what}");
    if array.layout().is_self_overlapping() || !(1..=20).contains(&array.len()) {
        return;
    }
    let mut all = HashSet::new();
    for half in [&first, &second] {
        for index in every_index(half.descriptor().shape()) {
            let first = place(half, &index, bits);
            assert!((first..first + bits).all(|bit| all.insert(bit)), "{what}");
        }
    }
}

fn every_index(shape: &[i64]) -> Vec<Vec<i64>> {
    let longer = |indices: Vec<Vec<i64>>, extent: &i64| {
        let with = |at| move |index: &Vec<i64>| index.iter().copied().chain([at]).collect();
        let along = (0..*extent).map(|at| indices.iter().map(with(at)).collect::<Vec<_>>());
        along.flatten().collect()
    };
    shape.iter().fold(vec![Vec::new()], longer)
}

/// Every element has its address, whatever the element type, the strides and the sizes; what is wrong is refused.
#[test]
fn each_element_of_a_part_has_its_address() {
    let alive = Arc::new(());
    let (mut taken, mut refusals, mut elsewhere) = (0, 0, 0);
    for seed in 1..=10 * PROGRAMS {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let Some((mut view, bits)) = of_any_layout(&mut random, &alive) else {
            continue;
        };
        for _ in 0..6 {
            let (call, made, expected) = any_part(&mut random, &view);
            let what = format!("program {seed}: {call} of {:?}", view.descriptor());
            match made {
                Ok(part) => {
                    let Some(expected) = expected else {
                        panic!("{what}: there is none");
                    };
                    check(&mut random, &what, (&view, &part), bits, expected);
                    elsewhere += u64::from(part.producer().is_some_and(|on| on != part.ready()));
                    view = part;
                    taken += 1;
                }
                Err(refused) => {
                    check_refusal(&what, &view, refused, bits, expected);
                    refusals += 1;
                }
            }
            assert_eq!(Arc::strong_count(&alive), 2, "one owner: {what}");
        }
        let what = format!("program {seed}: {:?}", view.descriptor());
        check_halves(&mut random, &what, &view, bits);
    }
    assert_eq!(Arc::strong_count(&alive), 1);
    assert!(
        taken > 20 * PROGRAMS && refusals > 5 * PROGRAMS && elsewhere > 5 * PROGRAMS,
        "{taken}, {refusals} refused, {elsewhere} with a producer on another stream"
    );
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
    let typed = view.typed::<f32>().expect("floats");
    for index in [
        &[][..],
        &[0],
        &[0, 0, 0],
        &[2, 0],
        &[0, 3],
        &[0, usize::MAX],
    ] {
        assert_eq!(rule(typed.get(index)), values, "{index:?}");
    }
    assert_eq!(rule(typed.copy_to_slice(&mut [0.0; 5])), Rule::ViewShape);
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
    assert_eq!(rule(rows.typed_mut::<f32>()), Rule::ReadOnlyWriter);
}

#[test]
fn a_part_keeps_owner_and_streams() {
    let view = array(vec![1.0_f32, 2.0, 3.0], &[3]);
    // SAFETY: `Stream::None` needs no promise.
    let view = unsafe { view.with_producer(Stream::None) };
    assert_eq!(view.producer(), Some(LiveStream::NONE));
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
