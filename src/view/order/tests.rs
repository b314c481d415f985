//! Which stream a number means, on the scripted driver.

use super::*;
use crate::driver::script::{self, Script, context};
use crate::driver::{MemoryKind, PointerInfo};
use crate::protocol::descriptor::{Descriptor, RawTensor};
use crate::protocol::device::{Device, DeviceType};
use crate::protocol::stream::Capture;
use crate::view::LiveStream;
use crate::view::Owner;
use crate::view::streams::Streams;

const ARRAY: u64 = 0x7000;

/// Four floats of this kind of memory, ready on `ready`.
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

#[test]
fn an_order_is_undeclared_until_it_is_declared() {
    let mut view = view(DeviceType::CUDA, Stream::LegacyDefault);
    assert!(!view.is_undeclared());
    view.streams = Streams::undeclared(Stream::LegacyDefault, None);
    assert!(view.is_undeclared());
    assert!(!view.declared_on(Stream::LegacyDefault).is_undeclared());
}

fn on_another_thread<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    std::thread::scope(|scope| scope.spawn(work).join()).expect("a thread that ends well")
}

#[test]
fn the_interface_names_no_stream_of_another_thread() {
    let view = view(DeviceType::CUDA, Stream::PerThreadDefault);
    assert!(view.interface().is_ok());
    let refused = on_another_thread(|| view.interface().map(drop)).expect_err("a refusal");
    assert_eq!(refused.rule(), Rule::StreamThread);
    let moved = view.with_ready(Stream::LegacyDefault);
    assert!(on_another_thread(|| moved.interface().is_ok()));
}

const CONTEXT_A: u64 = 0xa;
const CONTEXT_B: u64 = 0xb;
const HANDLE: Stream = Stream::from_raw(0xb1);

fn live(stream: Stream) -> LiveStream<'static> {
    // SAFETY: the scripted driver follows no stream.
    unsafe { LiveStream::new(stream) }
}

/// Two contexts, of which B is current, and memory of A that both reach.
fn script() -> &'static Script {
    let script = Script::leak();
    let info = PointerInfo {
        kind: MemoryKind::Managed,
        ordinal: 0,
        device_pointer: ARRAY,
        host_pointer: ARRAY,
        context: Some(context(CONTEXT_A)),
        range: None,
        mapped: true,
    };
    script
        .stream(0xb1, CONTEXT_B)
        .pointer(ARRAY, info)
        .current(CONTEXT_B);
    script
}

/// Which context was current at each record, wait, and free, after `before` at the first call.
fn contexts(script: &Script, before: u64) -> Vec<(String, String)> {
    let mut now = format!("{before:#x}");
    let mut found = Vec::new();
    for call in script.take_calls() {
        match call.split_once(' ') {
            Some(("cuCtxSetCurrent", to)) => now = to.into(),
            Some((name @ ("cuEventRecord" | "cuStreamWaitEvent" | "cuMemFree"), _)) => {
                found.push((name.into(), now.clone()));
            }
            _ => {}
        }
    }
    found
}

#[test]
fn memory_of_every_context_remembers_the_one_of_its_ready_stream() {
    for device_type in [DeviceType::CUDA_HOST, DeviceType::CUDA_MANAGED] {
        let script = script();
        let _installed = script::install(script);
        let view = view(device_type, Stream::LegacyDefault);
        script.current(CONTEXT_A);
        assert_eq!(
            view.interface().map(drop).map_err(|refused| refused.rule()),
            Err(Rule::StreamContext)
        );
        script.current(CONTEXT_B).take_calls();
        assert!(view.interface().is_ok());
        view.on(live(HANDLE)).expect("an order");
        let (record, wait) = ("cuEventRecord".into(), "cuStreamWaitEvent".into());
        assert_eq!(
            contexts(script, CONTEXT_B),
            [(record, "0xb".into()), (wait, "0xb".into())]
        );
    }
}

