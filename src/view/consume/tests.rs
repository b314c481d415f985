//! The way back to the producer: every pair of streams, contexts and threads against what the protocol asks for.

use std::thread;

use super::*;
use crate::driver::script::{self, Script, context, contexts_at};
use crate::driver::{MemoryKind, PointerInfo};
use crate::protocol::descriptor::{Descriptor, RawTensor};
use crate::protocol::device::{Device, DeviceType};
use crate::view::Owner;

const ARRAY: u64 = 0x7000;
const CONTEXTS: [u64; 2] = [0xa, 0xb];
const STREAMS: [Stream; 5] = [
    Stream::None,
    Stream::LegacyDefault,
    Stream::PerThreadDefault,
    Stream::from_raw(0xa1),
    Stream::from_raw(0xa2),
];

/// Memory of the first context; managed memory is reached from both.
fn script() -> &'static Script {
    let script = Script::leak();
    let info = PointerInfo {
        kind: MemoryKind::Managed,
        ordinal: 0,
        device_pointer: ARRAY,
        host_pointer: ARRAY,
        context: Some(context(CONTEXTS[0])),
        range: None,
        mapped: true,
    };
    script
        .stream(0xa1, CONTEXTS[0])
        .stream(0xa2, CONTEXTS[0])
        .primary(0, CONTEXTS[0])
        .pointer(ARRAY, info);
    script
}

fn view(device_type: DeviceType, ready: Stream) -> CaiView {
    let descriptor = Descriptor::new(&RawTensor {
        data: ARRAY,
        device: Device::new(device_type, 0),
        shape: &[4],
        ..RawTensor::EXAMPLE
    });
    let descriptor = descriptor.expect("a valid tensor");
    // SAFETY: nothing reads the memory; the scripted driver follows no stream.
    unsafe { CaiView::new(descriptor, ready, Owner::new(())) }
}

/// Runs `work` here or on another thread, with a context that is current there.
fn run<R: Send>(
    script: &'static Script,
    of: u64,
    elsewhere: bool,
    work: impl FnOnce() -> R + Send,
) -> R {
    let work = || {
        let _installed = script::install(script);
        script.current(of);
        work()
    };
    match elsewhere {
        false => work(),
        true => thread::scope(|scope| scope.spawn(work).join()).expect("a thread that ends well"),
    }
}

/// The edge that the pair needs. A default stream of managed memory is the one of the context that is current where it
/// is named; of device memory, the one of the memory's context.
fn expected(
    is_managed: bool,
    producer: Option<Stream>,
    consumer: Stream,
    is_one_context: bool,
) -> ReturnEdge {
    match producer {
        None => ReturnEdge::Unknown,
        Some(Stream::None) => ReturnEdge::NotNeeded,
        Some(_) if consumer == Stream::None => ReturnEdge::SameStream,
        Some(producer) if producer != consumer => ReturnEdge::Event,
        Some(_) if consumer.is_default() && is_managed && !is_one_context => ReturnEdge::Event,
        Some(_) => ReturnEdge::SameStream,
    }
}

/// The context that is current where the event is recorded, if this one is at the first call.
fn recorded_in(calls: &[String], current: u64) -> u64 {
    let contexts = contexts_at(calls, current).into_iter();
    let mut records = contexts.filter(|(call, _)| call.starts_with("cuEventRecord"));
    let (_, context) = records.next().expect("something is recorded");
    context
}

#[test]
fn the_producer_waits_if_and_only_if_its_stream_is_another_one() {
    let producers = || STREAMS.into_iter().map(Some).chain([None]);
    for is_managed in [false, true] {
        let device_type = [DeviceType::CUDA, DeviceType::CUDA_MANAGED][usize::from(is_managed)];
        for (producer, consumer) in producers().flat_map(|one| STREAMS.map(|other| (one, other))) {
            for (made_in, used_in) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                for elsewhere in [false, true] {
                    let what = format!(
                        "{is_managed} {producer:?} {consumer:?} {made_in} {used_in} {elsewhere}"
                    );
                    let script = script();
                    let ready = producer.unwrap_or(Stream::LegacyDefault);
                    let made = run(script, CONTEXTS[made_in], elsewhere, || {
                        let view = view(device_type, ready);
                        match producer {
                            Some(producer) => view.on_producer(producer),
                            None => view,
                        }
                    });
                    let edge = run(script, CONTEXTS[used_in], false, || {
                        let guard = made.consume_with(consumer, SyncPolicy::Event)?;
                        script.take_calls();
                        let edge = guard.return_edge();
                        guard.finish().map(|ended| (edge, ended))
                    });
                    let waits = script.count("cuStreamWaitEvent");
                    let calls = script.take_calls();
                    if elsewhere && producer == Some(Stream::PerThreadDefault) {
                        let Err(Error::Violation(refused)) = edge else {
                            panic!("{what}: {edge:?}");
                        };
                        assert_eq!(refused.rule(), Rule::StreamThread, "{what}");
                        continue;
                    }
                    let (edge, ended) = edge.unwrap_or_else(|error| panic!("{what}: {error}"));
                    let wanted = expected(is_managed, producer, consumer, made_in == used_in);
                    assert_eq!((edge, ended), (wanted, wanted), "{what}");
                    assert_eq!(waits, usize::from(wanted == ReturnEdge::Event), "{what}");
                    if waits > 0 {
                        let is_current = is_managed && consumer.is_default();
                        let of = CONTEXTS[if is_current { used_in } else { 0 }];
                        assert_eq!(recorded_in(&calls, CONTEXTS[used_in]), of, "{what}");
                    }
                }
            }
        }
    }
}

