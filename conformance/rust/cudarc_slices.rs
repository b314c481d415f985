//! cudarc's slices as views.

use std::mem::forget;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;

use cai_dlpack::protocol::device::{Access, Device};
use cai_dlpack::protocol::rule::Rule;
use cai_dlpack::protocol::stream::Stream;
use cai_dlpack::view::LiveStream;
use cai_dlpack::{CaiView, Error};
use cudarc::driver::sys::CUresult;
use cudarc::driver::{
    CudaContext, CudaSlice, CudaStream, CudaView, DevicePtr, DriverError, result,
};
use rstest::rstest;

use crate::cudarc_edges::is_whole;
use crate::cudarc_guard::{self, Stage};
use crate::cudarc_random_slices::{Sets, take_errors};
use crate::cudarc_uses::{MODES, begin};
use crate::simulator::{Machine, eventually, machine, number, one_event};

fn rule<T>(answer: Result<T, Error>) -> Rule {
    match answer.map(drop) {
        Err(Error::Violation(violation)) => violation.rule(),
        other => panic!("{other:?}"),
    }
}

fn slice(values: &[f32]) -> CudaSlice<f32> {
    let context = CudaContext::new(0).expect("device 0");
    let stream = context.new_stream().expect("a stream");
    stream.clone_htod(values).expect("memory")
}

