//! Readers that come back to no stream of the producer's, as it names none or the driver has refused it: a writer on another
//! stream comes after them, in whichever context and beside whichever captures; see `src/view/keep/readers.rs`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use cai_dlpack::protocol::descriptor::{Descriptor, RawTensor};
use cai_dlpack::protocol::device::{Device, DeviceType};
use cai_dlpack::protocol::dtype::DType;
use cai_dlpack::protocol::rule::Rule;
use cai_dlpack::protocol::stream::Stream;
use cai_dlpack::view::Owner;
use cai_dlpack::{CaiView, Error};
use cudarc::driver::{CudaContext, CudaStream, result};
use cusim_control::Call;
use rstest::rstest;

use crate::cudarc_guard::{Stage, stream};
use crate::cudarc_orders::{Memory, another_context};
use crate::cudarc_uses::{
    MODES, RELAXED, begin, copied, gate, is_whole, opened_later, read, rule, zeroed,
};
use crate::simulator::{Gate, Machine, eventually, machine, number};

/// Four floats that stay to the end of the test.
fn array(address: u64, device: Device, ready: Stream) -> CaiView {
    let tensor = RawTensor::new(address, device, DType::F32, &[4]);
    let descriptor = Descriptor::new(&tensor).expect("a tensor");
    // SAFETY: elements of memory that stays to the end; so does the stream.
    unsafe { CaiView::new(descriptor, ready, Owner::new(())) }
}

/// Pinned memory, which every context reaches, and an array of it. It stays to the end of the process.
fn pinned(context: &CudaContext, ready: Stream) -> (u64, CaiView) {
    context.bind_to_thread().expect("current");
    // SAFETY: a context is current.
    let host = unsafe { result::malloc_host(16, 0) }.expect("pinned memory");
    let address = host.addr() as u64;
    let device = Device::new(DeviceType::CUDA_HOST, 0);
    (address, array(address, device, ready))
}

/// Copies what a guard lends to the memory, on the guard's stream.
fn copy(target: &Memory, from: u64, stream: &CudaStream) {
    // SAFETY: 16 bytes on either side, which stay until the test has waited for the stream.
    unsafe { result::memcpy_dtod_async(target.address, from, 16, stream.cu_stream()) }
        .expect("a copy");
}

/// Has the driver tell nothing of the stream at the end of a guard.
fn lost<T>(machine: &Machine, guard: T) {
    for nth in 1..9 {
        machine.sim.fault("cuStreamIsCapturing", nth, 999);
    }
    drop(guard);
    machine.sim.clear_faults();
}

/// Who reads an array whose producer names no stream, before it is written on another one.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Reads {
    Guard,
    Copy,
}

const NO_STREAM: [Option<Stream>; 2] = [None, Some(Stream::None)];

/// Without a stream of the producer's nothing comes back: a writer waits for the readers themselves.
#[rstest]
fn a_writer_waits_for_readers_that_come_back_to_no_stream(
    #[values(Reads::Guard, Reads::Copy)] reads_by: Reads,
    #[values(0, 1)] producer: usize,
    #[values(false, true)] in_parts: bool,
) {
    let stage = Stage::new();
    let reads = &stage.consumer;
    let writers = [0, 1].map(|_| stage.context.new_stream().expect("a stream"));
    let mut view = stage.array(Stream::None, NO_STREAM[producer], &[1]);
    let mut copy = reads.alloc_zeros::<f32>(4).expect("memory");
    reads.synchronize().expect("zeros");
    let held = gate(&stage.machine, reads);
    let mut made = None;
    if reads_by == Reads::Copy {
        made = Some(view.copy_on(reads).expect("a copy"));
    } else {
        drop(copied!(view, reads, copy));
    }
    let opener = opened_later(held);
    if in_parts {
        let halves = view.typed_mut::<f32>().expect("floats").split(0, 2);
        let (left, right) = halves.expect("halves");
        for (half, writes) in [left, right].into_iter().zip(&writers) {
            let mut guard = half.on(writes).expect("a guard");
            writes
                .memset_zeros(&mut guard.as_slice().expect("contiguous"))
                .expect("zeros");
        }
    } else {
        drop(zeroed!(view, &writers[0]));
    }
    for writes in &writers {
        writes.synchronize().expect("written");
    }
    opener.join().expect("opened");
    let found = match made {
        Some(made) => read(&stage, &made),
        None => reads.clone_dtoh(&copy).expect("the copy"),
    };
    assert_eq!(found, [1.0, 2.0, 3.0, 4.0]);
}

