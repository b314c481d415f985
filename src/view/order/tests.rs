//! Which stream a number means, on the scripted driver.

use super::*;
use crate::driver::script::{self, Script, context, contexts_at};
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
    let calls = script.take_calls();
    let mut found = Vec::new();
    for (call, current) in contexts_at(&calls, before) {
        let name = call.split(' ').next().unwrap_or_default();
        if let "cuEventRecord" | "cuStreamWaitEvent" | "cuMemFree" = name {
            found.push((name.into(), format!("{current:#x}")));
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
    let guard = view.consume(live(Stream::LegacyDefault)).expect("no order");
    script.current(CONTEXT_A).take_calls();
    guard.finish().expect("the way back");
    let found = contexts(script, CONTEXT_A);
    assert_eq!(found[0], ("cuEventRecord".to_owned(), "0xb".to_owned()));
    script.current(CONTEXT_B);
    let guard = view.consume(live(Stream::PerThreadDefault));
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
    view.on(live(Stream::LegacyDefault)).expect("nothing to do");
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

/// A default stream that only the name of the memory tells the context of keeps it under each other name; the driver is asked
/// for no other.
#[test]
fn under_another_name_a_default_stream_stays_what_it_is() {
    let names = [
        Device::HOST,
        Device::cuda(1),
        Device::new(DeviceType::CUDA_MANAGED, 0),
    ];
    for (name, stream) in names.into_iter().flat_map(|name| {
        [
            Stream::LegacyDefault,
            Stream::PerThreadDefault,
            HANDLE,
            Stream::None,
        ]
        .map(|stream| (name, stream))
    }) {
        for (producer, is_pool) in [None, Some(Stream::LegacyDefault), Some(HANDLE)]
            .into_iter()
            .flat_map(|producer| [(producer, false), (producer, true)])
        {
            let script = script();
            script.primary(0, 0xc);
            let _installed = script::install(script);
            let mut view = view(DeviceType::CUDA, stream);
            if let Some(producer) = producer {
                view.set_producer(producer);
            }
            if is_pool {
                view.remember_primary();
            }
            script.take_calls();
            let own = view.streams_by(view.device()).expect("its own");
            assert_eq!(own.placed_ready(), view.streams.placed_ready());
            assert_eq!(script.take_calls().len(), 0);
            let moved = view.streams_by(name).expect("a context");
            // The memory is of context A; a pool's of the primary one.
            let home = Defaults::Of(context(if is_pool { 0xc } else { CONTEXT_A }));
            let mut is_asked = false;
            for (found, stream) in [
                (Some(moved.placed_ready()), Some(stream)),
                (moved.placed_producer(), producer),
            ] {
                let is_default = stream.is_some_and(Stream::is_default);
                is_asked |= is_default;
                let expected = stream.map(|stream| Placed {
                    whose: if is_default { home } else { Defaults::OfMemory },
                    ..Placed::here(stream)
                });
                assert_eq!(found, expected, "{name} {stream:?}");
            }
            assert_eq!(script.take_calls().is_empty(), !is_asked);
        }
    }
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

/// Memory of the host is waited for, memory of a device is not, and managed memory stays so.
#[test]
fn presented_to_whom_it_is_the_data_waits_for_the_host_alone() {
    use crate::view::PresentAs::{Cuda, Host};
    let script = script();
    let _installed = script::install(script);
    for (device_type, side, waits) in [
        (DeviceType::CPU, Host, 1),
        (DeviceType::CUDA, Cuda, 0),
        (DeviceType::CUDA_MANAGED, Host, 1),
        (DeviceType::CUDA_MANAGED, Cuda, 0),
    ] {
        script.take_calls();
        let view = view(device_type, HANDLE).present_as(side).expect("a view");
        assert_eq!(script.count("cuStreamSynchronize"), waits, "{device_type}");
        assert_eq!(view.may_be_managed(), device_type != DeviceType::CPU);
    }
    let info = PointerInfo {
        kind: MemoryKind::Pinned,
        ..script.pointer_info(ARRAY, false).expect("memory")
    };
    script.pointer(ARRAY, info);
    let pinned = view(DeviceType::CUDA_HOST, HANDLE).present_as(Host);
    assert!(!pinned.expect("a view").may_be_managed());
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
        assert_eq!(told.ok(), Some(expected), "{what:?}");
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
        assert_eq!(view.has_all_after(written, true).ok(), Some((true, false)));
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
    assert_eq!(view.has_all_after(written, true).ok(), Some((true, true)));
    let free = |of: &str| ("cuMemFree".to_owned(), of.to_owned());
    assert_eq!(contexts(script, CONTEXT_B), [free("0xb"), free("0xa")]);
}

/// There is no driver for ROCm here: its streams are refused by the rule, where no driver of CUDA is either.
#[test]
fn an_order_of_rocm_is_refused_before_a_driver_is_looked_for() {
    let view = view(DeviceType::ROCM, HANDLE);
    let other = live(Stream::from_raw(0xb2));
    for refused in [view.on(other).map(drop), view.synchronize().map(drop)] {
        let Err(Error::Violation(refused)) = refused else {
            panic!("expected a refusal: {refused:?}");
        };
        assert_eq!(refused.rule(), Rule::RocmOrder);
    }
    let ready = view.with_ready(Stream::None);
    assert!(ready.synchronize().is_ok());
}

/// On a machine without a driver, where none is scripted.
#[test]
fn without_a_driver_only_ready_data_is_ordered() {
    let Some(absent) = driver::driver().err().filter(DriverError::is_absent) else {
        eprintln!("not run: this machine has a driver");
        return;
    };
    for device_type in [DeviceType::CUDA, DeviceType::CUDA_MANAGED] {
        let pending = view(device_type, Stream::LegacyDefault);
        let Err(Error::Driver(refused)) = pending.synchronize() else {
            panic!("nothing has waited for {device_type}");
        };
        assert_eq!(refused, absent);
        let ready = view(device_type, Stream::None);
        assert!(ready.synchronize().is_ok(), "{device_type}");
    }
    // Nor is one default stream told from another one's, on which nothing is pending.
    let pending = |id| {
        let mut view = view(DeviceType::CUDA, Stream::LegacyDefault);
        let device = Device::cuda(id);
        let raw = RawTensor {
            data: ARRAY,
            device,
            shape: &[4],
            ..RawTensor::EXAMPLE
        };
        // SAFETY: nothing reads the memory.
        unsafe { view.set_descriptor(Descriptor::new(&raw).expect("a valid tensor")) };
        view
    };
    let (one, other) = (pending(0), pending(1));
    assert!(one.on(other.ready()).is_ok());
}

/// The wait that a thread may go on without, until it asks.
#[test]
fn a_wait_that_is_needed_is_begun() {
    let script = script();
    let _installed = script::install(script);
    let pending = view(DeviceType::CUDA, HANDLE);
    let begun = pending.begin_order(Request::Host, SyncPolicy::Event);
    assert!(begun.expect("a wait").is_some());
}

/// Managed memory that a device must have to itself: whole contexts are waited for, and a capture on the producer's
/// stream is asked about, which that wait would break.
#[test]
fn a_host_that_reads_managed_memory_waits_for_whole_contexts() {
    let (script, producer) = (script(), Stream::from_raw(0xb2));
    script
        .stream(producer.raw(), CONTEXT_B)
        .primary(0, CONTEXT_B)
        .managed(ARRAY)
        .exclusive_managed(0);
    let _installed = script::install(script);
    let view = view(DeviceType::CUDA_MANAGED, HANDLE).on_producer(producer);
    let ready = view.clone().with_ready(Stream::None);
    // By the name of the CPU, too.
    let presented = view.present_as(crate::view::PresentAs::Host);
    for view in [&ready, &presented.expect("a view"), &view] {
        script.take_calls();
        view.synchronize().expect("a wait");
        let waits = script.count("cuCtxSynchronize");
        assert_eq!(
            waits,
            2,
            "the memory's and the device's: {:?}",
            script.calls()
        );
    }
    let waits = script.count("cuCtxSynchronize");
    script.captured(producer, Capture::Active, 7);
    let Err(Error::Violation(refused)) = view.synchronize() else {
        panic!("the wait would break a capture");
    };
    assert_eq!(refused.rule(), Rule::CaptureHostWait);
    assert_eq!(script.count("cuCtxSynchronize"), waits);
}
