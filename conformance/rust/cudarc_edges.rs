//! An edge of a graph orders the nodes of that graph and nothing that streams hold; and a default stream has the number of
//! another context's, so that the driver is asked which capture it is in where it is.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use cai_dlpack::driver::DriverError;
use cai_dlpack::interop::cudarc::{Consume, StreamGuard};
use cai_dlpack::protocol::descriptor::{Descriptor, RawTensor};
use cai_dlpack::protocol::device::{Device, DeviceType};
use cai_dlpack::protocol::dtype::DType;
use cai_dlpack::protocol::rule::Rule;
use cai_dlpack::protocol::stream::Stream;
use cai_dlpack::view::{LiveStream, Owner};
use cai_dlpack::{CaiView, Error};
use cudarc::driver::sys::CUresult;
use cudarc::driver::{CudaContext, CudaStream, DevicePtrMut, result};
use rstest::rstest;

use crate::cudarc_guard::{Stage, stream};
use crate::cudarc_orders::Memory;
use crate::cudarc_uses::{MODES, begin, gate, opened_later, read, rule};
use crate::simulator::{machine, number, one_event};

/// Pinned memory, which every context reaches, ready on the per-thread default stream of `context`, where its producer works.
/// It stays to the end of the process.
fn pinned(context: &CudaContext) -> CaiView {
    context.bind_to_thread().expect("current");
    // SAFETY: a context is current.
    let host = unsafe { result::malloc_host(16, 0) }.expect("pinned memory");
    let device = Device::new(DeviceType::CUDA_HOST, 0);
    let tensor = RawTensor::new(host.addr() as u64, device, DType::F32, &[4]);
    let descriptor = Descriptor::new(&tensor).expect("a tensor");
    let ready = Stream::PerThreadDefault;
    // SAFETY: elements of memory that stays to the end, as the context's stream does.
    let view = unsafe { CaiView::new(descriptor, ready, Owner::new(())) };
    // SAFETY: so they are.
    unsafe { view.with_producer(ready) }
}

/// Ends a capture, and its graph, which keeps what it uses; whether it is whole.
pub(crate) fn is_whole(stream: &CudaStream) -> bool {
    // SAFETY: a stream that is being captured.
    let graph = unsafe { result::stream::end_capture(stream.cu_stream()) };
    graph.is_ok_and(|graph| {
        // SAFETY: just made, and used by nothing.
        !graph.is_null() && unsafe { result::graph::destroy(graph) }.is_ok()
    })
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Captures {
    OneOfBoth,
    OneOfEach,
}

/// Parts that were written before the captures in which their guards end: no edge of a graph orders that work, so the host waits
/// for it, and who uses the array later finds all parts.
#[rstest]
fn parts_that_end_in_captures(
    #[values(0, 1, 2)] mode: usize,
    #[values(Captures::OneOfBoth, Captures::OneOfEach)] captures: Captures,
    #[values(false, true)] has_producer: bool,
    #[values(false, true)] has_ended_before: bool,
    #[values(0, 1)] late: usize,
) {
    let stage = Stage::new();
    let streams = [0, 1].map(|_| stage.context.new_stream().expect("a stream"));
    let producer = has_producer.then(|| stream(&stage.producer));
    let mut view = stage.array(Stream::None, producer, &[1]);
    let held = gate(&stage.machine, &streams[late]);
    let parts = view.typed_mut::<f32>().expect("floats").split(0, 2);
    let (left, right) = parts.expect("two parts");
    let (left, right) = (left.on(&streams[0]), right.on(&streams[1]));
    let (mut left, mut right) = (left.expect("a guard"), right.expect("a guard"));
    let zeros = streams[0].memset_zeros(&mut left.as_slice().expect("contiguous"));
    zeros.expect("zeros");
    let zeros = streams[1].memset_zeros(&mut right.as_slice().expect("contiguous"));
    zeros.expect("zeros");
    let mut left = Some(left);
    if has_ended_before {
        left.take().map(|left| left.finish().expect("the end"));
    }
    begin(&streams[0], MODES[mode]);
    match captures {
        Captures::OneOfBoth => streams[1].join(&streams[0]).expect("a fork"),
        Captures::OneOfEach => begin(&streams[1], MODES[mode]),
    }
    let opener = opened_later(held);
    let left = left.map(|left| left.finish());
    for ended in left.into_iter().chain([right.finish()]) {
        assert_eq!(ended.is_err(), has_producer, "{ended:?}");
    }
    match captures {
        Captures::OneOfBoth => streams[0].join(&streams[1]).expect("a join"),
        Captures::OneOfEach => assert!(is_whole(&streams[1])),
    }
    assert!(is_whole(&streams[0]));
    assert_eq!(read(&stage, &view), [0.0; 4]);
    opener.join().expect("opened");
}

/// Guards of parts that begin in a capture, of which nothing is written, and end in a later one: what was written in between is no
/// work of that graph.
#[rstest]
fn parts_between_two_captures(#[values(0, 1, 2)] mode: usize, #[values(0, 1)] late: usize) {
    let stage = Stage::new();
    let streams = [0, 1].map(|_| stage.context.new_stream().expect("a stream"));
    let mut view = stage.array(Stream::None, None, &[1]);
    let begins = || {
        begin(&streams[0], MODES[mode]);
        streams[1].join(&streams[0]).expect("a fork");
    };
    let ends = || {
        streams[0].join(&streams[1]).expect("a join");
        assert!(is_whole(&streams[0]));
    };
    begins();
    let parts = view.typed_mut::<f32>().expect("floats").split(0, 2);
    let (left, right) = parts.expect("two parts");
    let mut left = left.on(&streams[0]).expect("a guard");
    let mut right = right.on(&streams[1]).expect("a guard");
    ends();
    let held = gate(&stage.machine, &streams[late]);
    let zeros = streams[0].memset_zeros(&mut left.as_slice().expect("contiguous"));
    zeros.expect("zeros");
    let zeros = streams[1].memset_zeros(&mut right.as_slice().expect("contiguous"));
    zeros.expect("zeros");
    begins();
    let opener = opened_later(held);
    left.finish().expect("the end");
    right.finish().expect("the end");
    ends();
    assert_eq!(read(&stage, &view), [0.0; 4]);
    opener.join().expect("opened");
}

/// Where the guard of the second part ends, which is on a per-thread default stream.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Second {
    Here,
    OnAnotherThread,
}

