//! Graphs: memory that a capture has recorded stays as long as anything that was made of the graph.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cai_dlpack::CaiView;
use cai_dlpack::protocol::stream::Stream;
use cai_dlpack::view::{Owner, ViewMut};
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{
    CudaContext, CudaFunction, CudaGraph, CudaSlice, CudaStream, CudaViewMut, DevicePtr,
    DevicePtrMut, DeviceSlice, HostSlice, PushKernelArg, SyncOnDrop,
};
use rstest::rstest;

use crate::simulator::{Machine, machine};

/// Says when it is dropped, and keeps the memory until then.
struct Ends(
    Arc<AtomicBool>,
    #[expect(dead_code, reason = "kept alive")] Option<CaiView>,
);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// A stream, and an array of a producer that no stream waits for.
struct Stage {
    stream: Arc<CudaStream>,
    view: CaiView,
    ended: Arc<AtomicBool>,
    machine: Machine,
}

impl Stage {
    fn new() -> Self {
        Self::on(|context| context.new_stream().expect("a stream"))
    }

    fn on(stream: impl FnOnce(&Arc<CudaContext>) -> Arc<CudaStream>) -> Self {
        let machine = machine();
        let stream = stream(&CudaContext::new(0).expect("device 0"));
        let memory: CudaSlice<f32> = stream.clone_htod(&[1.0_f32; 4]).expect("memory");
        let whole = CaiView::from_cudarc(memory, [4]).expect("a view");
        stream.synchronize().expect("the copy is done");
        let (descriptor, ended) = (whole.descriptor().clone(), Arc::new(AtomicBool::new(false)));
        let owner = Owner::new(Ends(Arc::clone(&ended), Some(whole)));
        // SAFETY: elements of the memory that the owner keeps.
        let view = unsafe { CaiView::new(descriptor, Stream::None, owner) };
        Self {
            stream,
            view,
            ended,
            machine,
        }
    }

    fn begin(&self) {
        begin(&self.stream);
    }

    fn end(&self) -> CudaGraph {
        let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
        let graph = self.stream.end_capture(flags).expect("a graph");
        graph.expect("a graph that is not empty")
    }

    /// Drops the view, launches the graph, drops it; the memory must end after that, and no sooner.
    fn launch_without_the_view(self, graph: CudaGraph) {
        let Self {
            stream,
            view,
            ended,
            machine,
        } = self;
        drop(view);
        std::thread::sleep(Duration::from_millis(20));
        assert!(!ended.load(Ordering::SeqCst), "the graph keeps the memory");
        graph.launch().expect("a launch");
        stream.synchronize().expect("the memory is there");
        drop(graph);
        let late = Instant::now() + Duration::from_secs(10);
        while !ended.load(Ordering::SeqCst) {
            assert!(Instant::now() < late, "the memory ends with the graph");
            std::thread::yield_now();
        }
        drop((stream, machine));
    }
}

fn begin(stream: &CudaStream) {
    let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
    stream.begin_capture(mode).expect("a capture");
}

fn fill(typed: ViewMut<'_, f32>, stream: &Arc<CudaStream>) {
    let mut guard = typed.on(stream).expect("a guard");
    let mut slice = guard.as_slice().expect("contiguous");
    stream.memset_zeros(&mut slice).expect("a fill");
}

#[test]
fn a_fill_that_was_recorded_keeps_the_memory() {
    let mut stage = Stage::new();
    stage.begin();
    fill(stage.view.typed_mut().expect("floats"), &stage.stream);
    let graph = stage.end();
    stage.launch_without_the_view(graph);
}