#[test]
fn a_block_goes_back_to_the_context_that_the_producers_stream_is_of() {
    let script = script();
    let _installed = script::install(script);
    let view =
        view(DeviceType::CUDA_MANAGED, Stream::LegacyDefault).on_producer(Stream::LegacyDefault);
    script.current(CONTEXT_A).take_calls();
    // The same number, of another context: two streams.
    let guard = view.consume(LiveStream::LEGACY_DEFAULT).expect("an order");
    assert_eq!(guard.return_edge(), crate::view::ReturnEdge::Event);
    let edge = |a: &str, b: &str| {
        [
            ("cuEventRecord".to_owned(), a.to_owned()),
            ("cuStreamWaitEvent".to_owned(), b.to_owned()),
        ]
    };
    assert_eq!(contexts(script, CONTEXT_A), edge("0xb", "0xa"));
    guard.finish().expect("the way back");
    assert_eq!(contexts(script, CONTEXT_A), edge("0xa", "0xb"));
}

/// Data that is ready everywhere tells nothing of the consumer's stream: whose it is, and which thread's.
#[test]
fn a_block_of_ready_data_comes_back_from_the_consumers_own_stream() {
    let script = script();
    let _installed = script::install(script);
    let view = view(DeviceType::CUDA_MANAGED, Stream::None).on_producer(HANDLE);
    // Not that of the memory, and not the current one as the block ends.
    let guard = view.consume(LiveStream::LEGACY_DEFAULT).expect("no order");
    script.current(CONTEXT_A).take_calls();
    guard.finish().expect("the way back");
    let found = contexts(script, CONTEXT_A);
    assert_eq!(found[0], ("cuEventRecord".to_owned(), "0xb".to_owned()));
    script.current(CONTEXT_B);
    let guard = view.consume(LiveStream::PER_THREAD_DEFAULT);
    let guard = guard.expect("no order");
    script.take_calls();
    let refused = on_another_thread(|| {
        let _installed = script::install(script);
        guard.finish().map_err(|refused| refused.to_string())
    });
    let told = refused.expect_err("another thread's stream");
    assert!(told.contains("stream-thread"), "{told}");
    assert_eq!(script.count("cuEventRecord"), 0);
}

/// The stream that the producer has moved to, and the one that the data is ready on, each of its own context.
#[test]
fn a_default_stream_waits_for_that_of_another_context() {
    let script = script();
    let _installed = script::install(script);
    let view = view(DeviceType::CUDA_MANAGED, Stream::LegacyDefault);
    script.current(CONTEXT_A).take_calls();
    let moved = Placed::here(Stream::LegacyDefault).of(Defaults::Of(context(CONTEXT_A)));
    view.wait_for(moved, SyncPolicy::Event).expect("an order");
    let [record, wait] = contexts(script, CONTEXT_A).try_into().expect("an edge");
    assert_eq!(record, ("cuEventRecord".to_owned(), "0xa".to_owned()));
    assert_eq!(wait, ("cuStreamWaitEvent".to_owned(), "0xb".to_owned()));
}

#[test]
fn one_stream_of_one_context_is_asked_for_and_not_ordered() {
    let script = script();
    let _installed = script::install(script);
    let view = view(DeviceType::CUDA_MANAGED, Stream::LegacyDefault);
    script.take_calls();
    view.on(LiveStream::LEGACY_DEFAULT).expect("nothing to do");
    assert_eq!(script.take_calls()[0], "cuCtxGetCurrent");
    assert_eq!(script.count("cuEventRecord"), 0);
}

#[test]
fn memory_of_a_pool_stays_the_primary_contexts() {
    let script = script();
    script.primary(0, 0xc);
    let _installed = script::install(script);
    let mut view = view(DeviceType::CUDA, Stream::LegacyDefault);
    view.remember_primary();
    script.take_calls();
    let moved = view.on(LiveStream::PER_THREAD_DEFAULT).expect("an order");
    moved.on(live(HANDLE)).expect("an order");
    moved
        .on(LiveStream::PER_THREAD_DEFAULT)
        .expect("nothing to do");
    assert_eq!(script.count("cuPointerGetAttributes"), 0);
    assert_eq!(script.count("cuEventRecord"), 2);
}

