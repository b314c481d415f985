//! The calls of every kind of order, one by one, on the scripted driver.

use rstest::{fixture, rstest};

use super::*;
use crate::driver::PointerInfo;
use crate::driver::script::{Script, context, contexts_at};
use crate::process::thread::Thread;
use crate::protocol::device::{Device, DeviceType};
use crate::protocol::rule::Rule;
use crate::protocol::stream::Platform;

/// A stream of context A, on device 0.
const A1: Stream = Stream::from_raw(0xa1);
const A2: Stream = Stream::from_raw(0xa2);
/// A stream of context B, on device 1.
const B1: Stream = Stream::from_raw(0xb1);
const ARRAY: u64 = 0x7000;
const PLACE: Place = Place::cuda(0, ARRAY);
const CONTEXT_A: u64 = 0xa;
const CONTEXT_B: u64 = 0xb;

/// Two devices with a context each, the first current; an array on the first.
#[fixture]
fn script() -> Script {
    let script = Script::new();
    script
        .stream(0xa1, CONTEXT_A)
        .stream(0xa2, CONTEXT_A)
        .stream(0xb1, CONTEXT_B);
    script
        .device_memory(ARRAY, 64, 0, CONTEXT_A)
        .current(CONTEXT_A);
    script
}

fn by_event(script: &Script, ready: Stream, requested: Stream) -> Result<Done, Error> {
    order(script, ready, requested.into(), &PLACE, SyncPolicy::Event)
}

/// The rule that the order broke.
fn rule<T: std::fmt::Debug>(result: Result<T, Error>) -> Rule {
    match result {
        Err(Error::Violation(violation)) => violation.rule(),
        other => panic!("not refused by a rule: {other:?}"),
    }
}

/// The driver call that failed, and its code.
fn failure<T: std::fmt::Debug>(result: Result<T, Error>) -> (&'static str, Option<u32>) {
    match result {
        Err(Error::Driver(error)) => (error.call(), error.code()),
        other => panic!("no driver error: {other:?}"),
    }
}

#[rstest]
#[case::same_handle(A1, Request::Stream(A1))]
#[case::same_legacy(Stream::LegacyDefault, Request::Stream(Stream::LegacyDefault))]
#[case::same_per_thread(Stream::PerThreadDefault, Request::Stream(Stream::PerThreadDefault))]
#[case::no_sync(A1, Request::NoSync)]
#[case::ready_none(Stream::None, Request::Stream(A1))]
#[case::ready_none_for_the_host(Stream::None, Request::Host)]
#[case::no_stream(A1, Request::Stream(Stream::None))]
fn nothing_to_do_is_no_call(script: Script, #[case] ready: Stream, #[case] request: Request) {
    for policy in [SyncPolicy::Event, SyncPolicy::Host, SyncPolicy::None] {
        assert!(!needed(ready, request, &PLACE, policy));
        let done = order(&script, ready, request, &PLACE, policy);
        assert!(matches!(done, Ok(Done::Nothing(_))), "{done:?}");
    }
    assert_eq!(script.calls(), [""; 0]);
}

#[rstest]
fn the_policy_none_is_no_call(script: Script) {
    for request in [Request::Stream(A2), Request::Host] {
        assert!(!needed(A1, request, &PLACE, SyncPolicy::None));
        let done = order(&script, A1, request, &PLACE, SyncPolicy::None);
        assert!(
            matches!(done, Ok(Done::Nothing(Reason::PolicyNone))),
            "{done:?}"
        );
    }
    assert_eq!(script.calls(), [""; 0]);
}

#[rstest]
fn two_streams_of_the_current_context(script: Script) {
    assert!(needed(A1, A2.into(), &PLACE, SyncPolicy::Event));
    let done = by_event(&script, A1, A2);
    assert!(
        matches!(done, Ok(Done::Event(Reason::DifferentStreams))),
        "{done:?}"
    );
    let first = [
        "cuCtxGetCurrent",
        "cuStreamGetCtx 0xa1",
        "cuStreamIsCapturing 0xa1",
        "cuStreamIsCapturing 0xa2",
        "cuCtxGetId 0xa",
        "cuEventCreate",
        "cuEventRecord 0xe001 0xa1",
        "cuStreamWaitEvent 0xa2 0xe001",
    ];
    assert_eq!(script.take_calls(), first);
    by_event(&script, A1, A2).expect("the same order again");
    let again: Vec<_> = first
        .into_iter()
        .filter(|call| *call != "cuEventCreate")
        .collect();
    assert_eq!(script.take_calls(), again, "the event is reused");
}

#[rstest]
fn the_ready_streams_context_is_current_meanwhile(script: Script) {
    script.current(CONTEXT_B);
    by_event(&script, A1, A2).expect("an order across contexts");
    assert_eq!(
        script.calls(),
        [
            "cuCtxGetCurrent",
            "cuStreamGetCtx 0xa1",
            "cuCtxPushCurrent 0xa",
            "cuStreamIsCapturing 0xa1",
            "cuStreamIsCapturing 0xa2",
            "cuCtxGetId 0xa",
            "cuEventCreate",
            "cuEventRecord 0xe001 0xa1",
            "cuStreamWaitEvent 0xa2 0xe001",
            "cuCtxPopCurrent",
        ]
    );
    assert_eq!(script.current_now(), CONTEXT_B);
}