/// Parts that are written in one capture, of which no thread can name both streams: nothing orders them in the graph, which is told.
#[rstest]
fn parts_of_one_capture_on_streams_of_two_threads(
    #[values(0, 1, 2)] mode: usize,
    #[values(Second::Here, Second::OnAnotherThread)] second: Second,
) {
    let stage = Stage::new();
    let own = stage.context.per_thread_stream();
    let other = stage.context.new_stream().expect("a stream");
    let mut view = stage.array(Stream::None, None, &[1]);
    begin(&own, MODES[mode]);
    other.join(&own).expect("a fork");
    let forked = own.record_event(None).expect("an event");
    let parts = view.typed_mut::<f32>().expect("floats").split(0, 2);
    let (left, right) = parts.expect("two parts");
    let right = right.on(&own).expect("a guard");
    let (ended, done) = match second {
        Second::OnAnotherThread => {
            left.on(&other).expect("a guard").finish().expect("an end");
            let elsewhere = thread::scope(|scope| scope.spawn(|| right.finish()).join());
            (elsewhere.expect("no panic"), None)
        }
        Second::Here => {
            let done = thread::scope(|scope| {
                let there = scope.spawn(|| {
                    stage.context.bind_to_thread().expect("current");
                    own.wait(&forked).expect("a fork");
                    left.on(&own).expect("a guard").finish().expect("an end");
                    own.record_event(None).expect("an event")
                });
                there.join().expect("no panic")
            });
            (right.finish(), Some(done))
        }
    };
    assert_eq!(rule(ended), Rule::StreamThread);
    if let Some(done) = done {
        own.wait(&done).expect("a join");
    }
    own.join(&other).expect("a join");
    assert!(is_whole(&own));
}