#[test]
fn a_whole_slice() {
    let machine = machine();
    let slice = slice(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let stream = Arc::clone(slice.stream());
    machine.sim.clear();
    let view = CaiView::from_cudarc(slice, [2, 3]).expect("a view");
    assert_eq!(view.descriptor().shape(), [2, 3]);
    assert_eq!(view.device(), Device::cuda(0));
    assert_eq!(view.descriptor().access(), Access::Writable);
    assert_eq!(view.ready().number().raw(), number(&stream));
    assert_eq!(view.producer(), Some(view.ready()));
    assert_eq!(machine.sim.count("cuStreamSynchronize"), 0);
}

#[test]
fn extents_make_up_the_length() {
    let _machine = machine();
    let refused = CaiView::from_cudarc(slice(&[0.0; 6]), [2, 2]);
    assert_eq!(rule(refused), Rule::ShapeOverride);
    let refused = CaiView::from_cudarc(slice(&[0.0; 6]), [2, 4]);
    assert!(matches!(
        rule(refused),
        Rule::ShapeOverride | Rule::OutOfBounds
    ));
}

#[rstest]
#[case::whole(0, &[6], &[1], true)]
#[case::second_row(3, &[3], &[1], true)]
#[case::second_column(1, &[2], &[3], true)]
#[case::backwards(5, &[6], &[-1], true)]
#[case::nothing_at_the_end(6, &[0], &[1], true)]
#[case::one_too_many(0, &[7], &[1], false)]
#[case::one_too_far(1, &[6], &[1], false)]
#[case::before_the_start(4, &[6], &[-1], false)]
#[case::far_beyond(usize::MAX / 4, &[1], &[1], false)]
#[case::around_the_address_space((1 << 62) + 1, &[1], &[1], false)]
#[case::as_far_back_as_can_be(5, &[2], &[isize::MIN], false)]
#[case::as_far_on_as_can_be(0, &[2], &[isize::MAX], false)]
#[case::there_and_around(0, &[3], &[1 << 61], false)]
#[case::more_than_a_number_holds(0, &[usize::MAX], &[0], false)]
#[case::more_bytes_than_a_number_holds(0, &[1 << 62], &[0], false)]
#[case::many_times_the_same(1, &[1 << 40], &[0], true)]
#[case::fewer_strides_than_axes(0, &[2, 3], &[1], false)]
#[case::one_element(5, &[], &[], true)]
#[case::one_element_outside(6, &[], &[], false)]
fn parts(
    #[case] offset: usize,
    #[case] shape: &[usize],
    #[case] strides: &[isize],
    #[case] is_inside: bool,
) {
    let _machine = machine();
    let whole = CaiView::from_cudarc(slice(&[0.0; 6]), [6]).expect("a view");
    assert_eq!(whole.descriptor().len(), 6);
    let view = CaiView::from_cudarc_part(slice(&[0.0; 6]), offset, shape, strides);
    assert_eq!(view.is_ok(), is_inside, "{view:?}");
}

#[test]
fn no_elements_are_an_array_too() {
    let _machine = machine();
    let slice = slice(&[0.0; 4]);
    let stream = Arc::clone(slice.stream());
    let mut view = CaiView::from_cudarc_part(slice, 4, [0, 4], [4, 1]).expect("a view");
    assert_eq!(view.descriptor().data(), 0);
    let typed = view.typed_mut::<f32>().expect("floats");
    let mut guard = typed.on(&stream).expect("a guard");
    assert_eq!(*guard.device_ptr(), 0);
    let mut slice = guard.as_slice().expect("contiguous");
    stream.memset_zeros(&mut slice).expect("nothing is filled");
}

#[test]
fn parts_of_one_slice_are_read_only_and_keep_it() {
    let machine = machine();
    let slice = Arc::new(slice(&[1.0, 2.0, 3.0, 4.0]));
    let stream = Arc::clone(slice.stream());
    let first = CaiView::from_cudarc_part(Arc::clone(&slice), 0, [2], [1]).expect("a view");
    let second = CaiView::from_cudarc_part(slice, 2, [2], [1]).expect("a view");
    assert_eq!(first.descriptor().access(), Access::ReadOnly);
    assert_eq!(second.descriptor().access(), Access::ReadOnly);
    assert_eq!(second.descriptor().data(), first.descriptor().data() + 8);
    stream.synchronize().expect("the copy is done");
    machine.sim.clear();
    drop(first);
    assert_eq!(machine.sim.count("cuMemFreeAsync"), 0);
    drop(second);
    assert_eq!(machine.sim.count("cuMemFreeAsync"), 1);
}

/// An `Arc` that was lent is its holder's again, who may write on any stream: by what cudarc keeps in the slice, that comes after all
/// who have read it, here and there.
#[rstest]
fn a_slice_that_is_taken_back_is_written_after_its_readers(
    #[values(
        "a guard",
        "a copy",
        "a copy of another part",
        "cudarc, before",
        "cudarc, meanwhile"
    )]
    by: &str,
    #[values(false, true)] is_dropped_elsewhere: bool,
) {
    let machine = machine();
    let context = CudaContext::new(0).expect("a context");
    let [own, reads, writes] = [0; 3].map(|_| context.new_stream().expect("a stream"));
    let made = own.clone_htod(&[1.0_f32, 2.0, 3.0, 4.0]);
    let slice = Arc::new(made.expect("memory"));
    let mut to: CudaSlice<f32> = reads.alloc_zeros(4).expect("memory");
    context.synchronize().expect("what was enqueued is done");
    let gate = machine.sim.gate(number(&reads)).expect("a gate");
    if by == "cudarc, before" {
        reads.memcpy_dtod(&*slice, &mut to).expect("a copy");
    }
    let part = || CaiView::from_cudarc_part(Arc::clone(&slice), 0, [4], [1]).expect("a view");
    let (view, other) = (part(), part());
    let copy = match by {
        "a guard" => {
            let mut guard = view.typed::<f32>().expect("floats").on(&reads);
            let lent = guard.as_mut().expect("a guard");
            let from = lent.as_slice().expect("contiguous");
            reads.memcpy_dtod(&from, &mut to).expect("a copy");
            guard.and_then(|guard| guard.finish()).expect("an edge");
            None
        }
        "a copy" => Some(view.copy_on(&reads).expect("a copy")),
        "a copy of another part" => Some(other.copy_on(&reads).expect("a copy")),
        "cudarc, meanwhile" => {
            reads.memcpy_dtod(&*slice, &mut to).expect("a copy");
            None
        }
        _ => None,
    };
    let let_go = move || drop((other, view));
    match is_dropped_elsewhere {
        true => thread::spawn(let_go).join().expect("no panic"),
        false => let_go(),
    }
    let mut slice = Arc::into_inner(slice).expect("nothing else holds it");
    writes.memset_zeros(&mut slice).expect("zeros");
    // It would have written by now.
    thread::sleep(Duration::from_millis(20));
    gate.open();
    let read = match copy {
        Some(copy) => {
            let there = copy.copy_to_host().expect("on the CPU");
            let values = there.typed::<f32>().expect("floats").copy_to_vec();
            values.expect("in host memory")
        }
        None => reads.clone_dtoh(&to).expect("on the CPU"),
    };
    assert_eq!(read, [1.0, 2.0, 3.0, 4.0]);
}