/// A thread that has never touched CUDA may not even ask about a stream.
#[rstest]
fn a_thread_without_a_context_borrows_the_arrays(script: Script) {
    script.current(0);
    by_event(&script, A1, A2).expect("an order on a fresh thread");
    assert_eq!(
        script.calls(),
        [
            "cuCtxGetCurrent",
            "cuPointerGetAttributes 0x7000",
            "cuCtxPushCurrent 0xa",
            "cuStreamGetCtx 0xa1",
            "cuStreamIsCapturing 0xa1",
            "cuStreamIsCapturing 0xa2",
            "cuCtxGetId 0xa",
            "cuEventCreate",
            "cuEventRecord 0xe001 0xa1",
            "cuStreamWaitEvent 0xa2 0xe001",
            "cuCtxPopCurrent",
        ]
    );
    assert_eq!(script.current_now(), 0);
}

#[rstest]
fn a_thread_without_a_context_and_an_array_without_one(script: Script) {
    script.current(0);
    let place = Place::cuda(1, 0);
    let done = order(&script, A1, A2.into(), &place, SyncPolicy::Event);
    assert_eq!(
        failure(done),
        ("cuStreamGetCtx", Some(201)),
        "the driver's own answer"
    );
    assert_eq!(script.current_now(), 0);
}

#[rstest]
fn a_ready_stream_of_another_device(script: Script) {
    by_event(&script, B1, A1).expect("waiting across devices is legal");
    assert_eq!(
        script.calls(),
        [
            "cuCtxGetCurrent",
            "cuStreamGetCtx 0xb1",
            "cuCtxPushCurrent 0xb",
            "cuStreamIsCapturing 0xb1",
            "cuStreamIsCapturing 0xa1",
            "cuCtxGetId 0xb",
            "cuEventCreate",
            "cuEventRecord 0xe001 0xb1",
            "cuStreamWaitEvent 0xa1 0xe001",
            "cuCtxPopCurrent",
        ]
    );
}

/// The first and the last streams of the array's context: the pointer says which that is.
#[rstest]
#[case(Stream::LegacyDefault, A1, "0x1", "0xa1")]
#[case(Stream::PerThreadDefault, A1, "0x2", "0xa1")]
#[case(Stream::LegacyDefault, Stream::PerThreadDefault, "0x1", "0x2")]
#[case(Stream::PerThreadDefault, Stream::LegacyDefault, "0x2", "0x1")]
fn default_streams_are_those_of_the_pointers_context(
    script: Script,
    #[case] ready: Stream,
    #[case] requested: Stream,
    #[case] record: &str,
    #[case] wait: &str,
) {
    script.current(CONTEXT_B);
    by_event(&script, ready, requested).expect("an order with a default stream");
    assert_eq!(
        script.calls(),
        [
            "cuCtxGetCurrent",
            "cuPointerGetAttributes 0x7000",
            "cuCtxPushCurrent 0xa",
            &format!("cuStreamIsCapturing {record}"),
            &format!("cuStreamIsCapturing {wait}"),
            "cuCtxGetId 0xa",
            "cuEventCreate",
            &format!("cuEventRecord 0xe001 {record}"),
            &format!("cuStreamWaitEvent {wait} 0xe001"),
            "cuCtxPopCurrent",
        ]
    );
}

#[rstest]
fn a_handle_of_one_device_and_a_default_stream_of_another(script: Script) {
    by_event(&script, B1, Stream::LegacyDefault).expect("an order across devices");
    assert_eq!(
        script.calls(),
        [
            "cuCtxGetCurrent",
            "cuPointerGetAttributes 0x7000",
            "cuStreamGetCtx 0xb1",
            "cuStreamIsCapturing 0xb1",
            "cuStreamIsCapturing 0x1",
            "cuCtxPushCurrent 0xb",
            "cuCtxGetId 0xb",
            "cuEventCreate",
            "cuEventRecord 0xe001 0xb1",
            "cuCtxPopCurrent",
            "cuStreamWaitEvent 0x1 0xe001",
        ],
        "the default stream is asked and waits in the array's context"
    );
    assert_eq!(script.current_now(), CONTEXT_A);
}

#[rstest]
fn a_known_context_spares_the_pointer_query(script: Script) {
    let place = Place {
        ready: Defaults::Of(context(CONTEXT_A)),
        ..PLACE
    };
    order(
        &script,
        Stream::LegacyDefault,
        A1.into(),
        &place,
        SyncPolicy::Event,
    )
    .expect("an order");
    assert_eq!(script.count("cuPointerGetAttributes"), 0);
}

/// Memory of a pool names no context; size 0 has no pointer; both go to the primary context.
#[rstest]
#[case::pool_memory(0x9000, Some("cuPointerGetAttributes 0x9000"))]
#[case::size_zero(0, None)]
fn without_a_pointers_context_the_primary_one(
    script: Script,
    #[case] pointer: u64,
    #[case] query: Option<&str>,
) {
    script.device_memory(0x9000, 64, 1, 0).primary(1, CONTEXT_B);
    let place = Place::cuda(1, pointer);
    order(
        &script,
        Stream::LegacyDefault,
        A1.into(),
        &place,
        SyncPolicy::Event,
    )
    .expect("an order");
    let primary = ["cuDevicePrimaryCtxGetState 1", "cuDevicePrimaryCtxRetain 1"];
    let expected: Vec<_> = ["cuCtxGetCurrent"]
        .into_iter()
        .chain(query)
        .chain(primary)
        .collect();
    let calls = script.calls();
    assert_eq!(calls[..expected.len()], expected);
    assert_eq!(
        calls.last().map(String::as_str),
        Some("cuDevicePrimaryCtxRelease 1")
    );
    assert_eq!(
        (script.primary_count(1), script.current_now()),
        (1, CONTEXT_A)
    );
}