/// Parts that were written in one capture are ordered by its graph: the host waits for nothing, though it could not. That the one
/// is on the producer's stream makes no difference.
#[rstest]
fn parts_of_one_capture(
    #[values(0, 1, 2)] mode: usize,
    #[values(None, Some(0), Some(1))] of_producer: Option<usize>,
) {
    let stage = Stage::new();
    let streams = [0, 1].map(|_| stage.context.new_stream().expect("a stream"));
    let producer = of_producer.map(|at| stream(&streams[at]));
    let mut view = stage.array(Stream::None, producer, &[1]);
    let held = gate(&stage.machine, &stage.consumer);
    begin(&streams[0], MODES[mode]);
    streams[1].join(&streams[0]).expect("a fork");
    let parts = view.typed_mut::<f32>().expect("floats").split(0, 2);
    let (left, right) = parts.expect("two parts");
    for (part, stream) in [(left, &streams[0]), (right, &streams[1])] {
        let mut guard = part.on(stream).expect("a guard");
        let zeros = stream.memset_zeros(&mut guard.as_slice().expect("contiguous"));
        zeros.expect("zeros");
        guard.finish().expect("the end");
    }
    assert_eq!(view.ready(), stream(&streams[1]));
    streams[0].join(&streams[1]).expect("a join");
    assert!(is_whole(&streams[0]));
    held.open();
}

/// The call that is tried on a stream.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Use {
    Ready,
    Consume,
    Read,
    Write,
    /// Of a guard that began before.
    End,
}

/// The per-thread default streams of two contexts have one number, and each is in a capture of its own: those are two. If the one
/// has joined the other's, they are one.
#[rstest]
fn default_streams_of_two_contexts_in_captures(
    #[values(Use::Ready, Use::Consume, Use::Read, Use::Write, Use::End)] asked: Use,
    #[values(0, 1, 2)] mode: usize,
    #[values(false, true)] is_one: bool,
) {
    let machine = machine();
    let (ours, theirs) = (CudaContext::new(0), CudaContext::new(1));
    let (ours, theirs) = (ours.expect("device 0"), theirs.expect("device 1"));
    let (ready, to) = (ours.per_thread_stream(), theirs.per_thread_stream());
    let mut view = pinned(&ours);
    let other = view.clone();
    let begun = (asked == Use::End).then(|| {
        let typed = other.typed::<f32>().expect("floats");
        typed.on(&to).expect("a guard")
    });
    ours.bind_to_thread().expect("current");
    begin(&ready, MODES[mode]);
    match is_one {
        true => to.join(&ready).expect("a fork"),
        false => {
            theirs.bind_to_thread().expect("current");
            begin(&to, MODES[mode]);
        }
    }
    theirs.bind_to_thread().expect("current");
    let told = match asked {
        Use::Ready => view.on(&to).map(drop),
        Use::Consume => {
            let guard = view.consume(LiveStream::PER_THREAD_DEFAULT);
            guard.and_then(|guard| guard.finish()).map(drop)
        }
        Use::Read => {
            let guard = view.typed::<f32>().expect("floats").on(&to);
            guard.and_then(|guard| guard.finish()).map(drop)
        }
        Use::Write => {
            let guard = view.typed_mut::<f32>().expect("floats").on(&to);
            guard.and_then(|guard| guard.finish()).map(drop)
        }
        Use::End => begun.expect("a guard").finish().map(drop),
    };
    match is_one && asked != Use::End {
        true => told.expect("one capture"),
        // Of what began outside of the capture.
        false if is_one => assert_eq!(rule(told), Rule::CaptureConsumer),
        false => assert_eq!(rule(told), Rule::CaptureOther),
    }
    match is_one {
        true => {
            ours.bind_to_thread().expect("current");
            ready.join(&to).expect("a join");
        }
        false => {
            theirs.bind_to_thread().expect("current");
            assert!(is_whole(&to));
        }
    }
    ours.bind_to_thread().expect("current");
    assert!(is_whole(&ready));
    drop(machine);
}

/// The producer's stream has the number of the captured one that the data is ready on, and is another context's: nothing would
/// join the consumer's stream back, so it enters no capture.
#[rstest]
fn a_producer_whose_stream_has_the_number_of_a_captured_one(
    #[values(Use::Consume, Use::Read)] asked: Use,
    #[values(0, 1, 2)] mode: usize,
) {
    let machine = machine();
    let (ours, theirs) = (CudaContext::new(0), CudaContext::new(1));
    let (ours, theirs) = (ours.expect("device 0"), theirs.expect("device 1"));
    let ready = ours.per_thread_stream();
    let consumer = ours.new_stream().expect("a stream");
    let view = pinned(&theirs);
    ours.bind_to_thread().expect("current");
    let view = view.on(&ready).expect("ready on ours");
    ours.bind_to_thread().expect("current");
    begin(&ready, MODES[mode]);
    let told = match asked {
        Use::Consume => view.consume(&consumer).map(drop),
        _ => {
            let guard = view.typed::<f32>().expect("floats").on(&consumer);
            guard.map(drop)
        }
    };
    assert_eq!(rule(told), Rule::CaptureProducer);
    ours.bind_to_thread().expect("current");
    assert!(is_whole(&ready));
    drop(machine);
}

