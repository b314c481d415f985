//! Uses of one array that follow one another, on other streams, in other contexts and beside captures: each finds what the
//! one before it has left, also if the driver refuses a call or cudarc has noted an error, which it tells instead of calling.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use cai_dlpack::protocol::descriptor::{Descriptor, RawTensor};
use cai_dlpack::protocol::device::{Device, DeviceType};
use cai_dlpack::protocol::dtype::DType;
use cai_dlpack::protocol::rule::Rule;
use cai_dlpack::protocol::stream::Stream;
use cai_dlpack::view::{Owner, ReturnEdge};
use cai_dlpack::{CaiView, Error};
use cudarc::driver::sys::{CUresult, CUstreamCaptureMode};
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr, DriverError, result};
use rstest::rstest;

use crate::cudarc_guard::{Ends, Stage, stream};
use crate::cudarc_orders::{Memory, another_context};
use crate::simulator::{Gate, Machine, eventually, machine, number};

const ONES: [f32; 4] = [1.0; 4];
const ZEROS: [f32; 4] = [0.0; 4];
pub(crate) const MODES: [CUstreamCaptureMode; 3] = [
    CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL,
    CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
    CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED,
];
pub(crate) const RELAXED: CUstreamCaptureMode = MODES[2];

/// An error that cudarc has noted, as a drop does whose call is refused.
fn note(context: &CudaContext) {
    let refused = DriverError(CUresult::CUDA_ERROR_INVALID_VALUE);
    context.record_err::<()>(Err(refused));
}

/// Opens a gate a little later, so that who does not wait finds what was there before.
pub(crate) fn opened_later(gate: Gate) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        thread::sleep(Duration::from_millis(30));
        gate.open();
    })
}

pub(crate) fn gate(machine: &Machine, stream: &CudaStream) -> Gate {
    machine.sim.gate(number(stream)).expect("a gate")
}

/// Ends a capture; whether it is whole.
pub(crate) fn is_whole(stream: &CudaStream) -> bool {
    // SAFETY: a stream that is being captured.
    unsafe { result::stream::end_capture(stream.cu_stream()) }.is_ok_and(|graph| !graph.is_null())
}

pub(crate) fn begin(stream: &CudaStream, mode: CUstreamCaptureMode) {
    stream.begin_capture(mode).expect("a capture");
}

/// Reads the array on a stream of its own, ordered after the data.
pub(crate) fn read(stage: &Stage, view: &CaiView) -> Vec<f32> {
    let reader = stage.context.new_stream().expect("a stream");
    let mut guard = view
        .typed::<f32>()
        .expect("floats")
        .on(&reader)
        .expect("a guard");
    reader
        .clone_dtoh(&guard.as_slice().expect("contiguous"))
        .expect("a copy")
}

pub(crate) fn rule<T>(answer: Result<T, Error>) -> Rule {
    match answer.map(drop) {
        Err(Error::Violation(refused)) => refused.rule(),
        other => panic!("{other:?}"),
    }
}

/// Writes zeros by a guard, which is left to the caller.
macro_rules! zeroed {
    ($view:expr, $stream:expr) => {{
        let mut guard = $view
            .typed_mut::<f32>()
            .expect("floats")
            .on($stream)
            .expect("a guard");
        $stream
            .memset_zeros(&mut guard.as_slice().expect("contiguous"))
            .expect("zeros");
        guard
    }};
}

/// Copies the array by a guard, which is left to the caller.
macro_rules! copied {
    ($view:expr, $stream:expr, $to:expr) => {{
        let mut guard = $view
            .typed::<f32>()
            .expect("floats")
            .on($stream)
            .expect("a guard");
        $stream
            .memcpy_dtod(&guard.as_slice().expect("contiguous"), &mut $to)
            .expect("a copy");
        guard
    }};
}

pub(crate) use {copied, zeroed};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Before {
    ReadyOnProducer,
    ReadyEverywhere,
    /// A writer was there before, whose edge back the driver, or a capture, has refused.
    RefusedByDriver,
    RefusedByCapture,
}

