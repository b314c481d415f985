//! A driver that refuses one call, whatever it says of it: what is told to be in order is, and what is not is told.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use cai_dlpack::protocol::descriptor::{Descriptor, RawTensor};
use cai_dlpack::protocol::device::{Device, DeviceType};
use cai_dlpack::protocol::dtype::DType;
use cai_dlpack::protocol::stream::Stream;
use cai_dlpack::view::Owner;
use cai_dlpack::{CaiView, Error};
use cudarc::driver::{CudaContext, CudaStream, result};
use rstest::rstest;

use crate::cudarc_edges::is_whole;
use crate::cudarc_guard::{Stage, stream};
use crate::cudarc_orders::Memory;
use crate::cudarc_uses::{MODES, begin, gate};
use crate::simulator::{Gate, machine, number};

/// The calls of a guard's beginning and end, and of what is kept then.
const CALLS: [&str; 14] = [
    "cuCtxGetCurrent",
    "cuCtxGetDevice",
    "cuCtxGetId",
    "cuCtxPopCurrent",
    "cuCtxPushCurrent",
    "cuCtxSetCurrent",
    "cuEventCreate",
    "cuEventQuery",
    "cuEventRecord",
    "cuMemAlloc_v2",
    "cuStreamGetId",
    "cuStreamIsCapturing",
    "cuStreamWaitEvent",
    "cuThreadExchangeStreamCaptureMode",
];
/// Of any error, and those that a context has once it is gone (4, 201, 709).
const CODES: [u32; 7] = [1, 2, 4, 201, 709, 900, 999];
const BYTES: usize = 16;
const ONES: [u8; BYTES] = [1; BYTES];

/// Each call that one of `CALLS` is refused at, by each code, until the work makes no such call any more. `work` makes it, and
/// returns whether the refusal was met.
fn each_refusal(work: impl Fn(&str, u64, u32) -> bool) {
    let mut met = 0;
    for (call, code) in CALLS.iter().flat_map(|call| CODES.map(|code| (call, code))) {
        met += (1..=4).take_while(|nth| work(call, *nth, code)).count();
    }
    assert!(met > 0, "no refusal was met");
}

fn zero(address: u64, stream: &CudaStream) {
    // SAFETY: as many bytes, whose owner stays.
    unsafe { result::memset_d8_async(address, 0, BYTES, stream.cu_stream()) }.expect("zeros");
}

fn copy(target: u64, from: u64, stream: &CudaStream) {
    // SAFETY: as many bytes of each, whose owners stay.
    unsafe { result::memcpy_dtod_async(target, from, BYTES, stream.cu_stream()) }.expect("a copy");
}

/// Lets the work behind a gate run a little later.
fn soon(gate: Gate) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        thread::sleep(Duration::from_millis(2));
        gate.open();
    })
}

/// A reader of an array whose producer names no stream, and then a writer on another stream. A call of the reader's end is
/// refused, or of the writer's beginning.
#[rstest]
fn a_writer_waits_for_a_reader(
    #[values(false, true)] is_at_the_end: bool,
    #[values(false, true)] is_elsewhere: bool,
    #[values(false, true)] is_dropped: bool,
) {
    let stage = Stage::new();
    let sim = stage.machine.sim;
    let target = Memory::new(&stage.context, BYTES);
    let writes = stage.context.new_stream().expect("a stream");
    let reads = match is_elsewhere {
        true => stage.context.per_thread_stream(),
        false => Arc::clone(&stage.consumer),
    };
    each_refusal(|call, nth, code| {
        let mut view = stage.array(Stream::None, None, &[1]);
        sim.poke(view.descriptor().data(), &ONES).expect("ones");
        let gate = gate(&stage.machine, &reads);
        let seen = view.clone();
        let guard = seen.typed::<f32>().expect("floats").on(&reads);
        let guard = guard.expect("a guard");
        copy(target.address, *guard.device_ptr(), &reads);
        let opener = soon(gate);
        let end = || {
            if is_at_the_end {
                sim.fault(call, nth, code);
            }
            let told = match is_dropped {
                true => {
                    drop(guard);
                    Ok(())
                }
                false => guard.finish().map(drop),
            };
            let is_met = is_at_the_end && sim.pending_faults() == 0;
            sim.clear_faults();
            (told, is_met)
        };
        let (told, mut is_met) = match is_elsewhere {
            true => thread::scope(|scope| scope.spawn(end).join().expect("no panic")),
            false => end(),
        };
        // cudarc tells it after a drop.
        let noted = stage.context.check_err();
        drop(seen);
        if !is_at_the_end {
            sim.fault(call, nth, code);
        }
        let typed = view.typed_mut::<f32>().expect("floats");
        let writer = typed.on(&writes);
        is_met |= !is_at_the_end && sim.pending_faults() == 0;
        sim.clear_faults();
        if let Ok(writer) = &writer {
            zero(*writer.device_ptr(), &writes);
        }
        assert!(
            !matches!(writer, Err(Error::Violation(_))),
            "{call} {nth} {code}: {writer:?}, and nothing was captured"
        );
        drop(writer);
        writes.synchronize().expect("done");
        opener.join().expect("opened");
        reads.synchronize().expect("done");
        let found = sim.peek(target.address, BYTES).expect("bytes");
        assert!(
            found == ONES || told.is_err() || noted.is_err(),
            "{call} {nth} {code}: told {told:?}, by cudarc {noted:?}, and the reader found {found:?}"
        );
        is_met
    });
}