/// Guards that follow one another in a capture of the producer's, each on a stream that enters it: all of them end in the graph.
#[rstest]
fn guards_one_after_the_other_in_a_capture(
    #[values((true, true), (true, false), (false, true))] writes: (bool, bool),
    #[values("another", "same", "producer")] second: &str,
    #[values(false, true)] is_ready_everywhere: bool,
    #[values(0, 1, 2)] mode: usize,
) {
    let stage = Stage::new();
    let (producer, one) = (&stage.producer, &stage.consumer);
    let another = stage.context.new_stream().expect("a stream");
    let ready = match is_ready_everywhere {
        true => Stream::None,
        false => stream(producer),
    };
    let mut view = stage.array(ready, Some(stream(producer)), &[1]);
    let target = Memory::new(&stage.context, 16);
    begin(producer, MODES[mode]);
    let mut used = |is_written, stream: &Arc<CudaStream>| -> Result<(), Error> {
        if is_written {
            let mut guard = view.typed_mut::<f32>()?.on(stream)?;
            let zeros = stream.memset_zeros(&mut guard.as_slice().expect("contiguous"));
            zeros.expect("zeros");
            return guard.finish().map(drop);
        }
        let guard = view.typed::<f32>()?.on(stream)?;
        let (to, from, stream) = (target.address, *guard.device_ptr(), stream.cu_stream());
        // SAFETY: 16 bytes on either side, which no launch of the graph reads.
        unsafe { result::memcpy_dtod_async(to, from, 16, stream) }.expect("a copy");
        guard.finish().map(drop)
    };
    let first = used(writes.0, one);
    let second = used(
        writes.1,
        match second {
            "another" => &another,
            "same" => one,
            _ => producer,
        },
    );
    // A reader of what is ready everywhere waits for nothing, and so enters no capture: its work is none of the graph's.
    let mut told = [(writes.0, first), (writes.1, second)].into_iter();
    assert!(told.all(|(is_written, told)| told.is_ok() || (!is_written && is_ready_everywhere)),);
    assert!(is_whole(producer));
}

/// A writer that still has to wait for a reader enters no graph: the launches of that would not wait.
#[rstest]
fn a_writer_behind_a_reader_enters_no_graph(#[values(0, 1, 2)] mode: usize) {
    let stage = Stage::new();
    let (producer, reads) = (&stage.producer, &stage.consumer);
    let writes = stage.context.new_stream().expect("a stream");
    let silent = stage.array(stream(producer), None, &[1]);
    // SAFETY: the memory stays to the end of the test, and the stream with it.
    let mut view = unsafe { silent.clone().with_producer(stream(producer)) };
    let held = gate(&stage.machine, reads);
    let guard = silent.typed::<f32>().expect("floats").on(reads);
    guard.expect("a guard").finish().expect("the end");
    begin(producer, MODES[mode]);
    let told = view.typed_mut::<f32>().expect("floats").on(&writes);
    assert_eq!(rule(told.map(drop)), Rule::CaptureProducer);
    held.open();
    let late = Instant::now() + Duration::from_secs(10);
    // Until the reader is done.
    loop {
        let told = view.typed_mut::<f32>().expect("floats").on(&writes);
        match told.and_then(|guard| guard.finish()) {
            Ok(_) => break,
            refused => assert!(Instant::now() < late, "{refused:?}"),
        }
    }
    assert!(is_whole(producer));
}

