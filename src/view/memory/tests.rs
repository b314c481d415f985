//! The driver's knowledge against what views say, one defect a case.

use rstest::rstest;

use crate::driver::script::{self, Script};
use crate::driver::{MemoryKind, PointerInfo};
use crate::error::Error;
use crate::protocol::descriptor::{Descriptor, RawTensor};
use crate::protocol::device::{Device, DeviceType};
use crate::protocol::rule::Rule;
use crate::protocol::stream::Stream;
use crate::view::{CaiView, Owner, prove_memory};

const START: u64 = 0x7000_0000;

/// An allocation of 0x100 bytes on device 0.
fn allocation() -> PointerInfo {
    PointerInfo {
        kind: MemoryKind::Device,
        ordinal: 0,
        device_pointer: START,
        host_pointer: 0,
        context: Some(script::context(0xc0)),
        range: Some((START, 0x100)),
        mapped: true,
    }
}

/// Bytes from `START` on, on a device.
fn bytes(offset: i64, count: i64, stride: i64, device: Device) -> CaiView {
    let descriptor = Descriptor::new(&RawTensor {
        data: START.wrapping_add_signed(offset),
        device,
        code: 1,
        bits: 8,
        shape: &[count],
        strides: Some(&[stride]),
        ..RawTensor::EXAMPLE
    });
    // SAFETY: nothing follows the address.
    unsafe { CaiView::new(descriptor.expect("a tensor"), Stream::None, Owner::new(())) }
}

fn rule(answer: Result<(), Error>) -> Option<Rule> {
    match answer {
        Ok(()) => None,
        Err(Error::Violation(violation)) => Some(violation.rule()),
        Err(other) => panic!("{other}"),
    }
}

fn on(kind: MemoryKind, ordinal: i32) -> PointerInfo {
    PointerInfo {
        kind,
        ordinal,
        ..allocation()
    }
}

const MANAGED: Device = Device::new(DeviceType::CUDA_MANAGED, 0);
const PINNED: Device = Device::new(DeviceType::CUDA_HOST, 0);

#[rstest]
#[case::as_it_is(Device::cuda(0), on(MemoryKind::Device, 0), None)]
#[case::another_device(Device::cuda(1), on(MemoryKind::Device, 0), Some(Rule::PointerDevice))]
#[case::unknown(Device::cuda(0), on(MemoryKind::Unknown, -1), Some(Rule::PointerUnknown))]
#[case::managed_called_cuda(Device::cuda(0), on(MemoryKind::Managed, 0), None)]
#[case::pinned_called_cuda(Device::cuda(0), on(MemoryKind::Pinned, 0), None)]
#[case::managed(MANAGED, on(MemoryKind::Managed, 0), None)]
#[case::device_called_managed(MANAGED, on(MemoryKind::Device, 0), Some(Rule::PointerDevice))]
#[case::device_called_pinned(PINNED, on(MemoryKind::Device, 0), Some(Rule::PointerDevice))]
fn the_device(#[case] said: Device, #[case] info: PointerInfo, #[case] refused: Option<Rule>) {
    let driver = Script::leak();
    driver.pointer(START, info);
    let _installed = script::install(driver);
    assert_eq!(
        rule(prove_memory(bytes(0, 0x100, 1, said).descriptor())),
        refused
    );
}

/// An absent driver is none to ask; a refusal of one that is there is told.
#[test]
fn a_refusal_of_the_driver() {
    let driver = Script::leak();
    driver.pointer(START, allocation());
    driver.fault("cuPointerGetAttributes", 0, 700);
    let _installed = script::install(driver);
    let array = bytes(0, 0x100, 1, Device::cuda(0));
    let answer = prove_memory(array.descriptor());
    assert!(matches!(answer, Err(Error::Driver(_))), "{answer:?}");
    assert_eq!(rule(prove_memory(array.descriptor())), None);
}

#[rstest]
#[case::all_of_it(0, 0x100, 1, true)]
#[case::one_too_many(0, 0x101, 1, false)]
#[case::backwards(0xff, 0x100, -1, true)]
#[case::before_the_start(0xfe, 0x100, -1, false)]
#[case::strides_reach_the_end(0, 0x33, 5, true)]
#[case::strides_reach_beyond(1, 0x34, 5, false)]
#[case::nothing(0, 0, 1, true)]
fn the_bounds(
    #[case] offset: i64,
    #[case] count: i64,
    #[case] stride: i64,
    #[case] is_inside: bool,
) {
    let driver = Script::leak();
    driver.pointer(START.wrapping_add_signed(offset), allocation());
    let _installed = script::install(driver);
    let answer = rule(prove_memory(
        bytes(offset, count, stride, Device::cuda(0)).descriptor(),
    ));
    assert_eq!(answer, (!is_inside).then_some(Rule::OutOfBounds));
}

/// Three mappings of 0x100 bytes without a context, the last one `gap` bytes behind the second.
fn segments(gap: u64) -> &'static Script {
    let driver = Script::leak();
    for (at, start) in [START, START + 0x100, START + 0x200 + gap]
        .into_iter()
        .enumerate()
    {
        let info = PointerInfo {
            context: None,
            range: Some((start, 0x100)),
            ..allocation()
        };
        driver.pointer(START + 0x100 * at as u64, info);
    }
    driver
}