/// A reader's end comes back to the producer's stream: a writer waits for that too, wherever the data is ready.
#[rstest]
fn a_writer_waits_for_the_reader_before_it(
    #[values(
        Before::ReadyOnProducer,
        Before::ReadyEverywhere,
        Before::RefusedByDriver,
        Before::RefusedByCapture
    )]
    before: Before,
) {
    let stage = Stage::new();
    let (producer, reads) = (&stage.producer, &stage.consumer);
    let writes = stage.context.new_stream().expect("a stream");
    let ready = match before {
        Before::ReadyEverywhere => Stream::None,
        _ => stream(producer),
    };
    let mut view = stage.array(ready, Some(stream(producer)), &[1]);
    let mut copy = reads.alloc_zeros::<f32>(4).expect("memory");
    reads.synchronize().expect("zeros");
    if matches!(before, Before::RefusedByDriver | Before::RefusedByCapture) {
        let earlier = stage.context.new_stream().expect("a stream");
        let guard = view
            .typed_mut::<f32>()
            .expect("floats")
            .on(&earlier)
            .expect("a guard");
        match before {
            Before::RefusedByDriver => stage.machine.sim.fault("cuStreamWaitEvent", 1, 2),
            _ => begin(producer, RELAXED),
        }
        assert!(guard.finish().is_err());
        if before == Before::RefusedByCapture {
            assert!(is_whole(producer));
        }
    }
    let held = gate(&stage.machine, reads);
    let guard = copied!(view, reads, copy);
    assert_eq!(guard.finish().expect("an edge"), ReturnEdge::Event);
    let opener = opened_later(held);
    let guard = zeroed!(view, &writes);
    writes.synchronize().expect("written");
    drop(guard);
    opener.join().expect("opened");
    assert_eq!(
        reads.clone_dtoh(&copy).expect("the copy"),
        [1.0, 2.0, 3.0, 4.0]
    );
}

/// An edge in a graph orders nothing after the work from before the capture, also if the data needed no order at the entry:
/// the end refuses it, and waits, or keeps the owner.
#[rstest]
fn an_edge_in_a_graph_is_refused_for_earlier_work(#[values(0, 1, 2)] mode: usize) {
    let stage = Stage::new();
    let (producer, consumer) = (&stage.producer, &stage.consumer);
    let view = stage.array(Stream::None, Some(stream(producer)), &[1]);
    let guard = view
        .typed::<f32>()
        .expect("floats")
        .on(consumer)
        .expect("a guard");
    begin(producer, MODES[mode]);
    consumer.join(producer).expect("forked");
    assert_eq!(rule(guard.finish()), Rule::CaptureConsumer);
    // A guard that is made in the capture ends there.
    let guard = view
        .typed::<f32>()
        .expect("floats")
        .on(consumer)
        .expect("a guard");
    assert_eq!(
        guard.finish().expect("an edge of the graph"),
        ReturnEdge::Event
    );
    producer.join(consumer).expect("joined");
    assert!(is_whole(producer));
}

/// A default stream of cudarc's is of its context: for memory of another one its number would mean that one's.
#[rstest]
fn a_default_stream_is_refused_for_memory_of_another_context(
    #[values(false, true)] is_per_thread: bool,
) {
    let _machine = machine();
    let primary = CudaContext::new(0).expect("device 0");
    let memory = Memory::new(&another_context(), 16);
    let tensor = RawTensor::new(memory.address, Device::cuda(0), DType::F32, &[4]);
    // SAFETY: elements of the memory, which stays to the end; nothing works on them.
    let view = unsafe {
        CaiView::new(
            Descriptor::new(&tensor).expect("a tensor"),
            Stream::None,
            Owner::new(()),
        )
    };
    let default = match is_per_thread {
        true => primary.per_thread_stream(),
        false => primary.default_stream(),
    };
    primary.bind_to_thread().expect("current");
    assert_eq!(
        rule(view.typed::<f32>().expect("floats").on(&default)),
        Rule::StreamDevice
    );
    assert_eq!(rule(view.on(&default)), Rule::StreamDevice);
    assert_eq!(rule(view.consume(&default)), Rule::StreamDevice);
    assert_eq!(rule(view.copy_on(&default)), Rule::StreamDevice);
    let stream = primary.new_stream().expect("a stream");
    assert!(view.typed::<f32>().expect("floats").on(&stream).is_ok());
}

