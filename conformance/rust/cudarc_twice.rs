//! A driver that refuses two calls: an end of a context takes two answers that both say so, and no answer between them that
//! it lives. And what another thread must not undo.

use std::thread;
use std::time::Duration;

use cai_dlpack::CaiView;
use cai_dlpack::protocol::stream::Stream;
use cai_dlpack::view::Owner;
use cudarc::driver::{CudaStream, result, sys};
use rstest::rstest;

use crate::cudarc_edges::is_whole;
use crate::cudarc_guard::Stage;
use crate::cudarc_orders::Memory;
use crate::cudarc_uses::{MODES, begin, gate, opened_later};
use crate::simulator::{Steered, number};

const BYTES: usize = 16;

/// Overwrites the memory when it ends, as who takes it over would.
struct Overwrites(Steered, u64);

impl Drop for Overwrites {
    fn drop(&mut self) {
        self.0.poke(self.1, &[0xEE; BYTES]).expect("memory");
    }
}

/// The stage's array, of ones, of another owner, which may be kept for ever.
fn owned(stage: &Stage, owner: impl Send + Sync + 'static) -> CaiView {
    let plain = stage.array(Stream::None, None, &[1]);
    let described = plain.descriptor().clone();
    let ones = [1; BYTES];
    stage
        .machine
        .sim
        .poke(described.data(), &ones)
        .expect("memory");
    // SAFETY: elements of the stage's memory, which outlives the view.
    unsafe { CaiView::new(described, Stream::None, Owner::new(owner)) }
}

/// With an owner that overwrites it.
fn overwritten(stage: &Stage) -> CaiView {
    let at = stage.array(Stream::None, None, &[1]).descriptor().data();
    owned(stage, Overwrites(stage.machine.sim, at))
}

fn copy(target: u64, from: u64, stream: &CudaStream) {
    // SAFETY: as many bytes of each, whose owners stay.
    unsafe { result::memcpy_dtod_async(target, from, BYTES, stream.cu_stream()) }.expect("a copy");
}

/// The owner stays as long as the copy reads, whatever pair of codes the end of the guard meets, but for two of an end.
#[rstest]
fn one_answer_of_two_ends_no_context(
    #[values(
        "cuCtxGetId",
        "cuCtxGetDevice",
        "cuCtxPushCurrent",
        "cuCtxPopCurrent",
        "cuCtxSetCurrent",
        "cuCtxGetCurrent"
    )]
    call: &str,
    #[values((999, 201), (1, 4), (201, 999), (709, 1))] codes: (u32, u32),
    #[values(1, 2, 3)] nth: u64,
    #[values(1, 2)] gap: u64,
    #[values(false, true)] is_captured: bool,
) {
    let stage = Stage::new();
    let (sim, view) = (stage.machine.sim, overwritten(&stage));
    let (own, target) = (&stage.consumer, Memory::new(&stage.context, BYTES));
    let held = gate(&stage.machine, own);
    let guard = view
        .typed::<f32>()
        .expect("floats")
        .on(own)
        .expect("a guard");
    copy(target.address, *guard.device_ptr(), own);
    if is_captured {
        begin(own, MODES[2]);
    }
    sim.fault(call, nth, codes.0);
    sim.fault(call, nth + gap, codes.1);
    let opener = opened_later(held);
    let told = guard.finish();
    sim.clear_faults();
    drop(view);
    opener.join().expect("no panic");
    if is_captured {
        assert!(is_whole(own));
    }
    own.synchronize().expect("done");
    let found = sim.peek(target.address, BYTES).expect("memory");
    assert_eq!(found, [1; BYTES], "the owner has ended: told {told:?}");
    let _ = stage.context.check_err();
}

/// A context that is being captured lives, whatever is told of it before and after.
#[rstest]
fn an_answer_between_two_of_an_end_proves_life(
    #[values("cuCtxGetId", "cuCtxGetDevice", "cuCtxGetCurrent")] call: &str,
    #[values(1, 2, 3, 4)] nth: u64,
    #[values(1, 2)] gap: u64,
) {
    let stage = Stage::new();
    let (sim, view) = (stage.machine.sim, overwritten(&stage));
    let (own, target) = (&stage.consumer, Memory::new(&stage.context, BYTES));
    let held = gate(&stage.machine, own);
    let guard = view
        .typed::<f32>()
        .expect("floats")
        .on(own)
        .expect("a guard");
    copy(target.address, *guard.device_ptr(), own);
    begin(own, MODES[2]);
    // The first mark, and the one after the question whether it is captured.
    sim.fault(call, nth, 201);
    sim.fault(call, nth + gap, 201);
    let told = guard.finish();
    let is_met = sim.pending_faults() == 0;
    sim.clear_faults();
    drop(view);
    thread::sleep(Duration::from_millis(5));
    held.open();
    assert!(is_whole(own));
    own.synchronize().expect("done");
    let found = sim.peek(target.address, BYTES).expect("memory");
    assert_eq!(
        found, [1; BYTES],
        "the owner has ended: told {told:?}, met {is_met}"
    );
    let _ = stage.context.check_err();
}

