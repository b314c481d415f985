//! Which streams a join waits for, and which stream waits, on the scripted driver.

use std::thread;

use rstest::{fixture, rstest};

use super::*;
use crate::driver::script::{Script, context, contexts_at};
use crate::protocol::stream::Capture;

const A1: Stream = Stream::from_raw(0xa1);
const A2: Stream = Stream::from_raw(0xa2);
/// A stream of context B, on device 1.
const B1: Stream = Stream::from_raw(0xb1);
const PLACE: Place = Place::cuda(0, 0x7000);
const THERE: Place = Place::cuda(1, 0x9000);
const CONTEXT_A: u64 = 0xa;
const CONTEXT_B: u64 = 0xb;

/// Two devices with a context and an array each, the first current.
#[fixture]
fn script() -> Script {
    let script = Script::new();
    script
        .stream(0xa1, CONTEXT_A)
        .stream(0xa2, CONTEXT_A)
        .stream(0xb1, CONTEXT_B)
        .device_memory(0x7000, 64, 0, CONTEXT_A)
        .device_memory(0x9000, 64, 1, CONTEXT_B)
        .current(CONTEXT_A);
    script
}

fn arrays(streams: &[(Stream, Place)]) -> Joined {
    let mut joined = Joined::default();
    for (stream, place) in streams {
        joined.array(*stream, *place);
    }
    joined
}

fn rule(result: Result<usize, Error>) -> Rule {
    match result {
        Err(Error::Violation(violation)) => violation.rule(),
        other => panic!("not refused by a rule: {other:?}"),
    }
}

#[rstest]
fn once_per_distinct_stream(script: Script) {
    let joined = arrays(&[A1, B1, A1, A2, Stream::None, B1].map(|stream| (stream, PLACE)));
    assert_eq!(join(&script, &joined, A2).ok(), Some(2));
    let counts = ["cuEventRecord", "cuStreamWaitEvent"].map(|call| script.count(call));
    assert_eq!(counts, [2, 2]);
}

#[rstest]
fn default_streams_of_two_devices_are_apart(script: Script) {
    let legacy = Stream::LegacyDefault;
    let joined = arrays(&[(legacy, PLACE), (legacy, THERE)]);
    assert_eq!(join(&script, &joined, A1).ok(), Some(2));
    let twice = arrays(&[(legacy, PLACE), (legacy, PLACE)]);
    assert_eq!(join(&script, &twice, A1).ok(), Some(1));
    let unknown = Place::cuda(-1, 0x7000);
    let strangers = arrays(&[(legacy, unknown), (legacy, unknown)]);
    let events = join(&script, &strangers, A1).ok();
    assert_eq!(events, Some(1), "the driver tells");
}

/// One of ROCm's is `on` only if no other stream is there, and is never waited for, whatever the order of the items.
#[test]
fn streams_of_rocm_are_waited_for_by_none_but_themselves() {
    let legacy = Stream::LegacyDefault;
    let rocm = |ordinal, pointer| Place {
        platform: Platform::Rocm,
        ..Place::cuda(ordinal, pointer)
    };
    let (first, second, third) = (rocm(0, 0x7000), rocm(0, 0x8000), rocm(1, 0x9000));
    for (items, on, is_refused) in [
        (&[(legacy, first)][..], legacy, false),
        (&[(legacy, first), (legacy, second)], legacy, false),
        (&[(A1, first), (A1, third)], A1, false),
        (&[(legacy, first), (legacy, third)], legacy, true),
        (&[(legacy, first)], A1, true),
        (&[(legacy, first), (legacy, PLACE)], legacy, true),
        (&[(A1, first), (A1, PLACE)], A1, true),
        (&[(A1, PLACE), (legacy, first)], A1, true),
        (&[(legacy, first), (Stream::None, PLACE)], legacy, false),
        (&[(A1, PLACE), (legacy, THERE)], A2, false),
    ] {
        let forth = arrays(items);
        let back = arrays(&items.iter().rev().copied().collect::<Vec<_>>());
        for joined in [forth, back] {
            let refused = joined.refused(on).map(|refused| refused.rule());
            assert_eq!(refused, is_refused.then_some(Rule::RocmOrder), "{items:?}");
        }
    }
    let mut with_bare = arrays(&[(A1, first)]);
    with_bare.stream(A1, Defaults::OfCurrent);
    assert!(with_bare.refused(A1).is_some());
}

