//! A guard that ends while a stream is captured: the capture ends whole, and the owner stays as long as it is read.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cai_dlpack::protocol::rule::Rule;
use cai_dlpack::protocol::stream::Stream;
use cai_dlpack::view::Owner;
use cai_dlpack::{CaiView, Error};
use cudarc::driver::result;
use cudarc::driver::sys::{CUgraph, CUstream, CUstreamCaptureMode};
use cudarc::driver::{CudaContext, CudaStream};
use rstest::rstest;

use crate::cudarc_guard::{Ends, Stage, stream};
use crate::simulator::number;

/// The stream that a guard is on.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Consumer {
    Handle,
    Legacy,
    PerThread,
}

impl Consumer {
    fn stream(self, stage: &Stage) -> Arc<CudaStream> {
        match self {
            Self::Handle => Arc::clone(&stage.consumer),
            Self::Legacy => stage.context.default_stream(),
            Self::PerThread => stage.context.per_thread_stream(),
        }
    }
}

/// The stream that is captured while the guard ends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Captured {
    Own,
    /// A blocking one of the same context: the legacy stream may not be touched.
    Blocking,
    NonBlocking,
}

/// When the capture begins.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Begins {
    BeforeTheGuard,
    /// After work that reads the memory, which a gate holds up.
    AfterItsWork,
}

const MODES: [CUstreamCaptureMode; 3] = [
    CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL,
    CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
    CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED,
];

#[derive(Clone, Copy, Debug)]
struct Case {
    consumer: Consumer,
    captured: Captured,
    begins: Begins,
    mode: CUstreamCaptureMode,
    /// Whether the producer's stream has to wait, which the capture may forbid.
    has_producer: bool,
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for consumer in [Consumer::Handle, Consumer::Legacy, Consumer::PerThread] {
        for captured in [Captured::Own, Captured::Blocking, Captured::NonBlocking] {
            for begins in [Begins::BeforeTheGuard, Begins::AfterItsWork] {
                for mode in MODES {
                    // The driver captures no legacy stream.
                    if (consumer, captured) == (Consumer::Legacy, Captured::Own) {
                        continue;
                    }
                    cases.extend([false, true].map(|has_producer| Case {
                        consumer,
                        captured,
                        begins,
                        mode,
                        has_producer,
                    }));
                }
            }
        }
    }
    cases
}

/// A capture, ended by the caller.
struct Capture(CUstream);

impl Capture {
    fn begin(stream: CUstream, mode: CUstreamCaptureMode) -> Self {
        // SAFETY: the tests keep their streams to the end.
        unsafe { result::stream::begin_capture(stream, mode) }.expect("a capture");
        Self(stream)
    }

    /// Ends it; panics if it was broken, and tells by what as far as it is known: a wait of a guard in `context` is.
    fn graph(self, context: &CudaContext, case: impl Debug) -> CUgraph {
        // SAFETY: the stream is alive, and captures.
        let graph = unsafe { result::stream::end_capture(self.0) };
        match graph {
            Ok(graph) if !graph.is_null() => graph,
            broken => panic!(
                "the capture is broken: {broken:?}; before that: {:?}; {case:?}",
                context.check_err()
            ),
        }
    }
}

/// A blocking stream, which cudarc makes none of.
struct Blocking(CUstream);

impl Blocking {
    fn new(context: &CudaContext) -> Self {
        context.bind_to_thread().expect("current");
        let made = result::stream::create(result::stream::StreamKind::Default);
        Self(made.expect("a stream"))
    }
}

impl Drop for Blocking {
    fn drop(&mut self) {
        // SAFETY: made by `new`, and destroyed once.
        unsafe { result::stream::destroy(self.0) }.expect("destroyed");
    }
}

/// Waits for the owner's end.
fn ends(ended: &AtomicBool, case: impl Debug) {
    let late = Instant::now() + Duration::from_secs(10);
    while !ended.load(Ordering::SeqCst) {
        assert!(Instant::now() < late, "the owner is let go: {case:?}");
        std::thread::yield_now();
    }
}

/// Whether the owner has not ended after the threads have had time for it.
fn stays(ended: &AtomicBool) -> bool {
    std::thread::sleep(Duration::from_millis(10));
    !ended.load(Ordering::SeqCst)
}

#[test]
fn no_capture_is_broken_and_no_owner_ends_before_the_work_that_reads_it() {
    for case in cases() {
        check(case);
    }
}

/// An array of a producer that no stream waits for, and whether its owner has ended.
fn owned(stage: &Stage) -> (CaiView, Arc<AtomicBool>) {
    ready_on(stage, Stream::None)
}