/// If the driver marks no stream and waits for none, the owner is kept for ever, and a writer's host waits.
#[test]
fn a_writer_waits_for_a_reader_of_which_nothing_is_known() {
    let machine = machine();
    let context = CudaContext::new(0).expect("device 0");
    let [reads, writes] = &[0, 1].map(|_| context.new_stream().expect("a stream"));
    let memory = Memory::new(&context, 16);
    machine.sim.poke(memory.address, &[1; 16]).expect("ones");
    let mut view = array(memory.address, Device::cuda(0), Stream::None);
    let mut copy = reads.alloc_zeros::<f32>(4).expect("memory");
    reads.synchronize().expect("zeros");
    let held = gate(&machine, reads);
    let guard = copied!(view, reads, copy);
    lost(&machine, guard);
    let opener = opened_later(held);
    drop(zeroed!(view, writes));
    writes.synchronize().expect("written");
    opener.join().expect("opened");
    assert_eq!(
        reads.clone_dtoh(&copy).expect("the copy"),
        [f32::from_bits(0x0101_0101); 4]
    );
}

/// A capture cannot wait for readers outside of it: a writer there is refused until they are done. Those of another array
/// are of no concern. The capture stays whole in every mode.
#[rstest]
fn a_captured_writer_is_refused_while_a_reader_is_at_work(#[values(0, 1, 2)] mode: usize) {
    let stage = Stage::new();
    let (reads, writes) = (&stage.consumer, &stage.producer);
    let mut view = stage.array(Stream::None, None, &[1]);
    let mut other = stage.array(Stream::None, None, &[1]);
    let held = gate(&stage.machine, reads);
    drop(
        view.typed::<f32>()
            .expect("floats")
            .on(reads)
            .expect("a guard"),
    );
    begin(writes, MODES[mode]);
    let written = other.typed_mut::<f32>().expect("floats").on(writes);
    drop(written.expect("nothing reads"));
    assert_eq!(
        rule(view.typed_mut::<f32>().expect("floats").on(writes)),
        Rule::CaptureConsumer
    );
    held.open();
    let late = Instant::now() + Duration::from_secs(10);
    while let Err(refused) = view
        .typed_mut::<f32>()
        .expect("floats")
        .on(writes)
        .map(drop)
    {
        assert_eq!(rule::<()>(Err(refused)), Rule::CaptureConsumer);
        assert!(Instant::now() < late, "it is done");
        thread::yield_now();
    }
    assert!(is_whole(writes));
}

/// Nothing marks the work of a reader whose stream is captured as its guard ends: a writer is refused until that is done. What
/// a graph reads is no such work.
#[rstest]
fn a_reader_whose_stream_is_captured_as_it_ends(#[values(false, true)] is_in_graph: bool) {
    let stage = Stage::new();
    let (reads, writes) = (&stage.consumer, &stage.producer);
    let mut view = stage.array(Stream::None, None, &[1]);
    let held = gate(&stage.machine, reads);
    if is_in_graph {
        begin(reads, RELAXED);
    }
    let guard = view.typed::<f32>().expect("floats").on(reads);
    let guard = guard.expect("a guard");
    if !is_in_graph {
        begin(reads, RELAXED);
    }
    drop(guard);
    let written = view
        .typed_mut::<f32>()
        .expect("floats")
        .on(writes)
        .map(drop);
    match is_in_graph {
        true => written.expect("nothing reads"),
        false => assert_eq!(rule(written), Rule::CaptureConsumer),
    }
    assert!(is_whole(reads));
    held.open();
    let late = Instant::now() + Duration::from_secs(10);
    while view.typed_mut::<f32>().expect("floats").on(writes).is_err() {
        assert!(Instant::now() < late, "it is done");
        thread::yield_now();
    }
}

/// A guard that begins in one capture and ends in another has read outside of both: nothing marks that.
#[test]
fn a_reader_between_two_captures_is_not_overtaken() {
    let stage = Stage::new();
    let (reads, writes) = (&stage.consumer, &stage.producer);
    let mut view = stage.array(Stream::None, None, &[1]);
    begin(reads, RELAXED);
    let guard = view.typed::<f32>().expect("floats").on(reads);
    let guard = guard.expect("a guard");
    assert!(is_whole(reads));
    let held = gate(&stage.machine, reads);
    begin(reads, RELAXED);
    drop(guard);
    let written = view.typed_mut::<f32>().expect("floats").on(writes);
    assert_eq!(rule(written.map(drop)), Rule::CaptureConsumer);
    assert!(is_whole(reads));
    held.open();
}