/// Two parts of one capture: the driver refuses the edge between them, both ways. The end tells it, by itself or by cudarc.
#[rstest]
fn parts_of_a_capture_that_are_not_ordered_are_told(
    #[values(
        "cuEventRecord",
        "cuCtxGetId",
        "cuStreamIsCapturing",
        "cuCtxGetCurrent"
    )]
    call: &str,
    #[values(1, 2, 3)] nth: u64,
    #[values(1, 2, 3, 4)] faults: u64,
    #[values(false, true)] is_dropped: bool,
) {
    let stage = Stage::new();
    let sim = stage.machine.sim;
    let (own, other) = (
        stage.context.per_thread_stream(),
        stage.context.new_stream().expect("a stream"),
    );
    let mut view = owned(&stage, ());
    begin(&own, MODES[2]);
    other.join(&own).expect("a fork");
    let floats = view.typed_mut::<f32>().expect("floats");
    let (left, right) = floats.split(0, 2).expect("two parts");
    let mut left = left.on(&other).expect("a guard");
    let mut right = right.on(&own).expect("a guard");
    let mut part = left.as_slice().expect("contiguous");
    other.memset_zeros(&mut part).expect("zeros");
    let mut part = right.as_slice().expect("contiguous");
    own.memset_zeros(&mut part).expect("zeros");
    left.finish().expect("an end");
    sim.clear();
    for at in 0..faults {
        sim.fault(call, nth + at, 999);
    }
    let told = match is_dropped {
        true => {
            drop(right);
            stage.context.check_err().is_err()
        }
        false => right.finish().is_err(),
    };
    sim.clear_faults();
    let _ = stage.context.check_err();
    let reader = view.typed::<f32>().expect("floats").on(&own);
    let is_refused = reader.is_err();
    drop(reader);
    let waits = stage.machine.orders();
    let is_ordered = waits.iter().any(|(call, _)| call == "cuStreamWaitEvent");
    own.join(&other).expect("a join");
    assert!(is_whole(&own));
    assert!(told || is_refused || is_ordered, "{waits:?}");
}

/// A writer of a capture whose address is asked for on another thread, where its stream's number means another stream; that
/// of a guard from before the capture, too.
#[rstest]
fn an_address_asked_for_elsewhere_forgets_no_capture(
    #[values(false, true)] is_asked: bool,
    #[values(false, true)] is_from_before: bool,
    #[values(0, 1, 2)] mode: usize,
) {
    let stage = Stage::new();
    let (own, other) = (
        stage.context.per_thread_stream(),
        stage.context.new_stream().expect("a stream"),
    );
    let mut view = stage.array(Stream::None, None, &[1]);
    let floats = view.typed_mut::<f32>().expect("floats");
    let capture = || {
        begin(&own, MODES[mode]);
        other.join(&own).expect("a fork");
    };
    let mut guard = match is_from_before {
        true => {
            let guard = floats.on(&own).expect("a guard");
            capture();
            guard
        }
        false => {
            capture();
            floats.on(&own).expect("a guard")
        }
    };
    let mut slice = guard.as_slice().expect("contiguous");
    own.memset_zeros(&mut slice).expect("zeros");
    let end = || {
        if is_asked {
            let _ = guard.device_ptr();
        }
        guard.finish()
    };
    let told = thread::scope(|scope| scope.spawn(end).join().expect("no panic"));
    stage.machine.sim.clear();
    let reader = view.typed::<f32>().expect("floats").on(&other);
    let orders = stage.machine.orders();
    let is_refused = reader.is_err();
    drop(reader);
    own.join(&other).expect("a join");
    assert!(is_whole(&own));
    let waits = ("cuStreamWaitEvent".to_owned(), number(&other));
    assert!(
        is_refused || orders.contains(&waits),
        "told {told:?}, and {orders:?}"
    );
}

/// A graph is launched after the writer's guard has ended elsewhere: a reader waits for the stream.
#[rstest]
fn a_graph_is_launched_after_the_end(
    #[values(false, true)] is_elsewhere: bool,
    #[values(false, true)] is_asked: bool,
) {
    let stage = Stage::new();
    let (own, other) = (
        stage.context.per_thread_stream(),
        stage.context.new_stream().expect("a stream"),
    );
    let (mut view, target) = (
        stage.array(Stream::None, None, &[1]),
        Memory::new(&stage.context, BYTES),
    );
    let floats = view.typed_mut::<f32>().expect("floats");
    let mut guard = floats.on(&own).expect("a guard");
    begin(&own, MODES[2]);
    let mut slice = guard.as_slice().expect("contiguous");
    own.memset_zeros(&mut slice).expect("zeros");
    let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
    let graph = own.end_capture(flags).expect("whole").expect("a graph");
    if is_asked {
        let _ = guard.device_ptr();
    }
    let told = match is_elsewhere {
        true => thread::scope(|scope| scope.spawn(|| guard.finish()).join().expect("no panic")),
        false => guard.finish(),
    };
    let held = gate(&stage.machine, &own);
    graph.launch().expect("a launch");
    let reader = view
        .typed::<f32>()
        .expect("floats")
        .on(&other)
        .expect("a guard");
    copy(target.address, *reader.device_ptr(), &other);
    reader.finish().expect("an end");
    thread::sleep(Duration::from_millis(2));
    held.open();
    other.synchronize().expect("done");
    own.synchronize().expect("done");
    let found = stage
        .machine
        .sim
        .peek(target.address, BYTES)
        .expect("memory");
    assert_eq!(found, [0; BYTES], "told {told:?}");
}

/// The drop of a slice tries a few times if the driver refuses each call that would free it, whatever the code, and not
/// once for each refusal.
#[rstest]
fn a_slice_that_is_never_let_free_is_tried_a_few_times(#[values(999, 201, 4)] code: u32) {
    let stage = Stage::new();
    let slice = stage.producer.clone_htod(&[1.0; 4]).expect("a slice");
    let view = CaiView::from_cudarc(slice, [4]).expect("a view");
    stage.producer.synchronize().expect("ones");
    let sim = stage.machine.sim;
    for call in ["cuThreadExchangeStreamCaptureMode", "cuEventRecord"] {
        (1..=1_000).for_each(|nth| sim.fault(call, nth, code));
    }
    drop(view);
    assert!(sim.pending_faults() > 1_950);
    sim.clear_faults();
    let _ = stage.context.check_err();
}
