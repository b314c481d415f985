//! Races between streams of cudarc: what one stream writes late another one reads, by every way from one to the other.
//! Each has its control, the same without an order, which must be lost: else nothing is proven.

use std::fmt::Debug;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cai_dlpack::CaiView;
use cai_dlpack::protocol::descriptor::{Descriptor, RawTensor};
use cai_dlpack::protocol::device::Device;
use cai_dlpack::protocol::dtype::DType;
use cai_dlpack::protocol::rule::Rule;
use cai_dlpack::protocol::stream::Stream;
use cai_dlpack::view::{Owner, ReturnEdge};
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtrMut, result};
use rstest::rstest;

use crate::hardware::{SlowFill, warm};
use crate::simulator::{Gate, Machine, Steered, machine, number};

const BYTES: usize = 1 << 16;
const OLD: u8 = 1;
const NEW: u8 = 2;
const LATER: u8 = 3;
/// How long a write is held up: longer than it takes to enqueue what comes after it.
const HELD: Duration = Duration::from_millis(20);
/// How often a control may be won by chance.
const TRIES: usize = 5;

/// Memory that is freed at the end of the test, in the context that was current when it was made.
pub(crate) struct Memory {
    pub(crate) address: u64,
    context: Arc<CudaContext>,
}

impl Memory {
    pub(crate) fn new(context: &Arc<CudaContext>, bytes: usize) -> Self {
        context.bind_to_thread().expect("current");
        // SAFETY: the context is current; what is read was written.
        let address = unsafe { result::malloc_sync(bytes) }.expect("memory");
        let context = Arc::clone(context);
        Self { address, context }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // Fails where the test has failed already, and has broken the context.
        let _ = self.context.bind_to_thread();
        // SAFETY: of `malloc_sync`, freed once; the driver waits for the work on it.
        let _ = unsafe { result::free_sync(self.address) };
    }
}

/// Where the two streams are from.
#[derive(Clone, Copy, Debug)]
enum Streams {
    Handles,
    FromLegacy,
    ToLegacy,
    FromPerThread,
    ToPerThread,
    /// Of a context that is not the primary one.
    OfAnother,
    /// From the primary context's to another context's.
    ToAnother,
    /// Of a context of the race's own, which an error of its work ends with.
    OfItsOwn,
}

/// Returns a context that is not the primary one: one for all races, as a GPU's driver takes its time for each.
pub(crate) fn another_context() -> Arc<CudaContext> {
    static MADE: OnceLock<Arc<CudaContext>> = OnceLock::new();
    let made = || CudaContext::new_non_primary(0, 0).expect("a context");
    Arc::clone(MADE.get_or_init(made))
}

/// An array, memory that it is copied to, and two streams.
struct Race {
    ready: Arc<CudaStream>,
    consumer: Arc<CudaStream>,
    array: Memory,
    target: Memory,
    machine: Machine,
}

impl Race {
    fn new(streams: Streams) -> Self {
        let machine = machine();
        let primary = CudaContext::new(0).expect("device 0");
        let made = |context: &Arc<CudaContext>| context.new_stream().expect("a stream");
        let (ready, consumer) = match streams {
            Streams::Handles => (made(&primary), made(&primary)),
            Streams::FromLegacy => (primary.default_stream(), made(&primary)),
            Streams::ToLegacy => (made(&primary), primary.default_stream()),
            Streams::FromPerThread => (primary.per_thread_stream(), made(&primary)),
            Streams::ToPerThread => (made(&primary), primary.per_thread_stream()),
            Streams::OfAnother => {
                let own = another_context();
                (made(&own), made(&own))
            }
            Streams::ToAnother => (made(&primary), made(&another_context())),
            Streams::OfItsOwn => {
                let own = CudaContext::new_non_primary(0, 0).expect("a context");
                (made(&own), made(&own))
            }
        };
        let (array, target) = (
            Memory::new(ready.context(), BYTES),
            Memory::new(consumer.context(), BYTES),
        );
        let race = Self {
            ready,
            consumer,
            array,
            target,
            machine,
        };
        [&race.ready, &race.consumer].into_iter().for_each(warm);
        race.fill(&race.ready, OLD);
        race.ready.synchronize().expect("a fill");
        race.copy(race.array.address);
        race.consumer.synchronize().expect("a copy");
        race
    }

