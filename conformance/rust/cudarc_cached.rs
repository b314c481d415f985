//! A guard over memory that the host can write: its owner gives it to a host cache, which writes it anew at once.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cai_dlpack::CaiView;
use cai_dlpack::protocol::descriptor::{Descriptor, RawTensor};
use cai_dlpack::protocol::device::{Device, DeviceType};
use cai_dlpack::protocol::dtype::DType;
use cai_dlpack::protocol::stream::Stream;
use cai_dlpack::view::Owner;
use cudarc::driver::result;
use cudarc::driver::sys::CUmemAttach_flags;
use cudarc::driver::{CudaContext, CudaStream};
use cusim_control::Schedule;

use crate::cudarc_guard::stream;
use crate::simulator::{machine, number};

const WRITTEN: [f32; 4] = [1.0, 2.0, 3.0, 4.0];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Device,
    Pinned,
    Managed,
}

/// Four floats, freed at the end.
struct Memory {
    kind: Kind,
    pointer: *mut f32,
}

impl Memory {
    fn new(kind: Kind) -> Self {
        let (bytes, global) = (16, CUmemAttach_flags::CU_MEM_ATTACH_GLOBAL);
        let pointer = match kind {
            // SAFETY: the context is current; the host does not use the address.
            Kind::Device => unsafe { result::malloc_sync(bytes) }.map(|made| made as *mut f32),
            // SAFETY: the context is current; no flags.
            Kind::Pinned => unsafe { result::malloc_host(bytes, 0) }.map(<*mut _>::cast),
            Kind::Managed => {
                // SAFETY: the context is current; every stream reaches it.
                unsafe { result::malloc_managed(bytes, global) }.map(|made| made as *mut f32)
            }
        };
        let pointer = pointer.expect("memory");
        Self { kind, pointer }
    }