/// A graph that reads pinned memory whose producer works on the captured stream is no work that a writer has to wait for.
#[rstest]
fn pinned_memory_in_one_capture(#[values(0, 1, 2)] mode: usize) {
    let machine = machine();
    let context = CudaContext::new(0).expect("device 0");
    let producer = context.new_stream().expect("a stream");
    let (_, view) = pinned(&context, stream(&producer));
    // SAFETY: the stream stays to the end.
    let mut view = unsafe { view.with_producer(stream(&producer)) };
    begin(&producer, MODES[mode]);
    drop(
        view.typed::<f32>()
            .expect("floats")
            .on(&producer)
            .expect("a guard"),
    );
    drop(
        view.typed_mut::<f32>()
            .expect("floats")
            .on(&producer)
            .expect("a guard"),
    );
    drop(
        view.typed_mut::<f32>()
            .expect("floats")
            .on(&producer)
            .expect("a guard"),
    );
    assert!(is_whole(&producer));
    drop(machine);
}

/// The legacy stream works on beside captures of others, in which it is none: what it reads is outside of both.
#[rstest]
fn a_reader_on_the_legacy_stream_beside_two_captures(#[values(0, 1, 2)] mode: usize) {
    let stage = Stage::new();
    let (reads, writes) = (&stage.context.default_stream(), &stage.producer);
    let target = Memory::new(&stage.context, 16);
    let mut view = stage.array(Stream::None, None, &[1]);
    // cudarc's own wait for no other.
    let blocking = result::stream::create(result::stream::StreamKind::Default).expect("a stream");
    // SAFETY: a stream that is captured by this test alone.
    let begin = || unsafe { result::stream::begin_capture(blocking, MODES[mode]) }.expect("begun");
    // SAFETY: the same.
    let end =
        || unsafe { result::stream::end_capture(blocking) }.is_ok_and(|graph| !graph.is_null());
    let held = gate(&stage.machine, reads);
    begin();
    let guard = view.typed::<f32>().expect("floats").on(reads);
    let guard = guard.expect("a guard beside a capture");
    assert!(end());
    copy(&target, *guard.device_ptr(), reads);
    begin();
    drop(guard);
    let written = view.typed_mut::<f32>().expect("floats").on(writes);
    assert_eq!(rule(written.map(drop)), Rule::CaptureConsumer);
    assert!(end());
    held.open();
    reads.synchronize().expect("read");
}

/// Where nothing is known of a reader it may be in any context: a writer's host waits for all of them.
#[rstest]
fn a_reader_of_another_context_of_which_nothing_is_known(
    #[values(false, true)] is_other_device: bool,
) {
    let machine = machine();
    let primary = CudaContext::new(0).expect("device 0");
    let second = match is_other_device {
        true => CudaContext::new(1).expect("device 1"),
        false => another_context(),
    };
    let (address, mut view) = pinned(&primary, Stream::None);
    machine.sim.poke(address, &[1; 16]).expect("ones");
    let target = Memory::new(&second, 16);
    let (reads, writes) = (second.new_stream(), primary.new_stream());
    let (reads, writes) = (reads.expect("a stream"), writes.expect("a stream"));
    second.bind_to_thread().expect("current");
    let held = gate(&machine, &reads);
    let guard = view.typed::<f32>().expect("floats").on(&reads);
    let guard = guard.expect("a guard");
    copy(&target, *guard.device_ptr(), &reads);
    lost(&machine, guard);
    let opener = opened_later(held);
    primary.bind_to_thread().expect("current");
    drop(zeroed!(view, &writes));
    writes.synchronize().expect("written");
    opener.join().expect("opened");
    reads.synchronize().expect("read");
    let found = machine.sim.peek(target.address, 16).expect("bytes");
    assert_eq!(found, [1; 16]);
}