/// Device memory cannot state a default stream of a context that is not its own: every pair of contexts, and streams.
#[test]
fn memory_presented_to_the_device_keeps_the_meaning_of_its_stream() {
    for (current, stream) in [CONTEXT_A, CONTEXT_B].into_iter().flat_map(|current| {
        [Stream::LegacyDefault, Stream::PerThreadDefault, HANDLE].map(|stream| (current, stream))
    }) {
        let script = script();
        let _installed = script::install(script);
        script.current(current);
        let view = view(DeviceType::CUDA_MANAGED, stream);
        let presented = view.present_as(crate::view::PresentAs::Cuda);
        // The memory is of context A.
        let is_its_own = current == CONTEXT_A || !stream.is_default();
        match presented {
            Ok(presented) => {
                assert!(is_its_own, "{current:#x} {stream:?}");
                assert_eq!(
                    (presented.device(), presented.ready_number()),
                    (Device::cuda(0), stream)
                );
            }
            Err(crate::error::Error::Violation(refused)) => {
                assert!(!is_its_own, "{current:#x} {stream:?}");
                assert_eq!(refused.rule(), Rule::StreamContext);
            }
            Err(other) => panic!("{other}"),
        }
    }
}

#[test]
fn a_wait_that_is_not_needed_is_not_begun() {
    let host = view(DeviceType::CPU, Stream::None);
    let device = view(DeviceType::CUDA, Stream::LegacyDefault);
    let (event, none) = (SyncPolicy::Event, SyncPolicy::None);
    for (view, request, policy) in [
        (&host, Request::Host, event),
        (&device, Request::NoSync, event),
        (&device, Request::Host, none),
    ] {
        let begun = view.begin_order(request, policy).expect("no driver");
        assert!(begun.is_none(), "{request:?}");
    }
}

/// A stream that the view keeps, and not its owner, can be told in a debugger.
#[test]
fn a_stream_that_is_kept_is_shown() {
    let _installed = script::install(script());
    let other = view(DeviceType::CUDA, HANDLE);
    let moved = view(DeviceType::CUDA, Stream::LegacyDefault).on(other.ready());
    assert!(format!("{:?}", moved.expect("an order")).contains("Kept"));
    assert!(!format!("{other:?}").contains("Kept"));
}

/// Memory that every context reaches may need an order where other memory does not, and often needs none either.
#[test]
fn ready_data_needs_no_order_wherever_it_is() {
    for device_type in [
        DeviceType::CPU,
        DeviceType::CUDA,
        DeviceType::CUDA_HOST,
        DeviceType::CUDA_MANAGED,
    ] {
        let ready = view(device_type, Stream::None);
        for request in [
            Request::NoSync,
            Request::Stream(HANDLE),
            Request::Stream(Stream::None),
        ] {
            assert!(
                !ready.needs_order(request, SyncPolicy::Event),
                "{device_type} {request:?}"
            );
        }
        let pending = view(device_type, HANDLE);
        assert!(!pending.needs_order(Request::Host, SyncPolicy::None));
        assert!(pending.needs_order(Request::Host, SyncPolicy::Event));
    }
}

/// Says when it is dropped.
struct Told(std::sync::mpsc::Sender<usize>, usize);

impl Drop for Told {
    fn drop(&mut self) {
        let _ = self.0.send(self.1);
    }
}