/// An array of [`owned`], ready on a stream.
fn ready_on(stage: &Stage, ready: Stream) -> (CaiView, Arc<AtomicBool>) {
    let ended = Arc::new(AtomicBool::new(false));
    let plain = stage.array(Stream::None, None, &[1]);
    let owner = Owner::new(Ends(Arc::clone(&ended), Some(Arc::clone(&stage.memory))));
    // SAFETY: elements of the memory that the owner keeps.
    let view = unsafe { CaiView::new(plain.descriptor().clone(), ready, owner) };
    (view, ended)
}

fn check(case: Case) {
    let stage = Stage::new();
    let (blocking, other) = (Blocking::new(&stage.context), &stage.producer);
    let another = stage.context.new_stream().expect("a stream");
    let consumer: &Arc<CudaStream> = &case.consumer.stream(&stage);
    let begin = || {
        let stream = match case.captured {
            Captured::Own => consumer.cu_stream(),
            Captured::Blocking => blocking.0,
            Captured::NonBlocking => other.cu_stream(),
        };
        Capture::begin(stream, case.mode)
    };

    let (mut view, ended) = owned(&stage);
    if case.has_producer {
        // SAFETY: the memory stays to the end of the test, and the stream with it.
        view = unsafe { view.with_producer(stream(&another)) };
    }
    let typed = view.typed::<f32>().expect("floats");
    let mut copy = consumer.alloc_zeros::<f32>(4).expect("memory");
    consumer.synchronize().expect("zeroes");

    if case.begins == Begins::BeforeTheGuard {
        let capture = begin();
        drop(typed.on(consumer).expect("a guard"));
        drop(view);
        stays(&ended);
        capture.graph(&stage.context, case);
        ends(&ended, case);
        return;
    }
    let gate = stage.machine.sim.gate(number(consumer)).expect("a gate");
    let mut guard = typed.on(consumer).expect("a guard");
    let slice = guard.as_slice().expect("contiguous");
    consumer.memcpy_dtod(&slice, &mut copy).expect("a copy");
    let capture = begin();
    let is_ordered = guard.finish().is_ok() && case.has_producer;
    drop(view);
    // An owner whose producer waits for the work may go.
    assert!(is_ordered || stays(&ended), "in the capture: {case:?}");
    let graph = capture.graph(&stage.context, case);
    assert!(is_ordered || stays(&ended), "after the capture: {case:?}");
    gate.open();
    let copied = consumer.clone_dtoh(&copy).expect("a copy");
    assert_eq!(copied, [1.0, 2.0, 3.0, 4.0], "{case:?}");
    // It may have taken up the slice's work, as far as the guard knows.
    // SAFETY: the graph is alive, and not used afterwards.
    unsafe { result::graph::destroy(graph) }.expect("destroyed");
    ends(&ended, case);
}

/// What is over first: the work from before the capture, or the graph.
#[derive(Clone, Copy, Debug, PartialEq)]
enum First {
    Work,
    Graph,
}

/// One guard writes before the capture, and in it.
#[test]
fn the_owner_stays_for_the_work_from_before_a_capture_and_for_its_graph() {
    for consumer in [Consumer::Handle, Consumer::PerThread] {
        for mode in MODES {
            for first in [First::Work, First::Graph] {
                check_both(consumer, mode, first);
            }
        }
    }
}

fn check_both(consumer: Consumer, mode: CUstreamCaptureMode, first: First) {
    let case = (consumer, mode, first);
    let stage = Stage::new();
    let consumer = &consumer.stream(&stage);
    let (mut view, ended) = owned(&stage);
    let gate = stage.machine.sim.gate(number(consumer)).expect("a gate");
    let typed = view.typed_mut::<f32>().expect("floats");
    let mut guard = typed.on(consumer).expect("a guard");
    let mut fill = || {
        let mut slice = guard.as_slice().expect("contiguous");
        consumer.memset_zeros(&mut slice).expect("a fill");
    };
    fill();
    let capture = Capture::begin(consumer.cu_stream(), mode);
    fill();
    guard.finish().expect("no edge to make");
    drop(view);
    let graph = capture.graph(&stage.context, case);
    // SAFETY: the graph is alive, and not used afterwards.
    let destroy = || unsafe { result::graph::destroy(graph) }.expect("destroyed");
    let work_is_done = || {
        gate.open();
        consumer.synchronize().expect("the memory is there");
    };
    assert!(stays(&ended), "both use the memory: {case:?}");
    match first {
        First::Work => {
            work_is_done();
            assert!(stays(&ended), "the graph uses the memory: {case:?}");
            destroy();
        }
        First::Graph => {
            destroy();
            assert!(stays(&ended), "the work uses the memory: {case:?}");
            work_is_done();
        }
    }
    ends(&ended, case);
}