/// The capture begins and ends while the guard lives.
#[test]
fn a_capture_within_a_guard_keeps_the_memory() {
    let mut stage = Stage::new();
    let mut view = stage.view.clone();
    let mut guard = view
        .typed_mut::<f32>()
        .expect("floats")
        .on(&stage.stream)
        .expect("a guard");
    stage.begin();
    let mut slice = guard.as_slice().expect("contiguous");
    stage.stream.memset_zeros(&mut slice).expect("a fill");
    let graph = stage.end();
    drop(guard);
    drop(view);
    // The second use of the memory, in a second graph.
    stage.begin();
    fill(stage.view.typed_mut().expect("floats"), &stage.stream);
    let second = stage.end();
    drop(second);
    stage.launch_without_the_view(graph);
}

/// Of a context without streams of its own, as a capture would refuse cudarc's waits.
#[rstest]
fn a_capture_that_begins_beside_cudarcs_slice_keeps_the_memory(
    #[values(false, true)] panics: bool,
) {
    let mut stage = Stage::on(CudaContext::per_thread_stream);
    let stream = Arc::clone(&stage.stream);
    let filled = catch_unwind(AssertUnwindSafe(|| {
        let typed = stage.view.typed_mut::<f32>().expect("floats");
        let mut guard = typed.on(&stream).expect("a guard");
        let body = |mut elements: CudaViewMut<'_, f32>| {
            begin(&stream);
            stream.memset_zeros(&mut elements).expect("a fill");
            assert!(!panics, "on purpose");
        };
        // SAFETY: works on the guard's stream alone; the capture goes on.
        unsafe { guard.with_untracked_view_mut(body) }.expect("contiguous");
    }));
    assert_eq!(filled.is_err(), panics);
    let graph = stage.end();
    stage.launch_without_the_view(graph);
}

/// cudarc's wait at the end breaks the capture; what was recorded until then has its memory.
#[test]
fn a_fill_on_another_stream_of_the_capture_keeps_the_memory() {
    let mut stage = Stage::new();
    let other = stage.stream.fork().expect("a stream");
    stage.begin();
    let typed = stage.view.typed_mut::<f32>().expect("floats");
    let mut guard = typed.on(&stage.stream).expect("a guard");
    let mut slice = guard.as_slice().expect("contiguous");
    let _ = other.memset_zeros(&mut slice);
    drop(guard);
    assert_eq!(stage.machine.sim.count("cuGraphRetainUserObject"), 1);
    // SAFETY: the stream is alive, and captures.
    let ended = unsafe { cudarc::driver::result::stream::end_capture(stage.stream.cu_stream()) };
    assert!(ended.is_err());
}

/// A kernel is launched by number: the use of the number is what is seen.
#[rstest]
#[case::argument(true)]
#[case::number(false)]
fn a_kernel_argument_keeps_the_memory(#[case] argument: bool) {
    let mut stage = Stage::new();
    stage.begin();
    let typed = stage.view.typed_mut::<f32>().expect("floats");
    let guard = typed.on(&stage.stream).expect("a guard");
    let kernel: Option<CudaFunction> = None; // the simulator runs none
    match (kernel, argument) {
        (Some(kernel), _) => drop(stage.stream.launch_builder(&kernel).arg(&guard)),
        (None, _) => assert_ne!(*guard.device_ptr(), 0),
    }
    drop(guard);
    // SAFETY: the stream is alive, and captures.
    let graph = unsafe { cudarc::driver::result::stream::end_capture(stage.stream.cu_stream()) };
    let graph = graph.expect("a graph");
    let Stage { view, ended, .. } = &mut stage;
    drop(std::mem::replace(
        view,
        crate::arrays::array(vec![0.0_f32], &[1]),
    ));
    std::thread::sleep(Duration::from_millis(20));
    assert!(!ended.load(Ordering::SeqCst), "the graph keeps the memory");
    // SAFETY: alive, and not used afterwards.
    unsafe { cudarc::driver::result::graph::destroy(graph) }.expect("destroyed");
    let late = Instant::now() + Duration::from_secs(10);
    while !ended.load(Ordering::SeqCst) {
        assert!(Instant::now() < late, "the memory ends with the graph");
        std::thread::yield_now();
    }
}