/// Pinned memory is ready on the default stream that was written on, whatever context is current at the end of the guard.
#[rstest]
fn a_guard_that_ends_beside_another_context(
    #[values(false, true)] is_producers: bool,
    #[values(0, 1, 2)] current: usize,
) {
    let machine = machine();
    let (primary, second) = (CudaContext::new(0), CudaContext::new(1));
    let primary = primary.expect("device 0");
    let contexts = [
        Arc::clone(&primary),
        second.expect("device 1"),
        another_context(),
    ];
    primary.bind_to_thread().expect("current");
    let reader = primary.new_stream().expect("a stream");
    // SAFETY: a context is current.
    let host = unsafe { result::malloc_host(16, 0) }.expect("pinned memory");
    let address = host.addr() as u64;
    machine.sim.poke(address, &[1; 16]).expect("ones");
    let tensor = RawTensor::new(
        address,
        Device::new(DeviceType::CUDA_HOST, 0),
        DType::F32,
        &[4],
    );
    let descriptor = Descriptor::new(&tensor).expect("a tensor");
    let ready = if is_producers {
        Stream::LegacyDefault
    } else {
        Stream::None
    };
    // SAFETY: elements of the memory, which stays to the end; a default stream lives.
    let mut view = unsafe { CaiView::new(descriptor, ready, Owner::new(())) };
    if is_producers {
        // SAFETY: a default stream lives; the memory stays to the end of the test.
        view = unsafe { view.with_producer(ready) };
    }
    let writer = match is_producers {
        true => primary.new_stream().expect("a stream"),
        false => primary.default_stream(),
    };
    let held = gate(&machine, &writer);
    let guard = view
        .typed_mut::<f32>()
        .expect("floats")
        .on(&writer)
        .expect("a guard");
    // SAFETY: all of the memory, which is pinned; the guard's stream.
    unsafe { result::memset_d8_async(*guard.device_ptr(), 2, 16, writer.cu_stream()) }
        .expect("twos");
    contexts[current].bind_to_thread().expect("current");
    guard.finish().expect("the end");
    primary.bind_to_thread().expect("current");
    let target = Memory::new(&primary, 16);
    let there = view.on(&reader).expect("an order");
    // SAFETY: 16 bytes on either side, which stay to the end.
    unsafe { result::memcpy_dtod_async(target.address, address, 16, reader.cu_stream()) }
        .expect("a copy");
    let opener = opened_later(held);
    reader.synchronize().expect("the copy");
    opener.join().expect("opened");
    assert_eq!(
        machine.sim.peek(target.address, 16).expect("bytes"),
        [2; 16]
    );
    writer.synchronize().expect("the end");
    drop(there);
    // SAFETY: of `malloc_host`, freed once; nothing works on it.
    unsafe { result::free_host(host.cast::<c_void>()) }.expect("freed");
}

/// Elements that are used on another stream: it waits for the guard's stream, or else the host does; and the owner stays
/// until that use is done, whatever cudarc has noted meanwhile.
#[rstest]
fn a_slice_on_another_stream(
    #[values("", "cuEventCreate", "cuEventRecord", "cuStreamWaitEvent")] refused: &str,
    #[values(false, true)] is_noted: bool,
) {
    let stage = Stage::new();
    let ended = Arc::new(AtomicBool::new(false));
    let plain = stage.array(Stream::None, None, &[1]);
    let owner = Owner::new(Ends(Arc::clone(&ended), Some(Arc::clone(&stage.memory))));
    // SAFETY: elements of the memory, which the owner keeps.
    let mut view = unsafe { CaiView::new(plain.descriptor().clone(), Stream::None, owner) };
    let other = stage.context.new_stream().expect("a stream");
    let target = Memory::new(&stage.context, 16);
    let held = gate(&stage.machine, &stage.consumer);
    let (before, late) = (Arc::clone(&ended), gate(&stage.machine, &other));
    let mut guard = zeroed!(view, &stage.consumer);
    if !refused.is_empty() {
        stage.machine.sim.fault(refused, 1, 2);
    }
    let opener = thread::spawn(move || {
        thread::sleep(Duration::from_millis(30));
        held.open();
        thread::sleep(Duration::from_millis(30));
        let is_early = before.load(Ordering::Acquire);
        late.open();
        is_early
    });
    {
        let slice = guard.as_slice().expect("contiguous");
        let (from, use_) = slice.device_ptr(&other);
        // SAFETY: 16 bytes on either side, which stay until the stream is done.
        unsafe { result::memcpy_dtod_async(target.address, from, 16, other.cu_stream()) }
            .expect("a copy");
        if is_noted {
            note(&stage.context);
        }
        drop(use_);
    }
    guard.finish().expect("the end");
    drop(view);
    assert!(
        !opener.join().expect("opened"),
        "the owner ended while the copy was pending"
    );
    assert_eq!(stage.context.check_err().is_err(), is_noted);
    other.synchronize().expect("the copy");
    assert_eq!(
        stage.machine.sim.peek(target.address, 16).expect("bytes"),
        [0; 16]
    );
}