#[rstest]
fn an_ordinal_that_nobody_said_is_the_pointers(script: Script) {
    script.device_memory(0x9000, 64, 1, 0).primary(1, CONTEXT_B);
    let place = Place::cuda(-1, 0x9000);
    order(
        &script,
        Stream::LegacyDefault,
        A1.into(),
        &place,
        SyncPolicy::Event,
    )
    .expect("an order");
    assert_eq!(script.count("cuDevicePrimaryCtxRetain"), 1);
    assert_eq!(script.calls()[3], "cuDevicePrimaryCtxRetain 1");
}

#[rstest]
fn a_primary_context_is_not_brought_to_life(script: Script) {
    let place = Place::cuda(1, 0);
    let done = order(
        &script,
        Stream::LegacyDefault,
        A1.into(),
        &place,
        SyncPolicy::Event,
    );
    assert_eq!(failure(done), ("cuDevicePrimaryCtxGetState", Some(201)));
    assert_eq!(
        script.calls(),
        ["cuCtxGetCurrent", "cuDevicePrimaryCtxGetState 1"]
    );
}

#[rstest]
fn the_host_waits_for_the_stream(script: Script) {
    script.current(CONTEXT_B);
    let done = order(&script, A1, Request::Host, &PLACE, SyncPolicy::Event);
    assert!(
        matches!(done, Ok(Done::HostWait(Reason::HostReads))),
        "{done:?}"
    );
    assert_eq!(
        script.take_calls(),
        [
            "cuCtxGetCurrent",
            "cuStreamGetCtx 0xa1",
            "cuCtxPushCurrent 0xa",
            "cuStreamIsCapturing 0xa1",
            "cuStreamSynchronize 0xa1",
            "cuCtxPopCurrent",
        ]
    );
    synchronize(&script, A1, &PLACE).expect("the same by name");
    assert_eq!(script.count("cuStreamSynchronize"), 1);
    assert_eq!(script.current_now(), CONTEXT_B);
}

#[rstest]
fn the_policy_host_waits_instead_of_an_event(script: Script) {
    let done = order(&script, A1, A2.into(), &PLACE, SyncPolicy::Host);
    assert!(
        matches!(done, Ok(Done::HostWait(Reason::PolicyHost))),
        "{done:?}"
    );
    assert_eq!(script.count("cuStreamSynchronize"), 1);
    assert_eq!(script.count("cuEventRecord"), 0);
}

#[rstest]
#[case::shared(&[], true, "cuStreamSynchronize 0xa1", Reason::HostReads)]
#[case::exclusive(&[0], true, "cuCtxSynchronize", Reason::HostReadsExclusively)]
#[case::exclusive_elsewhere(&[1], true, "cuStreamSynchronize 0xa1", Reason::HostReads)]
#[case::not_managed(&[0], false, "cuStreamSynchronize 0xa1", Reason::HostReads)]
fn managed_memory_for_the_host(
    script: Script,
    #[case] exclusive: &[i32],
    #[case] is_managed: bool,
    #[case] wait: &str,
    #[case] reason: Reason,
) {
    if is_managed {
        script.managed(ARRAY);
    }
    for &ordinal in exclusive {
        script.exclusive_managed(ordinal);
    }
    let place = Place {
        may_be_managed: true,
        platform: Platform::HostReadable,
        ..PLACE
    };
    let done = order(&script, A1, Request::Host, &place, SyncPolicy::Event);
    assert_eq!(done.ok(), Some(Done::HostWait(reason)));
    let waits = |call: &&String| call.contains("Synchronize");
    assert_eq!(
        script.calls().iter().filter(waits).collect::<Vec<_>>(),
        [wait]
    );
    let on_a_stream = order(&script, A1, A2.into(), &place, SyncPolicy::Event);
    assert!(
        matches!(on_a_stream, Ok(Done::Event(_))),
        "a stream needs no exclusive access"
    );
}

#[rstest]
fn exclusive_managed_memory_ready_on_another_device(script: Script) {
    script.exclusive_managed(0).managed(ARRAY);
    let place = Place {
        may_be_managed: true,
        platform: Platform::HostReadable,
        ..PLACE
    };
    synchronize(&script, B1, &place).expect("both are waited for");
    assert_eq!(
        script.calls()[5..],
        [
            "cuStreamIsCapturing 0xb1",
            "cuCtxPopCurrent",
            "cuStreamIsCapturing 0x1",
            "cuStreamSynchronize 0xb1",
            "cuCtxSynchronize",
        ]
    );
    assert_eq!(script.current_now(), CONTEXT_A);
}