/// A single refusal proves nothing: what a dropped guard makes is tried twice.
#[test]
fn a_dropped_guard_is_refused_by_two_refusals() {
    for (refusals, waits, is_refused) in [(1, 0, false), (2, 0, false), (2, 1, false), (2, 2, true)]
    {
        let script = script();
        let _installed = script::install(script);
        script.current(CONTEXTS[0]);
        let view = view(DeviceType::CUDA, STREAMS[3]).on_producer(STREAMS[3]);
        let guard = view.consume_with(STREAMS[4], SyncPolicy::Event);
        let mut guard = guard.expect("an order");
        for (call, refused) in [
            ("cuStreamWaitEvent", refusals),
            ("cuStreamSynchronize", waits),
        ] {
            (0..refused).for_each(|_| _ = script.fault(call, 0, 999));
        }
        let ended = guard.end_dropped();
        let what = format!("{refusals} {waits}: {ended}");
        assert_eq!(
            matches!(ended, dropped::Dropped::Refused(..)),
            is_refused,
            "{what}"
        );
        assert_eq!(
            matches!(ended, dropped::Dropped::Edge),
            refusals == 1,
            "{what}"
        );
    }
}

/// A guard ends once, and the counters of opened and ended guards come back to each other.
#[test]
fn a_guard_that_fails_makes_the_host_wait_instead() {
    for call in ["cuEventRecord", "cuStreamWaitEvent"] {
        let script = script();
        let _installed = script::install(script);
        script.current(CONTEXTS[0]);
        let view = view(DeviceType::CUDA, STREAMS[3]).on_producer(STREAMS[3]);
        let guard = view
            .consume_with(STREAMS[4], SyncPolicy::Event)
            .expect("an order");
        script.take_calls();
        script.fault(call, 0, 999).fault(call, 0, 999);
        drop(guard);
        assert_eq!(script.count(call), 2, "twice");
        assert_eq!(
            script.count("cuStreamSynchronize"),
            1,
            "{call}: {:?}",
            script.calls()
        );
        assert!(
            script
                .calls()
                .contains(&"cuStreamSynchronize 0xa2".to_owned())
        );
    }
}

/// `return_edge` refuses where the end would: on a thread that cannot name a stream of the edge.
#[test]
fn an_end_that_this_thread_cannot_make_is_foreseen() {
    let script = script();
    let foreseen = |elsewhere: bool, policy: SyncPolicy| {
        let made = run(script, CONTEXTS[0], elsewhere, || {
            view(DeviceType::CUDA, Stream::PerThreadDefault).on_producer(Stream::PerThreadDefault)
        });
        run(script, CONTEXTS[0], false, || {
            let consumer = made.consumer(Placed::here(Stream::from_raw(0xa1)), None, policy);
            made.return_edge(consumer)
        })
    };
    let edge = foreseen(false, SyncPolicy::Event).expect("this thread's own stream");
    assert_eq!(edge, ReturnEdge::Event);
    let Err(Error::Violation(refused)) = foreseen(true, SyncPolicy::Event) else {
        panic!("another thread's stream is no stream here");
    };
    assert_eq!(refused.rule(), Rule::StreamThread);
    let unordered = foreseen(true, SyncPolicy::None).expect("no edge is made");
    assert_eq!(unordered, ReturnEdge::Event);
}

/// A guard that is dropped where its consumer's stream has no number: the legacy default stream waits for all threads' own.
#[test]
fn a_guard_of_another_thread_s_stream_ends_on_the_legacy_one() {
    let script = script();
    let guard = run(script, CONTEXTS[0], true, || {
        let view = view(DeviceType::CUDA, STREAMS[3]).on_producer(STREAMS[3]);
        let guard = view.consume_with(Stream::PerThreadDefault, SyncPolicy::Event);
        guard.expect("an order")
    });
    script.take_calls();
    run(script, CONTEXTS[0], false, || drop(guard));
    let calls = script.take_calls();
    let recorded: Vec<_> = calls
        .iter()
        .filter(|call| call.starts_with("cuEventRecord"))
        .collect();
    assert!(
        matches!(&recorded[..], [one] if one.ends_with(" 0x1")),
        "{calls:?}"
    );
}

/// In a block the view is ready on the consumer's stream, and data that is ready everywhere stays so.
#[test]
fn a_block_reads_where_its_consumer_is() {
    let script = script();
    let _installed = script::install(script);
    script.current(CONTEXTS[0]);
    for (ready, expected) in [(STREAMS[3], STREAMS[4]), (Stream::None, Stream::None)] {
        let view = view(DeviceType::CUDA, ready);
        let guard = view.consume_with(STREAMS[4], SyncPolicy::Event);
        let mut guard = guard.expect("an order");
        assert_eq!(guard.view.ready_number(), expected);
        guard.end_dropped();
    }
}

/// Each way in which a dropped guard ends is told in other words.
#[test]
fn how_a_dropped_guard_has_ended_is_told() {
    use dropped::Dropped;
    let refused = || Error::from(Violation::new(Rule::StreamThread, Field::CaiStream, 2));
    let told = [
        Dropped::Edge,
        Dropped::HostWaited(None),
        Dropped::HostWaited(Some(refused())),
        Dropped::NotNeeded,
        Dropped::Nothing("why"),
        Dropped::Refused(refused(), refused()),
    ]
    .map(|dropped| dropped.to_string());
    for (at, text) in told.iter().enumerate() {
        assert!(!text.is_empty() && !told[..at].contains(text), "{text:?}");
    }
    assert!(told[4].ends_with("why"));
    let refusals = [2, 5].map(|at: usize| told[at].matches(&refused().to_string()).count());
    assert_eq!(refusals, [1, 2]);
}
