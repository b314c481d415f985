//! Return edges of producers that have moved, on the scripted driver.

use std::cell::Cell;

use super::*;
use crate::driver::script::{self, Script, context};
use crate::protocol::descriptor::{Descriptor, RawTensor};
use crate::protocol::rule::Rule;
use crate::protocol::stream::Capture;
use crate::view::streams::Streams;
use crate::view::worker::set_ask;
use crate::view::{LiveStream, Owner, ReturnEdge};

const ARRAY: u64 = 0x7000;
const CONTEXT: u64 = 0xa;
const IMPORT: u64 = 0xa1;
const NOW: u64 = 0xa2;
const CONSUMER: u64 = 0xa3;
const BETWEEN: u64 = 0xa4;

thread_local! {
    /// What the producer returns when it is asked on this thread; `None` for an exception.
    static ANSWER: Cell<Option<u64>> = const { Cell::new(None) };
    /// The context that its code makes current.
    static LEFT_CURRENT: Cell<Option<Context>> = const { Cell::new(None) };
}

fn answer(_: Worker, device: Device) -> Result<Option<Stream>, Error> {
    assert_eq!(device, Device::cuda(0));
    if let context @ Some(_) = LEFT_CURRENT.get() {
        driver::driver()?.set_current_context(context)?;
    }
    match ANSWER.get() {
        Some(now) => Ok(Some(Stream::from_raw(now))),
        None => Err(Error::Producer("raised".into())),
    }
}

/// A view that was imported while its producer worked on `IMPORT`.
fn view() -> CaiView {
    view_on(IMPORT)
}

fn view_on(stream: u64) -> CaiView {
    set_ask(answer);
    ANSWER.set(Some(stream));
    let descriptor = Descriptor::new(&RawTensor {
        data: ARRAY,
        shape: &[4],
        ..RawTensor::EXAMPLE
    });
    let descriptor = descriptor.expect("a valid tensor");
    // SAFETY: nothing reads the memory; the scripted driver follows no stream.
    let mut view = unsafe { CaiView::new(descriptor, Stream::None, Owner::new(())) };
    view.streams = Streams::of_worker(stream, Worker::of_nothing());
    view
}

fn script() -> &'static Script {
    let script = Script::leak();
    for stream in [IMPORT, NOW, CONSUMER, BETWEEN] {
        script.stream(stream, CONTEXT);
    }
    script.device_memory(ARRAY, 64, 0, CONTEXT).current(CONTEXT);
    script
}

fn live(stream: u64) -> LiveStream<'static> {
    // SAFETY: the scripted driver follows no stream.
    unsafe { LiveStream::new(Stream::from_raw(stream)) }
}

/// The streams that were made to wait since the last question.
fn waits(script: &Script) -> Vec<u64> {
    let calls = script.take_calls();
    let waits = calls
        .iter()
        .filter_map(|call| call.strip_prefix("cuStreamWaitEvent 0x"));
    let stream = |call: &str| {
        call.split(' ')
            .next()
            .map(|hex| u64::from_str_radix(hex, 16))
    };
    waits
        .filter_map(stream)
        .collect::<Result<_, _>>()
        .expect("a stream")
}

#[test]
fn both_streams_of_a_producer_wait() -> Result<(), Error> {
    let script = script();
    let _installed = script::install(script);
    let view = view();
    for lent in [view.clone(), view.on(live(BETWEEN))?, view.synchronize()?] {
        for moves_late in [false, true] {
            ANSWER.set(Some(if moves_late { IMPORT } else { NOW }));
            let guard = lent.consume(live(CONSUMER))?;
            assert_eq!(guard.return_edge(), ReturnEdge::Event);
            waits(script);
            ANSWER.set(Some(NOW));
            assert_eq!(guard.finish()?, ReturnEdge::Event);
            assert_eq!(waits(script), [IMPORT, NOW]);
        }
        // And if the guard is dropped.
        drop(lent.consume(live(CONSUMER))?);
        assert_eq!(waits(script)[..].last_chunk(), Some(&[IMPORT, NOW]));
    }
    Ok(())
}

#[test]
fn a_consumer_on_one_of_the_streams_makes_the_other_wait() -> Result<(), Error> {
    let script = script();
    let _installed = script::install(script);
    let view = view();
    let at_home = view.consume(live(IMPORT))?;
    assert_eq!(at_home.return_edge(), ReturnEdge::SameStream);
    ANSWER.set(Some(NOW));
    assert_eq!(at_home.finish()?, ReturnEdge::Event);
    assert_eq!(waits(script), [NOW]);
    let beside = view.consume(live(NOW))?;
    waits(script);
    assert_eq!(beside.finish()?, ReturnEdge::Event);
    assert_eq!(waits(script), [IMPORT]);
    Ok(())
}

#[test]
fn a_named_stream_is_the_only_one() -> Result<(), Error> {
    let script = script();
    let _installed = script::install(script);
    let view = view().on_producer(Stream::from_raw(BETWEEN));
    ANSWER.set(None); // is not asked
    let guard = view.consume(live(CONSUMER))?;
    waits(script);
    guard.finish()?;
    assert_eq!(waits(script), [BETWEEN]);
    Ok(())
}