    /// A view under the memory's own name, or as the device's.
    fn view(&self, is_named_device: bool, producer: Option<Stream>, owner: Owner) -> CaiView {
        let device_type = match self.kind {
            _ if is_named_device => DeviceType::CUDA,
            Kind::Device => DeviceType::CUDA,
            Kind::Pinned => DeviceType::CUDA_HOST,
            Kind::Managed => DeviceType::CUDA_MANAGED,
        };
        let descriptor = Descriptor::new(&RawTensor::new(
            self.pointer.addr() as u64,
            Device::new(device_type, 0),
            DType::F32,
            &[4],
        ));
        // SAFETY: elements of the memory, which stays to the end of the test, and was written.
        let view = unsafe { CaiView::new(descriptor.expect("a tensor"), Stream::None, owner) };
        match producer {
            // SAFETY: the streams stay to the end of the test.
            Some(producer) => unsafe { view.with_producer(producer) },
            None => view,
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let address = self.pointer.addr() as u64;
        let freed = match self.kind {
            // SAFETY: of `malloc_host`, freed once.
            Kind::Pinned => unsafe { result::free_host(self.pointer.cast()) },
            // SAFETY: of `malloc_sync` or `malloc_managed`, freed once.
            _ => unsafe { result::free_sync(address) },
        };
        freed.expect("freed");
    }
}

/// The owner of memory of a host cache, whose next user writes it as soon as the owner has ended.
struct Cached {
    ended: Arc<AtomicBool>,
    /// Where the host can write; 0 for memory of the device.
    address: usize,
}

impl Drop for Cached {
    fn drop(&mut self) {
        if self.address != 0 {
            let pointer = std::ptr::with_exposed_provenance_mut::<[f32; 4]>(self.address);
            // SAFETY: pinned or managed memory of four floats, which stays to the end of the test.
            unsafe { pointer.write_volatile([9.0; 4]) };
        }
        self.ended.store(true, Ordering::SeqCst);
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Producer {
    Unknown,
    OnNone,
    OnItsOwn,
    OnTheConsumers,
}

#[derive(Clone, Copy, Debug)]
enum Consumer {
    Handle,
    Legacy,
    PerThread,
}

#[derive(Clone, Copy, Debug)]
struct Case {
    schedule: Schedule,
    kind: Kind,
    is_named_device: bool,
    producer: Producer,
    consumer: Consumer,
    is_finished: bool,
}

fn cases() -> Vec<Case> {
    let producers = [
        Producer::Unknown,
        Producer::OnNone,
        Producer::OnItsOwn,
        Producer::OnTheConsumers,
    ];
    let mut cases = Vec::new();
    for schedule in [Schedule::Threaded, Schedule::Lazy] {
        for kind in [Kind::Device, Kind::Pinned, Kind::Managed] {
            for producer in producers {
                for consumer in [Consumer::Handle, Consumer::Legacy, Consumer::PerThread] {
                    for (is_named_device, is_finished) in
                        [(false, false), (false, true), (true, false), (true, true)]
                    {
                        cases.push(Case {
                            schedule,
                            kind,
                            is_named_device,
                            producer,
                            consumer,
                            is_finished,
                        });
                    }
                }
            }
        }
    }
    cases
}

/// Every kind of memory under every name, whoever waits for the guard's stream, under both schedules.
#[test]
fn the_owner_of_what_the_host_can_write_stays_until_the_stream_is_done() {
    for case in cases() {
        check(case);
    }
}

fn check(case: Case) {
    let machine = machine();
    machine.sim.set_schedule(case.schedule);
    let context = CudaContext::new(0).expect("device 0");
    let its_own = context.new_stream().expect("a stream");
    let consumer: &Arc<CudaStream> = &match case.consumer {
        Consumer::Handle => context.new_stream().expect("a stream"),
        Consumer::Legacy => context.default_stream(),
        Consumer::PerThread => context.per_thread_stream(),
    };
    let mut copy = consumer.alloc_zeros::<f32>(4).expect("memory");
    consumer.synchronize().expect("zeroes");
    let (memory, ended) = (Memory::new(case.kind), Arc::new(AtomicBool::new(false)));
    let address = memory.pointer.addr() as u64;
    let bytes = WRITTEN.map(f32::to_ne_bytes).concat();
    machine.sim.poke(address, &bytes).expect("written");
    let producer = match case.producer {
        Producer::Unknown => None,
        Producer::OnNone => Some(Stream::None),
        Producer::OnItsOwn => Some(stream(&its_own)),
        Producer::OnTheConsumers => Some(stream(consumer)),
    };
    let host_address = match case.kind {
        Kind::Device => 0,
        Kind::Pinned | Kind::Managed => memory.pointer.expose_provenance(),
    };
    let owner = Owner::new(Cached {
        ended: Arc::clone(&ended),
        address: host_address,
    });
    let view = memory.view(case.is_named_device, producer, owner);

    let gate = machine.sim.gate(number(consumer)).expect("a gate");
    let typed = view.typed::<f32>().expect("floats");
    let mut guard = typed.on(consumer).expect("a guard");
    let slice = guard.as_slice().expect("contiguous");
    consumer.memcpy_dtod(&slice, &mut copy).expect("a copy");
    if case.is_finished {
        guard.finish().expect("the end");
    } else {
        drop(guard);
    }
    drop(view);
    std::thread::sleep(Duration::from_millis(2));
    // What uses memory of the device anew is in the order of the producer's stream, which waits for the copy.
    let goes_in_order = matches!(case.producer, Producer::OnItsOwn | Producer::OnTheConsumers);
    let may_go = case.kind == Kind::Device && goes_in_order;
    assert_eq!(ended.load(Ordering::SeqCst), may_go, "{case:?}");
    gate.open();
    let copied = consumer.clone_dtoh(&copy).expect("a copy");
    assert_eq!(copied, WRITTEN, "{case:?}");
    ends(&ended, case);
}

/// Waits for the owner's end.
fn ends(ended: &AtomicBool, case: impl Debug) {
    let late = Instant::now() + Duration::from_secs(10);
    while !ended.load(Ordering::SeqCst) {
        assert!(Instant::now() < late, "the owner is let go: {case:?}");
        std::thread::yield_now();
    }
}