/// Memory of another context of device 0.
#[rstest]
fn default_streams_of_two_contexts_on_a_device_are_apart(script: Script) {
    script.device_memory(0x8000, 64, 0, CONTEXT_B);
    let (legacy, other) = (Stream::LegacyDefault, Place::cuda(0, 0x8000));
    let joined = arrays(&[(legacy, PLACE), (legacy, other), (legacy, PLACE)]);
    assert_eq!(join(&script, &joined, A1).ok(), Some(2));
    assert_eq!(script.count("cuPointerGetAttributes"), 2);
    let joined = arrays(&[(A1, PLACE), (A1, other)]);
    assert_eq!(rule(join(&script, &joined, legacy)), Rule::StreamContext);
}

/// A default stream of one context is one queue, however its context is known: by the memory, by the context that was
/// current at the import, or as the current one's.
#[rstest]
fn a_default_stream_is_waited_for_once(
    script: Script,
    #[values(1, 2, 3)] first: usize,
    #[values(1, 2, 3)] second: usize,
) {
    let legacy = Stream::LegacyDefault;
    let add = |joined: &mut Joined, kind: usize| match kind {
        1 => joined.array(legacy, PLACE),
        2 => joined.array(
            legacy,
            Place {
                requested: Defaults::OfCurrent,
                ready: Defaults::Of(context(CONTEXT_A)),
                ..Place::cuda(-1, 0x7010)
            },
        ),
        _ => joined.stream(legacy, Defaults::OfCurrent),
    };
    let mut joined = Joined::default();
    add(&mut joined, first);
    add(&mut joined, second);
    assert_eq!(join(&script, &joined, A1).ok(), Some(1));
    assert_eq!(script.count("cuEventRecord"), 1);
}

/// The driver is not asked whose two default streams are that differ by their number.
#[rstest]
fn different_numbers_are_not_asked_about(script: Script) {
    let joined = arrays(&[
        (Stream::LegacyDefault, PLACE),
        (Stream::PerThreadDefault, PLACE),
    ]);
    assert_eq!(join(&script, &joined, A1).ok(), Some(2));
    assert_eq!(script.count("cuCtxGetCurrent"), 2, "one for each order");
}

#[rstest]
fn it_stops_at_what_cannot_be_joined(script: Script) {
    script.captured(B1, Capture::Active, 7);
    let joined = arrays(&[A1, B1].map(|stream| (stream, PLACE)));
    assert_eq!(rule(join(&script, &joined, A2)), Rule::CaptureProducer);
}

#[rstest]
fn a_default_stream_is_one_for_all_arrays(
    script: Script,
    #[values(Stream::LegacyDefault, Stream::PerThreadDefault)] on: Stream,
) {
    // One stream is waited for, and two would wait.
    let joined = arrays(&[(A1, PLACE), (A1, THERE)]);
    assert!(joined.needs_driver(on));
    assert_eq!(rule(join(&script, &joined, on)), Rule::StreamContext);
    assert_eq!(
        (script.count("cuStreamGetCtx"), script.current_now()),
        (0, CONTEXT_A)
    );
}

#[rstest]
fn bare_streams_wait_with_the_arrays(script: Script) {
    let mut joined = arrays(&[(B1, THERE)]);
    joined.stream(A1, Defaults::OfCurrent);
    assert_eq!(join(&script, &joined, Stream::LegacyDefault).ok(), Some(2));
    let calls = script.calls();
    for (call, current) in contexts_at(&calls, CONTEXT_A) {
        if call.starts_with("cuStreamWaitEvent") {
            assert_eq!(current, CONTEXT_B);
        }
    }
}

#[rstest]
fn bare_default_streams_are_the_current_contexts(script: Script) {
    let mut joined = Joined::default();
    joined.stream(Stream::LegacyDefault, Defaults::OfCurrent);
    assert_eq!(join(&script, &joined, B1).ok(), Some(1));
    assert!(
        !script
            .calls()
            .iter()
            .any(|call| call.starts_with("cuCtxPushCurrent"))
    );
}