/// Pinned memory, which every context reaches, ready on `ready`.
fn pinned(address: u64, ready: Stream) -> CaiView {
    let device = Device::new(DeviceType::CUDA_HOST, 0);
    let tensor = RawTensor::new(address, device, DType::F32, &[4]);
    let descriptor = Descriptor::new(&tensor).expect("a tensor");
    // SAFETY: elements of memory that stays to the end of the process, as the stream does for the test.
    unsafe { CaiView::new(descriptor, ready, Owner::new(())) }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Goes {
    Guard,
    On,
    Consume,
    Copy,
}

/// A default stream of another context than the one that the memory is of: no refusal makes it that one's. The producer's late
/// write is read there, or its next write waits for the reader; or the call is refused.
#[rstest]
fn a_default_stream_stays_its_contexts(
    #[values(Goes::Guard, Goes::On, Goes::Consume, Goes::Copy)] goes: Goes,
    #[values(false, true)] is_per_thread: bool,
    #[values(false, true)] is_there_and_back: bool,
) {
    let machine = machine();
    let sim = machine.sim;
    let [ours, theirs] = [0, 1].map(|at| CudaContext::new(at).expect("a device"));
    let bind = |context: &CudaContext| context.bind_to_thread().expect("current");
    bind(&ours);
    let producer = ours.new_stream().expect("a stream");
    // SAFETY: a context is current.
    let host = unsafe { result::malloc_host(BYTES, 0) }.expect("pinned memory");
    let host = host.addr() as u64;
    bind(&theirs);
    let target = Memory::new(&theirs, BYTES);
    let to = match is_per_thread {
        true => theirs.per_thread_stream(),
        false => theirs.default_stream(),
    };
    let write = |value| {
        // SAFETY: memory that stays.
        let made = unsafe { result::memset_d8_async(host, value, BYTES, producer.cu_stream()) };
        made.expect("a fill");
    };
    each_refusal(|call, nth, code| {
        bind(&ours);
        sim.poke(host, &ONES).expect("ones");
        let view = pinned(host, stream(&producer));
        // SAFETY: the stream lives to the end of the test.
        let view = unsafe { view.with_producer(stream(&producer)) };
        let held = match is_there_and_back {
            true => {
                bind(&theirs);
                gate(&machine, &to)
            }
            false => gate(&machine, &producer),
        };
        bind(&ours);
        if !is_there_and_back {
            write(2);
        }
        let opener = soon(held);
        let armed = || sim.fault(call, nth, code);
        let met = || {
            let is_met = sim.pending_faults() == 0;
            sim.clear_faults();
            is_met
        };
        let read = || {
            bind(&theirs);
            copy(target.address, host, &to);
        };
        armed();
        let mut is_met = false;
        let mut made = None;
        let told = match goes {
            Goes::Guard => view
                .typed::<f32>()
                .expect("floats")
                .on(&to)
                .and_then(|guard| {
                    is_met = met();
                    read();
                    guard.finish().map(drop)
                }),
            Goes::Consume => view.consume(&to).and_then(|guard| {
                is_met = met();
                read();
                guard.finish().map(drop)
            }),
            Goes::On => view.on(&to).map(|_| {
                is_met = met();
                read();
            }),
            Goes::Copy => view.copy_on(&to).map(|copy| made = Some(copy)),
        };
        is_met |= met();
        if is_there_and_back && goes != Goes::On {
            bind(&ours);
            write(2);
        }
        opener.join().expect("opened");
        for (context, stream) in [(&ours, &producer), (&theirs, &to)] {
            bind(context);
            stream.synchronize().expect("done");
        }
        if told.is_ok() && (goes != Goes::On || !is_there_and_back) {
            let at = made.map_or(target.address, |copy| copy.descriptor().data());
            let found = sim.peek(at, BYTES).expect("bytes");
            let expected = if is_there_and_back { 1 } else { 2 };
            assert_eq!(found, [expected; BYTES], "{goes:?}, {call} {nth} {code}");
        }
        is_met
    });
}

/// The work of a capture has not run when the host has waited: a writer's guard that ends on another thread than its per-thread
/// stream's leaves the view ready there, and a reader on another stream of that capture waits for it.
#[rstest]
fn a_writer_of_a_capture_ends_elsewhere(
    #[values(false, true)] is_elsewhere: bool,
    #[values(false, true)] is_producers: bool,
    #[values(0, 1, 2)] mode: usize,
) {
    let stage = Stage::new();
    let own = stage.context.per_thread_stream();
    let mut view = stage.array(Stream::None, is_producers.then(|| stream(&own)), &[1]);
    let other = stage.context.new_stream().expect("a stream");
    begin(&own, MODES[mode]);
    other.join(&own).expect("a fork");
    let mut guard = view
        .typed_mut::<f32>()
        .expect("floats")
        .on(&own)
        .expect("a guard");
    let mut slice = guard.as_slice().expect("contiguous");
    own.memset_zeros(&mut slice).expect("zeros");
    let told = match is_elsewhere {
        true => thread::scope(|scope| scope.spawn(|| guard.finish()).join().expect("no panic")),
        false => guard.finish(),
    };
    stage.machine.sim.clear();
    drop(
        view.typed::<f32>()
            .expect("floats")
            .on(&other)
            .expect("a guard"),
    );
    let orders = stage.machine.orders();
    own.join(&other).expect("a join");
    assert!(is_whole(&own));
    let waits = ("cuStreamWaitEvent".to_owned(), number(&other));
    assert!(orders.contains(&waits), "told {told:?}, and {orders:?}");
}