/// cudarc waits for the events in a slice only while its context has a stream of its making. The work of one that has gone may not be
/// done.
#[rstest]
fn a_view_is_ready_after_a_write_on_a_stream_that_has_gone(#[values(false, true)] is_shared: bool) {
    let machine = machine();
    let context = CudaContext::new(0).expect("a context");
    let own = context.default_stream();
    let writes = context.new_stream().expect("a stream");
    let mut slice = own.clone_htod(&[1.0_f32; 4]).expect("memory");
    context.synchronize().expect("what was enqueued is done");
    let gate = machine.sim.gate(number(&writes)).expect("a gate");
    writes.memset_zeros(&mut slice).expect("zeros");
    drop(writes);
    let slice = Arc::new(slice);
    let _other = is_shared.then(|| Arc::clone(&slice));
    machine.sim.clear();
    let view = CaiView::from_cudarc_part(slice, 0, [4], [1]).expect("a view");
    // With the first stream cudarc waits for what has been enqueued without: one that came and went would hide that.
    assert_eq!(machine.sim.count("cuStreamCreate"), 0);
    let opener = thread::spawn(move || {
        thread::sleep(Duration::from_millis(20));
        gate.open();
    });
    let there = view.copy_to_host().expect("on the CPU");
    let read = there.typed::<f32>().expect("floats").copy_to_vec();
    opener.join().expect("opened");
    assert_eq!(read.expect("in host memory"), [0.0; 4]);
    assert!(!context.is_in_multi_stream_mode(), "no stream is left");
}

#[test]
fn a_slice_ends_after_a_read_on_a_stream_that_has_gone() {
    let machine = machine();
    let context = CudaContext::new(0).expect("a context");
    let own = context.default_stream();
    let reads = context.new_stream().expect("a stream");
    let slice = Arc::new(own.clone_htod(&[1.0_f32; 4]).expect("memory"));
    let mut to: CudaSlice<f32> = own.alloc_zeros(4).expect("memory");
    let view = CaiView::from_cudarc_part(Arc::clone(&slice), 0, [4], [1]).expect("a view");
    context.synchronize().expect("what was enqueued is done");
    let gate = machine.sim.gate(number(&reads)).expect("a gate");
    reads.memcpy_dtod(&*slice, &mut to).expect("a copy");
    drop((slice, reads));
    drop(view);
    // It would be freed by now.
    thread::sleep(Duration::from_millis(20));
    gate.open();
    context.synchronize().expect("the copy is done");
    assert_eq!(own.clone_dtoh(&to).expect("on the CPU"), [1.0; 4]);
}

/// A fork waits for its own stream and for the events in the slice, and nothing has waited for the context.
#[test]
fn a_fork_writes_a_slice_that_is_taken_back_after_its_readers() {
    let machine = machine();
    let context = CudaContext::new(0).expect("a context");
    let own = context.per_thread_stream();
    let reads = context.new_stream().expect("a stream");
    let slice = Arc::new(own.clone_htod(&[1.0_f32; 4]).expect("memory"));
    let mut to: CudaSlice<f32> = own.alloc_zeros(4).expect("memory");
    let view = CaiView::from_cudarc_part(Arc::clone(&slice), 0, [4], [1]).expect("a view");
    context.synchronize().expect("what was enqueued is done");
    let gate = machine.sim.gate(number(&reads)).expect("a gate");
    let mut guard = view.typed::<f32>().expect("floats").on(&reads);
    let lent = guard.as_mut().expect("a guard");
    let from = lent.as_slice().expect("contiguous");
    reads.memcpy_dtod(&from, &mut to).expect("a copy");
    guard.and_then(|guard| guard.finish()).expect("an edge");
    drop((reads, view));
    let mut slice = Arc::into_inner(slice).expect("nothing else holds it");
    let there = Arc::clone(&context);
    let written = thread::spawn(move || {
        let fork = there.per_thread_stream().fork().expect("a stream");
        fork.memset_zeros(&mut slice).expect("zeros");
        (slice, fork)
    });
    let _written = written.join().expect("no panic");
    // It would have written by now.
    thread::sleep(Duration::from_millis(20));
    gate.open();
    context.synchronize().expect("the copy is done");
    assert_eq!(own.clone_dtoh(&to).expect("on the CPU"), [1.0; 4]);
}