/// A guard is open, with work that is held up, as a capture begins of another stream than its own, and ends in it: the
/// edge to that stream is refused, or its own stream cannot be named.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Ending {
    /// The producer's stream is captured; the guard ends on this thread.
    ByTheProducer,
    /// The producer's stream is captured; the guard ends on another thread.
    ByTheProducerElsewhere,
    /// The guard of a per-thread default stream ends on another thread, beside the capture of another stream.
    OfAnotherThreads,
    /// The guard of a per-thread default stream ends on another thread, in a capture of that stream.
    OfItself,
}

#[test]
fn a_guard_that_ends_beside_a_capture_breaks_none_and_no_owner_ends_early() {
    for mode in MODES {
        for ending in [
            Ending::ByTheProducer,
            Ending::ByTheProducerElsewhere,
            Ending::OfAnotherThreads,
            Ending::OfItself,
        ] {
            check_ending(mode, ending);
        }
    }
}

fn check_ending(mode: CUstreamCaptureMode, ending: Ending) {
    let case = (mode, ending);
    let stage = Stage::new();
    let own = stage.context.per_thread_stream();
    let is_by_producer = matches!(
        ending,
        Ending::ByTheProducer | Ending::ByTheProducerElsewhere
    );
    let consumer = if is_by_producer {
        &stage.consumer
    } else {
        &own
    };
    let captured = if ending == Ending::OfItself {
        &own
    } else {
        &stage.producer
    };
    let (mut view, ended) = owned(&stage);
    if is_by_producer {
        // SAFETY: the memory stays to the end of the test, and the stream with it.
        view = unsafe { view.with_producer(stream(&stage.producer)) };
    }
    let mut copy = consumer.alloc_zeros::<f32>(4).expect("memory");
    consumer.synchronize().expect("zeroes");
    let gate = stage.machine.sim.gate(number(consumer)).expect("a gate");
    let typed = view.typed::<f32>().expect("floats");
    let mut guard = typed.on(consumer).expect("a guard");
    let slice = guard.as_slice().expect("contiguous");
    consumer.memcpy_dtod(&slice, &mut copy).expect("a copy");
    let capture = Capture::begin(captured.cu_stream(), mode);
    // The host may wait for the gate.
    let still = Arc::clone(&ended);
    let opener = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        let is_early = still.load(Ordering::SeqCst);
        gate.open();
        is_early
    });
    match ending {
        Ending::ByTheProducer => drop(guard.finish()),
        _ => std::thread::scope(|scope| {
            let finished = scope.spawn(move || drop(guard.finish()));
            finished.join().expect("a thread");
        }),
    }
    drop(view);
    assert!(
        !opener.join().expect("a thread"),
        "the work is pending: {case:?}"
    );
    capture.graph(&stage.context, case);
    let copied = consumer.clone_dtoh(&copy).expect("a copy");
    assert_eq!(copied, [1.0, 2.0, 3.0, 4.0], "{case:?}");
    ends(&ended, case);
}

/// Work from before a capture that both streams enter: an edge of the graph orders nothing after it, so the end is refused,
/// whether there was something to order at the entry or not, and the owner stays until the work is done.
#[rstest]
#[case::ordered(true)]
#[case::not_ordered(false)]
fn an_edge_in_a_graph_is_none_for_the_work_from_before(#[case] is_pending: bool) {
    for mode in MODES {
        let stage = Stage::new();
        let (producer, consumer) = (&stage.producer, &stage.consumer);
        let ready = if is_pending {
            stream(producer)
        } else {
            Stream::None
        };
        let (view, ended) = ready_on(&stage, ready);
        // SAFETY: the memory stays to the end of the test, and the stream with it.
        let view = unsafe { view.with_producer(stream(producer)) };
        let mut copy = consumer.alloc_zeros::<f32>(4).expect("memory");
        consumer.synchronize().expect("zeroes");
        let gate = stage.machine.sim.gate(number(consumer)).expect("a gate");
        let typed = view.typed::<f32>().expect("floats");
        let mut guard = typed.on(consumer).expect("a guard");
        let slice = guard.as_slice().expect("contiguous");
        consumer.memcpy_dtod(&slice, &mut copy).expect("a copy");
        let capture = Capture::begin(producer.cu_stream(), mode);
        consumer.join(producer).expect("a fork");
        match guard.finish() {
            Err(Error::Violation(refused)) => {
                assert_eq!(refused.rule(), Rule::CaptureConsumer, "{mode:?}");
            }
            finished => panic!("{finished:?}"),
        }
        drop(view);
        producer.join(consumer).expect("a join");
        let graph = capture.graph(&stage.context, mode);
        assert!(stays(&ended), "the copy is pending: {mode:?}");
        gate.open();
        let copied = consumer.clone_dtoh(&copy).expect("a copy");
        assert_eq!(copied, [1.0, 2.0, 3.0, 4.0], "{mode:?}");
        // SAFETY: the graph is alive, and not used afterwards.
        unsafe { result::graph::destroy(graph) }.expect("destroyed");
        ends(&ended, mode);
    }
}
