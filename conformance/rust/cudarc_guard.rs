//! The guard: order on entry, the return edge at the end, and what it refuses.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::time::{Duration, Instant};

use cai_dlpack::protocol::descriptor::{Descriptor, RawTensor};
use cai_dlpack::protocol::device::Device;
use cai_dlpack::protocol::dtype::DType;
use cai_dlpack::protocol::rule::Rule;
use cai_dlpack::protocol::stream::Stream;
use cai_dlpack::view::{Owner, ReturnEdge};
use cai_dlpack::{CaiView, Error};
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr};
use rstest::rstest;

use crate::simulator::{Machine, eventually, machine, number, one_event};

/// Four floats of device 0 and the streams that a test plays with.
pub(crate) struct Stage {
    pub(crate) context: Arc<CudaContext>,
    pub(crate) producer: Arc<CudaStream>,
    pub(crate) consumer: Arc<CudaStream>,
    pub(crate) memory: Arc<CudaSlice<f32>>,
    /// The last to be dropped: freeing is written to the log, and the next test has its turn then.
    pub(crate) machine: Machine,
}

impl Drop for Stage {
    /// Owners that are kept for a stream have gone, and with them the calls that they make.
    fn drop(&mut self) {
        let late = Instant::now() + Duration::from_secs(10);
        while Arc::strong_count(&self.memory) > 1 && Instant::now() < late {
            std::thread::yield_now();
        }
    }
}

impl Stage {
    pub(crate) fn new() -> Self {
        let machine = machine();
        let context = CudaContext::new(0).expect("device 0");
        let stream = || context.new_stream().expect("a stream");
        let (producer, consumer) = (stream(), stream());
        let memory = producer
            .clone_htod(&[1.0_f32, 2.0, 3.0, 4.0])
            .expect("memory");
        producer.synchronize().expect("the copy is done");
        let memory = Arc::new(memory);
        Self {
            machine,
            context,
            producer,
            consumer,
            memory,
        }
    }

    /// A foreign array over the memory: ready on `ready`, with a producer or without.
    pub(crate) fn array(
        &self,
        ready: Stream,
        producer: Option<Stream>,
        strides: &[i64],
    ) -> CaiView {
        let (data, _) = self.memory.device_ptr(&self.producer);
        let descriptor = Descriptor::new(
            &RawTensor::new(data, Device::cuda(0), DType::F32, &[4 / strides[0]])
                .with_elem_strides(strides),
        );
        let owner = Owner::new(Arc::clone(&self.memory));
        // SAFETY: elements of the memory that the owner keeps, with its stream.
        let view = unsafe { CaiView::new(descriptor.expect("a tensor"), ready, owner) };
        self.machine.sim.clear();
        match producer {
            // SAFETY: the memory stays to the end of the test.
            Some(producer) => unsafe { view.with_producer(producer) },
            None => view,
        }
    }

    fn produced(&self) -> CaiView {
        let ready = stream(&self.producer);
        self.array(ready, Some(ready), &[1])
    }
}

pub(crate) fn stream(stream: &CudaStream) -> Stream {
    Stream::from_cudarc(stream).expect("a number")
}