/// Of ready data too; a capture in that context is asked about first, and stays whole.
#[rstest]
fn exclusive_managed_memory_that_is_ready(script: Script) {
    script
        .exclusive_managed(0)
        .managed(ARRAY)
        .current(CONTEXT_B);
    let place = Place {
        may_be_managed: true,
        platform: Platform::HostReadable,
        requested: Defaults::OfCurrent,
        ..PLACE
    };
    synchronize(&script, Stream::None, &place).expect("the device is waited for");
    let calls = [
        "cuCtxGetCurrent",
        "cuPointerGetAttributes 0x7000",
        "cuDevicePrimaryCtxGetState 0",
        "cuCtxPushCurrent 0xa",
        "cuStreamIsCapturing 0x1",
        "cuCtxSynchronize",
        "cuCtxPopCurrent",
    ];
    assert_eq!(script.take_calls(), calls);
    script.captured(Stream::LegacyDefault, Capture::BlocksLegacy, 0);
    for ready in [Stream::None, A1] {
        assert_eq!(
            rule(synchronize(&script, ready, &place)),
            Rule::CaptureHostWait
        );
    }
    assert_eq!(
        (script.count("cuCtxSynchronize"), script.current_now()),
        (0, CONTEXT_B)
    );
    let none = Place {
        pointer: 0,
        ..place
    };
    assert!(
        !needed(Stream::None, Request::Host, &none, SyncPolicy::Event),
        "no elements"
    );
}

/// Whose the memory is does not matter: every device that wants managed memory to itself is waited for, in the contexts
/// that are known, each once; and whether one has a capture is asked of all of them first.
#[rstest]
#[case::of_another_device(&[1], &[CONTEXT_B])]
#[case::of_both(&[0, 1], &[CONTEXT_A, CONTEXT_B])]
fn managed_memory_that_other_devices_want(
    script: Script,
    #[case] exclusive: &[i32],
    #[case] waited: &[u64],
) {
    script
        .managed(ARRAY)
        .primary(0, CONTEXT_A)
        .primary(1, CONTEXT_B);
    for &ordinal in exclusive {
        script.exclusive_managed(ordinal);
    }
    let place = Place {
        may_be_managed: true,
        platform: Platform::HostReadable,
        ..PLACE
    };
    // The second time the primary contexts are known.
    for _ in 0..2 {
        synchronize(&script, Stream::None, &place).expect("the devices are waited for");
        let calls = script.take_calls();
        let contexts = contexts_at(&calls, CONTEXT_A).into_iter();
        let waits = contexts.filter(|(call, _)| *call == "cuCtxSynchronize");
        let found = waits.map(|(_, context)| context).collect::<Vec<_>>();
        assert_eq!(found, waited, "{calls:?}");
        assert_eq!(
            (script.primary_count(0), script.primary_count(1)),
            (1, 1),
            "given back"
        );
    }
    script.captured(Stream::LegacyDefault, Capture::BlocksLegacy, 0);
    let refused = synchronize(&script, Stream::None, &place);
    assert_eq!(rule(refused), Rule::CaptureHostWait);
    assert_eq!(script.count("cuCtxSynchronize"), 0);
}

/// A capture in any context that would be waited for refuses, not in the first alone.
#[rstest]
#[case::in_the_first(A2)]
#[case::in_the_second(B1)]
fn a_capture_in_any_context_that_is_waited_for_refuses(script: Script, #[case] captured: Stream) {
    script
        .managed(ARRAY)
        .primary(0, CONTEXT_A)
        .primary(1, CONTEXT_B)
        .exclusive_managed(0)
        .exclusive_managed(1)
        .captured(captured, Capture::Active, 7);
    let place = Place {
        may_be_managed: true,
        platform: Platform::HostReadable,
        producers: [A2, B1],
        ..PLACE
    };
    let refused = synchronize(&script, Stream::None, &place);
    assert_eq!(rule(refused), Rule::CaptureHostWait);
    assert_eq!(script.count("cuCtxSynchronize"), 0);
}

/// The legacy stream does not tell of the capture of a non-blocking stream: the producer's is asked, if it is of that
/// context, and the one on which it works now.
#[rstest]
#[case::producer(A2, &["cuStreamGetCtx 0xa2", "cuStreamIsCapturing 0xa2"])]
#[case::of_another_context(B1, &["cuStreamGetCtx 0xb1"])]
#[case::ready(A1, &[])]
#[case::default(Stream::PerThreadDefault, &[])]
#[case::unknown(Stream::None, &[])]
fn a_wait_for_a_context_asks_about_the_producers_stream(
    script: Script,
    #[case] producer: Stream,
    #[case] asked: &[&str],
    #[values(false, true)] has_moved: bool,
) {
    script.exclusive_managed(0).managed(ARRAY);
    let (first, second) = match has_moved {
        true => (A1, producer),
        false => (producer, Stream::None),
    };
    let place = Place {
        may_be_managed: true,
        producers: [first, second],
        ..PLACE
    };
    synchronize(&script, A1, &place).expect("nothing is captured");
    let calls = script.take_calls();
    let before = calls.iter().position(|call| call.ends_with("0x1"));
    let after = &calls[before.expect("the legacy stream is asked") + 1..];
    assert_eq!(after[..after.len() - 1], *asked);
    assert_eq!(after[after.len() - 1], "cuCtxSynchronize");
    script.captured(A2, Capture::Active, 7);
    let beside = synchronize(&script, A1, &place);
    assert_eq!(beside.is_err(), producer == A2);
}