    fn bind(&self, stream: &CudaStream) {
        stream.context().bind_to_thread().expect("current");
    }

    fn gate(&self, stream: &CudaStream) -> Gate {
        self.bind(stream);
        let gate = self.machine.sim.gate(number(stream));
        gate.expect("a gate")
    }

    /// Enqueues a fill of the array.
    fn fill(&self, stream: &CudaStream, value: u8) {
        self.bind(stream);
        let (address, stream) = (self.array.address, stream.cu_stream());
        // SAFETY: so many bytes, which stay to the end of the test; the stream is alive.
        unsafe { result::memset_d8_async(address, value, BYTES, stream) }.expect("a fill");
    }

    /// Enqueues a copy to the target.
    fn copy(&self, from: u64) {
        self.bind(&self.consumer);
        let (to, stream) = (self.target.address, self.consumer.cu_stream());
        // SAFETY: so many bytes at both ends, which stay to the end of the test; the stream is alive.
        unsafe { result::memcpy_dtod_async(to, from, BYTES, stream) }.expect("a copy");
    }

    fn poke(&self, value: u8) {
        for memory in [&self.array, &self.target] {
            let bytes = vec![value; BYTES];
            let written = self.machine.sim.poke(memory.address, &bytes);
            written.expect("written");
        }
    }

    /// The array as one that is ready on its stream, whose producer goes on there; or as one that names no stream.
    fn view(&self, is_declared: bool) -> CaiView {
        let raw = RawTensor::new(
            self.array.address,
            Device::cuda(0),
            DType::U8,
            &[BYTES as i64],
        );
        let descriptor = Descriptor::new(&raw).expect("a tensor");
        let ready = match is_declared {
            true => Stream::from_cudarc(&self.ready),
            false => Ok(Stream::None),
        };
        let ready = ready.unwrap_or_else(|_| Stream::from_raw(number(&self.ready)));
        // SAFETY: the memory and the stream stay to the end of the test; a control races on bytes that anything may be.
        let view = unsafe { CaiView::new(descriptor, ready, Owner::new(())) };
        match is_declared {
            // SAFETY: as above: the stream stays to the end of the test.
            true => unsafe { view.with_producer(ready) },
            false => view,
        }
    }

    /// The value of every byte of the target, once the consumer's stream is done.
    fn copied(&self) -> u8 {
        self.consumer.synchronize().expect("the copy");
        let found = self.machine.sim.peek(self.target.address, BYTES);
        one_value(&found.expect("readable"))
    }
}

/// The value of all bytes; panics where they differ, which is half of a write.
fn one_value(bytes: &[u8]) -> u8 {
    assert!(bytes.iter().all(|byte| *byte == bytes[0]), "half a write");
    bytes[0]
}

/// A way for a consumer's stream, or for the host, to the elements.
#[derive(Clone, Copy, Debug)]
enum Way {
    Guard,
    On,
    Consume,
    Dlpack,
    DlpackLegacy,
    CopyOn,
    CopyToHost,
    Synchronize,
}

