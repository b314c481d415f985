//! Parts of typed views: what they may do at once, and where the whole array is ready then.

use std::thread;

use super::*;
use crate::driver::script::{self, Script};
use crate::protocol::descriptor::{Descriptor, RawTensor};
use crate::protocol::device::Device;
use crate::protocol::dtype::DType;
use crate::protocol::stream::Stream;
use crate::view::Owner;
use crate::view::Placed;

fn counted(shape: &[i64]) -> CaiView {
    let mut values: Vec<i32> = (0..shape.iter().product::<i64>() as i32).collect();
    let data = values.as_mut_ptr().expose_provenance() as u64;
    let descriptor = Descriptor::new(&RawTensor::new(data, Device::HOST, DType::I32, shape));
    // SAFETY: the elements lie in the vector, which the owner keeps; nothing works on a stream.
    unsafe { CaiView::new(descriptor.unwrap(), Stream::None, Owner::new(values)) }
}

/// Each half of each array, at each place, is written by a thread of its own; a half of a half as well.
#[test]
fn halves_are_written_at_once() {
    for (axis, at) in [(0, 0), (0, 1), (0, 3), (1, 2), (1, 4)] {
        let mut view = counted(&[3, 4]);
        let mut whole = view.typed_mut::<i32>().unwrap();
        let (first, second) = whole.reborrow().split(axis, at).unwrap();
        let (second, third) = second.split(1 - axis, 1).unwrap();
        let write = |mut part: ViewMut<'_, i32>, value| {
            for row in 0..part.shape()[0] {
                let mut row = part.reborrow().slice(0, row..=row).unwrap();
                // SAFETY: the vector is there, and no other part has these elements.
                unsafe { row.host_slice_mut() }.unwrap().fill(value);
            }
        };
        thread::scope(|scope| {
            scope.spawn(|| write(first, -1));
            scope.spawn(|| write(second, -2));
            scope.spawn(|| write(third, -3));
        });
        let found = whole.copy_to_vec().unwrap();
        let expected = (0..12).map(|place| {
            let index = [place / 4, place % 4];
            match (index[axis] < at, index[1 - axis] < 1) {
                (true, _) => -1,
                (false, true) => -2,
                (false, false) => -3,
            }
        });
        assert_eq!(found, expected.collect::<Vec<i32>>(), "split({axis}, {at})");
        drop(whole);
        assert_eq!(view.typed::<i32>().unwrap().copy_to_vec().unwrap(), found);
    }
}

#[test]
fn a_part_outlives_the_view_that_it_was_taken_of() {
    let view = counted(&[2, 3]);
    let (row, slice) = {
        let whole = view.typed::<i32>().unwrap();
        let row = whole.index(0, 1).unwrap();
        // SAFETY: the vector is there, and nothing writes to it.
        let slice = unsafe { row.slice(0, 1..).unwrap().host_slice() }.unwrap();
        (row.clone(), slice)
    };
    assert_eq!(
        (row.copy_to_vec().unwrap(), slice),
        (vec![3, 4, 5], &[4, 5][..])
    );
}

const MEMORY: u64 = 0x7000;
const CONTEXT: u64 = 0xa;
const STREAMS: [Stream; 3] = [
    Stream::from_raw(0xa1),
    Stream::from_raw(0xa2),
    Stream::from_raw(0xa3),
];

/// Four floats of device 0, of an unknown producer.
fn device(ready: Stream) -> (CaiView, &'static Script) {
    let script = Script::leak();
    script
        .device_memory(MEMORY, 16, 0, CONTEXT)
        .primary(0, CONTEXT);
    for stream in STREAMS {
        script.stream(stream.raw(), CONTEXT);
    }
    let raw = RawTensor::new(MEMORY, Device::cuda(0), DType::F32, &[4]);
    let descriptor = Descriptor::new(&raw).unwrap();
    // SAFETY: nothing reads the memory; the scripted driver follows no stream.
    (
        unsafe { CaiView::new(descriptor, ready, Owner::new(())) },
        script,
    )
}

fn waits(script: &Script) -> Vec<String> {
    let calls = script.take_calls().into_iter();
    calls
        .filter(|call| call.starts_with("cuStreamWaitEvent"))
        .collect()
}

/// The array is ready on the stream on which its last part was written, which has waited for the others.
#[test]
fn the_whole_array_is_ready_after_all_parts() {
    let [one, two, three] = STREAMS;
    for (deep, order) in [(false, [one, two, three]), (true, [three, one, two])] {
        let (mut view, script) = device(Stream::None);
        let _installed = script::install(script);
        let mut whole = view.typed_mut::<f32>().unwrap();
        let (first, second) = match deep {
            false => whole.split(0, 1).unwrap(),
            true => whole.reborrow().slice(0, ..).unwrap().split(0, 1).unwrap(),
        };
        let (second, third) = second.split(0, 1).unwrap();
        script.take_calls();
        for (mut part, stream) in [first, second, third].into_iter().zip(order) {
            let before = part.cai().ready_number();
            match deep {
                false => part
                    .array_mut()
                    .written(Placed::here(stream), None, true, &mut Vec::new())
                    .expect("ordered"),
                true => part
                    .reborrow()
                    .slice(0, ..)
                    .unwrap()
                    .array_mut()
                    .written(Placed::here(stream), None, true, &mut Vec::new())
                    .expect("ordered"),
            }
            assert_eq!((before, part.cai().ready_number()), (Stream::None, stream));
        }
        let waits = waits(script);
        assert_eq!(waits.len(), 2, "{waits:?}");
        for (wait, stream) in waits.iter().zip(&order[1..]) {
            assert!(wait.contains(&format!("{:#x}", stream.raw())), "{waits:?}");
        }
        assert_eq!(view.ready_number(), order[2]);
    }
}

/// A part that is used alone costs no event.
#[test]
fn one_part_asks_for_no_order() {
    let (mut view, script) = device(Stream::None);
    let _installed = script::install(script);
    let mut part = view.typed_mut::<f32>().unwrap().slice(0, 1..).unwrap();
    part.array_mut()
        .written(Placed::here(STREAMS[0]), None, true, &mut Vec::new())
        .expect("ordered");
    part.array_mut()
        .written(Placed::here(STREAMS[0]), None, true, &mut Vec::new())
        .expect("ordered");
    assert_eq!(waits(script), [""; 0]);
    assert_eq!(view.ready_number(), STREAMS[0]);
}

#[test]
fn the_host_waits_for_the_other_part_if_the_driver_refuses() {
    let (mut view, script) = device(Stream::None);
    let _installed = script::install(script);
    let (mut first, mut second) = view.typed_mut::<f32>().unwrap().split(0, 1).unwrap();
    first
        .array_mut()
        .written(Placed::here(STREAMS[0]), None, true, &mut Vec::new())
        .expect("ordered");
    // The edge is made once more.
    for _ in 0..2 {
        script.fault("cuStreamWaitEvent", 0, 2);
    }
    script.take_calls();
    second
        .array_mut()
        .written(Placed::here(STREAMS[1]), None, true, &mut Vec::new())
        .expect("ordered");
    let calls = script.take_calls();
    let waited = calls
        .iter()
        .any(|call| call.contains("Synchronize") || call.contains("EventQuery"));
    assert!(waited, "{calls:?}");
    assert_eq!(view.ready_number(), STREAMS[1]);
}