/// The driver does not even tell which context is current: the writer waits in that of the reader's stream.
#[rstest]
fn a_reader_whose_context_is_not_told(
    #[values("cuCtxGetCurrent", "cuCtxGetId")] call: &str,
    #[values(0, 1)] device: usize,
) {
    let machine = machine();
    let primary = CudaContext::new(0).expect("device 0");
    let own = CudaContext::new_non_primary(device, 0).expect("a context");
    let (address, mut view) = pinned(&primary, Stream::None);
    machine.sim.poke(address, &[1; 16]).expect("ones");
    let target = Memory::new(&own, 16);
    let (reads, writes) = (own.new_stream(), primary.new_stream());
    let (reads, writes) = (reads.expect("a stream"), writes.expect("a stream"));
    own.bind_to_thread().expect("current");
    let held = gate(&machine, &reads);
    let guard = view.typed::<f32>().expect("floats").on(&reads);
    let guard = guard.expect("a guard");
    copy(&target, *guard.device_ptr(), &reads);
    for nth in 1..30 {
        machine.sim.fault(call, nth, 999);
    }
    lost(&machine, guard);
    // cudarc may have noted a refusal.
    let _ = own.check_err();
    let opener = opened_later(held);
    primary.bind_to_thread().expect("current");
    drop(zeroed!(view, &writes));
    writes.synchronize().expect("written");
    opener.join().expect("opened");
    own.bind_to_thread().expect("current");
    reads.synchronize().expect("read");
    let found = machine.sim.peek(target.address, 16).expect("bytes");
    assert_eq!(found, [1; 16]);
}

/// cudarc writes on another stream than the guard's, and its wait for that has been refused: the end waits, or is refused too.
#[rstest]
fn a_writer_on_another_stream(
    #[values(1, 2)] refusals: u64,
    #[values(false, true)] has_producer: bool,
) {
    let stage = Stage::new();
    let producer = has_producer.then(|| stream(&stage.producer));
    let other = stage.context.new_stream().expect("a stream");
    let mut view = stage.array(Stream::None, producer, &[1]);
    let held = gate(&stage.machine, &other);
    let guard = view.typed_mut::<f32>().expect("floats").on(&stage.consumer);
    let mut guard = guard.expect("a guard");
    stage.machine.sim.fault("cuStreamSynchronize", 1, 999);
    let zeros = other.memset_zeros(&mut guard.as_slice().expect("contiguous"));
    zeros.expect("zeros");
    stage.machine.sim.clear_faults();
    for nth in 1..=refusals {
        stage
            .machine
            .sim
            .fault("cuThreadExchangeStreamCaptureMode", nth, 999);
    }
    let opener = opened_later(held);
    let ended = guard.finish();
    stage.machine.sim.clear_faults();
    assert!(
        stage.context.check_err().is_err(),
        "the refusal that cudarc has noted"
    );
    match refusals {
        1 => {
            ended.expect("a refusal is one of a moment");
            assert_eq!(read(&stage, &view), [0.0; 4]);
        }
        _ => assert!(matches!(ended, Err(Error::Driver(_))), "{ended:?}"),
    }
    opener.join().expect("opened");
}

/// With a context goes what runs there: nothing is left for a writer to wait for.
#[rstest]
fn a_reader_whose_context_is_gone(#[values(false, true)] is_pending: bool) {
    let machine = machine();
    let primary = CudaContext::new(0).expect("device 0");
    let writes = primary.new_stream().expect("a stream");
    // The keeper has asked about the mark by then, or not. A context takes longer on a GPU.
    let rounds = if machine.sim.has_log() { 20 } else { 3 };
    for _ in 0..rounds {
        let (_, mut view) = pinned(&primary, Stream::None);
        let second = CudaContext::new_non_primary(0, 0).expect("a context");
        let target = Memory::new(&second, 16);
        let reads = second.new_stream().expect("a stream");
        let guard = view.typed::<f32>().expect("floats").on(&reads);
        let guard = guard.expect("a guard");
        if is_pending {
            copy(&target, *guard.device_ptr(), &reads);
        }
        drop(guard);
        drop((reads, target, second));
        primary.bind_to_thread().expect("current");
        drop(zeroed!(view, &writes));
    }
    drop(machine);
}