#[rstest]
fn a_retained_primary_context_is_given_back_on_the_error_path(script: Script) {
    script.primary(1, CONTEXT_B);
    let destroyed = Stream::from_raw(0xdead);
    let place = Place::cuda(1, 0);
    let done = order(
        &script,
        destroyed,
        LEGACY_REQUEST,
        &place,
        SyncPolicy::Event,
    );
    assert_eq!(failure(done), ("cuStreamGetCtx", Some(400)));
    assert_eq!(
        (
            script.count("cuDevicePrimaryCtxRetain"),
            script.primary_count(1)
        ),
        (1, 1)
    );
}

/// What the driver answers for (ready, requested), the captures' numbers, and what must come of it.
#[rstest]
#[case::both_in_one(Capture::Active, 7, Capture::Active, 7, None)]
#[case::different(Capture::Active, 7, Capture::Active, 8, Some(Rule::CaptureOther))]
#[case::only_ready(Capture::Active, 7, Capture::Idle, 0, Some(Rule::CaptureProducer))]
#[case::only_requested(Capture::Idle, 0, Capture::Active, 7, Some(Rule::CaptureConsumer))]
#[case::ready_broken(Capture::Invalidated, 7, Capture::Idle, 0, Some(Rule::CaptureInvalid))]
#[case::requested_broken(Capture::Idle, 0, Capture::Invalidated, 7, Some(Rule::CaptureInvalid))]
fn captures(
    script: Script,
    #[case] ready: Capture,
    #[case] ready_id: u64,
    #[case] requested: Capture,
    #[case] requested_id: u64,
    #[case] refused: Option<Rule>,
    #[values(SyncPolicy::Event, SyncPolicy::Host)] policy: SyncPolicy,
) {
    script
        .captured(A1, ready, ready_id)
        .captured(A2, requested, requested_id);
    script.current(CONTEXT_B);
    let done = order(&script, A1, A2.into(), &PLACE, policy);
    match refused {
        None => assert!(
            matches!(done, Ok(Done::InGraph(Reason::SameCapture, _))),
            "{done:?}"
        ),
        Some(expected) => {
            assert_eq!(rule(done), expected);
            assert_only_asked(&script);
        }
    }
    let both = (ready, requested) == (Capture::Active, Capture::Active);
    assert_eq!(
        script.count("cuStreamGetCaptureInfo"),
        if both { 2 } else { 0 }
    );
    assert_eq!(script.current_now(), CONTEXT_B);
}

/// No call that a capture could feel, and no host wait.
fn assert_only_asked(script: &Script) {
    let asking = [
        "cuStreamGetCtx",
        "cuCtxGetCurrent",
        "cuCtxPushCurrent",
        "cuCtxSetCurrent",
        "cuCtxPopCurrent",
        "cuStreamIsCapturing",
        "cuStreamGetCaptureInfo",
        "cuPointerGetAttributes",
    ];
    for call in script.calls() {
        let name = call.split(' ').next().unwrap_or_default();
        assert!(asking.contains(&name), "{call} after a refusal");
    }
}

#[rstest]
fn inside_consume_a_stream_may_enter_the_capture(script: Script) {
    script.captured(A1, Capture::Active, 7);
    let done = order_within(&script, A1, A2.into(), back(A1), &PLACE, SyncPolicy::Event);
    assert!(
        matches!(done, Ok(Done::InGraph(Reason::ForkFromCapture, _))),
        "{done:?}"
    );
    // The driver now counts the consumer's stream to the capture; the return edge is an event in it.
    script.captured(A2, Capture::Active, 7);
    let back = by_event(&script, A2, A1);
    assert!(
        matches!(back, Ok(Done::InGraph(Reason::SameCapture, _))),
        "{back:?}"
    );
}

/// Nested blocks: the ready stream is a consumer's, and the producer's is in the same capture, or is not.
#[rstest]
#[case::the_same(A2, 7, true)]
#[case::another(A2, 8, false)]
#[case::none(A2, 0, false)]
#[case::a_default_stream(Stream::PerThreadDefault, 7, true)]
fn inside_consume_a_stream_may_come_back_to_another(
    script: Script,
    #[case] producer: Stream,
    #[case] id: u64,
    #[case] enters: bool,
) {
    let state = if id == 0 {
        Capture::Idle
    } else {
        Capture::Active
    };
    script
        .captured(A1, Capture::Active, 7)
        .captured(producer, state, id);
    script.current(CONTEXT_B);
    let done = order_within(
        &script,
        A1,
        B1.into(),
        back(producer),
        &PLACE,
        SyncPolicy::Event,
    );
    match enters {
        true => assert_eq!(done.ok(), Some(Done::InGraph(Reason::ForkFromCapture, 7))),
        false => {
            assert_eq!(rule(done), Rule::CaptureProducer);
            assert_only_asked(&script);
        }
    }
    assert_eq!(script.current_now(), CONTEXT_B);
}