/// The value that a consumer finds.
fn found(race: &Race, view: &CaiView, way: Way) -> u8 {
    race.bind(&race.consumer);
    match way {
        Way::Guard => {
            let typed = view.typed::<u8>().expect("bytes");
            let guard = typed.on(&race.consumer).expect("a guard");
            race.copy(*guard.device_ptr());
            guard.finish().expect("the way back");
        }
        Way::On => {
            let there = view.on(&race.consumer).expect("an order");
            race.copy(there.descriptor().data());
        }
        Way::Consume => {
            let guard = view.consume(&race.consumer).expect("an order");
            race.copy(guard.view().descriptor().data());
            guard.finish().expect("the way back");
        }
        Way::Dlpack => {
            let tensor = view.to_dlpack(&race.consumer).expect("a tensor");
            let there = CaiView::from_dlpack(tensor, &race.consumer).expect("a view");
            race.copy(there.descriptor().data());
        }
        Way::DlpackLegacy => {
            let tensor = view.to_dlpack_legacy(&race.consumer).expect("a tensor");
            let there = CaiView::from_dlpack(tensor, &race.consumer).expect("a view");
            race.copy(there.descriptor().data());
        }
        Way::CopyOn => {
            let copy = view.copy_on(&race.consumer).expect("a copy");
            race.copy(copy.descriptor().data());
        }
        Way::CopyToHost => {
            let copy = view.copy_to_host().expect("a copy");
            let bytes = copy.typed::<u8>().and_then(|bytes| bytes.copy_to_vec());
            return one_value(&bytes.expect("bytes"));
        }
        Way::Synchronize => {
            let ready = view.synchronize().expect("a wait");
            race.copy(ready.descriptor().data());
        }
    }
    race.copied()
}

/// Writes late on the one stream; what the other one's consumer finds. A gate holds the write up, for a while.
fn race(streams: Streams, way: Way, is_declared: bool) -> u8 {
    let race = Race::new(streams);
    race.poke(OLD);
    let gate = race.gate(&race.ready);
    race.fill(&race.ready, NEW);
    let opener = std::thread::spawn(move || {
        std::thread::sleep(HELD);
        gate.open();
    });
    let value = found(&race, &race.view(is_declared), way);
    opener.join().expect("in time");
    race.ready.synchronize().expect("the write");
    value
}

/// One of a few tries without an order must find what was there before.
fn is_lost(mut value: impl FnMut() -> u8, before: u8) -> bool {
    (0..TRIES).any(|_| value() == before)
}

fn check(ordered: impl FnOnce() -> u8, control: impl FnMut() -> u8, (wanted, lost): (u8, u8)) {
    assert_eq!(ordered(), wanted, "with an order");
    assert!(
        is_lost(control, lost),
        "CONTROL NOT LOST: this proves nothing"
    );
}

#[rstest]
fn a_late_write_is_found(
    #[values(
        Streams::Handles,
        Streams::FromLegacy,
        Streams::ToLegacy,
        Streams::FromPerThread,
        Streams::ToPerThread,
        Streams::OfAnother,
        Streams::ToAnother
    )]
    streams: Streams,
) {
    for way in [
        Way::Guard,
        Way::On,
        Way::Consume,
        Way::Dlpack,
        Way::DlpackLegacy,
        Way::CopyOn,
        Way::CopyToHost,
        Way::Synchronize,
    ] {
        assert_eq!(race(streams, way, true), NEW, "{way:?}");
        let lost = is_lost(|| race(streams, way, false), OLD);
        assert!(lost, "CONTROL NOT LOST: {way:?} proves nothing");
    }
}

/// Reads late; what is read while the producer's stream writes anew after the guard's end.
fn way_back(streams: Streams, is_consumed: bool, is_declared: bool) -> u8 {
    let race = Race::new(streams);
    race.poke(OLD);
    let view = race.view(is_declared);
    let gate = race.gate(&race.consumer);
    let edge = if is_consumed {
        let guard = view.consume(&race.consumer).expect("an order");
        race.copy(guard.view().descriptor().data());
        guard.finish()
    } else {
        let typed = view.typed::<u8>().expect("bytes");
        let guard = typed.on(&race.consumer).expect("a guard");
        race.copy(*guard.device_ptr());
        guard.finish()
    };
    let wanted = match is_declared {
        true => ReturnEdge::Event,
        false => ReturnEdge::Unknown,
    };
    assert_eq!(edge.expect("the way back"), wanted);
    race.fill(&race.ready, LATER);
    std::thread::sleep(HELD);
    gate.open();
    race.ready.synchronize().expect("the write");
    race.copied()
}