/// A thread of the library's asks about an event of that context: a driver would read what has been freed.
#[test]
fn the_context_of_a_reader_stays_until_it_is_done() {
    let machine = machine();
    machine.log_every_thread();
    let primary = CudaContext::new(0).expect("device 0");
    let (_, view) = pinned(&primary, Stream::None);
    let second = CudaContext::new_non_primary(0, 0).expect("a context");
    let handle = second.cu_ctx().addr() as u64;
    let reads = second.new_stream().expect("a stream");
    let gate = gate(&machine, &reads);
    let guard = view.typed::<f32>().expect("floats").on(&reads);
    drop(guard.expect("a guard"));
    let (stream, context) = (Arc::downgrade(&reads), Arc::downgrade(&second));
    drop((reads, second));
    let count = || (stream.strong_count(), context.strong_count());
    thread::sleep(Duration::from_millis(50));
    assert!(count().0 > 0 && count().1 > 0, "{:?}", count());
    gate.open();
    eventually("both go", || count() == (0, 0));
    // Nobody names it any more, the thread that has destroyed it neither.
    thread::sleep(Duration::from_millis(20));
    let calls = machine.sim.calls();
    let destroyed = calls.iter().position(|call| call.name() == "cuCtxDestroy");
    let later = &calls[destroyed.expect("destroyed") + 1..];
    let names = |call: &&Call| call.arguments.iter().any(|(_, given)| *given == handle);
    assert_eq!(later.iter().find(names).map(Call::name), None);
    drop(machine);
}

/// Of which the driver has told nothing: a writer asks about its context.
#[test]
fn a_lost_reader_keeps_its_context() {
    let machine = machine();
    let primary = CudaContext::new(0).expect("device 0");
    let (_, mut view) = pinned(&primary, Stream::None);
    let second = CudaContext::new_non_primary(0, 0).expect("a context");
    let reads = second.new_stream().expect("a stream");
    let writes = primary.new_stream().expect("a stream");
    let guard = view.typed::<f32>().expect("floats").on(&reads);
    (1..9).for_each(|nth| machine.sim.fault("cuStreamIsCapturing", nth, 999));
    drop(guard.expect("a guard"));
    machine.sim.clear_faults();
    // The refusals are noted there.
    let _ = second.check_err();
    let context = Arc::downgrade(&second);
    drop((reads, second));
    primary.bind_to_thread().expect("current");
    drop(zeroed!(view, &writes));
    assert!(context.strong_count() > 0);
}