/// Also under the number of the stream that waits, which is the current context's.
#[rstest]
fn bare_default_streams_of_several_contexts_are_several(
    script: Script,
    #[values((A1, 2), (Stream::LegacyDefault, 1))] (on, events): (Stream, usize),
) {
    let mut joined = Joined::default();
    joined.stream(Stream::LegacyDefault, Defaults::OfCurrent);
    joined.stream(Stream::LegacyDefault, Defaults::Of(context(CONTEXT_B)));
    joined.stream(Stream::LegacyDefault, Defaults::Of(context(CONTEXT_B)));
    assert_eq!(join(&script, &joined, on).ok(), Some(events));
    let calls = script.calls();
    assert!(
        calls.contains(&"cuCtxPushCurrent 0xb".to_owned()),
        "{calls:?}"
    );
}

/// A context for questions is any that is in use, and without one the driver's refusal is reported.
#[rstest]
fn bare_streams_on_a_thread_without_a_context(
    script: Script,
    #[values(A1, Stream::LegacyDefault)] stream: Stream,
) {
    let mut joined = Joined::default();
    joined.stream(stream, Defaults::OfCurrent);
    script.current(0);
    let Err(Error::Driver(error)) = join(&script, &joined, A2) else {
        panic!("no device is in use");
    };
    assert_eq!(error.code(), Some(201));
    script.primary(0, CONTEXT_A);
    assert_eq!(join(&script, &joined, A2).ok(), Some(1));
    assert_eq!((script.current_now(), script.primary_count(0)), (0, 1));
}

#[rstest]
fn memory_that_every_context_reaches_is_joined_on_the_current_ones(script: Script) {
    let shared = Place {
        requested: Defaults::OfCurrent,
        ready: Defaults::Of(context(CONTEXT_B)),
        ..Place::cuda(-1, 0x9000)
    };
    let legacy = Stream::LegacyDefault;
    let joined = arrays(&[(legacy, shared), (A1, PLACE)]);
    assert_eq!(
        join(&script, &joined, legacy).ok(),
        Some(2),
        "1 waits for 1 of another context"
    );
    script.current(CONTEXT_B);
    assert_eq!(rule(join(&script, &joined, legacy)), Rule::StreamContext);
}

/// Memory of a device's pool has the default streams of its primary context, wherever it lies.
#[rstest]
fn default_streams_of_primary_contexts_are_one_for_each_device(script: Script) {
    script.primary(0, CONTEXT_A).primary(1, CONTEXT_B);
    let of_pool = |ordinal, pointer| Place {
        ready: Defaults::OfPrimary,
        ..Place::cuda(ordinal, pointer)
    };
    let legacy = Stream::LegacyDefault;
    for (other, events) in [(of_pool(0, 0x7800), 1), (of_pool(1, 0x7800), 2)] {
        let joined = arrays(&[(legacy, of_pool(0, 0x7000)), (legacy, other)]);
        assert_eq!(joined.waits.len(), events, "{other:?}");
        assert_eq!(join(&script, &joined, A1).ok(), Some(events), "{other:?}");
    }
}

/// Without a wait, or for the stream itself, the driver is not asked: nor for the GIL to be let go.
#[rstest]
fn what_needs_no_driver() {
    let (legacy, none) = (Stream::LegacyDefault, Stream::None);
    let needs = |joined: &Joined, on| joined.needs_driver(on);
    assert!(!needs(&Joined::default(), A1));
    for (streams, on, expected) in [
        (&[(none, PLACE)][..], A1, false),
        (&[(A1, PLACE)], A1, false),
        (&[(A1, PLACE)], A2, true),
        (&[(none, PLACE), (none, THERE)], legacy, false),
        (&[(legacy, PLACE)], legacy, false),
        (&[(legacy, PLACE), (none, THERE)], legacy, true),
    ] {
        assert_eq!(needs(&arrays(streams), on), expected, "{streams:?} {on}");
    }
}

/// An array that is ready says whose a default stream is, if it has memory of a device.
#[rstest]
fn arrays_that_say_whose_a_default_stream_is() {
    let none = Stream::None;
    let host = Place {
        platform: Platform::Host,
        ..PLACE
    };
    let joined = arrays(&[(none, host), (none, Place::cuda(0, 0)), (none, PLACE)]);
    let places: Vec<_> = joined
        .arrays
        .iter()
        .map(|place| (place.platform, place.pointer))
        .collect();
    assert_eq!(places, [(Platform::Cuda, PLACE.pointer)]);
}