/// A driver that cannot have a graph keep anything is given an owner that stays; it is asked twice.
#[rstest]
fn where_the_graph_cannot_keep_it_the_owner_stays_for_ever(
    #[values("cuUserObjectCreate", "cuGraphRetainUserObject")] call: &str,
    #[values(1, 2)] refusals: u64,
) {
    let (stage, ended) = (Stage::new(), Arc::new(AtomicBool::new(false)));
    let owner = Owner::new(Ends(Arc::clone(&ended), None));
    // SAFETY: elements of the memory that the stage keeps.
    let mut view = unsafe { CaiView::new(stage.view.descriptor().clone(), Stream::None, owner) };
    stage.begin();
    (1..=refusals).for_each(|nth| stage.machine.sim.fault(call, nth, 801));
    fill(view.typed_mut().expect("floats"), &stage.stream);
    let graph = stage.end();
    drop(view);
    graph.launch().expect("a launch");
    stage.stream.synchronize().expect("the memory is there");
    drop(graph);
    let late = Instant::now() + Duration::from_secs(10);
    while refusals == 1 && !ended.load(Ordering::SeqCst) {
        assert!(Instant::now() < late, "it ends with the graph");
        std::thread::yield_now();
    }
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(ended.load(Ordering::SeqCst), refusals == 1);
}

/// One question for each use, and one reference for each capture.
#[test]
fn a_guard_asks_and_keeps_once() {
    let stage = Stage::new();
    let mut view = stage.view.clone();
    let typed = view.typed_mut::<f32>().expect("floats");
    let mut guard = typed.on(&stage.stream).expect("a guard");
    let mut fill = || {
        let mut slice = guard.as_slice().expect("contiguous");
        stage.stream.memset_zeros(&mut slice).expect("a fill");
    };
    let sim = &stage.machine.sim;
    sim.clear();
    fill();
    assert_eq!(sim.count("cuStreamGetCaptureInfo"), 1);
    assert_eq!(sim.count("cuUserObjectCreate"), 0);
    stage.begin();
    fill();
    fill();
    assert_eq!(sim.count("cuUserObjectCreate"), 1);
    drop(stage.end());
}

/// A thread's default stream is captured like another; what is current stays.
#[test]
fn a_capture_of_a_threads_default_stream_keeps_the_memory() {
    let mut stage = Stage::new();
    // Before the capture, which a test that ends here would leave open.
    let other = CudaContext::new(1).expect("device 1");
    stage.stream = stage.stream.context().per_thread_stream();
    stage.stream.context().bind_to_thread().expect("current");
    stage.begin();
    let typed = stage.view.typed_mut::<f32>().expect("floats");
    let guard = typed.on(&stage.stream).expect("a guard");
    other.bind_to_thread().expect("current");
    assert_ne!(*guard.device_ptr(), 0);
    let mut current = std::ptr::null_mut();
    // SAFETY: writes one handle to a live local.
    let code = unsafe { cudarc::driver::sys::cuCtxGetCurrent(&mut current) };
    assert_eq!((code as u32, current), (0, other.cu_ctx()));
    assert_eq!(stage.machine.sim.count("cuGraphRetainUserObject"), 1);
    stage.stream.context().bind_to_thread().expect("current");
    let mut guard = guard;
    let mut slice = guard.as_slice().expect("contiguous");
    stage.stream.memset_zeros(&mut slice).expect("a fill");
    drop(guard);
    let graph = stage.end();
    stage.launch_without_the_view(graph);
}

/// Begins a capture where cudarc asks for an address: its copies have asked for the other one by then.
struct Begins<T>(T);

impl DeviceSlice<f32> for Begins<CudaSlice<f32>> {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn stream(&self) -> &Arc<CudaStream> {
        self.0.stream()
    }
}

impl DevicePtrMut<f32> for Begins<CudaSlice<f32>> {
    fn device_ptr_mut<'a>(&'a mut self, stream: &'a CudaStream) -> (u64, SyncOnDrop<'a>) {
        let (pointer, used) = self.0.device_ptr_mut(stream);
        std::mem::forget(used);
        begin(stream);
        (pointer, SyncOnDrop::Record(None))
    }
}