/// Each array is moved to the stream on which the one before is ready: what keeps that stream is its own owner alone, and
/// not all the arrays in between, nor a chain of them that ends by as many calls.
#[test]
fn a_stream_that_goes_from_view_to_view_keeps_one_owner() {
    const COUNT: usize = if cfg!(miri) { 50 } else { 100_000 };
    let (tell, told) = std::sync::mpsc::channel();
    let descriptor = view(DeviceType::CUDA, HANDLE).descriptor;
    let made = |number| {
        let owner = Owner::new(Told(tell.clone(), number));
        // SAFETY: nothing reads the memory; the scripted driver follows no stream.
        unsafe { CaiView::new(descriptor.clone(), HANDLE, owner) }
    };
    for by_guard in [false, true] {
        let mut last = made(0);
        for number in 1..COUNT {
            let next = made(number);
            last = match by_guard {
                false => next.on(last.ready()).expect("the same stream"),
                true => next
                    .consume(last.ready())
                    .expect("the same stream")
                    .view()
                    .clone(),
            };
        }
        let ended: Vec<usize> = told.try_iter().collect();
        assert!(
            ended.into_iter().eq(1..COUNT - 1),
            "all but the first, whose stream it is, and the last"
        );
        drop(last);
        assert_eq!(told.try_iter().count(), 2);
    }
}

const WRITTEN: Stream = Stream::from_raw(0xb2);

/// A part was written on another stream than the others: one of the two waits for the other, or the host for one of them. If
/// both are captured an edge of the graph is enough for work of the graph alone; for other work the contexts are waited for.
#[test]
fn parts_of_two_streams_are_ready_on_one() {
    let pairs = [(0, 0), (1, 0), (0, 1), (1, 1), (1, 2)];
    for ((ready, written), is_eager) in pairs
        .into_iter()
        .flat_map(|pair| [false, true].map(|is_eager| (pair, is_eager)))
    {
        let script = script();
        let _installed = script::install(script);
        script.stream(WRITTEN.raw(), CONTEXT_B);
        for (stream, of) in [(HANDLE, ready), (WRITTEN, written)] {
            if of != 0 {
                script.captured(stream, Capture::Active, of);
            }
        }
        let view = view(DeviceType::CUDA, HANDLE);
        script.take_calls();
        let told = view.has_all_after(Placed::here(WRITTEN), is_eager);
        let is_waited_for = is_eager && ready != 0 && written != 0;
        let expected = (written != 0 || ready == 0, is_waited_for);
        let what = (ready, written, is_eager);
        assert_eq!(told, Ok(expected), "{what:?}");
        let waits = script.count("cuMemFree");
        assert_eq!(waits > 0, is_waited_for, "{what:?}");
        let host = script.count("cuStreamSynchronize") + script.count("cuEventSynchronize");
        assert_eq!(host > 0, (ready == 0) != (written == 0), "{what:?}");
        let edges = script.count("cuStreamWaitEvent");
        let is_in_one = ready == written;
        assert_eq!(edges > 0, is_in_one, "{what:?}");
    }
}

/// A number of a default stream is another stream in each context.
#[test]
fn parts_of_the_default_streams_of_two_contexts_wait_for_each_other() {
    for (of, edges) in [(CONTEXT_A, 1), (CONTEXT_B, 0)] {
        let script = script();
        let _installed = script::install(script);
        let view = view(DeviceType::CUDA_MANAGED, Stream::LegacyDefault);
        script.take_calls();
        let written = Placed::here(Stream::LegacyDefault).of(Defaults::Of(context(of)));
        assert_eq!(view.has_all_after(written, true), Ok((true, false)));
        assert_eq!(script.count("cuStreamWaitEvent"), edges);
    }
}

/// Each part's own context is waited for.
#[test]
fn parts_of_two_captures_are_waited_for_in_the_context_of_each() {
    let script = script();
    let _installed = script::install(script);
    script.captured(HANDLE, Capture::Active, 1);
    script.captured(Stream::PerThreadDefault, Capture::Active, 2);
    let view = view(DeviceType::CUDA_MANAGED, HANDLE);
    script.take_calls();
    let written = Placed::here(Stream::PerThreadDefault).of(Defaults::Of(context(CONTEXT_A)));
    assert_eq!(view.has_all_after(written, true), Ok((true, true)));
    let free = |of: &str| ("cuMemFree".to_owned(), of.to_owned());
    assert_eq!(contexts(script, CONTEXT_B), [free("0xb"), free("0xa")]);
}