#[rstest]
fn the_producers_next_write_waits_for_the_reader(
    #[values(
        Streams::Handles,
        Streams::FromLegacy,
        Streams::ToLegacy,
        Streams::FromPerThread,
        Streams::ToPerThread,
        Streams::OfAnother
    )]
    streams: Streams,
    #[values(false, true)] is_consumed: bool,
) {
    check(
        || way_back(streams, is_consumed, true),
        || way_back(streams, is_consumed, false),
        (OLD, LATER),
    );
}

/// A kernel that takes its time; on the simulator, which runs none, a gate. What a guard's copy finds.
fn after_a_kernel(way: Way, is_declared: bool) -> u8 {
    let race = Race::new(Streams::Handles);
    race.poke(OLD);
    race.bind(&race.ready);
    let (slow, address) = (SlowFill::load(), race.array.address);
    let opener = match (slow, race.machine.sim) {
        (Ok(slow), _) => {
            let written = slow.fill(&race.ready, address, (BYTES, OLD), Duration::ZERO);
            written.expect("a kernel");
            race.ready.synchronize().expect("it is loaded");
            let written = slow.fill(&race.ready, address, (BYTES, NEW), HELD);
            written.expect("a kernel");
            None
        }
        (Err(why), Steered::Gpu(_)) if !is_unsupported(&why) => panic!("no kernel: {why:?}"),
        (Err(_), _) => {
            let gate = race.gate(&race.ready);
            race.fill(&race.ready, NEW);
            Some(std::thread::spawn(move || {
                std::thread::sleep(HELD);
                gate.open();
            }))
        }
    };
    let value = found(&race, &race.view(is_declared), way);
    opener
        .into_iter()
        .for_each(|opener| opener.join().expect("in time"));
    race.ready.synchronize().expect("the write");
    value
}

fn is_unsupported(why: &impl Debug) -> bool {
    format!("{why:?}").contains("CUDA_ERROR_NOT_SUPPORTED")
}

#[rstest]
fn what_a_kernel_writes_late_is_found(
    #[values(
        Way::Guard,
        Way::On,
        Way::Consume,
        Way::Dlpack,
        Way::CopyOn,
        Way::CopyToHost,
        Way::Synchronize
    )]
    way: Way,
) {
    check(
        || after_a_kernel(way, true),
        || after_a_kernel(way, false),
        (NEW, OLD),
    );
}

/// Fills much memory again and again, then with the value; what is read at its end. Nothing but its size holds it up.
fn after_much(is_declared: bool) -> u8 {
    let race = Race::new(Streams::Handles);
    race.bind(&race.ready);
    let (size, times) = match SlowFill::load() {
        Ok(_) => (512 << 20, 8),
        // The simulator fills by the host's hands.
        Err(_) => (16 << 20, 4),
    };
    let much = Memory::new(race.ready.context(), size);
    let fill = |value: u8| {
        let stream = race.ready.cu_stream();
        // SAFETY: so many bytes, which stay until the stream is done.
        unsafe { result::memset_d8_async(much.address, value, size, stream) }.expect("a fill");
    };
    fill(OLD);
    race.ready.synchronize().expect("written");
    (0..times).for_each(|_| fill(OLD));
    fill(NEW);
    let last = much.address + (size - BYTES) as u64;
    let raw = RawTensor::new(last, Device::cuda(0), DType::U8, &[BYTES as i64]);
    let ready = match is_declared {
        true => Stream::from_cudarc(&race.ready).expect("a number"),
        false => Stream::None,
    };
    let descriptor = Descriptor::new(&raw).expect("a tensor");
    // SAFETY: the memory and the stream stay to the end of the test; a control races on bytes that anything may be.
    let view = unsafe { CaiView::new(descriptor, ready, Owner::new(())) };
    let value = found(&race, &view, Way::Guard);
    race.ready.synchronize().expect("the fills");
    value
}

#[test]
fn the_end_of_much_work_is_found() {
    check(|| after_much(true), || after_much(false), (NEW, OLD));
}

/// Enqueues a fill of a slice on its stream.
fn fill(slice: &mut CudaSlice<u8>, stream: &CudaStream, value: u8) {
    let count = slice.len();
    let (start, _after) = slice.device_ptr_mut(stream);
    // SAFETY: the slice's elements, in the order of its stream.
    unsafe { result::memset_d8_async(start, value, count, stream.cu_stream()) }.expect("a fill");
}