/// A reader that is done holds up no writer, whether the library has noticed by itself or not.
#[rstest]
fn a_writer_after_a_reader_enters_the_graph(#[values(0, 1, 2)] mode: usize) {
    let stage = Stage::new();
    let (producer, reads) = (&stage.producer, &stage.consumer);
    let writes = stage.context.new_stream().expect("a stream");
    for _ in 0..10 {
        let silent = stage.array(stream(producer), None, &[1]);
        // SAFETY: the memory stays to the end of the test, and the stream with it.
        let mut view = unsafe { silent.clone().with_producer(stream(producer)) };
        let guard = silent.typed::<f32>().expect("floats").on(reads);
        guard.expect("a guard").finish().expect("the end");
        reads.synchronize().expect("read");
        begin(producer, MODES[mode]);
        let told = view.typed_mut::<f32>().expect("floats").on(&writes);
        told.and_then(|guard| guard.finish()).expect("a guard");
        assert!(is_whole(producer));
    }
}

/// A stream that waits for the data itself enters no graph of the producer's: the launches of that would not wait.
#[rstest]
fn a_writer_on_the_ready_stream_enters_no_graph(
    #[values(false, true)] is_own: bool,
    #[values(0, 1, 2)] mode: usize,
) {
    let stage = Stage::new();
    let (producer, writes) = (&stage.producer, &stage.consumer);
    let ready = stage.context.new_stream().expect("a stream");
    let held = gate(&stage.machine, &ready);
    let mut view = stage.array(stream(&ready), Some(stream(producer)), &[1]);
    if is_own {
        view = view.on(writes).expect("an order");
    }
    begin(producer, MODES[mode]);
    let told = view.typed_mut::<f32>().expect("floats").on(writes);
    assert_eq!(rule(told.map(drop)), Rule::CaptureProducer);
    assert!(is_whole(producer));
    held.open();
}

/// The driver refuses to wait for the parts that were written before the captures: the end tells it, or cudarc's next call.
#[rstest]
fn parts_that_could_not_be_waited_for(
    #[values(1, 2)] refusals: u64,
    #[values(false, true)] is_finished: bool,
) {
    let stage = Stage::new();
    let streams = [0, 1].map(|_| stage.context.new_stream().expect("a stream"));
    let of_stage = stage.array(Stream::None, None, &[1]);
    let descriptor = of_stage.descriptor().clone();
    // SAFETY: elements of the stage's memory; the owner may stay for ever.
    let mut view = unsafe { CaiView::new(descriptor, Stream::None, Owner::new(())) };
    let held = gate(&stage.machine, &streams[0]);
    let parts = view.typed_mut::<f32>().expect("floats").split(0, 2);
    let (left, right) = parts.expect("two parts");
    let (left, right) = (left.on(&streams[0]), right.on(&streams[1]));
    let (mut left, right) = (left.expect("a guard"), right.expect("a guard"));
    let zeros = streams[0].memset_zeros(&mut left.as_slice().expect("contiguous"));
    zeros.expect("zeros");
    left.finish().expect("the end");
    begin(&streams[0], MODES[2]);
    streams[1].join(&streams[0]).expect("a fork");
    for nth in 1..=refusals {
        stage.machine.sim.fault("cuMemFree_v2", nth, 999);
    }
    let opener = opened_later(held);
    let told = match is_finished {
        true => right.finish().map(drop),
        false => {
            drop(right);
            let told = stage.context.check_err();
            told.map_err(|_| Error::Driver(DriverError::ABSENT))
        }
    };
    stage.machine.sim.clear_faults();
    match refusals {
        1 => told.expect("a refusal is one of a moment"),
        _ => assert!(matches!(told, Err(Error::Driver(_))), "{told:?}"),
    }
    assert_eq!(stage.context.check_err(), Ok(()), "told once");
    streams[0].join(&streams[1]).expect("a join");
    assert!(is_whole(&streams[0]));
    opener.join().expect("opened");
    // The memory is the stage's, and ends with that.
    let done = streams[0].synchronize();
    done.expect("what was enqueued is done");
}

/// How the edge of a guard is made, or refused.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Edge {
    Made,
    /// By the driver, each time.
    Refused,
    /// By a capture of the producer's stream.
    Captured,
    /// By the driver, in a capture of both streams, which forbids the wait.
    RefusedInCapture,
    /// The guard ends on another thread than its stream's.
    Elsewhere,
    /// So it does, and the producer works on the guard's stream.
    SameElsewhere,
}