/// cudarc notes what the driver refuses in the context, where a call of any thread takes it. Each try has a context of its own, as an
/// error that is noted late would stop a call of the next one.
#[rstest]
fn a_refusal_that_another_thread_takes_hides_no_order(
    #[values("made", "made of one that is lent", "taken back", "lent by a guard")] what: &str,
) {
    let machine = machine();
    for _ in 0..60 {
        let context = CudaContext::new(0).expect("a context");
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            let _over = Sets(&is_over);
            let streams = [0; 3].map(|_| context.new_stream().expect("a stream"));
            scope.spawn(|| take_errors(&context, &is_over));
            match what {
                "taken back" => written_after_its_reader(&machine, &streams),
                "lent by a guard" => lent_after_the_write(&machine, &streams),
                _ => read_after_the_write(&machine, &streams, what == "made"),
            }
        });
    }
}

/// Refuses the wait for the last write as a view is made.
fn read_after_the_write(machine: &Machine, streams: &[Arc<CudaStream>; 3], is_sole: bool) {
    let [own, reads, writes] = streams;
    let mut slice = own.clone_htod(&[1.0_f32; 4]).expect("memory");
    own.synchronize().expect("what was enqueued is done");
    let gate = machine.sim.gate(number(writes)).expect("a gate");
    writes.memset_zeros(&mut slice).expect("zeros");
    let slice = Arc::new(slice);
    let _other = (!is_sole).then(|| Arc::clone(&slice));
    // cudarc waits for the last read before, if it is to be written.
    let nth = if is_sole { 2 } else { 1 };
    machine.sim.fault("cuStreamWaitEvent", nth, 999);
    let view = CaiView::from_cudarc_part(slice, 0, [4], [1]);
    machine.sim.clear_faults();
    let copy = view.map(|view| view.copy_on(reads).expect("a copy"));
    gate.open();
    if let Ok(copy) = copy {
        let there = copy.copy_to_host().expect("on the CPU");
        let read = there.typed::<f32>().expect("floats").copy_to_vec();
        assert_eq!(read.expect("in host memory"), [0.0; 4]);
    }
}

/// Refuses the note of a reader as its view ends.
fn written_after_its_reader(machine: &Machine, streams: &[Arc<CudaStream>; 3]) {
    let [own, reads, writes] = streams;
    let mut slice = Arc::new(own.clone_htod(&[1.0_f32; 4]).expect("memory"));
    let mut to: CudaSlice<f32> = own.alloc_zeros(4).expect("memory");
    own.synchronize().expect("what was enqueued is done");
    let view = CaiView::from_cudarc_part(Arc::clone(&slice), 0, [4], [1]).expect("a view");
    let gate = machine.sim.gate(number(reads)).expect("a gate");
    let mut guard = view.typed::<f32>().expect("floats").on(reads);
    let lent = guard.as_mut().expect("a guard");
    let from = lent.as_slice().expect("contiguous");
    reads.memcpy_dtod(&from, &mut to).expect("a copy");
    guard.and_then(|guard| guard.finish()).expect("an edge");
    machine.sim.fault("cuEventRecord", 1, 999);
    drop(view);
    machine.sim.clear_faults();
    // If it is not its holder's yet, it is once the reader is done.
    if let Some(slice) = Arc::get_mut(&mut slice) {
        let _ = own.context().check_err();
        writes.memset_zeros(slice).expect("zeros");
    }
    gate.open();
    // SAFETY: a living stream.
    unsafe { result::stream::synchronize(reads.cu_stream()) }.expect("the copy is done");
    let (address, done) = to.device_ptr(own);
    forget(done);
    let read = machine.sim.peek(address, 16).expect("bytes");
    assert_eq!(read, [1.0_f32; 4].map(f32::to_ne_bytes).concat());
}

/// Refuses the note of the data as it is lent to a function that works on another stream.
fn lent_after_the_write(machine: &Machine, streams: &[Arc<CudaStream>; 3]) {
    let [own, reads, other] = streams;
    let mut slice = own.clone_htod(&[1.0_f32; 4]).expect("memory");
    own.synchronize().expect("what was enqueued is done");
    let gate = machine.sim.gate(number(own)).expect("a gate");
    own.memset_zeros(&mut slice).expect("zeros");
    let view = CaiView::from_cudarc(slice, [4]).expect("a view");
    let mut guard = view
        .typed::<f32>()
        .expect("floats")
        .on(reads)
        .expect("a guard");
    machine.sim.fault("cuEventRecord", 1, 999);
    let body = |elements: CudaView<'_, f32>| {
        machine.sim.clear_faults();
        let read = other.clone_dtoh(&elements);
        other.synchronize().and(read)
    };
    let opener = thread::spawn(move || {
        thread::sleep(Duration::from_millis(1));
        gate.open();
    });
    // SAFETY: what it enqueues on another stream is done before it returns.
    let read = unsafe { guard.with_untracked_view(body) }.expect("contiguous");
    opener.join().expect("opened");
    if let Ok(read) = read {
        assert_eq!(read, [0.0; 4]);
    }
}