/// Another thread may note a reader as the process is forked: the child does not wait for what that thread has locked.
#[test]
fn a_forked_child_ends_a_guard() {
    let stage = Stage::new();
    let view = stage.array(Stream::None, None, &[1]);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..3 {
            let other = stage.array(Stream::None, None, &[1]);
            let streams = [(); 64].map(|()| stage.context.new_stream().expect("a stream"));
            let is_over = &is_over;
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    for stream in &streams {
                        drop(other.typed::<f32>().expect("floats").on(stream));
                    }
                }
            });
        }
        for _ in 0..FORKS {
            let guard = view.typed::<f32>().expect("floats").on(&stage.consumer);
            // SAFETY: the child drops a guard, which is what is tried, and exits.
            let child = unsafe { libc::fork() };
            drop(guard);
            if child == 0 {
                // SAFETY: nothing of the parent's runs in it.
                unsafe { libc::_exit(0) };
            }
            let is_ended = ended(child);
            if !is_ended {
                // SAFETY: a child of this process that has not been waited for.
                unsafe { libc::kill(child, libc::SIGKILL) };
                is_over.store(true, Ordering::Relaxed);
            }
            assert!(is_ended, "the child waits");
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

/// One child in some hundreds waits if it takes the lock.
const FORKS: usize = 1000;

/// Waits for a child for three seconds.
fn ended(child: libc::pid_t) -> bool {
    let late = Instant::now() + Duration::from_secs(3);
    while Instant::now() < late {
        // SAFETY: a child of this process; null is "no status".
        if unsafe { libc::waitpid(child, std::ptr::null_mut(), libc::WNOHANG) } == child {
            return true;
        }
        thread::sleep(Duration::from_micros(100));
    }
    false
}

/// Threads record their marks on one stream in one order, and note them in another.
#[test]
fn readers_of_several_threads_on_one_stream() {
    let stage = Stage::new();
    let (reads, writes) = (&stage.consumer, &stage.producer);
    let memory = Memory::new(&stage.context, 16);
    let targets = [(); 4].map(|()| Memory::new(&stage.context, 16));
    for _ in 0..200 {
        stage
            .machine
            .sim
            .poke(memory.address, &[1; 16])
            .expect("ones");
        let mut view = array(memory.address, Device::cuda(0), Stream::None);
        let (barrier, gates) = (Barrier::new(targets.len()), Mutex::default());
        thread::scope(|scope| {
            for target in &targets {
                let (view, barrier, gates, machine) = (&view, &barrier, &gates, &stage.machine);
                scope.spawn(move || {
                    let guard = view.typed::<f32>().expect("floats").on(reads);
                    let guard = guard.expect("a guard");
                    reads.context().bind_to_thread().expect("current");
                    barrier.wait();
                    {
                        let mut gates: MutexGuard<'_, Vec<_>> = gates.lock().expect("no panic");
                        gates.push(gate(machine, reads));
                        copy(target, *guard.device_ptr(), reads);
                    }
                    drop(guard);
                });
            }
        });
        drop(zeroed!(view, writes));
        let mut gates = gates.into_inner().expect("no panic");
        let last = gates.pop().expect("four");
        gates.iter().for_each(Gate::open);
        let late = Instant::now() + Duration::from_millis(2);
        while Instant::now() < late {
            assert_eq!(
                stage.machine.sim.peek(memory.address, 16).expect("bytes"),
                [1; 16]
            );
        }
        last.open();
        writes.synchronize().expect("written");
        for target in &targets {
            assert_eq!(
                stage.machine.sim.peek(target.address, 16).expect("bytes"),
                [1; 16]
            );
        }
    }
}

/// A graph's edge to the producer orders nothing of what was read between that capture and the one before it.
#[test]
fn a_reader_that_ends_in_another_capture_of_the_producers() {
    let stage = Stage::new();
    let (reads, producer) = (&stage.consumer, &stage.producer);
    let target = Memory::new(&stage.context, 16);
    let mut view = stage.array(stream(producer), Some(stream(producer)), &[1]);
    let captured = || {
        begin(reads, RELAXED);
        producer.join(reads).expect("forked");
    };
    let end = || {
        reads.join(producer).expect("joined");
        assert!(is_whole(reads));
    };
    let held = gate(&stage.machine, reads);
    captured();
    let guard = view.typed::<f32>().expect("floats").on(reads);
    let guard = guard.expect("a guard");
    end();
    copy(&target, *guard.device_ptr(), reads);
    captured();
    assert_eq!(rule(guard.finish()), Rule::CaptureConsumer);
    end();
    let written = view.typed_mut::<f32>().expect("floats").on(producer);
    assert_eq!(rule(written.map(drop)), Rule::CaptureConsumer);
    held.open();
    reads.synchronize().expect("read");
}

/// More marks are reached at once than the pool keeps events for: the thread that has asked about them destroys the others.
#[test]
fn spare_events_are_destroyed() {
    let stage = Stage::new();
    let (sim, reads) = (
        stage.machine.sim,
        stage.context.new_stream().expect("a stream"),
    );
    let held = gate(&stage.machine, &reads);
    for _ in 0..150 {
        let view = stage.array(Stream::None, None, &[1]);
        let guard = view.typed::<f32>().expect("floats").on(&reads);
        let guard = guard.expect("a guard");
        let _ = guard.device_ptr();
        guard.finish().expect("an end");
    }
    let before = sim.live().events;
    held.open();
    eventually("the owners end", || Arc::strong_count(&stage.memory) == 1);
    eventually("events are destroyed", || sim.live().events + 50 < before);
}

/// Work of which the driver tells nothing is of its own context: that which is current may be let go of.
#[test]
fn lost_work_is_of_its_own_context_and_not_of_the_current_one() {
    let machine = machine();
    let primary = CudaContext::new(0).expect("device 0");
    let made = CudaContext::new_non_primary(0, 0).expect("a context");
    let (own, current) = (another_context(), made);
    let memory = Memory::new(&primary, 16);
    let view = array(memory.address, Device::cuda(0), Stream::None);
    let reads = own.new_stream().expect("a stream");
    let guard = view.typed::<f32>().expect("floats").on(&reads);
    let guard = guard.expect("a guard");
    let _ = *guard.device_ptr();
    current.bind_to_thread().expect("current");
    machine.sim.clear();
    for nth in [1, 2] {
        machine.sim.fault("cuCtxPushCurrent", nth, 999);
    }
    drop(guard);
    assert_eq!(machine.sim.pending_faults(), 0);
    machine.sim.clear_faults();
    let gone = current.cu_ctx().addr() as u64;
    let names = |call: &Call| call.arguments.iter().any(|(_, given)| *given == gone);
    assert_eq!(machine.sim.calls().into_iter().find(names), None);
    let _ = own.check_err();
}

/// Where the driver does not even make the reader's context current, that is the one that a writer waits for.
#[rstest]
fn a_reader_whose_context_could_not_be_made_current(
    #[values(false, true)] has_current: bool,
    #[values(false, true)] is_of_own: bool,
) {
    let machine = machine();
    let (primary, other) = (CudaContext::new(0), CudaContext::new(1));
    let (primary, other) = (primary.expect("device 0"), other.expect("device 1"));
    let own = another_context();
    let (memory, target) = (Memory::new(&primary, 16), Memory::new(&own, 16));
    let reads = own.new_stream().expect("a stream");
    let writes = match is_of_own {
        true => own.new_stream(),
        false => primary.new_stream(),
    };
    let writes = writes.expect("a stream");
    for nth in 1..5 {
        machine.sim.poke(memory.address, &[1; 16]).expect("ones");
        let mut view = array(memory.address, Device::cuda(0), Stream::None);
        own.bind_to_thread().expect("current");
        let held = gate(&machine, &reads);
        let guard = view.typed::<f32>().expect("floats").on(&reads);
        let guard = guard.expect("a guard");
        copy(&target, *guard.device_ptr(), &reads);
        match has_current {
            true => other.bind_to_thread().expect("current"),
            // SAFETY: no context.
            false => unsafe { result::ctx::set_current(std::ptr::null_mut()) }.expect("none"),
        }
        for refused in [nth, nth + 1] {
            machine.sim.fault("cuCtxPushCurrent", refused, 999);
        }
        let opener = opened_later(held);
        drop(guard);
        machine.sim.clear_faults();
        // The refusals have left another context current; cudarc may have noted one.
        let _ = own.check_err();
        writes.context().bind_to_thread().expect("current");
        drop(zeroed!(view, &writes));
        writes.synchronize().expect("written");
        opener.join().expect("opened");
        reads.synchronize().expect("read");
        let found = machine.sim.peek(target.address, 16).expect("bytes");
        assert_eq!(found, [1; 16], "refused: {nth}");
    }
}

/// A writer that is refused leaves its stream as it was: that waits for nothing.
#[test]
fn a_refused_writer_waits_for_nothing() {
    let stage = Stage::new();
    let (reads, producer) = (&stage.consumer, &stage.producer);
    let [ready, writes] = [0, 1].map(|_| stage.context.new_stream().expect("a stream"));
    let mut view = stage.array(stream(&ready), Some(stream(producer)), &[1]);
    let busy = gate(&stage.machine, reads);
    let guard = view.typed::<f32>().expect("floats").on(reads);
    begin(reads, RELAXED);
    assert_eq!(
        rule(guard.expect("a guard").finish()),
        Rule::CaptureProducer
    );
    assert!(is_whole(reads));
    let held = gate(&stage.machine, producer);
    stage.machine.sim.clear();
    if let Err(refused) = view
        .typed_mut::<f32>()
        .expect("floats")
        .on(&writes)
        .map(drop)
    {
        assert_eq!(rule::<()>(Err(refused)), Rule::CaptureConsumer);
        let waits = stage.machine.orders();
        let waits = waits.iter().filter(|(_, at)| *at == number(&writes));
        assert_eq!(waits.count(), 0, "it waits for the producer");
    }
    busy.open();
    held.open();
}

/// The context that is current while a guard begins and ends, which asks about a default stream in that stream's own context.
#[derive(Clone, Copy, Debug)]
enum Current {
    Own,
    None,
    Another,
}

impl Current {
    fn set(self, own: &CudaContext, other: &CudaContext) {
        match self {
            Self::Own => own.bind_to_thread(),
            // SAFETY: no context.
            Self::None => unsafe { result::ctx::set_current(std::ptr::null_mut()) },
            Self::Another => other.bind_to_thread(),
        }
        .expect("current");
    }
}

/// Where the data of a reader is ready that begins in a capture of the producer's, or before it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Begins {
    InCapture,
    Eagerly,
    ReadyEverywhere,
}

