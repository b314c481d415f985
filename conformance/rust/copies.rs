//! Copies and `present_as` in Rust, on the simulated driver.

use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use cai_dlpack::protocol::descriptor::{Descriptor, RawTensor};
use cai_dlpack::protocol::device::{Device, DeviceType};
use cai_dlpack::protocol::dtype::DType;
use cai_dlpack::protocol::rule::Rule;
use cai_dlpack::protocol::stream::Stream;
use cai_dlpack::view::{LiveStream, Owner, PresentAs};
use cai_dlpack::{CaiView, Error};
use cudarc::driver::sys::CUmemAttach_flags;
use cudarc::driver::{CudaContext, CudaStream, DevicePtrMut, result};
use rstest::rstest;

use crate::arrays::{Array, array};
use crate::cudarc_contexts::check_alive;
use crate::simulator::{Machine, eventually, machine, number, one_event};

/// Six floats of device 0, written on a stream.
struct Stage {
    producer: Arc<CudaStream>,
    consumer: Arc<CudaStream>,
    view: CaiView,
    machine: Machine,
}

impl Stage {
    fn new() -> Self {
        let machine = machine();
        let context = CudaContext::new(0).expect("device 0");
        let stream = || context.new_stream().expect("a stream");
        let (producer, consumer) = (stream(), stream());
        let values = [1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0];
        let memory = producer.clone_htod(&values).expect("memory");
        let view = CaiView::from_cudarc(memory, [2, 3]).expect("a view");
        machine.sim.clear();
        Self {
            producer,
            consumer,
            view,
            machine,
        }
    }
}

fn stream(stream: &CudaStream) -> Stream {
    Stream::from_cudarc(stream).expect("a number")
}

fn rule<T>(answer: Result<T, Error>) -> Rule {
    match answer.map(drop) {
        Err(Error::Violation(violation)) => violation.rule(),
        other => panic!("{other:?}"),
    }
}

fn floats(view: &CaiView) -> Vec<f32> {
    let typed = view.typed::<f32>().expect("floats");
    typed.copy_to_vec().expect("readable")
}