/// If nothing is ordered after the work of a guard, as the driver refuses the wait for it twice, `finish` returns that, or after a
/// drop cudarc's next call tells it; and of what is ordered neither tells anything.
#[rstest]
fn an_end_that_nothing_waits_for_is_told(
    #[values(
        Edge::Made,
        Edge::Refused,
        Edge::Captured,
        Edge::RefusedInCapture,
        Edge::Elsewhere,
        Edge::SameElsewhere
    )]
    edge: Edge,
    #[values(0, 1, 2)] refusals: u64,
    #[values(false, true)] is_finished: bool,
    #[values(false, true)] is_noted: bool,
) {
    let stage = Stage::new();
    let (sim, context) = (stage.machine.sim, &stage.context);
    let own = context.per_thread_stream();
    let (producer, consumer) = match edge {
        Edge::Elsewhere => (&stage.producer, &own),
        Edge::SameElsewhere => (&own, &own),
        _ => (&stage.producer, &stage.consumer),
    };
    let is_in_graph = edge == Edge::RefusedInCapture;
    let is_elsewhere = matches!(edge, Edge::Elsewhere | Edge::SameElsewhere);
    let is_made = matches!(edge, Edge::Made | Edge::SameElsewhere);
    let of_stage = stage.array(Stream::None, None, &[1]);
    let (descriptor, target) = (of_stage.descriptor().clone(), Memory::new(context, 16));
    // SAFETY: elements of the stage's memory; the owner may stay for ever.
    let view = unsafe { CaiView::new(descriptor, Stream::None, Owner::new(())) };
    // SAFETY: its stream stays to the end of the test.
    let view = unsafe { view.with_producer(stream(producer)) };
    let held = (!is_in_graph).then(|| gate(&stage.machine, consumer));
    if is_in_graph {
        begin(producer, MODES[2]);
        consumer.join(producer).expect("a fork");
    }
    let guard = view.typed::<f32>().expect("floats").on(consumer);
    let guard = guard.expect("a guard");
    let (to, from) = (target.address, *guard.device_ptr());
    // SAFETY: 16 bytes on either side, which stay to the end of the test.
    let copied = unsafe { result::memcpy_dtod_async(to, from, 16, consumer.cu_stream()) };
    copied.expect("a copy");
    if edge == Edge::Captured {
        begin(producer, MODES[2]);
    }
    let noted = cudarc::driver::DriverError(CUresult::CUDA_ERROR_NOT_READY);
    if is_noted {
        context.record_err::<()>(Err(noted));
    }
    let end = || {
        for wait in ["cuStreamSynchronize", "cuMemFree_v2"] {
            (1..=refusals).for_each(|nth| sim.fault(wait, nth, 999));
        }
        if matches!(edge, Edge::Refused | Edge::RefusedInCapture) {
            (1..9).for_each(|nth| sim.fault("cuStreamWaitEvent", nth, 999));
        }
        match is_finished {
            true => guard.finish().map(drop),
            false => {
                drop(guard);
                Ok(())
            }
        }
    };
    let opener = held.map(opened_later);
    let told = match is_elsewhere {
        true => std::thread::scope(|scope| scope.spawn(end).join().expect("ended")),
        false => end(),
    };
    sim.clear_faults();
    let of_cudarc = context.check_err().map_err(|told| told.0);
    let is_lost = is_in_graph || (!is_made && refusals == 2);
    let of_driver = matches!(told, Err(Error::Driver(_)));
    let is_refused = is_finished && !is_made;
    assert_eq!(told.is_err(), is_refused, "{told:?}");
    let is_drivers = is_lost || edge == Edge::Refused;
    assert_eq!(of_driver, is_refused && is_drivers, "{told:?}");
    let expected = match (is_noted, is_lost && !is_finished) {
        (true, _) => Err(noted.0),
        (false, true) => Err(CUresult::CUDA_ERROR_UNKNOWN),
        (false, false) => Ok(()),
    };
    assert_eq!(of_cudarc, expected);
    if is_in_graph {
        producer.join(consumer).expect("a join");
    }
    let is_captured = matches!(edge, Edge::Captured | Edge::RefusedInCapture);
    assert!(!is_captured || is_whole(producer));
    // The producer writes anew, which the copy does not see unless that has been told.
    let (address, bytes) = (view.descriptor().data(), 16);
    // SAFETY: the memory of the stage.
    let zeros = unsafe { result::memset_d8_async(address, 0, bytes, producer.cu_stream()) };
    zeros.expect("zeros");
    if let Some(opener) = opener {
        if edge != Edge::SameElsewhere {
            producer.synchronize().expect("written");
        }
        opener.join().expect("opened");
    }
    consumer.synchronize().expect("copied");
    let seen = sim.peek(target.address, 16).expect("bytes");
    assert!(
        is_lost || seen[2..4] == 1.0_f32.to_ne_bytes()[2..],
        "{seen:?}"
    );
}