#[rstest]
#[case::side_by_side(0, 0x300, true)]
#[case::beyond_the_last(0, 0x301, false)]
#[case::a_gap(1, 0x300, false)]
#[case::before_the_gap(1, 0x200, true)]
fn mappings_side_by_side(#[case] gap: u64, #[case] count: i64, #[case] is_inside: bool) {
    let driver = segments(gap);
    driver.pointer(
        START + 0x300,
        PointerInfo {
            context: None,
            ..on(MemoryKind::Unknown, -1)
        },
    );
    let _installed = script::install(driver);
    let answer = rule(prove_memory(
        bytes(0, count, 1, Device::cuda(0)).descriptor(),
    ));
    assert_eq!(answer, (!is_inside).then_some(Rule::OutOfBounds));
}

#[test]
fn a_range_that_the_driver_does_not_know_is_believed() {
    let driver = Script::leak();
    let info = PointerInfo {
        range: None,
        ..allocation()
    };
    driver.pointer(START, info);
    let _installed = script::install(driver);
    assert_eq!(
        rule(prove_memory(
            bytes(0, 1 << 40, 1, Device::cuda(0)).descriptor()
        )),
        None
    );
}

#[test]
fn host_memory_is_not_asked_about() {
    let _installed = script::install(Script::leak());
    assert_eq!(
        rule(prove_memory(bytes(0, 8, 1, Device::HOST).descriptor())),
        None
    );
}

/// Managed memory is the device's alone while it works, unless it can be shared: also where the data is ready.
#[rstest]
#[case::shared(false, DeviceType::CUDA_MANAGED, 0)]
#[case::exclusive(true, DeviceType::CUDA_MANAGED, 1)]
#[case::pinned(true, DeviceType::CUDA_HOST, 0)]
fn ready_data_is_read_when_the_device_is_idle(
    #[case] is_exclusive: bool,
    #[case] device_type: DeviceType,
    #[case] waits: usize,
) {
    let mut values = [1_u8, 2, 3];
    let start = values.as_mut_ptr().expose_provenance() as u64;
    let script = Script::leak();
    let info = PointerInfo {
        kind: MemoryKind::Managed,
        range: Some((start, 3)),
        ..allocation()
    };
    script.pointer(start, info).current(0xc1);
    if is_exclusive {
        script.exclusive_managed(0);
    }
    let _installed = script::install(script);
    let descriptor = Descriptor::new(&RawTensor {
        data: start,
        device: Device::new(device_type, 0),
        code: 1,
        bits: 8,
        shape: &[3],
        ..RawTensor::EXAMPLE
    });
    let descriptor = descriptor.expect("a tensor");
    // SAFETY: the values outlive the view.
    let view = unsafe { CaiView::new(descriptor, Stream::None, Owner::new(())) };
    let copied = view.typed::<u8>().and_then(|typed| typed.copy_to_vec());
    assert_eq!(copied.expect("a copy"), values);
    assert_eq!(script.count("cuCtxSynchronize"), waits);
    assert_eq!(script.current_now(), 0xc1);
}

/// Mappings side by side are followed one by one; an array over more than so many is believed, and costs no more.
#[test]
#[cfg_attr(miri, ignore = "thousands of calls, over safe code alone")]
fn an_array_over_more_mappings_than_are_followed_is_believed() {
    for (mappings, is_believed) in [(4095, false), (4096, false), (4097, true), (5000, true)] {
        let driver = Script::leak();
        for at in 0..mappings {
            let start = START + 0x10 * at;
            let info = PointerInfo {
                context: None,
                range: Some((start, 0x10)),
                ..allocation()
            };
            driver.pointer(start, info);
        }
        let _installed = script::install(driver);
        // One byte more than is mapped.
        let count = 0x10 * mappings as i64 + 1;
        let answer = rule(prove_memory(
            bytes(0, count, 1, Device::cuda(0)).descriptor(),
        ));
        assert_eq!(
            answer,
            (!is_believed).then_some(Rule::OutOfBounds),
            "{mappings}"
        );
        let calls = driver.count("cuPointerGetAttributes");
        assert_eq!(calls as u64, 1 + 4096.min(mappings), "{mappings}");
    }
}

/// What is next to a mapping belongs to it only if it is of the same kind and device, mapped, and begins there.
#[test]
fn a_mapping_of_another_kind_does_not_go_on() {
    let mapping = |start| PointerInfo {
        context: None,
        range: Some((start, 0x100)),
        ..allocation()
    };
    let next = mapping(START + 0x100);
    let range = |start, size| Some((start, size));
    let others = [
        (next, None),
        (PointerInfo { ordinal: 1, ..next }, Some(Rule::OutOfBounds)),
        (
            PointerInfo {
                kind: MemoryKind::Managed,
                ..next
            },
            Some(Rule::OutOfBounds),
        ),
        (
            PointerInfo {
                mapped: false,
                ..next
            },
            Some(Rule::OutOfBounds),
        ),
        (
            PointerInfo {
                range: None,
                ..next
            },
            Some(Rule::OutOfBounds),
        ),
        (
            PointerInfo {
                range: range(START + 0x101, 0xff),
                ..next
            },
            Some(Rule::OutOfBounds),
        ),
        (
            PointerInfo {
                range: range(START + 0x100, 0),
                ..next
            },
            Some(Rule::OutOfBounds),
        ),
        (
            PointerInfo {
                range: range(START + 0x100, 0xff),
                ..next
            },
            Some(Rule::OutOfBounds),
        ),
        (
            PointerInfo {
                range: range(START + 0x100, 0x100),
                ..next
            },
            None,
        ),
    ];
    for (other, refused) in others {
        let driver = Script::leak();
        driver
            .pointer(START, mapping(START))
            .pointer(START + 0x100, other);
        let _installed = script::install(driver);
        let answer = rule(prove_memory(
            bytes(0, 0x200, 1, Device::cuda(0)).descriptor(),
        ));
        assert_eq!(answer, refused, "{other:?}");
    }
}