/// The last end of a view leaves the capture whole that has read the slice by cudarc, and notes no error of it.
#[rstest]
fn a_lent_slice_that_a_capture_has_read(
    #[values(0, 1, 2)] mode: usize,
    #[values(false, true)] has_ended: bool,
) {
    let _machine = machine();
    let context = CudaContext::new(0).expect("a context");
    let [own, reads] = [0; 2].map(|_| context.new_stream().expect("a stream"));
    // Without a write, for which a capture would wait in vain.
    // SAFETY: nothing looks at what is read there.
    let slice: CudaSlice<f32> = unsafe { own.alloc(2) }.expect("memory");
    // SAFETY: as above.
    let mut to: CudaSlice<f32> = unsafe { own.alloc(2) }.expect("memory");
    let mut slice = Arc::new(slice);
    let part = CaiView::from_cudarc_part(Arc::clone(&slice), 0, [2], [1]);
    let mut view = Some(part.expect("a view"));
    begin(&reads, MODES[mode]);
    reads.memcpy_dtod(&*slice, &mut to).expect("a node");
    if !has_ended {
        drop(view.take());
    }
    assert!(is_whole(&reads));
    drop(view);
    assert_eq!(context.check_err(), Ok(()));
    eventually("the slice is its holder's again", || {
        Arc::get_mut(&mut slice).is_some()
    });
}

/// A view of a lent slice ends at once, whatever else runs in the context: that may wait for this thread.
#[rstest]
fn a_lent_slice_waits_for_no_other_work(
    #[values("its stream", "another thread's", "a capture has read it")] of: &str,
) {
    let machine = machine();
    let context = CudaContext::new(0).expect("a context");
    let [new, other, reads] = [0; 3].map(|_| context.new_stream().expect("a stream"));
    let own = match of {
        "another thread's" => context.per_thread_stream(),
        _ => new,
    };
    // SAFETY: nothing looks at what is read there.
    let slice: CudaSlice<f32> = unsafe { own.alloc(2) }.expect("memory");
    // SAFETY: as above.
    let mut to: CudaSlice<f32> = unsafe { own.alloc(2) }.expect("memory");
    let mut slice = Arc::new(slice);
    let view = CaiView::from_cudarc_part(Arc::clone(&slice), 0, [2], [1]).expect("a view");
    if of == "a capture has read it" {
        begin(&reads, MODES[2]);
        reads.memcpy_dtod(&*slice, &mut to).expect("a node");
        assert!(is_whole(&reads));
    }
    own.synchronize().expect("what was enqueued is done");
    let held = machine.sim.gate(number(&other)).expect("a gate");
    let ended = thread::spawn(|| drop(view));
    eventually("the view ends", || ended.is_finished());
    // Of that thread's stream all work of the context tells: what the view has kept is kept until then.
    let is_kept = Arc::get_mut(&mut slice).is_none();
    assert!(is_kept || of != "another thread's");
    held.open();
    eventually("the slice is its holder's again", || {
        Arc::get_mut(&mut slice).is_some()
    });
}

/// A view that is refused holds no share of what was to be lent.
#[test]
fn a_slice_that_is_not_lent_is_its_holders_at_once() {
    let _machine = machine();
    let mut slice = Arc::new(slice(&[1.0, 2.0]));
    let stream = Arc::clone(slice.stream());
    begin(&stream, MODES[2]);
    let refused = CaiView::from_cudarc_part(Arc::clone(&slice), 0, [2], [1]);
    assert_eq!(rule(refused), Rule::CaptureConsumer);
    assert!(Arc::get_mut(&mut slice).is_some());
    assert!(is_whole(&stream));
    let refused = CaiView::from_cudarc_part(Arc::clone(&slice), 0, [3], [1]);
    assert_eq!(rule(refused), Rule::OutOfBounds);
    assert!(Arc::get_mut(&mut slice).is_some());
}

#[test]
fn the_last_one_alone_may_be_written() {
    let _machine = machine();
    let view = CaiView::from_cudarc_part(Arc::new(slice(&[0.0; 4])), 0, [4], [1]);
    let view = view.expect("a view");
    assert_eq!(view.descriptor().access(), Access::Writable);
}