/// A guard, the work of which is captured, or has been enqueued, before it ends in a capture of the producer's. Returns how it ends,
/// and whether a writer that was let in after it overtook it.
fn ends_in_a_capture(
    stage: &Stage,
    reads: &Arc<CudaStream>,
    (begins, is_eager): (Begins, bool),
    mut at: impl FnMut(&str),
) -> (Result<(), Error>, bool) {
    let producer = &stage.producer;
    let target = Memory::new(&stage.context, 16);
    let ready = match begins {
        Begins::ReadyEverywhere => Stream::None,
        _ => stream(producer),
    };
    let mut view = stage.array(ready, Some(stream(producer)), &[1]);
    let address = view.descriptor().data();
    let old = stage.machine.sim.peek(address, 16).expect("bytes");
    let captured = || {
        begin(reads, RELAXED);
        producer.join(reads).expect("forked");
    };
    let end = || {
        stage.context.bind_to_thread().expect("current");
        reads.join(producer).expect("joined");
        assert!(is_whole(reads));
    };
    stage.context.bind_to_thread().expect("current");
    let held = is_eager.then(|| gate(&stage.machine, reads));
    if begins == Begins::InCapture {
        captured();
    }
    at("entry");
    let read = view.clone();
    let guard = read.typed::<f32>().expect("floats").on(reads);
    at("");
    let guard = match guard {
        Ok(guard) => guard,
        Err(refused) => {
            if begins == Begins::InCapture {
                end();
            }
            return (Err(refused), false);
        }
    };
    if is_eager {
        if begins == Begins::InCapture {
            end();
        }
        stage.context.bind_to_thread().expect("current");
        copy(&target, address, reads);
        captured();
    }
    let opener = held.map(opened_later);
    at("end");
    let finished = guard.finish().map(drop);
    at("");
    end();
    if let Ok(guard) = view.typed_mut::<f32>().expect("floats").on(producer) {
        // SAFETY: 16 bytes, which stay until the test has waited for the stream.
        unsafe { result::memset_d8_async(*guard.device_ptr(), 0, 16, producer.cu_stream()) }
            .expect("zeros");
    }
    producer.synchronize().expect("written");
    if let Some(opener) = opener {
        opener.join().expect("opened");
    }
    reads.synchronize().expect("read");
    let found = stage.machine.sim.peek(target.address, 16).expect("bytes");
    (finished, is_eager && found != old)
}