/// A capture on a thread's default stream, and a producer's stream with a handle in it: the question is asked in the
/// ready stream's context, whatever is current.
#[rstest]
fn inside_consume_a_default_stream_may_come_back_to_a_handle(
    script: Script,
    #[values(7, 8)] id: u64,
    #[values(CONTEXT_A, CONTEXT_B)] current: u64,
) {
    let ready = Stream::PerThreadDefault;
    script
        .captured(ready, Capture::Active, 7)
        .captured(A1, Capture::Active, id)
        .current(current);
    let done = order_within(
        &script,
        ready,
        A2.into(),
        back(A1),
        &PLACE,
        SyncPolicy::Event,
    );
    match id {
        7 => assert_eq!(done.ok(), Some(Done::InGraph(Reason::ForkFromCapture, 7))),
        _ => assert_eq!(rule(done), Rule::CaptureProducer),
    }
    assert_eq!(script.current_now(), current);
}

/// Only that a thread and its memory have no context is no answer; another refusal of the driver is one.
#[rstest]
fn a_thread_without_a_context_reports_why_the_arrays_is_not_found(script: Script) {
    script.current(0).fault("cuPointerGetAttributes", 0, 999);
    let failed = failure(by_event(&script, A1, A2));
    assert_eq!(failed, ("cuPointerGetAttributes", Some(999)));
    assert_eq!(script.count("cuStreamGetCtx"), 0);
}

const fn back(stream: Stream) -> Option<Back> {
    Some(Back {
        stream,
        whose: Defaults::OfMemory,
    })
}

#[rstest]
fn inside_consume_the_legacy_stream_may_not_enter(script: Script) {
    script.captured(A1, Capture::Active, 7);
    let done = order_within(
        &script,
        A1,
        LEGACY_REQUEST,
        back(A1),
        &PLACE,
        SyncPolicy::Event,
    );
    assert_eq!(rule(done), Rule::CaptureLegacy);
    assert_only_asked(&script);
}

const LEGACY_REQUEST: Request = Request::Stream(Stream::LegacyDefault);

/// The driver answers `CUDA_ERROR_STREAM_CAPTURE_IMPLICIT` for the legacy stream.
#[rstest]
#[case::ready(Stream::LegacyDefault, Request::Stream(A1))]
#[case::requested(A1, LEGACY_REQUEST)]
#[case::host(Stream::LegacyDefault, Request::Host)]
fn the_legacy_stream_beside_a_capture(
    script: Script,
    #[case] ready: Stream,
    #[case] request: Request,
) {
    script.captured(Stream::LegacyDefault, Capture::BlocksLegacy, 0);
    let done = order(&script, ready, request, &PLACE, SyncPolicy::Event);
    assert_eq!(rule(done), Rule::CaptureLegacy);
    assert_only_asked(&script);
}

#[rstest]
fn the_host_does_not_wait_for_a_capture(script: Script) {
    script.captured(A1, Capture::Active, 7);
    assert_eq!(
        rule(synchronize(&script, A1, &PLACE)),
        Rule::CaptureHostWait
    );
    assert_only_asked(&script);
}

#[rstest]
fn rocm_is_refused_by_name_and_equal_streams_are_not(script: Script) {
    let place = Place {
        platform: Platform::Rocm,
        ..PLACE
    };
    let done = order(&script, A1, A2.into(), &place, SyncPolicy::Event);
    assert_eq!(rule(done), Rule::RocmOrder);
    assert!(order(&script, A1, A1.into(), &place, SyncPolicy::Event).is_ok());
    assert_eq!(script.calls(), [""; 0]);
}

#[rstest]
fn a_per_thread_stream_of_another_thread(script: Script) {
    let elsewhere = std::thread::spawn(Thread::current)
        .join()
        .expect("a thread");
    let theirs = Place {
        thread: Some(elsewhere),
        ..PLACE
    };
    let ours = Place {
        thread: Some(Thread::current()),
        ..PLACE
    };
    let per_thread = Request::Stream(Stream::PerThreadDefault);
    for request in [per_thread, Request::Stream(A1), Request::Host] {
        assert!(needed(
            Stream::PerThreadDefault,
            request,
            &theirs,
            SyncPolicy::Event
        ));
        let done = order(
            &script,
            Stream::PerThreadDefault,
            request,
            &theirs,
            SyncPolicy::Event,
        );
        assert_eq!(rule(done), Rule::StreamThread, "{request}");
    }
    assert_eq!(script.calls(), [""; 0]);
    assert!(!needed(
        Stream::PerThreadDefault,
        per_thread,
        &ours,
        SyncPolicy::Event
    ));
    let done = order(
        &script,
        Stream::PerThreadDefault,
        A1.into(),
        &ours,
        SyncPolicy::Event,
    );
    assert!(matches!(done, Ok(Done::Event(_))), "{done:?}");
    assert!(
        order(&script, A1, A2.into(), &theirs, SyncPolicy::Event).is_ok(),
        "only stream 2 has a thread"
    );
}

/// Each call fails once: the error names it, the context is put back, no event leaks.
#[rstest]
#[case::get_context("cuStreamGetCtx", 0)]
#[case::get_current("cuCtxGetCurrent", 0)]
#[case::push_current("cuCtxPushCurrent", 0)]
#[case::ask_ready("cuStreamIsCapturing", 0)]
#[case::ask_requested("cuStreamIsCapturing", 1)]
#[case::get_id("cuCtxGetId", 0)]
#[case::create("cuEventCreate", 0)]
#[case::record("cuEventRecord", 0)]
#[case::wait("cuStreamWaitEvent", 0)]
fn a_call_that_fails(script: Script, #[case] call: &'static str, #[case] after: u32) {
    script.current(CONTEXT_B).fault(call, after, 719);
    let done = by_event(&script, A1, A2);
    assert_eq!(failure(done), (call, Some(719)));
    assert_eq!(script.current_now(), CONTEXT_B);
    assert_eq!(
        script.events_alive(),
        script.pool.len(),
        "an event is idle or destroyed"
    );
    assert!(
        by_event(&script, A1, A2).is_ok(),
        "and the next order works"
    );
    assert_eq!(script.events_alive(), 1);
}