#[test]
fn ready_after_a_write_on_another_stream() {
    let machine = machine();
    let mut slice = slice(&[1.0; 4]);
    let other = slice.context().new_stream().expect("a stream");
    let consumer = slice.context().new_stream().expect("a stream");
    slice.stream().synchronize().expect("the copy is done");
    let gate = machine.sim.gate(number(&other)).expect("a gate");
    other
        .memcpy_htod(&[7.0_f32; 4], &mut slice)
        .expect("a copy");
    let view = CaiView::from_cudarc(slice, [4]).expect("a view");
    let mut copied = vec![0.0_f32; 4];
    {
        let mut guard = view
            .typed::<f32>()
            .expect("floats")
            .on(&consumer)
            .expect("a guard");
        gate.open();
        consumer
            .memcpy_dtoh(&guard.as_slice().expect("contiguous"), &mut copied)
            .expect("a copy");
    }
    consumer.synchronize().expect("the copy is done");
    assert_eq!(copied, [7.0; 4]);
}

#[test]
fn written_after_a_read_on_another_stream() {
    let machine = machine();
    let slice = slice(&[1.0; 4]);
    let other = slice.context().new_stream().expect("a stream");
    let consumer = slice.context().new_stream().expect("a stream");
    let mut copy = other.alloc_zeros::<f32>(4).expect("memory");
    let gate = machine.sim.gate(number(&other)).expect("a gate");
    other.memcpy_dtod(&slice, &mut copy).expect("a copy");
    let mut view = CaiView::from_cudarc(slice, [4]).expect("a view");
    let typed = view.typed_mut::<f32>().expect("floats");
    let mut guard = typed.on(&consumer).expect("a guard");
    consumer
        .memset_zeros(&mut guard.as_slice().expect("contiguous"))
        .expect("a fill");
    drop(guard);
    std::thread::scope(|scope| {
        // What can run without the read does so now.
        let done = scope.spawn(|| consumer.synchronize());
        std::thread::sleep(Duration::from_millis(20));
        gate.open();
        done.join().expect("a thread").expect("the fill is done");
    });
    assert_eq!(other.clone_dtoh(&copy).expect("a copy"), [1.0; 4]);
}

/// 2 is another stream on every thread, and freeing on it would come before the work on its own.
#[test]
fn a_slice_of_a_per_thread_stream_is_freed_elsewhere_after_all_work() {
    let machine = machine();
    let context = CudaContext::new(0).expect("device 0");
    let stream = context.per_thread_stream();
    let slice = stream.clone_htod(&[1.0_f32; 4]).expect("memory");
    let view = CaiView::from_cudarc(slice, [4]).expect("a view");
    machine.log_every_thread();
    std::thread::spawn(move || drop(view))
        .join()
        .expect("dropped");
    let calls = machine.sim.calls();
    let at = |name: &str| calls.iter().position(|call| call.name() == name);
    let (waited, freed) = (at("cuMemFree"), at("cuMemFreeAsync"));
    assert!(waited.is_some() && waited < freed, "{calls:?}");
}

/// Memory may be short, and then nothing waits for the work on the slice: it stays, as all that is freed later would be another
/// array's.
#[rstest]
fn a_slice_that_is_dropped_elsewhere_is_freed_after_its_work_or_never(
    #[values(false, true)] is_memory_short: bool,
) {
    let stage = Stage::new();
    let stream = stage.context.per_thread_stream();
    let slice = stream.clone_htod(&[1.0_f32; 4]).expect("memory");
    let mut copy = stream.alloc_zeros::<f32>(4).expect("memory");
    let view = CaiView::from_cudarc(slice, [4]).expect("a view");
    stream.synchronize().expect("the copy is done");
    let gate = stage.machine.sim.gate(number(&stream)).expect("a gate");
    let typed = view.typed::<f32>().expect("floats");
    let mut guard = typed.on(&stream).expect("a guard");
    let read = guard.as_slice().expect("contiguous");
    stream.memcpy_dtod(&read, &mut copy).expect("a copy");
    drop(guard);
    stage.machine.log_every_thread();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            if is_memory_short {
                lacks_memory(&stage);
            }
            drop(view);
        });
        std::thread::sleep(Duration::from_millis(20));
        gate.open();
    });
    assert_eq!(stream.clone_dtoh(&copy).expect("a copy"), [1.0; 4]);
    let freed = stage.machine.sim.count("cuMemFreeAsync");
    assert_eq!(freed, u64::from(!is_memory_short));
}