#[rstest]
fn a_guard_of_a_per_thread_stream_in_captures(
    #[values(Current::Own, Current::None, Current::Another)] entry: Current,
    #[values(Current::Own, Current::None, Current::Another)] end: Current,
    #[values(
        (Begins::InCapture, false),
        (Begins::InCapture, true),
        (Begins::Eagerly, true),
        (Begins::ReadyEverywhere, true)
    )]
    how: (Begins, bool),
) {
    let stage = Stage::new();
    let other = CudaContext::new(1).expect("device 1");
    let reads = stage.context.per_thread_stream();
    let (ended, has_overtaken) = ends_in_a_capture(&stage, &reads, how, |at| match at {
        "entry" => entry.set(&stage.context, &other),
        "end" => end.set(&stage.context, &other),
        _ => {}
    });
    assert!(!has_overtaken);
    match how {
        (_, false) => ended.expect("one capture"),
        _ => assert_eq!(rule(ended), Rule::CaptureConsumer),
    }
}

/// If the driver does not tell in which capture a guard begins, or ends, its edge is none that a writer may count on.
#[rstest]
fn a_question_about_a_capture_is_refused(
    #[values("entry", "end")] refused_at: &str,
    #[values(Begins::InCapture, Begins::ReadyEverywhere)] begins: Begins,
    #[values("cuStreamIsCapturing", "cuStreamGetCaptureInfo_v2", "cuCtxGetCurrent")] call: &str,
) {
    for (nth, times) in (1..4).flat_map(|nth| [(nth, 1), (nth, 2)]) {
        let stage = Stage::new();
        let sim = stage.machine.sim;
        let (_, has_overtaken) =
            ends_in_a_capture(&stage, &stage.consumer, (begins, true), |at| match at {
                "" => sim.clear_faults(),
                at if at == refused_at => {
                    (0..times).for_each(|next| sim.fault(call, nth + next, 999));
                }
                _ => {}
            });
        assert!(!has_overtaken, "{nth} {times}");
    }
}