/// A slice of cudarc's, which is of the driver's pool: dropped while a guard's stream still reads it, its memory is given
/// away in the order of its own stream. The control reads it by number, without a guard.
fn given_away(has_guard: bool) -> u8 {
    let race = Race::new(Streams::OfItsOwn);
    race.poke(LATER);
    let mut slice = race.ready.alloc_zeros::<u8>(BYTES).expect("memory");
    race.ready.memset_zeros(&mut slice).expect("a fill");
    race.ready.synchronize().expect("zeros");
    let view = CaiView::from_cudarc(slice, [BYTES]).expect("a view");
    let address = view.descriptor().data();
    let gate = race.gate(&race.consumer);
    if has_guard {
        let typed = view.typed::<u8>().expect("bytes");
        let guard = typed.on(&race.consumer).expect("a guard");
        race.copy(*guard.device_ptr());
        drop(guard);
    } else {
        race.copy(address);
    }
    drop(view);
    let mut again = race.ready.alloc_zeros::<u8>(BYTES).expect("memory");
    fill(&mut again, &race.ready, NEW);
    std::thread::sleep(HELD);
    gate.open();
    // The simulator refuses work on memory that was freed.
    if !has_guard && race.consumer.synchronize().is_err() {
        return NEW;
    }
    race.ready.synchronize().expect("the fill");
    race.copied()
}

#[test]
fn memory_of_the_pool_is_given_away_after_it_was_read() {
    check(|| given_away(true), || given_away(false), (0, NEW));
}

/// All handles of a stream are dropped while it still writes: views keep it.
#[test]
fn a_stream_whose_handles_are_gone_is_waited_for() {
    let race = Race::new(Streams::Handles);
    race.poke(OLD);
    let written = race.ready.context().new_stream().expect("a stream");
    let mut slice = written.alloc_zeros::<u8>(BYTES).expect("memory");
    let gate = race.gate(&written);
    fill(&mut slice, &written, NEW);
    let view = CaiView::from_cudarc(slice, [BYTES]).expect("a view");
    drop(written);
    let guard = view.consume(&race.consumer).expect("an order");
    drop(view);
    race.copy(guard.view().descriptor().data());
    guard.finish().expect("the way back");
    gate.open();
    assert_eq!(race.copied(), NEW);
}

const MODES: [CUstreamCaptureMode; 3] = [
    CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL,
    CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
    CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED,
];

fn rule<T>(answer: Result<T, cai_dlpack::Error>) -> Rule {
    match answer.map(drop) {
        Err(cai_dlpack::Error::Violation(violation)) => violation.rule(),
        other => panic!("{other:?}"),
    }
}

/// What a capture forbids is refused, and the capture ends whole.
#[test]
fn a_capture_survives_what_is_refused() {
    let race = Race::new(Streams::Handles);
    let view = race.view(true);
    for mode in MODES {
        race.ready.begin_capture(mode).expect("a capture");
        assert_eq!(rule(view.on(&race.consumer)), Rule::CaptureProducer);
        assert_eq!(rule(view.synchronize()), Rule::CaptureHostWait);
        race.fill(&race.ready, NEW);
        let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
        let graph = race.ready.end_capture(flags).expect("a whole capture");
        race.poke(OLD);
        graph.expect("a graph").launch().expect("a launch");
        assert_eq!(found(&race, &view, Way::Guard), NEW);

        race.consumer.begin_capture(mode).expect("a capture");
        assert_eq!(rule(view.on(&race.consumer)), Rule::CaptureConsumer);
        assert_eq!(rule(view.consume(&race.consumer)), Rule::CaptureConsumer);
        // SAFETY: the stream is alive, and captures.
        let graph = unsafe { result::stream::end_capture(race.consumer.cu_stream()) };
        let graph = graph.expect("a whole capture");
        // SAFETY: the graph is alive, and not used afterwards.
        unsafe { result::graph::destroy(graph) }.expect("destroyed");
    }
}