/// Has the driver refuse this thread the byte by which a context is waited for, twice; of the device's memory each time
/// twice.
fn lacks_memory(stage: &Stage) {
    for (call, times) in [("cuMemAlloc", 4), ("cuMemHostAlloc", 2)] {
        (1..=times).for_each(|nth| stage.machine.sim.fault(call, nth, 2));
    }
}

/// The elements of a per-thread stream's guard are taken on another thread: nothing waits for them if memory is short, which
/// cudarc's next call tells.
#[test]
fn elements_that_nothing_waits_for_are_not_read_in_silence() {
    let stage = Stage::new();
    let stream = stage.context.per_thread_stream();
    let view = stage.array(Stream::None, None, &[1]);
    let typed = view.typed::<f32>().expect("floats");
    let mut guard = typed.on(&stream).expect("a guard");
    let other = stage.context.new_stream().expect("a stream");
    let told = std::thread::scope(|scope| {
        let elsewhere = scope.spawn(|| {
            lacks_memory(&stage);
            let read = other.clone_dtoh(&guard.as_slice().expect("contiguous"));
            read.map(drop).and_then(|()| other.synchronize())
        });
        elsewhere.join().expect("a thread")
    });
    let refused = DriverError(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    assert_eq!(told, Err(refused));
}

#[test]
fn freed_in_its_own_context_whatever_is_current() {
    let machine = machine();
    let view = CaiView::from_cudarc(slice(&[0.0; 4]), [4]).expect("a view");
    let elsewhere = CudaContext::new(1).expect("device 1");
    elsewhere.bind_to_thread().expect("current");
    let before = cudarc::driver::result::ctx::get_current().expect("a context");
    machine.sim.clear();
    drop(view);
    let freed: Vec<_> = machine.sim.calls();
    let freed = freed
        .iter()
        .find(|call| call.name() == "cuMemFreeAsync")
        .expect("freed");
    assert_eq!(freed.result, Some(0));
    assert_eq!(
        cudarc::driver::result::ctx::get_current().expect("a context"),
        before
    );
}

/// cudarc destroys it, and with it takes it off the thread.
#[test]
fn a_context_that_ends_with_a_slice_is_current_no_more() {
    let _machine = machine();
    let primary = CudaContext::new(0).expect("device 0");
    primary.bind_to_thread().expect("current");
    let before = cudarc::driver::result::ctx::get_current().expect("a context");
    let second = CudaContext::new_non_primary(0, 0).expect("a context");
    let slice = second
        .new_stream()
        .and_then(|stream| stream.alloc_zeros::<f32>(4));
    let view = CaiView::from_cudarc(slice.expect("memory"), [4]).expect("a view");
    drop(second);
    drop(view);
    assert_eq!(
        cudarc::driver::result::ctx::get_current().expect("a context"),
        before
    );
}

/// The slice is the last that has its context.
#[rstest]
fn a_slice_that_is_refused_changes_nothing_of_what_is_current(
    #[values(0, 1)] ordinal: usize,
    #[values(false, true)] is_primary: bool,
    #[values(false, true)] is_of_default: bool,
) {
    let machine = machine();
    machine.log_every_thread();
    let current = CudaContext::new(1 - ordinal).expect("another device");
    let context = match is_primary {
        true => CudaContext::new(ordinal),
        false => CudaContext::new_non_primary(ordinal, 0),
    };
    let context = context.expect("a context");
    let stream = match is_of_default {
        true => context.default_stream(),
        false => context.new_stream().expect("a stream"),
    };
    let slice = stream.alloc_zeros::<f32>(4).expect("memory");
    current.bind_to_thread().expect("current");
    let before = cudarc::driver::result::ctx::get_current().expect("a context");
    let weak = Arc::downgrade(&context);
    drop((stream, context));
    assert!(CaiView::from_cudarc(slice, [5]).is_err());
    assert_eq!(weak.strong_count(), 0);
    assert_eq!(
        cudarc::driver::result::ctx::get_current().expect("a context"),
        before
    );
    let freed = machine.sim.calls();
    let freed = freed.iter().find(|call| call.name() == "cuMemFreeAsync");
    assert_eq!(freed.and_then(|call| call.result), Some(0));
}

#[test]
fn freed_on_a_thread_without_a_context() {
    let machine = machine();
    let tensor = CaiView::from_cudarc(slice(&[0.0; 4]), [4])
        .and_then(|view| view.to_dlpack(LiveStream::NONE))
        .expect("a tensor");
    machine.log_every_thread();
    std::thread::spawn(move || drop(tensor))
        .join()
        .expect("dropped");
    let calls = machine.sim.calls();
    let freed = calls
        .iter()
        .find(|call| call.name() == "cuMemFreeAsync")
        .expect("freed");
    assert_eq!(freed.result, Some(0));
}

#[test]
fn the_default_stream_of_another_context_has_no_number() {
    let _machine = machine();
    let own = CudaContext::new_non_primary(0, 0).expect("a context");
    let slice = own.default_stream().alloc_zeros::<f32>(4).expect("memory");
    assert_eq!(rule(CaiView::from_cudarc(slice, [4])), Rule::StreamDevice);
}

/// cudarc frees on the default stream by a number that means the current context's.
#[test]
fn freed_on_the_default_stream_of_its_own_context() {
    let machine = machine();
    let context = CudaContext::new(0).expect("device 0");
    let own = context.cu_ctx().addr() as u64;
    let slice = context
        .default_stream()
        .alloc_zeros::<f32>(4)
        .expect("memory");
    let view = CaiView::from_cudarc(slice, [4]).expect("a view");
    let elsewhere = CudaContext::new(1).expect("device 1");
    elsewhere.bind_to_thread().expect("current");
    machine.sim.clear();
    drop(view);
    let calls = machine.sim.calls();
    let freed = calls
        .iter()
        .position(|call| call.name() == "cuMemFreeAsync")
        .expect("freed");
    let made_current = calls[..freed]
        .iter()
        .rfind(|call| call.name() == "cuCtxPushCurrent");
    assert_eq!(made_current.expect("its own context").arguments[0].1, own);
}

/// A foreign array in a function that takes slices of cudarc's alone: it is not freed, other streams wait for the data, and
/// the guard's stream for what they did last.
#[test]
fn a_foreign_array_is_lent_as_a_slice() {
    let stage = Stage::new();
    let ready = cudarc_guard::stream(&stage.producer);
    let mut view = stage.array(ready, Some(ready), &[1]);
    let other = stage.context.new_stream().expect("a stream");
    let (own, there) = (number(&stage.consumer), number(&other));
    let mut guard = view
        .typed_mut::<f32>()
        .expect("floats")
        .on(&stage.consumer)
        .expect("a guard");
    stage.machine.sim.clear();
    // SAFETY: the only work is a fill on the other stream, which the end of the slice joins.
    let filled =
        unsafe { guard.with_untracked_view_mut(|mut elements| other.memset_zeros(&mut elements)) };
    filled.expect("contiguous").expect("a fill");
    let orders = stage.machine.orders();
    // Of the data the other stream learns by an event of the guard's, and the guard's by one of the other.
    let call = |name: &str, stream| {
        orders
            .iter()
            .position(|order| *order == (name.into(), stream))
    };
    let told = (call("cuEventRecord", own), call("cuStreamWaitEvent", there));
    assert!(told.0 < told.1 && told.0.is_some(), "{orders:?}");
    let last = orders.last().expect("an order");
    assert!(told.1 < call("cuEventRecord", there), "{orders:?}");
    assert_eq!(*last, ("cuStreamWaitEvent".to_owned(), own));
    // SAFETY: works on the guard's stream alone.
    let copied =
        unsafe { guard.with_untracked_slice(|elements| stage.consumer.clone_dtoh(elements)) };
    assert_eq!(copied.expect("contiguous").expect("a copy"), [0.0; 4]);
    // SAFETY: works on the guard's stream alone.
    let part = unsafe {
        guard.with_untracked_view(|elements| stage.consumer.clone_dtoh(&elements.slice(1..)))
    };
    assert_eq!(part.expect("contiguous").expect("a copy"), [0.0; 3]);
    stage.machine.sim.clear();
    drop(guard);
    assert_eq!(stage.machine.orders(), one_event(own, ready.raw()));
    for call in ["cuMemFree", "cuMemFreeAsync", "cuMemFree_v2"] {
        assert_eq!(stage.machine.sim.count(call), 0);
    }
    let strided = stage.array(ready, Some(ready), &[2]);
    let mut guard = strided
        .typed::<f32>()
        .expect("floats")
        .on(&stage.consumer)
        .expect("a guard");
    // SAFETY: nothing is enqueued.
    let refused = unsafe { guard.with_untracked_slice(|_| ()) };
    assert_eq!(rule(refused.map_err(Error::from)), Rule::ViewContiguous);
}