/// The order is made by then: one refusal of the caller's context changes nothing of it.
#[rstest]
fn a_context_that_cannot_be_put_back_is_reported(script: Script, #[values(1, 2)] refusals: usize) {
    script.current(CONTEXT_B);
    for _ in 0..refusals {
        script.fault("cuCtxPopCurrent", 0, 4);
    }
    let done = by_event(&script, A1, A2);
    match refusals {
        1 => assert_eq!(
            done.expect("an order"),
            Done::Event(Reason::DifferentStreams)
        ),
        _ => assert_eq!(failure(done), ("cuCtxPopCurrent", Some(4))),
    }
    assert_eq!(script.current_now(), CONTEXT_B);
    assert_eq!(
        script.count("cuStreamWaitEvent"),
        1,
        "the order itself was made"
    );
}

#[rstest]
fn the_first_error_is_the_one_reported(script: Script) {
    script
        .current(CONTEXT_B)
        .fault("cuEventRecord", 0, 719)
        .fault("cuCtxPopCurrent", 0, 4);
    assert_eq!(
        failure(by_event(&script, A1, A2)),
        ("cuEventRecord", Some(719))
    );
}

#[rstest]
#[case::ready(Stream::from_raw(0xdead), A1, "cuStreamGetCtx")]
#[case::requested(A1, Stream::from_raw(0xdead), "cuStreamIsCapturing")]
fn a_destroyed_stream(
    script: Script,
    #[case] ready: Stream,
    #[case] requested: Stream,
    #[case] call: &str,
) {
    script.current(CONTEXT_B);
    assert_eq!(
        failure(by_event(&script, ready, requested)),
        (call, Some(400))
    );
    assert_eq!(
        (script.current_now(), script.count("cuEventRecord")),
        (CONTEXT_B, 0)
    );
}

#[rstest]
fn a_pool_whose_context_was_replaced_is_forgotten(script: Script) {
    by_event(&script, A1, A2).expect("fills the pool");
    script.replace_context(CONTEXT_A);
    script.take_calls();
    by_event(&script, A1, A2).expect("with an event of the new context");
    assert_eq!(script.count("cuEventCreate"), 1);
    assert_eq!(
        script.count("cuEventRecord"),
        1,
        "no attempt with a dead event"
    );
    assert_eq!(
        script.count("cuEventDestroy"),
        0,
        "its handle may be somebody else's by now"
    );
    assert_eq!((script.pool.len(), script.events_alive()), (1, 1));
}

#[rstest]
fn a_dead_event_is_replaced_once(script: Script) {
    by_event(&script, A1, A2).expect("fills the pool");
    script.kill_events(CONTEXT_A).take_calls();
    by_event(&script, A1, A2).expect("the retry");
    assert_eq!(
        script.calls()[4..],
        [
            "cuCtxGetId 0xa",
            "cuEventRecord 0xe001 0xa1",
            "cuEventCreate",
            "cuEventRecord 0xe002 0xa1",
            "cuEventRecord 0xe001 0xa1",
            "cuStreamWaitEvent 0xa2 0xe002",
        ]
    );
    script.kill_events(CONTEXT_A).fault("cuEventRecord", 1, 400);
    assert_eq!(
        failure(by_event(&script, A1, A2)),
        ("cuEventRecord", Some(400)),
        "once, not for ever"
    );
    assert_eq!(script.events_alive(), 0);
}

#[rstest]
fn a_busy_event_error_keeps_the_pool(script: Script) {
    by_event(&script, A1, A2).expect("fills the pool");
    script.fault("cuEventRecord", 0, 700);
    assert_eq!(
        failure(by_event(&script, A1, A2)),
        ("cuEventRecord", Some(700))
    );
    assert_eq!((script.pool.len(), script.events_alive()), (1, 1));
}

#[rstest]
fn each_context_has_its_own_events(script: Script) {
    by_event(&script, A1, A2).expect("context A");
    by_event(&script, B1, A2).expect("context B");
    by_event(&script, A1, B1).expect("context A again");
    assert_eq!((script.count("cuEventCreate"), script.pool.len()), (2, 2));
}

#[rstest]
#[case::device(DeviceType::CUDA, 1, Platform::Cuda, 1, true)]
#[case::pinned(DeviceType::CUDA_HOST, 0, Platform::HostReadable, -1, false)]
#[case::managed(DeviceType::CUDA_MANAGED, 0, Platform::HostReadable, -1, true)]
#[case::rocm(DeviceType::ROCM, 2, Platform::Rocm, 2, false)]
#[case::cpu(DeviceType::CPU, 0, Platform::Host, -1, false)]
fn places_of_devices(
    #[case] device_type: DeviceType,
    #[case] id: i32,
    #[case] platform: Platform,
    #[case] ordinal: i32,
    #[case] managed: bool,
) {
    let place = Place::new(Device { device_type, id }, ARRAY);
    assert_eq!(
        (place.platform, place.ordinal, place.may_be_managed),
        (platform, ordinal, managed)
    );
    assert_eq!(
        (place.pointer, place.ready, place.thread),
        (ARRAY, Defaults::OfMemory, None)
    );
}