fn rule<T>(answer: Result<T, impl Into<Error>>) -> Rule {
    match answer.map(drop).map_err(Into::into) {
        Err(Error::Violation(violation)) => violation.rule(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn one_event_each_way() {
    let stage = Stage::new();
    let view = stage.produced();
    let (there, back) = (number(&stage.producer), number(&stage.consumer));
    let guard = view
        .typed::<f32>()
        .expect("floats")
        .on(&stage.consumer)
        .expect("a guard");
    assert_eq!(*guard.device_ptr(), view.descriptor().data());
    assert_eq!(guard.return_edge(), ReturnEdge::Event);
    assert_eq!(stage.machine.orders(), one_event(there, back));
    stage.machine.sim.clear();
    drop(guard);
    assert_eq!(stage.machine.orders(), one_event(back, there));
}

#[test]
fn nothing_on_the_producers_own_stream() {
    let stage = Stage::new();
    let view = stage.produced();
    let guard = view
        .typed::<f32>()
        .expect("floats")
        .on(&stage.producer)
        .expect("a guard");
    assert_eq!(guard.finish().expect("the end"), ReturnEdge::SameStream);
    assert_eq!(stage.machine.orders(), []);
}

#[test]
fn the_consumer_sees_what_the_producer_writes_late() {
    let stage = Stage::new();
    let view = stage.produced();
    let (data, late) = (view.descriptor().data(), [9.0_f32; 4]);
    let bytes: Vec<u8> = late.iter().flat_map(|value| value.to_ne_bytes()).collect();
    let mut copied = vec![0.0_f32; 4];
    {
        let gate = stage
            .machine
            .sim
            .gate(number(&stage.producer))
            .expect("a gate");
        let stored = stage
            .machine
            .sim
            .store(number(&stage.producer), data, &bytes);
        stored.expect("a store");
        let mut guard = view
            .typed::<f32>()
            .expect("floats")
            .on(&stage.consumer)
            .expect("a guard");
        gate.open();
        let slice = guard.as_slice().expect("contiguous");
        stage
            .consumer
            .memcpy_dtoh(&slice, &mut copied)
            .expect("a copy");
    }
    stage.consumer.synchronize().expect("the copy is done");
    assert_eq!(copied, late);
}

#[test]
fn a_written_view_is_ready_on_its_producers_stream() {
    let stage = Stage::new();
    let mut view = stage.array(Stream::None, Some(stream(&stage.producer)), &[1]);
    let mut guard = view
        .typed_mut::<f32>()
        .expect("floats")
        .on(&stage.consumer)
        .expect("a guard");
    stage
        .consumer
        .memset_zeros(&mut guard.as_slice().expect("contiguous"))
        .expect("a fill");
    assert_eq!(guard.finish().expect("the end"), ReturnEdge::Event);
    assert_eq!(view.ready(), stream(&stage.producer));
}

#[test]
fn a_written_view_without_a_producer_is_ready_where_it_was_written() {
    let stage = Stage::new();
    let mut view = stage.array(Stream::None, None, &[1]);
    let consumer = stage.context.new_stream().expect("a stream");
    let handle = number(&consumer);
    let guard = view
        .typed_mut::<f32>()
        .expect("floats")
        .on(&consumer)
        .expect("a guard");
    assert_eq!(guard.return_edge(), ReturnEdge::Unknown);
    drop(guard);
    assert_eq!(view.ready().number().raw(), handle);
    // The view keeps the stream: waiting for it is no use of a dead handle.
    let kept = Arc::downgrade(&consumer);
    drop(consumer);
    view.synchronize().expect("the stream is alive");
    drop(view);
    // So does the thread that keeps the owner until the stream is done.
    eventually("the stream is let go", || kept.strong_count() == 0);
}

/// The guard has the last share of a context on whose stream its elements were used.
#[test]
fn a_guards_end_changes_nothing_of_what_is_current() {
    let stage = Stage::new();
    let view = stage.produced();
    let guard = view.typed::<f32>().expect("floats").on(&stage.consumer);
    let mut guard = guard.expect("a guard");
    let far = CudaContext::new_non_primary(0, 0).and_then(|context| context.new_stream());
    let far = far.expect("a stream");
    let context = Arc::downgrade(far.context());
    let values = far.clone_dtoh(&guard.as_slice().expect("contiguous"));
    assert_eq!(values.expect("a copy"), [1.0, 2.0, 3.0, 4.0]);
    drop(far);
    stage.context.bind_to_thread().expect("current");
    let before = cudarc::driver::result::ctx::get_current().expect("a context");
    guard.finish().expect("the end");
    assert_eq!(context.strong_count(), 0);
    assert_eq!(
        cudarc::driver::result::ctx::get_current().expect("a context"),
        before
    );
}

/// A view that a class keeps over many calls does not grow with them, and lets go of the last stream alone.
#[test]
fn a_view_that_is_written_again_and_again_keeps_one_stream() {
    let stage = Stage::new();
    let mut view = stage.array(Stream::None, None, &[1]);
    let streams: Vec<_> = (0..3)
        .map(|_| stage.context.new_stream().expect("a stream"))
        .collect();
    for stream in streams.iter().cycle().take(300) {
        let typed = view.typed_mut::<f32>().expect("floats");
        drop(typed.on(stream).expect("a guard"));
    }
    // What waits for the end of each use keeps its stream as well.
    let counts = |expected: [usize; 2]| {
        eventually(&format!("{expected:?}"), || {
            [0, 2].map(|at| Arc::strong_count(&streams[at])) == expected
        });
    };
    counts([1, 2]);
    let derived = view.on(&stage.producer).expect("a view");
    counts([1, 2]);
    drop((view, derived));
    counts([1, 1]);
}

#[test]
fn a_view_that_was_read_stays_ready_where_it_was() {
    let stage = Stage::new();
    let view = stage.array(Stream::None, None, &[1]);
    let guard = view
        .typed::<f32>()
        .expect("floats")
        .on(&stage.consumer)
        .expect("a guard");
    assert_eq!(stage.machine.orders(), []);
    drop(guard);
    assert_eq!(view.ready(), Stream::None);
    // Nobody waits but the thread that keeps the owner.
    let recorded = ("cuEventRecord".to_owned(), number(&stage.consumer));
    assert_eq!(stage.machine.orders()[0], recorded);
    assert_eq!(stage.machine.sim.count("cuStreamWaitEvent"), 0);
}

#[test]
fn the_host_waits_where_the_return_edge_is_refused() {
    let stage = Stage::new();
    let view = stage.produced();
    let guard = view
        .typed::<f32>()
        .expect("floats")
        .on(&stage.consumer)
        .expect("a guard");
    stage.machine.sim.clear();
    stage.machine.sim.fault("cuStreamWaitEvent", 1, 2);
    drop(guard);
    let waited = ("cuStreamSynchronize".to_owned(), number(&stage.consumer));
    assert!(
        stage.machine.orders().contains(&waited),
        "{:?}",
        stage.machine.orders()
    );
}

/// Says when it is dropped, and keeps the memory until then.
pub(crate) struct Ends(
    pub(crate) Arc<AtomicBool>,
    #[expect(dead_code, reason = "kept alive")] pub(crate) Option<Arc<CudaSlice<f32>>>,
);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Whether the owner is still there while a copy that has been enqueued waits at a gate; and after it.
fn owner_waits_for_the_copy(producer: impl Fn(&Stage) -> Option<Stream>) -> bool {
    let (stage, ended) = (Stage::new(), Arc::new(AtomicBool::new(false)));
    let plain = stage.array(Stream::None, None, &[1]);
    let owner = Owner::new(Ends(Arc::clone(&ended), Some(Arc::clone(&stage.memory))));
    // SAFETY: elements of the memory that the owner keeps.
    let mut view = unsafe { CaiView::new(plain.descriptor().clone(), Stream::None, owner) };
    if let Some(producer) = producer(&stage) {
        // SAFETY: nothing frees the memory before the end of the test.
        view = unsafe { view.with_producer(producer) };
    }
    let mut copy = stage.consumer.alloc_zeros::<f32>(4).expect("memory");
    let gate = stage.machine.sim.gate(number(&stage.consumer));
    let gate = gate.expect("a gate");
    let typed = view.typed::<f32>().expect("floats");
    let mut guard = typed.on(&stage.consumer).expect("a guard");
    let slice = guard.as_slice().expect("contiguous");
    stage
        .consumer
        .memcpy_dtod(&slice, &mut copy)
        .expect("a copy");
    drop(guard);
    drop(view);
    std::thread::sleep(Duration::from_millis(20));
    let is_kept = !ended.load(Ordering::SeqCst);
    gate.open();
    let copied = stage.consumer.clone_dtoh(&copy).expect("a copy");
    assert_eq!(copied, [1.0, 2.0, 3.0, 4.0]);
    let late = Instant::now() + Duration::from_secs(10);
    while !ended.load(Ordering::SeqCst) {
        assert!(Instant::now() < late, "the owner is let go");
        std::thread::yield_now();
    }
    is_kept
}

/// What is forgotten does not end: the owner stays, so that no work can outlive the memory.
#[test]
fn a_guard_that_is_forgotten_keeps_the_owner() {
    static FORGOTTEN: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());
    let (stage, ended) = (Stage::new(), Arc::new(AtomicBool::new(false)));
    let plain = stage.produced();
    let owner = Owner::new(Ends(Arc::clone(&ended), None));
    // SAFETY: elements of the memory that the stage keeps, with its streams.
    let view = unsafe { CaiView::new(plain.descriptor().clone(), plain.ready().number(), owner) };
    let typed = view.typed::<f32>().expect("floats");
    let guard = typed.on(&stage.consumer).expect("a guard");
    // Forgotten where a leak checker finds it.
    FORGOTTEN.store(Box::into_raw(Box::new(guard)).cast(), Ordering::SeqCst);
    drop(view);
    std::thread::sleep(Duration::from_millis(5));
    assert!(!ended.load(Ordering::SeqCst));
}

#[test]
fn guards_end_in_any_order_on_any_thread() {
    let stage = Stage::new();
    let view = stage.produced();
    let consume = |stream| view.typed::<f32>().expect("floats").on(stream);
    let first = consume(&stage.consumer).expect("a guard");
    let second = consume(&stage.producer).expect("a guard");
    let third = consume(&stage.consumer).expect("a guard");
    stage.machine.log_every_thread();
    drop(second);
    drop(first);
    std::thread::scope(|scope| scope.spawn(move || drop(third)).join()).expect("a thread");
    let (there, back) = (number(&stage.producer), number(&stage.consumer));
    assert_eq!(
        stage.machine.orders(),
        [one_event(back, there), one_event(back, there)].concat()
    );
}

/// Nobody makes the producer wait for us: then the memory does.
#[test]
fn an_owner_stays_until_the_stream_is_done_with_its_memory() {
    assert!(owner_waits_for_the_copy(|_| None));
    assert!(owner_waits_for_the_copy(|_| Some(Stream::None)));
}

#[test]
fn an_owner_whose_producer_waits_may_go() {
    assert!(!owner_waits_for_the_copy(|stage| Some(stream(
        &stage.producer
    ))));
}

#[test]
fn where_no_event_can_be_made_the_host_waits() {
    let stage = Stage::new();
    let view = stage.array(Stream::None, None, &[1]);
    let typed = view.typed::<f32>().expect("floats");
    let guard = typed.on(&stage.consumer).expect("a guard");
    stage.machine.sim.clear();
    stage.machine.sim.fault("cuEventCreate", 1, 2);
    // An earlier test's event may be idle by now: then recording it is what fails.
    stage.machine.sim.fault("cuEventRecord", 1, 2);
    drop(guard);
    let waited = ("cuStreamSynchronize".to_owned(), number(&stage.consumer));
    assert_eq!(stage.machine.orders().last(), Some(&waited));
}

/// Each stream lets go of its own: one that is held up delays no other.
#[test]
fn an_owner_is_not_kept_by_another_stream() {
    let stage = Stage::new();
    let keep = |stream: &Arc<CudaStream>| {
        let ended = Arc::new(AtomicBool::new(false));
        let plain = stage.array(Stream::None, None, &[1]);
        let owner = Owner::new(Ends(Arc::clone(&ended), Some(Arc::clone(&stage.memory))));
        // SAFETY: elements of the memory that the owner keeps.
        let view = unsafe { CaiView::new(plain.descriptor().clone(), Stream::None, owner) };
        let typed = view.typed::<f32>().expect("floats");
        drop(typed.on(stream).expect("a guard"));
        ended
    };
    let gate = stage.machine.sim.gate(number(&stage.consumer));
    let (slow, fast) = (keep(&stage.consumer), keep(&stage.producer));
    let late = Instant::now() + Duration::from_secs(10);
    while !fast.load(Ordering::SeqCst) {
        assert!(Instant::now() < late, "the owner is let go");
        std::thread::yield_now();
    }
    assert!(!slow.load(Ordering::SeqCst));
    gate.expect("a gate").open();
    while !slow.load(Ordering::SeqCst) {
        assert!(Instant::now() < late, "the owner is let go");
        std::thread::yield_now();
    }
}

/// A question may be refused once.
#[rstest]
fn what_is_current_stays_when_an_owner_is_kept(#[values(0, 1, 2)] refused: u64) {
    let stage = Stage::new();
    let view = stage.array(Stream::None, None, &[1]);
    let typed = view.typed::<f32>().expect("floats");
    let guard = typed.on(&stage.consumer).expect("a guard");
    let other = CudaContext::new(1).expect("device 1");
    other.bind_to_thread().expect("current");
    if refused > 0 {
        stage.machine.sim.fault("cuCtxGetCurrent", refused, 999);
    }
    drop(guard);
    stage.machine.sim.clear();
    let mut current = std::ptr::null_mut();
    // SAFETY: writes one handle to a live local.
    let code = unsafe { cudarc::driver::sys::cuCtxGetCurrent(&mut current) };
    assert_eq!(
        (code as u32, current.addr()),
        (0, other.cu_ctx().addr()),
        "the caller's context"
    );
}

/// Nothing runs there any more, whether the driver makes such a context current (580 does) or refuses it. Safe code destroys
/// no context that a guard keeps.
#[rstest]
fn an_owner_goes_if_the_context_of_its_guard_has_gone(
    #[values(false, true)] is_elsewhere: bool,
    #[values(None, Some(709))] refusal: Option<u32>,
) {
    let stage = Stage::new();
    stage.machine.sim.answers_for_destroyed_contexts();
    let context = CudaContext::new_non_primary(0, 0).expect("a context");
    let stream = context.new_stream().expect("a stream");
    let ended = Arc::new(AtomicBool::new(false));
    let plain = stage.array(Stream::None, None, &[1]);
    let owner = Owner::new(Ends(Arc::clone(&ended), Some(Arc::clone(&stage.memory))));
    // SAFETY: elements of the memory that the owner keeps.
    let view = unsafe { CaiView::new(plain.descriptor().clone(), Stream::None, owner) };
    let typed = view.typed::<f32>().expect("floats");
    let guard = typed.on(&stream).expect("a guard");
    // SAFETY: what is left of it is not used but by the guard.
    let code = unsafe { cudarc::driver::sys::cuCtxDestroy_v2(context.cu_ctx()) };
    assert_eq!(code as u32, 0);
    let sim = stage.machine.sim;
    let end = || {
        for (nth, code) in (1..=2).zip(refusal.into_iter().cycle()) {
            sim.fault("cuCtxPushCurrent", nth, code);
        }
        drop(guard);
    };
    match is_elsewhere {
        true => std::thread::scope(|scope| scope.spawn(end).join().expect("ended")),
        false => end(),
    }
    drop(view);
    let late = Instant::now() + Duration::from_secs(10);
    while !ended.load(Ordering::SeqCst) {
        assert!(Instant::now() < late, "the owner is let go");
        std::thread::yield_now();
    }
    // Their ends would call the driver for what is gone.
    std::mem::forget((stream, context));
}

/// The host has waited for it, so that the thread's own stream has no part in it any more.
#[test]
fn a_write_that_has_ended_on_another_thread_is_ready_everywhere() {
    let stage = Stage::new();
    let own = stage.context.per_thread_stream();
    let mut view = stage.array(Stream::None, None, &[1]);
    let typed = view.typed_mut::<f32>().expect("floats");
    let mut guard = typed.on(&own).expect("a guard");
    let mut elements = guard.as_slice().expect("contiguous");
    own.memset_zeros(&mut elements).expect("a fill");
    std::thread::scope(|scope| {
        let ended = scope.spawn(|| guard.finish());
        ended.join().expect("a thread").expect("no edge is needed");
    });
    assert_eq!(view.ready().number(), Stream::None);
    let typed = view.typed::<f32>().expect("floats");
    let mut guard = typed.on(&stage.consumer).expect("a guard");
    let read = stage
        .consumer
        .clone_dtoh(&guard.as_slice().expect("contiguous"));
    assert_eq!(read.expect("a copy"), [0.0; 4]);
}

/// 2 is another stream on every thread: dropped elsewhere, the guard cannot name its own any more.
#[test]
fn a_guard_of_a_per_thread_stream_waits_where_it_is_dropped_elsewhere() {
    let stage = Stage::new();
    let own = stage.context.per_thread_stream();
    let view = stage.produced();
    let typed = view.typed::<f32>().expect("floats");
    let guard = typed.on(&own).expect("a guard");
    stage.machine.log_every_thread();
    std::thread::scope(|scope| scope.spawn(move || drop(guard)).join()).expect("a thread");
    // It waits for its context, and breaks no capture there, as cuCtxSynchronize would.
    assert_eq!(stage.machine.sim.count("cuMemFree"), 1);

    let typed = view.typed::<f32>().expect("floats");
    let mut guard = typed.on(&own).expect("a guard");
    stage.machine.log_every_thread();
    let mut copied = [0.0_f32; 4];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let slice = guard.as_slice().expect("contiguous");
            let stream = stage.context.per_thread_stream();
            stream.memcpy_dtoh(&slice, &mut copied).expect("a copy");
        });
    });
    assert_eq!(copied, [1.0, 2.0, 3.0, 4.0]);
    let names: Vec<_> = stage.machine.sim.calls();
    let names: Vec<_> = names.iter().map(|call| call.name()).collect();
    let waited = names.iter().position(|name| *name == "cuMemFree");
    let copied = names
        .iter()
        .position(|name| name.starts_with("cuMemcpyDtoH"));
    assert!(waited < copied && waited.is_some(), "{names:?}");
}