/// A wait for what a guard has used on another stream is tried twice, too.
#[rstest]
fn another_stream_of_a_guard_is_waited_for(
    #[values(0, 1)] refusals: u64,
    #[values("cuMemFree_v2", "cuCtxGetId", "cuCtxGetDevice")] refused: &str,
) {
    let stage = Stage::new();
    let mut view = stage.array(Stream::None, None, &[1]);
    let other = stage.context.new_stream().expect("a stream");
    let held = gate(&stage.machine, &other);
    let guard = view.typed_mut::<f32>().expect("floats").on(&stage.consumer);
    let mut guard = guard.expect("a guard");
    let mut elements = guard.as_slice().expect("contiguous");
    let (address, done) = elements.device_ptr_mut(&other);
    // SAFETY: the elements.
    let zeros = unsafe { result::memset_d8_async(address, 0, 16, other.cu_stream()) };
    zeros.expect("zeros");
    // With an error noted cudarc waits for nothing.
    let noted = cudarc::driver::DriverError(CUresult::CUDA_ERROR_NOT_READY);
    stage.context.record_err::<()>(Err(noted));
    drop(done);
    assert_eq!(stage.context.check_err(), Err(noted));
    (1..=refusals).for_each(|nth| stage.machine.sim.fault(refused, nth, 999));
    let opener = opened_later(held);
    drop(guard);
    assert_eq!(stage.context.check_err(), Ok(()));
    stage.machine.sim.clear_faults();
    opener.join().expect("opened");
    assert_eq!(read(&stage, &view), [0.0; 4]);
}

/// A call that is refused for a default stream of another context leaves the caller's current.
#[rstest]
fn a_refused_call_leaves_the_callers_context(
    #[values("guard", "writer", "consume", "on", "copy", "export")] call: &str,
    #[values("", "cuCtxPushCurrent", "cuCtxPopCurrent", "cuCtxSetCurrent")] refused: &str,
    #[values(1, 2)] nth: u64,
) {
    let machine = machine();
    let [ours, theirs] = [0, 1].map(|at| CudaContext::new(at).expect("a device"));
    let mut view = pinned(&ours);
    let to = theirs.per_thread_stream();
    theirs.bind_to_thread().expect("current");
    begin(&to, MODES[2]);
    ours.bind_to_thread().expect("current");
    if !refused.is_empty() {
        machine.sim.fault(refused, nth, 999);
    }
    let told = match call {
        "guard" => view.typed::<f32>().expect("floats").on(&to).map(drop),
        "writer" => view.typed_mut::<f32>().expect("floats").on(&to).map(drop),
        "consume" => view.consume(&to).map(drop),
        "on" => view.on(&to).map(drop),
        "copy" => view.copy_on(&to).map(drop),
        _ => view.to_dlpack(&to).map(drop),
    };
    machine.sim.clear_faults();
    let current = result::ctx::get_current()
        .expect("told")
        .expect("a context");
    assert_eq!(current, ours.cu_ctx(), "{told:?}");
    assert!(told.is_err());
    theirs.bind_to_thread().expect("current");
    assert!(is_whole(&to));
}

