//! What a user sees of each value in a message or a debugger.

use std::collections::HashSet;

use cai_dlpack::CaiView;
use cai_dlpack::protocol::descriptor::{Descriptor, RawTensor};
use cai_dlpack::protocol::device::{Device, DeviceType, Flags};
use cai_dlpack::protocol::dtype::DType;
use cai_dlpack::protocol::stream::{Reason, Request, Stream};
use cai_dlpack::view::{Bool, LiveStream, Owner};

use crate::arrays::array;

const REASONS: [Reason; 10] = [
    Reason::PolicyNone,
    Reason::NoSyncRequested,
    Reason::ReadyEverywhere,
    Reason::SameStream,
    Reason::DifferentStreams,
    Reason::SameCapture,
    Reason::ForkFromCapture,
    Reason::HostReads,
    Reason::HostReadsExclusively,
    Reason::PolicyHost,
];

#[test]
fn each_reason_has_a_sentence_of_its_own() {
    let sentences: HashSet<_> = REASONS.iter().map(|reason| reason.sentence()).collect();
    assert_eq!(sentences.len(), REASONS.len());
    assert!(
        REASONS
            .iter()
            .all(|reason| reason.to_string() == reason.sentence())
    );
}

#[test]
fn a_stream_looks_alike_in_every_type_that_has_one() {
    // SAFETY: streams are compared and printed, and passed to no driver.
    let live = |stream| unsafe { LiveStream::new(stream) };
    for stream in [
        Stream::None,
        Stream::LegacyDefault,
        Stream::PerThreadDefault,
        Stream::from_raw(0x70),
    ] {
        assert_eq!(live(stream).to_string(), stream.to_string());
        assert_eq!(
            format!("{:?}", live(stream)),
            format!("LiveStream({stream:?})")
        );
        assert_eq!(Stream::from(live(stream)), stream);
        assert!(live(stream) == stream && live(stream) == live(stream));
        if stream != Stream::None {
            assert_eq!(Request::from(stream).to_string(), stream.to_string());
        }
    }
    assert_eq!(Request::from(Stream::None), Request::NoSync);
    let others = [Request::NoSync, Request::Host].map(|request| request.to_string());
    assert_eq!(others, ["no synchronisation", "the host"]);
}

#[test]
fn a_view_and_what_is_made_of_it_can_be_looked_at() {
    let view = array(vec![1.0_f32, 2.0], &[2]);
    let typed = view.typed::<f32>().expect("floats");
    let again = Clone::clone(&typed);
    assert_eq!((again.len(), again.as_ptr()), (typed.len(), typed.as_ptr()));
    let tensor = view.to_dlpack(LiveStream::NONE).expect("a tensor");
    assert!(format!("{tensor:?}").starts_with("DlpackTensor(0x"));
    assert!(format!("{view:?}").contains("Owner"));
    let refused = format!("{:?}", view.typed::<i8>().map(drop));
    assert!(
        refused.contains("Violation(") && refused.contains("[view-dtype]"),
        "{refused}"
    );
    let guard = view
        .consume(LiveStream::LEGACY_DEFAULT)
        .expect("ready data");
    assert!(format!("{guard:?}").contains("edge"));
}

#[test]
fn a_view_is_shown_in_words() {
    let view = array(vec![1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3]);
    let words = "float32 of shape [2, 3], strides [3, 1] (in elements), on cpu:0";
    assert_eq!(
        (view.to_string(), view.descriptor().to_string()),
        (words.to_owned(), words.to_owned())
    );
    let raw =
        RawTensor::new(0x7000_0000, Device::cuda(1), DType::F32, &[2]).with_flags(Flags::READ_ONLY);
    let descriptor = Descriptor::new(&raw).expect("a tensor");
    // SAFETY: nothing follows the address; the legacy default stream is always alive.
    let view = unsafe { CaiView::new(descriptor, Stream::LegacyDefault, Owner::new(())) };
    let words = "read-only float32 of shape [2], strides [1] (in elements), on cuda:1, ready on the legacy default stream (1)";
    assert_eq!(view.to_string(), words);
}

/// A debugger shows what a value means, and no code of a protocol's.
#[test]
fn a_debugger_shows_the_fact() {
    assert_eq!(format!("{:?}", Device::cuda(1)), "Device(cuda:1)");
    let newer = Device::new(DeviceType::from_dlpack(99), 0);
    assert_eq!(format!("{newer:?}"), "Device(99:0)");
    let device_types = [
        (DeviceType::CUDA_HOST, "CUDA_HOST"),
        (DeviceType::from_dlpack(99), "DeviceType(99)"),
    ];
    for (device_type, shown) in device_types {
        assert_eq!(format!("{device_type:?}"), shown);
    }
    let flags = [
        (Flags::NONE, "Flags(NONE)"),
        (Flags::LEGACY, "Flags(LEGACY)"),
        (Flags::READ_ONLY, "Flags(READ_ONLY)"),
        (Flags::from_bits(6), "Flags(IS_COPIED | SUBBYTE_PADDED)"),
        (Flags::from_bits(3), "Flags(READ_ONLY | IS_COPIED)"),
    ];
    for (flags, shown) in flags {
        assert_eq!(format!("{flags:?}"), shown);
    }
    let view = array(vec![1.0_f32, 2.0], &[2]);
    let at = view.descriptor().data();
    let described = format!(
        "Descriptor {{ type: float32, shape: [2], elem_strides: [1], device: Device(cpu:0), data: {at:#x}, \
         byte_offset: 0, flags: Flags(NONE) }}"
    );
    assert_eq!(format!("{:?}", view.descriptor()), described);
    let layout = format!("{:?}", view.descriptor().layout());
    assert_eq!(layout, "Layout { shape: [2], elem_strides: [1] }");
    let start = format!("CaiView {{ descriptor: {described}, ready: None, producer: None, owner: ");
    assert!(format!("{view:?}").starts_with(&start), "{view:?}");
    let typed = view.typed::<f32>().expect("floats");
    assert_eq!(format!("{typed:?}"), format!("View({view:?})"));
    assert_eq!(
        (Bool(2).to_string(), Bool(0).to_string()),
        ("true".into(), "false".into())
    );
    assert_eq!(HashSet::from([Bool(1), Bool(2), Bool(0)]).len(), 2);
}