#[test]
fn an_entry_that_is_refused_consumes_nothing() {
    let stage = Stage::new();
    let view = stage.produced();
    let typed = view.typed::<f32>().expect("floats");
    stage.machine.sim.fault("cuStreamWaitEvent", 1, 2);
    assert!(matches!(
        typed.clone().on(&stage.consumer),
        Err(Error::Driver(_))
    ));
    stage.machine.sim.clear();
    drop(typed.on(&stage.consumer).expect("the second time"));
    assert_eq!(stage.machine.orders().len(), 4);
}

#[test]
fn another_stream_is_joined_and_waited_for() {
    let stage = Stage::new();
    let view = stage.produced();
    let other = stage.context.new_stream().expect("a stream");
    let mut guard = view
        .typed::<f32>()
        .expect("floats")
        .on(&stage.consumer)
        .expect("a guard");
    stage.machine.sim.clear();
    let mut copied = vec![0.0_f32; 4];
    other
        .memcpy_dtoh(&guard.as_slice().expect("contiguous"), &mut copied)
        .expect("a copy");
    assert_eq!(copied, [1.0, 2.0, 3.0, 4.0]);
    let orders = stage.machine.orders();
    assert_eq!(
        orders[..2],
        one_event(number(&stage.consumer), number(&other))
    );
    assert_eq!(
        orders[2],
        ("cuStreamSynchronize".to_owned(), number(&other))
    );
}