/// An array whose parts were written on two streams has both, also if one of the streams is captured by then.
#[rstest]
fn parts_beside_a_capture(
    #[values(0, 1, 2)] mode: usize,
    #[values("first", "second", "other")] captured: &str,
) {
    let stage = Stage::new();
    let (one, two) = (&stage.producer, &stage.consumer);
    let third = stage.context.new_stream().expect("a stream");
    let mut view = stage.array(Stream::None, None, &[1]);
    let (left, right) = view
        .typed_mut::<f32>()
        .expect("floats")
        .split(0, 2)
        .expect("two parts");
    let (mut left, mut right) = (
        left.on(one).expect("a guard"),
        right.on(two).expect("a guard"),
    );
    let held = gate(&stage.machine, one);
    one.memset_zeros(&mut left.as_slice().expect("contiguous"))
        .expect("zeros");
    left.finish().expect("the end");
    two.memset_zeros(&mut right.as_slice().expect("contiguous"))
        .expect("zeros");
    let capturing = match captured {
        "first" => one,
        "second" => two,
        _ => &third,
    };
    begin(capturing, MODES[mode]);
    let opener = opened_later(held);
    right.finish().expect("the end");
    assert!(is_whole(capturing));
    assert_eq!(read(&stage, &view), ZEROS);
    opener.join().expect("opened");
}

/// A slice becomes a view that is ready after its last write, on whichever stream that was; or is refused.
#[rstest]
fn a_slice_that_was_written_elsewhere(#[values("", "noted", "refused")] how: &str) {
    let stage = Stage::new();
    let (own, other) = (&stage.producer, &stage.consumer);
    let mut slice = own.clone_htod(&ONES).expect("a slice");
    own.synchronize().expect("ones");
    let held = gate(&stage.machine, other);
    other.memset_zeros(&mut slice).expect("zeros");
    match how {
        "noted" => note(&stage.context),
        "refused" => stage.machine.sim.fault("cuStreamWaitEvent", 1, 2),
        _ => {}
    }
    let opener = opened_later(held);
    let view = CaiView::from_cudarc(slice, [4]);
    assert_eq!(view.is_err(), how == "refused");
    assert_eq!(stage.context.check_err().is_err(), how == "noted");
    if let Ok(view) = &view {
        assert_eq!(read(&stage, view), ZEROS);
    }
    opener.join().expect("opened");
}

/// A slice whose stream is being captured is refused, and the capture stays whole; the slice goes after it.
#[rstest]
fn a_slice_in_a_capture_is_refused(#[values(0, 1, 2)] mode: usize) {
    let stage = Stage::new();
    let slice = stage.producer.clone_htod(&ONES).expect("a slice");
    stage.producer.synchronize().expect("ones");
    begin(&stage.producer, MODES[mode]);
    assert_eq!(
        rule(CaiView::from_cudarc(slice, [4])),
        Rule::CaptureConsumer
    );
    assert!(is_whole(&stage.producer));
    assert!(stage.context.check_err().is_ok());
}

/// The end of a slice waits for both the last read and the last write; if one wait is refused, for the whole context.
#[test]
fn a_slice_is_not_freed_while_it_is_read() {
    let stage = Stage::new();
    let (own, other) = (&stage.producer, &stage.consumer);
    let mut slice = own.clone_htod(&ONES).expect("a slice");
    own.synchronize().expect("ones");
    let held = gate(&stage.machine, other);
    other.memset_zeros(&mut slice).expect("zeros");
    let slice = Arc::new(slice);
    let view = CaiView::from_cudarc_part(Arc::clone(&slice), 0, [4], [1]).expect("a view");
    let copy: CudaSlice<f32> = other.clone_dtod(&*slice).expect("a copy");
    drop(slice);
    stage.machine.sim.fault("cuStreamWaitEvent", 1, 2);
    let is_open = Arc::new(AtomicBool::new(false));
    let opens = Arc::clone(&is_open);
    let opener = thread::spawn(move || {
        thread::sleep(Duration::from_millis(30));
        opens.store(true, Ordering::Release);
        held.open();
    });
    drop(view);
    assert!(is_open.load(Ordering::Acquire), "freed while it was read");
    opener.join().expect("opened");
    assert!(stage.context.check_err().is_err());
    assert_eq!(other.clone_dtoh(&copy).expect("the copy"), ZEROS);
}