/// A bare per-thread stream is this thread's: that of an array of another thread is another one.
#[rstest]
fn a_bare_stream_of_the_thread_is_its_own(script: Script) {
    let per_thread = Stream::PerThreadDefault;
    let other = thread::spawn(Thread::current).join().expect("an id");
    for (of, events) in [(Thread::current(), 1), (other, 2)] {
        let place = Place {
            ready: Defaults::Of(context(CONTEXT_A)),
            thread: Some(of),
            ..PLACE
        };
        let mut joined = arrays(&[(per_thread, place)]);
        joined.stream(per_thread, Defaults::OfCurrent);
        let found = distinct(&script, &joined, A1, None, &mut Vec::new()).map(|those| those.len());
        assert_eq!(found.ok(), Some(events));
    }
}

/// If no array says whose the waiting default stream is, it is the current context's, and not the primary one's.
#[rstest]
fn a_default_stream_without_arrays_is_the_current_contexts(script: Script) {
    script.primary(0, CONTEXT_B);
    let mut joined = Joined::default();
    joined.stream(A1, Defaults::OfCurrent);
    assert_eq!(join(&script, &joined, Stream::LegacyDefault).ok(), Some(1));
    let calls = script.calls();
    assert!(
        !calls
            .iter()
            .any(|call| call.starts_with("cuCtxPushCurrent")),
        "{calls:?}"
    );
}

/// Streams that are told apart by their numbers or their threads are not asked about.
#[rstest]
fn the_driver_is_asked_about_default_streams_that_may_be_one(script: Script) {
    let (legacy, none) = (Stream::LegacyDefault, Stream::None);
    let asked = |streams: &[(Stream, Place)], on| {
        script.take_calls();
        let found = distinct(&script, &arrays(streams), on, None, &mut Vec::new());
        (
            found.expect("streams").len(),
            script.count("cuPointerGetAttributes"),
        )
    };
    script.device_memory(0x7010, 16, 0, CONTEXT_A);
    let beside = Place::cuda(0, 0x7010);
    let known = Place {
        ready: Defaults::Of(context(CONTEXT_A)),
        ..beside
    };
    assert_eq!(asked(&[(legacy, PLACE), (legacy, beside)], A1), (1, 2));
    assert_eq!(asked(&[(legacy, PLACE), (legacy, known)], A1), (1, 1));
    assert_eq!(
        asked(&[(A1, PLACE), (A2, beside), (none, beside)], B1),
        (2, 0)
    );
    assert_eq!(
        asked(&[(legacy, PLACE), (legacy, beside), (A2, beside)], A1),
        (2, 2)
    );
}

/// Default streams of contexts that the driver has not told are not known to be one.
#[test]
fn streams_of_contexts_that_are_not_told_are_apart() {
    let untold = Place {
        ready: Defaults::Untold,
        ..PLACE
    };
    for (stream, distinct) in [
        (Stream::LegacyDefault, 2),
        (Stream::PerThreadDefault, 2),
        (A1, 1),
    ] {
        let joined = arrays(&[(stream, untold), (stream, untold)]);
        assert_eq!(joined.waits.len(), distinct, "{stream}");
    }
}

/// A check refuses what a join would refuse, and makes nothing wait.
#[cfg(feature = "pyo3")]
#[rstest]
fn a_check_refuses_what_a_join_does(script: Script) {
    script.captured(B1, Capture::Active, 7);
    let legacy = Stream::LegacyDefault;
    for (items, on) in [
        (&[(A1, PLACE)][..], A2),
        (&[(A1, PLACE), (B1, PLACE)], A2),
        (&[(A1, PLACE)], B1),
        (&[(A1, PLACE), (A1, THERE)], legacy),
        (&[(A1, PLACE), (A2, PLACE)], legacy),
        (&[], A1),
    ] {
        let joined = arrays(items);
        script.take_calls();
        let checked = check_join(&script, &joined, on).map_err(|refused| refused.to_string());
        let counts = ["cuEventRecord", "cuStreamWaitEvent"].map(|call| script.count(call));
        assert_eq!(counts, [0, 0], "{items:?} {on}");
        let made = join(&script, &joined, on).map_err(|refused| refused.to_string());
        assert_eq!(checked, made.map(drop), "{items:?} {on}");
    }
}