#[test]
fn an_exception_comes_after_the_edge_to_the_stream_of_the_import() -> Result<(), Error> {
    let script = script();
    let _installed = script::install(script);
    let view = view();
    let guard = view.consume(live(CONSUMER))?;
    waits(script);
    ANSWER.set(None);
    assert!(matches!(guard.finish(), Err(Error::Producer(_))));
    assert_eq!(waits(script), [IMPORT]);
    assert!(matches!(
        view.consume(live(CONSUMER)),
        Err(Error::Producer(_))
    ));
    // A guard that is dropped has the host wait instead.
    ANSWER.set(Some(IMPORT));
    let guard = view.consume(live(CONSUMER))?;
    ANSWER.set(None);
    drop(guard);
    assert_eq!(script.count("cuStreamSynchronize"), 1);
    Ok(())
}

/// Only a host that may have to wait for whole contexts, of managed memory on a device that wants it to itself, must know
/// of a capture on the stream that the producer has moved to.
#[test]
fn a_host_asks_the_producer_only_beside_a_device_that_wants_managed_memory() {
    for (is_exclusive, is_asked) in [(false, false), (true, true)] {
        let script = script();
        script.managed(ARRAY);
        if is_exclusive {
            script.exclusive_managed(0);
        }
        let _installed = script::install(script);
        let view = view();
        ANSWER.set(None);
        let waited = view.synchronize();
        assert_eq!(matches!(waited, Err(Error::Producer(_))), is_asked);
        assert_eq!(waited.is_ok(), !is_asked, "{waited:?}");
    }
}

/// By its number another thread's own default stream would be this one's.
#[test]
fn another_threads_own_default_stream_is_not_followed() {
    let script = script();
    let _installed = script::install(script);
    let own = Stream::PerThreadDefault.raw();
    let view = std::thread::spawn(move || view_on(own));
    let view = view.join().expect("a view");
    let policies = [SyncPolicy::Event, SyncPolicy::Host, SyncPolicy::None];
    for (now, policy) in [own, NOW]
        .map(|now| policies.map(|policy| (now, policy)))
        .concat()
    {
        ANSWER.set(Some(now));
        let followed = view.follow(|| Ok::<_, Error>(policy));
        match policy {
            SyncPolicy::None => assert!(followed.is_ok(), "{now} {followed:?}"),
            _ => assert_eq!(rule(followed), Rule::StreamThread, "{now} {policy:?}"),
        }
        assert_eq!(waits(script), [] as [u64; 0]);
    }
}

fn rule<T: std::fmt::Debug>(refused: Result<T, Error>) -> Rule {
    match refused {
        Err(Error::Violation(violation)) => violation.rule(),
        other => panic!("{other:?}"),
    }
}

/// The stream that the copy's return edge would go to is asked about before anything is enqueued, and only then.
#[test]
fn a_copy_that_a_captured_producer_cannot_wait_for_is_not_begun() -> Result<(), Error> {
    for captured in [IMPORT, NOW] {
        let script = script();
        let _installed = script::install(script);
        let view = view();
        let derived = [view.on(live(BETWEEN))?, view.synchronize()?];
        ANSWER.set(Some(NOW));
        script.captured(Stream::from_raw(captured), Capture::Active, 1);
        script.take_calls();
        for source in derived {
            let refused = source.copy_on(live(CONSUMER));
            assert_eq!(rule(refused), Rule::CaptureConsumer);
        }
        assert_eq!(waits(script), [] as [u64; 0]);
        assert_eq!(script.count("cuMemAllocAsync"), 0);
        script.captured(Stream::from_raw(captured), Capture::Idle, 0);
        let copy = view.on(live(BETWEEN))?.copy_on(live(CONSUMER))?;
        assert_eq!(waits(script)[1..], [CONSUMER, IMPORT, NOW]);
        drop(copy);
    }
    Ok(())
}

/// The producer's code may make another context current, whose default stream has the number that a view's stream is passed by.
#[test]
fn a_views_default_stream_is_not_that_of_the_context_that_the_producer_has_left() {
    const PINNED: u64 = 0x8000;
    let contexts = [0xc1, 0xc2];
    for left in contexts {
        let script = script();
        script
            .device_memory(PINNED, 64, 0, CONTEXT)
            .current(contexts[0]);
        let _installed = script::install(script);
        let mut view = view();
        let descriptor = Descriptor::new(&RawTensor {
            data: PINNED,
            device: Device::new(DeviceType::CUDA_HOST, 0),
            shape: &[4],
            ..RawTensor::EXAMPLE
        });
        // SAFETY: nothing reads the memory.
        unsafe { view.set_descriptor(descriptor.expect("a valid tensor")) };
        view.streams = view.streams.renamed(Device::cuda(0));
        let named = view.clone().with_ready(Stream::LegacyDefault);
        LEFT_CURRENT.set(Some(context(left)));
        let guard = view.consume(named.ready());
        LEFT_CURRENT.set(None);
        match left == contexts[0] {
            true => assert!(guard.is_ok(), "{guard:?}"),
            false => assert_eq!(rule(guard), Rule::StreamContext),
        }
    }
}

/// Whose code runs is asked for beforehand.
#[cfg(feature = "pyo3")]
#[test]
fn a_producer_can_be_asked_until_one_is_named() {
    assert!(view().can_ask());
    assert!(!view().on_producer(Stream::from_raw(NOW)).can_ask());
}