#[test]
fn a_strided_array_is_no_slice() {
    let stage = Stage::new();
    let view = stage.array(Stream::None, None, &[2]);
    let mut guard = view
        .typed::<f32>()
        .expect("floats")
        .on(&stage.consumer)
        .expect("a guard");
    assert_eq!(*guard.device_ptr(), view.descriptor().data());
    assert_eq!(rule(guard.as_slice()), Rule::ViewContiguous);
}

#[test]
fn a_stream_of_another_device_is_refused() {
    let stage = Stage::new();
    let view = stage.produced();
    let elsewhere = CudaContext::new(1)
        .expect("device 1")
        .new_stream()
        .expect("a stream");
    let typed = view.typed::<f32>().expect("floats");
    assert_eq!(rule(typed.on(&elsewhere)), Rule::StreamDevice);
}

#[test]
fn host_memory_goes_to_no_stream() {
    let stage = Stage::new();
    let view = crate::arrays::array(vec![1.0_f32], &[1]);
    let typed = view.typed::<f32>().expect("floats");
    assert_eq!(rule(typed.on(&stage.consumer)), Rule::ViewDevice);
}

#[test]
fn default_streams_have_numbers_in_primary_contexts_only() {
    let stage = Stage::new();
    assert_eq!(
        stream(&stage.context.default_stream()),
        Stream::LegacyDefault
    );
    assert_eq!(
        stream(&stage.context.per_thread_stream()),
        Stream::PerThreadDefault
    );
    let own = CudaContext::new_non_primary(0, 0).expect("a context");
    let refused = Stream::from_cudarc(&own.default_stream());
    assert_eq!(rule(refused), Rule::StreamDevice);
    let made = own.new_stream().expect("a stream");
    assert_eq!(stream(&made).raw(), number(&made));
}

#[test]
fn bounds_are_proven_by_the_driver() {
    let stage = Stage::new();
    let (data, _) = stage.memory.device_ptr(&stage.producer);
    let outside = Descriptor::new(&RawTensor::new(
        data,
        Device::cuda(0),
        DType::F32,
        &[1 << 30],
    ));
    // SAFETY: not so, which is what the typed view finds out; nothing follows the address.
    let view = unsafe { CaiView::new(outside.expect("a tensor"), Stream::None, Owner::new(())) };
    stage.machine.sim.clear();
    assert_eq!(rule(view.typed::<f32>()), Rule::OutOfBounds);
    // Memory of a pool names no context, so the mapping behind it is asked for too. In a process that has called no driver
    // before, it is begun.
    let calls = stage.machine.sim.calls();
    let asked = calls
        .iter()
        .map(|call| call.name())
        .filter(|name| *name != "cuInit");
    assert_eq!(asked.collect::<Vec<_>>(), ["cuPointerGetAttributes"; 2]);
}