#[test]
fn a_copy_on_a_stream_waits_for_the_data_and_the_producer_waits_for_the_copy() {
    let stage = Stage::new();
    let (there, back) = (number(&stage.producer), number(&stage.consumer));
    let copy = stage.view.copy_on(&stage.consumer).expect("a copy");
    let edges = [one_event(there, back), one_event(back, there)].concat();
    assert_eq!(stage.machine.orders(), edges);
    assert_eq!(copy.device(), Device::cuda(0));
    assert_eq!(copy.ready(), stream(&stage.consumer));
    assert_ne!(copy.descriptor().data(), stage.view.descriptor().data());
    assert_eq!(
        floats(&copy.copy_to_host().expect("on the CPU")),
        [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    );
}

#[test]
fn without_a_stream_the_copy_runs_where_the_data_is_ready() {
    let stage = Stage::new();
    let copy = stage.view.copy_on(LiveStream::NONE).expect("a copy");
    assert_eq!(copy.ready(), stream(&stage.producer));
    assert_eq!(stage.machine.orders(), []);
}

#[test]
fn a_copy_to_the_host_is_in_c_order_and_ready() {
    let stage = Stage::new();
    let raw = RawTensor::new(
        stage.view.descriptor().data(),
        Device::cuda(0),
        DType::F32,
        &[3, 2],
    )
    .with_elem_strides(&[1, 3]);
    let descriptor = Descriptor::new(&raw).expect("a tensor");
    let owner = stage.view.owner().share();
    // SAFETY: the same elements, by columns; the stage keeps the stream.
    let columns = unsafe { CaiView::new(descriptor, stream(&stage.producer), owner) };
    let copy = columns.copy_to_host().expect("a copy");
    assert_eq!(
        (copy.device(), copy.ready().number()),
        (Device::HOST, Stream::None)
    );
    assert_eq!(floats(&copy), [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
}

#[test]
fn memory_of_the_cpu_is_copied_without_a_driver_call() {
    let machine = machine();
    let view = array(vec![1.0_f32, 2.0], &[2]);
    let copy = view.copy_on(LiveStream::LEGACY_DEFAULT).expect("a copy");
    assert_ne!(copy.descriptor().data(), view.descriptor().data());
    assert_eq!(floats(&copy), [1.0, 2.0]);
    assert_eq!(machine.sim.calls().len(), 0);
}

#[test]
fn what_is_on_another_kind_of_device_is_refused() {
    let view = Array {
        device: Device::new(DeviceType::VULKAN, 0),
        ..Array::of_shape(&[1])
    }
    .over(vec![1.0_f32]);
    assert_eq!(rule(view.copy_on(LiveStream::NONE)), Rule::CopyRefused);
    assert_eq!(rule(view.copy_to_host()), Rule::CopyRefused);
}

#[test]
fn pinned_memory_is_presented_to_either_side() {
    let machine = machine();
    let context = CudaContext::new(0).expect("device 0");
    // SAFETY: written below, before it is read.
    let mut pinned = unsafe { context.alloc_pinned::<f32>(2) }.expect("pinned memory");
    let values = pinned.as_mut_slice().expect("no work is pending");
    values.copy_from_slice(&[1.0, 2.0]);
    let raw = RawTensor::new(
        values.as_ptr().expose_provenance() as u64,
        Device::new(DeviceType::CUDA_HOST, 0),
        DType::F32,
        &[2],
    );
    let descriptor = Descriptor::new(&raw).expect("a tensor");
    // SAFETY: the owner keeps the memory, on which nothing works.
    let view = unsafe { CaiView::new(descriptor, Stream::None, Owner::new(pinned)) };
    let device = view.present_as(PresentAs::Cuda).expect("reachable");
    assert_eq!(device.device(), Device::cuda(0));
    let host = device.present_as(PresentAs::Host).expect("reachable");
    assert_eq!(host.device(), Device::HOST);
    assert_eq!(floats(&host), [1.0, 2.0]);
    drop((view, device, host));
    drop(machine);
}

#[test]
fn device_memory_is_not_the_hosts() {
    let stage = Stage::new();
    assert_eq!(
        rule(stage.view.present_as(PresentAs::Host)),
        Rule::PresentAs
    );
}

/// The simulated work on a stream of the other device is held up meanwhile.
#[test]
fn a_copy_ends_after_the_stream_that_it_was_made_for() {
    let stage = Stage::new();
    let other = CudaContext::new(1).expect("device 1");
    let far = other.new_stream().expect("a stream");
    let mut target = far.alloc_zeros::<u8>(24).expect("memory");
    far.synchronize().expect("zeros");
    let gate = stage.machine.sim.gate(number(&far)).expect("a gate");
    let copy = stage.view.copy_on(&far).expect("a copy");
    let from = copy.descriptor().data();
    {
        let (to, _after) = target.device_ptr_mut(&far);
        // SAFETY: 24 bytes at either end, which stay until the stream is done: the copy by what is tested here.
        unsafe { cudarc::driver::result::memcpy_dtod_async(to, from, 24, far.cu_stream()) }
            .expect("a copy of the copy");
    }
    let before = stage.machine.sim.live().allocations;
    drop(copy);
    thread::sleep(Duration::from_millis(20));
    assert_eq!(stage.machine.sim.live().allocations, before, "it is kept");
    gate.open();
    let bytes = far.clone_dtoh(&target).expect("no work has failed");
    assert_eq!(bytes[..8], [0, 0, 128, 63, 0, 0, 0, 64]);
    let late = Instant::now() + Duration::from_secs(10);
    while stage.machine.sim.live().allocations >= before {
        assert!(Instant::now() < late, "it is freed");
        std::thread::yield_now();
    }
}

/// Two floats of this kind of memory, which the owner keeps, and its context.
pub(crate) fn floats_of(kind: DeviceType, context: &Arc<CudaContext>) -> CaiView {
    context.bind_to_thread().expect("current");
    let address = match kind {
        DeviceType::CUDA_HOST => {
            // SAFETY: a context is current.
            let host = unsafe { result::malloc_host(8, 0) };
            host.map(|host| host.addr() as u64)
        }
        DeviceType::CUDA_MANAGED => {
            let attach = CUmemAttach_flags::CU_MEM_ATTACH_GLOBAL;
            // SAFETY: a context is current.
            unsafe { result::malloc_managed(8, attach) }
        }
        // SAFETY: a context is current.
        _ => unsafe { result::malloc_sync(8) },
    };
    let address = address.expect("memory");
    // SAFETY: 8 bytes on either side.
    unsafe { result::memcpy_htod_sync(address, &[1.0_f32, 2.0]) }.expect("enqueued");
    context.synchronize().expect("written");
    let raw = RawTensor::new(address, Device::new(kind, 0), DType::F32, &[2]);
    let descriptor = Descriptor::new(&raw).expect("a tensor");
    let owner = Owner::new(Arc::clone(context));
    // SAFETY: memory that ends with its context, which the owner keeps.
    unsafe { CaiView::new(descriptor, Stream::None, owner) }
}

/// The memory of a copy ends with a context, which safe code may let go of: its own, the copied memory's, or the stream's.
#[rstest]
fn a_copy_keeps_what_its_memory_ends_with(
    #[values(DeviceType::CUDA, DeviceType::CUDA_HOST, DeviceType::CUDA_MANAGED)] kind: DeviceType,
    #[values(false, true)] is_primary: bool,
    #[values("1", "2", "none", "a handle", "a default stream")] on: &str,
    #[values(false, true)] is_other_current: bool,
) {
    let machine = machine();
    machine.log_every_thread();
    let context = |is_primary| match is_primary {
        true => CudaContext::new(0).expect("device 0"),
        false => CudaContext::new_non_primary(0, 0).expect("a context"),
    };
    let (home, other) = (context(is_primary), context(!is_primary));
    let stream = match on {
        "a default stream" => other.per_thread_stream(),
        _ => other.new_stream().expect("a stream"),
    };
    let view = floats_of(kind, &home);
    if is_other_current {
        other.bind_to_thread().expect("current");
    }
    let copy = match on {
        "1" => view.copy_on(LiveStream::LEGACY_DEFAULT),
        "2" => view.copy_on(LiveStream::PER_THREAD_DEFAULT),
        "none" => view.copy_on(LiveStream::NONE),
        _ => view.copy_on(&stream),
    };
    let is_named = !["1", "2"].contains(&on);
    if on == "a default stream" && (kind == DeviceType::CUDA || is_primary) {
        // Its number means the memory's own, or a primary context's.
        return assert_eq!(rule(copy), Rule::StreamDevice);
    }
    if is_other_current && is_primary && kind != DeviceType::CUDA && !is_named {
        // Nothing is known to keep that context.
        return assert_eq!(rule(copy), Rule::StreamContext);
    }
    let copy = copy.expect("a copy");
    let contexts = [&home, &other].map(Arc::downgrade);
    home.synchronize().expect("done");
    other.synchronize().expect("done");
    drop((view, home));
    other.bind_to_thread().expect("current");
    if is_other_current {
        drop((stream, other));
    }
    thread::sleep(Duration::from_millis(30));
    let address = copy.descriptor().data();
    let bytes = machine.sim.peek(address, 8).expect("the memory is there");
    assert_eq!(bytes, [0, 0, 128, 63, 0, 0, 0, 64]);
    assert_eq!(floats(&copy.copy_to_host().expect("a copy")), [1.0, 2.0]);
    drop(copy);
    let count = |call| machine.sim.count(&format!("cuDevicePrimaryCtx{call}"));
    eventually("all is given back", || {
        let alive = contexts
            .each_ref()
            .map(|context| context.strong_count() > 0);
        let held = u64::from(alive[usize::from(!is_primary)]);
        alive == [false, !is_other_current] && count("Retain") == count("Release") + held
    });
    check_alive(&machine, "a context that was destroyed is named");
}

/// An owner that makes a context current as it ends, as safe code may, and tells on which thread.
struct Binds(Arc<CudaContext>, Sender<ThreadId>);

impl Drop for Binds {
    fn drop(&mut self) {
        self.0.bind_to_thread().expect("current");
        let _ = self.1.send(thread::current().id());
    }
}

/// The memory of a dropped copy is taken over by the next one, in the midst of whose calls what had kept its stream does not end.
#[rstest]
fn what_had_kept_the_stream_of_a_dropped_copy_ends_elsewhere(
    #[values(DeviceType::CUDA_HOST, DeviceType::CUDA_MANAGED)] kind: DeviceType,
) {
    let machine = machine();
    let [home, other] = [(); 2].map(|()| CudaContext::new_non_primary(0, 0).expect("a context"));
    let plain = floats_of(kind, &home);
    let stream = home.new_stream().expect("a stream");
    let (told, ends) = channel();
    let owner = Owner::new((Binds(other, told), plain.clone()));
    // SAFETY: the same elements, which the owner keeps.
    let ending = unsafe { CaiView::new(plain.descriptor().clone(), Stream::None, owner) };
    drop(ending.copy_on(&stream).expect("a copy"));
    drop(ending);
    let mut made = Vec::new();
    let ended_on = loop {
        thread::sleep(Duration::from_millis(1));
        made.push(plain.copy_on(&stream).expect("a copy"));
        assert_eq!(result::ctx::get_current(), Ok(Some(home.cu_ctx())));
        if let Ok(thread) = ends.try_recv() {
            break thread;
        }
        assert!(made.len() < 20_000, "it ends");
    };
    assert_ne!(ended_on, thread::current().id());
    drop((made, plain, stream, machine));
}

#[test]
fn data_without_a_producer_is_copied_without_a_wait() {
    let stage = Stage::new();
    stage.producer.synchronize().expect("the data is there");
    let owner = stage.view.owner().share();
    // SAFETY: the same elements, which are there.
    let silent = unsafe { CaiView::new(stage.view.descriptor().clone(), Stream::None, owner) };
    let gate = stage.machine.sim.gate(number(&stage.consumer));
    stage.machine.sim.clear();
    let copy = silent.copy_on(&stage.consumer).expect("a copy");
    // The event is the one that the owner is kept by.
    let kept = ("cuEventRecord".to_owned(), number(&stage.consumer));
    assert_eq!(stage.machine.orders(), [kept]);
    gate.expect("a gate").open();
    assert_eq!(
        floats(&copy.copy_to_host().expect("on the CPU")),
        [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    );
}

/// Returns how many allocations there are, once those of other tests have ended.
pub(crate) fn settled_allocations(machine: &Machine) -> u64 {
    let allocations = || machine.sim.live().allocations;
    eventually("what other tests have made ends", || {
        let before = allocations();
        thread::sleep(Duration::from_millis(30));
        allocations() == before
    });
    allocations()
}

/// Gives a view away, and takes it back.
fn passed_on(view: CaiView, given: &str) -> CaiView {
    let back = match given {
        "a view" => return view,
        "a tensor" => CaiView::from_dlpack(
            view.to_dlpack(view.ready()).expect("a tensor"),
            view.ready(),
        ),
        _ => CaiView::from_dlpack(
            view.to_dlpack_legacy(view.ready()).expect("a tensor"),
            view.ready(),
        ),
    };
    back.expect("a view")
}

/// Copies of copies, each on the stream of the one before, which is dropped: none keeps those before.
#[rstest]
fn a_copy_of_a_copy_keeps_no_other(
    #[values(DeviceType::CUDA, DeviceType::CUDA_HOST, DeviceType::CUDA_MANAGED)] kind: DeviceType,
    #[values(false, true)] is_primary: bool,
    #[values("the same", "ready", "none")] on: &str,
    #[values("a view", "a tensor", "a legacy tensor")] given: &str,
) {
    const COPIES: u64 = 50;
    let machine = machine();
    let context = match is_primary {
        true => CudaContext::new(0),
        false => CudaContext::new_non_primary(0, 0),
    };
    let context = context.expect("a context");
    let stream = context.new_stream().expect("a stream");
    let mut view = floats_of(kind, &context).copy_on(&stream).expect("a copy");
    let allocations = || machine.sim.live().allocations;
    let before = settled_allocations(&machine);
    for _ in 0..COPIES {
        let copy = match on {
            "the same" => view.copy_on(&stream),
            "ready" => view.copy_on(view.ready()),
            _ => view.copy_on(LiveStream::NONE),
        };
        view = passed_on(copy.expect("a copy"), given);
    }
    stream.synchronize().expect("a wait");
    // Some of them wait to be freed, or to be taken.
    eventually("the copies end", || allocations() < before + COPIES / 2);
    drop(view);
    context.bind_to_thread().expect("current");
}

/// A promise of a stream ends with the copies that are made by it, and by their own name for it: no thread of the library's names
/// it later.
#[test]
fn a_promised_stream_is_not_named_after_the_copies() {
    let machine = machine();
    machine.log_every_thread();
    let context = CudaContext::new(0).expect("device 0");
    let home = floats_of(DeviceType::CUDA, &context);
    for made_by in [
        "a copy of a copy",
        "a copy of a view on it",
        "a copy of an import",
    ] {
        let promised = context.new_stream().expect("a stream");
        // SAFETY: it lives as long as what is made with it, and its context stays.
        let live = unsafe { LiveStream::new(stream(&promised)) };
        let held = machine.sim.gate(number(&promised)).expect("a gate");
        let pending =
            CaiView::from_dlpack(home.to_dlpack(LiveStream::NONE).expect("a tensor"), live);
        let pending = pending.expect("a view");
        let first = match made_by {
            "a copy of a copy" => home.copy_on(live),
            "a copy of a view on it" => pending.on(live),
            _ => Ok(pending.clone()),
        };
        let first = first.expect("a view");
        // More than are marked at once: the others are not until the stream has got further.
        for _ in 0..8 {
            drop(first.copy_on(first.ready()).expect("a copy"));
            thread::sleep(Duration::from_millis(10));
        }
        drop((first, pending));
        held.open();
        promised.synchronize().expect("a wait");
        machine.sim.clear();
        let gone = number(&promised);
        drop(promised);
        thread::sleep(Duration::from_millis(50));
        let calls = machine.sim.calls();
        let ends = |call: &cusim_control::Call| call.name() == "cuStreamDestroy";
        let named =
            |call: &&cusim_control::Call| call.arguments.iter().any(|(_, given)| *given == gone);
        let later = calls
            .iter()
            .skip_while(|call| !ends(call))
            .skip(1)
            .find(named);
        assert_eq!(later, None, "{made_by}");
        check_alive(&machine, made_by);
    }
}

/// Memory of a device's pool ends with the primary context, whichever context its stream is of: the copy keeps that, and gives it
/// back.
#[test]
fn a_copy_keeps_the_pool_that_its_memory_is_of() {
    let machine = machine();
    machine.log_every_thread();
    let (home, primary) = (CudaContext::new_non_primary(0, 0), CudaContext::new(0));
    let (home, primary) = (home.expect("a context"), primary.expect("device 0"));
    let left = Arc::downgrade(&primary);
    let view = floats_of(DeviceType::CUDA, &home);
    let stream = home.new_stream().expect("a stream");
    machine.sim.clear();
    let copy = view.copy_on(&stream).expect("a copy");
    assert_eq!(machine.sim.count("cuMemAllocAsync"), 1);
    stream.synchronize().expect("written");
    drop((view, primary));
    assert_eq!(left.strong_count(), 0);
    let bytes = machine.sim.peek(copy.descriptor().data(), 8);
    assert_eq!(
        bytes.expect("the memory is there"),
        [0, 0, 128, 63, 0, 0, 0, 64]
    );
    let count = |call| machine.sim.count(&format!("cuDevicePrimaryCtx{call}"));
    // One of the releases is the program's.
    eventually("the pool is kept", || count("Retain") == count("Release"));
    drop(copy);
    eventually("the pool is given back", || {
        count("Retain") + 1 == count("Release")
    });
    home.bind_to_thread().expect("current");
    check_alive(&machine, "a context that was destroyed is named");
}