/// One refusal of the thread's mode breaks no capture of another stream.
#[test]
fn a_refused_mode_breaks_no_capture() {
    let stage = Stage::new();
    let slice = stage.producer.clone_htod(&ONES).expect("a slice");
    stage.producer.synchronize().expect("ones");
    let view = CaiView::from_cudarc(slice, [4]).expect("a view");
    for refusals in [1, 2] {
        begin(&stage.consumer, MODES[0]);
        for _ in 0..refusals {
            stage
                .machine
                .sim
                .fault("cuThreadExchangeStreamCaptureMode", 1, 999);
        }
        drop(view.clone());
        assert!(is_whole(&stage.consumer));
    }
    begin(&stage.consumer, MODES[0]);
    stage
        .machine
        .sim
        .fault("cuThreadExchangeStreamCaptureMode", 1, 999);
    drop(view);
    assert!(is_whole(&stage.consumer));
    assert!(stage.context.check_err().is_ok());
}

/// A view may be the last to hold a stream that has joined a capture: it is destroyed after that.
#[test]
fn a_stream_that_is_captured_ends_later() {
    let stage = Stage::new();
    let (origin, joined) = (
        &stage.producer,
        stage.context.new_stream().expect("a stream"),
    );
    let mut view = stage.array(Stream::None, None, &[1]);
    drop(zeroed!(view, &joined));
    begin(origin, RELAXED);
    joined.join(origin).expect("forked");
    origin.join(&joined).expect("joined");
    drop(joined);
    drop(view);
    assert!(is_whole(origin));
}

/// The current context stays; an error that cudarc has noted refuses no guard, causes no panic, and is told later.
#[test]
fn an_error_that_is_noted_and_what_is_current() {
    let stage = Stage::new();
    let second = CudaContext::new(1).expect("device 1");
    let slice = stage.producer.clone_htod(&ONES).expect("a slice");
    let now = || result::ctx::get_current().expect("a context");
    second.bind_to_thread().expect("current");
    let before = now();
    note(&stage.context);
    let view = CaiView::from_cudarc(slice, [4]).expect("a view");
    assert_eq!(now(), before);
    for stream in [&stage.consumer, &stage.context.default_stream()] {
        let mut guard = view
            .typed::<f32>()
            .expect("floats")
            .on(stream)
            .expect("a guard");
        // SAFETY: nothing is enqueued.
        let len = unsafe { guard.with_untracked_slice(|slice| slice.len()) };
        assert_eq!(len.expect("a slice"), 4);
        drop(guard);
        assert_eq!(now(), before);
        assert!(stage.context.check_err().is_err());
        note(&stage.context);
        second.bind_to_thread().expect("current");
    }
    assert!(stage.context.check_err().is_err());
}

/// One thread sets aside the error that cudarc has noted while another makes a guard: it is not told to that one.
#[test]
fn a_noted_error_refuses_no_guard_on_another_thread() {
    let stage = Stage::new();
    let (context, streams) = (&stage.context, [(); 2].map(|()| stage.context.new_stream()));
    let default = context.per_thread_stream();
    let other = stage.array(Stream::None, None, &[1]);
    // SAFETY: a context is current.
    let host = unsafe { result::malloc_host(16, 0) }.expect("pinned memory");
    let device = Device::new(DeviceType::CUDA_HOST, 0);
    let tensor = RawTensor::new(host.addr() as u64, device, DType::F32, &[4]);
    let descriptor = Descriptor::new(&tensor).expect("a tensor");
    // SAFETY: elements of the memory, which stays to the end of the process.
    let view = unsafe { CaiView::new(descriptor, Stream::None, Owner::new(())) };
    let is_over = AtomicBool::new(false);
    note(context);
    thread::scope(|scope| {
        for stream in streams {
            let (other, is_over) = (&other, &is_over);
            scope.spawn(move || {
                let stream = stream.expect("a stream");
                while !is_over.load(Ordering::Relaxed) {
                    drop(other.typed::<f32>().expect("floats").on(&stream));
                }
            });
        }
        let refused =
            (0..2000).find_map(|_| view.typed::<f32>().expect("floats").on(&default).err());
        is_over.store(true, Ordering::Relaxed);
        assert!(refused.is_none(), "{refused:?}");
    });
    // While a thread of the library's lets go of a stream it has the error, as cudarc itself has.
    eventually("the error is told", || context.check_err().is_err());
}