/// Whatever the memory, the devices, the streams and captures: what is foreseen is what is done, and is asked no more.
#[cfg(feature = "pyo3")]
#[test]
fn what_is_foreseen_is_what_is_done() {
    const STREAMS: [Stream; 5] = [Stream::None, A1, A2, B1, Stream::LegacyDefault];
    const REQUESTS: [Request; 4] = [
        Request::Host,
        Request::NoSync,
        Request::Stream(A1),
        Request::Stream(A2),
    ];
    let devices: [&[i32]; 4] = [&[], &[0], &[1], &[0, 1]];
    let policies = [SyncPolicy::Event, SyncPolicy::Host, SyncPolicy::None];
    for number in 0..2 * 2 * 2 * 4 * 5 * 4 * 3 {
        let mut rest = number;
        let mut choose = |of: usize| {
            let chosen = rest % of;
            rest /= of;
            chosen
        };
        let (may_be, is_managed, is_captured) = (choose(2) > 0, choose(2) > 0, choose(2) > 0);
        let (exclusive, ready) = (devices[choose(4)], STREAMS[choose(5)]);
        let (request, policy) = (REQUESTS[choose(4)], policies[choose(3)]);
        let place = Place {
            may_be_managed: may_be,
            platform: if may_be {
                Platform::HostReadable
            } else {
                PLACE.platform
            },
            ..PLACE
        };
        let case = format!(
            "{place:?} {is_managed} {is_captured} {exclusive:?} {ready:?} {request:?} {policy:?}"
        );
        let [for_plan, for_work] = [(); 2].map(|()| {
            let script = script();
            for &each in exclusive {
                script.exclusive_managed(each);
            }
            if is_managed {
                script.managed(ARRAY);
            }
            if is_captured {
                script.captured(A1, Capture::Active, 7);
            }
            script
        });
        let plan = foresee(Some(&for_plan), ready, request, &place, policy);
        let done = order(&for_work, ready, request, &place, policy);
        match (plan, done) {
            (Ok(Plan::Nothing(reason)), Ok(Done::Nothing(done))) => {
                assert_eq!(reason, done, "{case}")
            }
            (Ok(Plan::Event { reason, .. }), Ok(Done::Event(done))) => {
                assert_eq!(reason, done, "{case}")
            }
            (Ok(Plan::HostWait { reason, .. }), Ok(Done::HostWait(done))) => {
                assert_eq!(reason, done, "{case}")
            }
            (Ok(Plan::Refuse(refused)), Err(Error::Violation(done))) => {
                assert_eq!(refused.rule(), done.rule(), "{case}");
            }
            (Err(refused), Err(done)) => {
                assert_eq!(refused.to_string(), done.to_string(), "{case}")
            }
            (plan, done) => panic!("{case}: {plan:?} and {done:?}"),
        }
        let (asked, calls) = (for_plan.take_calls(), for_work.take_calls());
        assert!(
            asked.len() <= calls.len(),
            "{case}: {asked:?} and {calls:?}"
        );
    }
}

/// Eight threads, two contexts, one pool: nobody ever records an event that another one holds.
#[test]
fn threads_share_the_pool() {
    let script = Script::new();
    script
        .stream(0xa1, CONTEXT_A)
        .stream(0xa2, CONTEXT_A)
        .stream(0xb1, CONTEXT_B);
    let rounds = if cfg!(miri) { 5 } else { 200 };
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let script = &script;
            scope.spawn(move || {
                script.current(CONTEXT_A);
                let ready = if thread % 2 == 0 { A1 } else { B1 };
                for _ in 0..rounds {
                    by_event(script, ready, A2).expect("an order");
                }
                assert_eq!(script.current_now(), CONTEXT_A);
            });
        }
    });
    assert_eq!(script.count("cuEventRecord"), 8 * rounds);
    assert!(
        script.count("cuEventCreate") <= 8,
        "one event for each thread at most"
    );
    assert_eq!(script.pool.len(), script.events_alive());
    assert_no_event_is_recorded_while_out(&script.calls());
}

/// Between an event's record and its wait no other record of it may come.
fn assert_no_event_is_recorded_while_out(calls: &[String]) {
    let mut out = Vec::new();
    for call in calls {
        let words: Vec<_> = call.split(' ').collect();
        match words[..] {
            ["cuEventRecord", event, _] => {
                assert!(!out.contains(&event), "{event} recorded twice");
                out.push(event);
            }
            ["cuStreamWaitEvent", _, event] => out.retain(|held| *held != event),
            _ => {}
        }
    }
}

#[rstest]
fn the_pointer_query_is_one_call_with_and_without_bounds(script: Script) {
    let info = script.pointer_info(ARRAY, false).expect("a query");
    assert_eq!(info.range, None);
    let info: PointerInfo = script.pointer_info(ARRAY, true).expect("a query");
    assert_eq!(info.range, Some((ARRAY, 64)));
    assert_eq!(script.calls().len(), 2);
}