impl HostSlice<f32> for Begins<&'static mut [f32]> {
    fn len(&self) -> usize {
        self.0.len()
    }

    unsafe fn stream_synced_slice<'a>(
        &'a self,
        stream: &'a CudaStream,
    ) -> (&'a [f32], SyncOnDrop<'a>) {
        begin(stream);
        (&*self.0, SyncOnDrop::Sync(None))
    }

    unsafe fn stream_synced_mut_slice<'a>(
        &'a mut self,
        stream: &'a CudaStream,
    ) -> (&'a mut [f32], SyncOnDrop<'a>) {
        begin(stream);
        (&mut *self.0, SyncOnDrop::Sync(None))
    }
}

/// The graph keeps the memory from the end of the guard on.
#[rstest]
fn a_capture_that_begins_within_cudarcs_copy_keeps_the_memory(
    #[values(true, false)] to_host: bool,
) {
    let stage = Stage::new();
    let mut there = Begins(stage.stream.alloc_zeros::<f32>(4).expect("memory"));
    let mut here = Begins(Box::leak(Box::new([0.0; 4])).as_mut_slice());
    stage.stream.synchronize().expect("zeros");
    let typed = stage.view.typed::<f32>().expect("floats");
    let mut guard = typed.on(&stage.stream).expect("a guard");
    let slice = guard.as_slice().expect("contiguous");
    match to_host {
        true => stage.stream.memcpy_dtoh(&slice, &mut here),
        false => stage.stream.memcpy_dtod(&slice, &mut there),
    }
    .expect("a copy");
    drop(guard);
    let graph = stage.end();
    stage.launch_without_the_view(graph);
}

/// Nor is it another one of a context that is not the device's primary one.
#[rstest]
fn a_capture_of_another_contexts_stream_keeps_the_memory(#[values(true, false)] is_default: bool) {
    let (machine, ended) = (machine(), Arc::new(AtomicBool::new(false)));
    let context = CudaContext::new_non_primary(0, 0).expect("a context");
    let stream = context.new_stream().expect("a stream");
    let other = match is_default {
        true => context.per_thread_stream(),
        false => context.new_stream().expect("a stream"),
    };
    let memory: CudaSlice<f32> = stream.clone_htod(&[1.0_f32; 4]).expect("memory");
    let whole = CaiView::from_cudarc(memory, [4]).expect("a view");
    stream.synchronize().expect("the copy is done");
    let descriptor = whole.descriptor().clone();
    let owner = Owner::new(Ends(Arc::clone(&ended), Some(whole)));
    // SAFETY: elements of the memory that the owner keeps.
    let view = unsafe { CaiView::new(descriptor, Stream::None, owner) };
    let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    stream.begin_capture(mode).expect("a capture");
    other.join(&stream).expect("it enters the capture");
    let typed = view.typed::<f32>().expect("floats");
    let mut guard = typed.on(&stream).expect("a guard");
    let slice = guard.as_slice().expect("contiguous");
    // The end of cudarc's use would break the capture by its wait.
    let (pointer, use_of_it) = slice.device_ptr(&other);
    std::mem::forget(use_of_it);
    assert_ne!(pointer, 0);
    assert_eq!(machine.sim.count("cuGraphRetainUserObject"), 1);
    stream.join(&other).expect("it comes back");
    drop(guard);
    drop(view);
    // SAFETY: the stream is alive, and captures.
    let graph = unsafe { cudarc::driver::result::stream::end_capture(stream.cu_stream()) };
    let graph = graph.expect("a graph");
    std::thread::sleep(Duration::from_millis(20));
    assert!(!ended.load(Ordering::SeqCst), "the graph keeps the memory");
    // SAFETY: alive, and not used afterwards.
    unsafe { cudarc::driver::result::graph::destroy(graph) }.expect("destroyed");
}