/// One call after another is refused, once, from the guard's making to its end: a stream that has entered the producer's capture
/// comes back to it, whatever else comes of the guard.
#[rstest]
fn a_refused_call_leaves_no_stream_in_a_capture(
    #[values("reader", "writer", "writer, ready elsewhere")] guard: &str,
    #[values(false, true)] is_finished: bool,
    #[values(0, 1, 2)] mode: usize,
) {
    let stage = Stage::new();
    let (producer, sim) = (&stage.producer, stage.machine.sim);
    let ready = stage.context.new_stream().expect("a stream");
    let at = match guard {
        "writer, ready elsewhere" => &ready,
        _ => producer,
    };
    let of_stage = stage.array(Stream::None, None, &[1]);
    let descriptor = of_stage.descriptor().clone();
    let target = Memory::new(&stage.context, 16);
    let used = |view: &mut CaiView, stream: &Arc<CudaStream>| -> Result<(), Error> {
        match guard {
            "reader" => work(view.typed::<f32>()?.on(stream)?, &target, is_finished),
            _ => work(view.typed_mut::<f32>()?.on(stream)?, &target, is_finished),
        }
    };
    // A capture with a stream that enters it anew; whether it is whole.
    let captured = |fault: Option<(&str, u64)>| {
        // An earlier one may have noted an error.
        let _ = stage.context.check_err();
        let consumer = stage.context.new_stream().expect("a stream");
        // SAFETY: elements of the stage's memory; the owner may stay for ever.
        let view = unsafe { CaiView::new(descriptor.clone(), stream(at), Owner::new(())) };
        // SAFETY: its stream stays to the end of the test.
        let mut view = unsafe { view.with_producer(stream(producer)) };
        begin(producer, MODES[mode]);
        ready.join(producer).expect("a fork");
        sim.clear();
        if let Some((function, nth)) = fault {
            sim.fault(function, nth, 999);
        }
        let told = used(&mut view, &consumer);
        let is_reached = sim.pending_faults() == 0;
        sim.clear_faults();
        let (calls, orders) = (sim.calls(), stage.machine.orders());
        let _ = stage.context.check_err();
        let is_captured = consumer.capture_status().expect("a status") as u32 != 0;
        let back = one_event(number(&consumer), number(producer));
        let is_back = !is_captured || orders.ends_with(&back);
        assert!(is_back, "{fault:?}: {told:?}, {orders:?}");
        producer.join(&ready).expect("a join");
        assert!(is_whole(producer), "{fault:?}: {told:?}");
        (is_reached, calls)
    };
    let (_, calls) = captured(None);
    let functions: BTreeSet<String> = calls.iter().map(|call| call.name().to_owned()).collect();
    for function in &functions {
        let refused = (1..).take_while(|nth| captured(Some((function, *nth))).0);
        let (refused, edges) = (refused.count(), ["cuEventRecord", "cuStreamWaitEvent"]);
        assert!(
            refused > 1 || !edges.contains(&function.as_str()),
            "{function}: {refused}"
        );
    }
}

/// Reads the array in a guard.
fn work<V: Consume>(
    guard: StreamGuard<'_, V>,
    target: &Memory,
    is_finished: bool,
) -> Result<(), Error> {
    let (to, from, stream) = (
        target.address,
        *guard.device_ptr(),
        guard.stream().cu_stream(),
    );
    // SAFETY: 16 bytes on either side, which no launch of the graph reads.
    let _ = unsafe { result::memcpy_dtod_async(to, from, 16, stream) };
    match is_finished {
        true => guard.finish().map(|_| ()),
        false => Ok(()),
    }
}

/// A writer that is refused leaves its stream as it was, and the capture without a node of its own.
#[rstest]
fn a_refused_writer_waits_for_nothing(
    #[values(false, true)] is_ready_captured: bool,
    #[values(0, 1, 2)] mode: usize,
) {
    let stage = Stage::new();
    let producer = &stage.producer;
    let [ready, writes] = [0, 1].map(|_| stage.context.new_stream().expect("a stream"));
    let mut view = stage.array(stream(&ready), Some(stream(producer)), &[1]);
    match is_ready_captured {
        true => begin(&ready, MODES[mode]),
        false => {
            begin(&writes, MODES[mode]);
            producer.join(&writes).expect("a fork");
        }
    }
    stage.machine.sim.clear();
    let told = view.typed_mut::<f32>().expect("floats").on(&writes);
    let refused = match is_ready_captured {
        true => Rule::CaptureProducer,
        false => Rule::CaptureConsumer,
    };
    assert_eq!(rule(told.map(drop)), refused);
    let waits = stage.machine.orders();
    let waits = waits.iter().filter(|(_, at)| *at == number(&writes));
    assert_eq!(waits.count(), 0, "it waits for the producer");
    match is_ready_captured {
        true => assert!(is_whole(&ready)),
        false => {
            writes.join(producer).expect("a join");
            assert!(is_whole(&writes));
        }
    }
}
