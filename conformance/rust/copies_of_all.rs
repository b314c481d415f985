//! Random arrays of every kind of memory, copied and presented every way: the elements are the same, in C order, and the
//! memory is of the kind that was asked for.

use std::ffi::c_void;
use std::sync::Arc;

use cai_dlpack::protocol::descriptor::{Descriptor, RawTensor};
use cai_dlpack::protocol::device::{Device, DeviceType};
use cai_dlpack::protocol::dtype::DType;
use cai_dlpack::protocol::rule::Rule;
use cai_dlpack::protocol::stream::Stream;
use cai_dlpack::view::{LiveStream, Owner, PresentAs};
use cai_dlpack::{CaiView, Error};
use cudarc::driver::{CudaContext, CudaStream, result, sys};
use cusim_control::Schedule;

use crate::simulator::{Machine, machine, number};

const PROGRAMS: u64 = 400;
/// Floats of the memory that the arrays lie in, each of which is its own index.
const ROOM: i64 = 4096;

struct Random(u64);

impl Random {
    fn below(&mut self, end: i64) -> i64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 8) % end.max(1) as u64) as i64
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Device,
    Managed,
    Pinned,
}

impl Kind {
    fn device(self) -> Device {
        match self {
            Self::Device => Device::cuda(0),
            Self::Managed => Device::new(DeviceType::CUDA_MANAGED, 0),
            Self::Pinned => Device::new(DeviceType::CUDA_HOST, 0),
        }
    }
}

/// Memory of one kind, which its end gives back. It keeps the stream that writes it: what is copied there keeps the owner
/// alone.
struct Memory {
    kind: Kind,
    address: u64,
    context: Arc<CudaContext>,
    _producer: Arc<CudaStream>,
}

impl Memory {
    fn new(kind: Kind, context: &Arc<CudaContext>, producer: &Arc<CudaStream>) -> Self {
        let size = ROOM as usize * 4;
        let address = match kind {
            // SAFETY: the context is current; nothing reads the memory before it is written.
            Kind::Device => unsafe { result::malloc_sync(size) },
            Kind::Managed => {
                let attach = sys::CUmemAttach_flags::CU_MEM_ATTACH_GLOBAL;
                // SAFETY: the context is current; nothing reads the memory before it is written.
                unsafe { result::malloc_managed(size, attach) }
            }
            Kind::Pinned => {
                // SAFETY: the context is current; nothing reads the memory before it is written.
                let start = unsafe { result::malloc_host(size, 0) };
                start.map(|start| start.expose_provenance() as u64)
            }
        };
        Self {
            kind,
            address: address.expect("memory"),
            context: Arc::clone(context),
            _producer: Arc::clone(producer),
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.context.bind_to_thread().expect("a context");
        let start: *mut c_void = std::ptr::with_exposed_provenance_mut(self.address as usize);
        let freed = match self.kind {
            // SAFETY: allocated by `new`, freed once; a view's owner ends after the work that reads it.
            Kind::Pinned => unsafe { result::free_host(start) },
            // SAFETY: as for pinned memory: allocated by `new`, freed once, after the work that reads it.
            Kind::Device | Kind::Managed => unsafe { result::free_sync(self.address) },
        };
        freed.expect("freed once");
    }
}

/// Where the elements of an array are, in floats.
#[derive(Debug)]
struct Shape {
    first: i64,
    extents: Vec<i64>,
    strides: Vec<i64>,
}

impl Shape {
    /// Up to four axes of any strides, or one that takes hundreds of calls to copy row by row.
    fn random(random: &mut Random) -> Self {
        let (extents, strides): (Vec<_>, Vec<_>) = match random.below(5) {
            0 => vec![(2 + random.below(2), 1), (300, 4), (2, 2000)],
            _ => (0..random.below(5))
                .map(|_| (random.below(6), random.below(41) - 20))
                .collect(),
        }
        .into_iter()
        .unzip();
        let ends = extents.iter().zip(&strides);
        let reach: Vec<i64> = ends
            .map(|(extent, stride)| (extent - 1).max(0) * stride)
            .collect();
        let below: i64 = reach.iter().filter(|end| **end < 0).sum();
        let above: i64 = reach.iter().filter(|end| **end > 0).sum();
        let first = random.below(ROOM - above + below) - below;
        Self {
            first,
            extents,
            strides,
        }
    }

    /// The elements in C order: what each is in memory is its index.
    fn elements(&self) -> Vec<f32> {
        let mut found = vec![self.first];
        for (extent, stride) in self.extents.iter().zip(&self.strides) {
            let along = |from: &i64| {
                (0..*extent)
                    .map(|at| from + at * stride)
                    .collect::<Vec<_>>()
            };
            found = found.iter().flat_map(along).collect();
        }
        found.into_iter().map(|at| at as f32).collect()
    }
}

struct World {
    machine: Machine,
    context: Arc<CudaContext>,
    producer: Arc<CudaStream>,
    consumer: Arc<CudaStream>,
}

impl World {
    /// A view whose elements are there, or will be once the producer's stream has run.
    fn view(&self, kind: Kind, shape: &Shape, is_pending: bool, is_known: bool) -> CaiView {
        let memory = Memory::new(kind, &self.context, &self.producer);
        let values: Vec<u8> = (0..ROOM).flat_map(|at| (at as f32).to_le_bytes()).collect();
        let sim = &self.machine.sim;
        let ready = match is_pending {
            true => Stream::from_cudarc(&self.producer).expect("a number"),
            false => Stream::None,
        };
        match is_pending {
            true => sim.store(number(&self.producer), memory.address, &values),
            false => sim.poke(memory.address, &values),
        }
        .expect("values");
        let device = kind.device();
        let descriptor = Descriptor::new(
            &RawTensor::new(memory.address, device, DType::F32, &shape.extents)
                .with_byte_offset(shape.first as u64 * 4)
                .with_elem_strides(&shape.strides),
        );
        // SAFETY: the shape lies in the memory, which the owner keeps, and the stream with it.
        let view =
            unsafe { CaiView::new(descriptor.expect("a tensor"), ready, Owner::new(memory)) };
        match is_known {
            // SAFETY: the producer's stream, which the owner keeps, is the one that writes.
            true => unsafe { view.with_producer(ready) },
            false => view,
        }
    }
}

fn elements(view: &CaiView) -> Vec<f32> {
    let copy = view.copy_to_host().expect("a copy to the CPU");
    let typed = copy.typed::<f32>().expect("floats");
    typed.copy_to_vec().expect("readable")
}

/// Presents memory to the host, and returns its elements; `None` if it is not the host's.
fn on_the_host(view: &CaiView) -> Option<Vec<f32>> {
    match view.present_as(PresentAs::Host) {
        Ok(host) => {
            assert_eq!(
                (host.device(), host.ready().number()),
                (Device::HOST, Stream::None)
            );
            Some(
                host.typed::<f32>()
                    .expect("floats")
                    .copy_to_vec()
                    .expect("readable"),
            )
        }
        Err(Error::Violation(violation)) if violation.rule() == Rule::PresentAs => None,
        Err(other) => panic!("{other}"),
    }
}

/// The copies that an array can be asked for, and the stream that each is ready on.
fn copied(world: &World, view: &CaiView, which: i64) -> (CaiView, Stream) {
    let consumer = Stream::from_cudarc(&world.consumer).expect("a number");
    let (copy, stream) = match which {
        0 => (view.copy_on(&world.consumer), consumer),
        1 => (
            view.copy_on(LiveStream::LEGACY_DEFAULT),
            Stream::LegacyDefault,
        ),
        2 => (
            view.copy_on(LiveStream::PER_THREAD_DEFAULT),
            Stream::PerThreadDefault,
        ),
        _ => match view.ready().number() {
            Stream::None => (view.copy_on(LiveStream::NONE), Stream::LegacyDefault),
            ready => (view.copy_on(LiveStream::NONE), ready),
        },
    };
    (copy.expect("a copy"), stream)
}

#[test]
fn a_copy_has_the_elements_in_c_order_in_memory_of_its_kind() {
    let machine = machine();
    let context = CudaContext::new(0).expect("device 0");
    let stream = || context.new_stream().expect("a stream");
    let world = World {
        producer: stream(),
        consumer: stream(),
        context: Arc::clone(&context),
        machine,
    };
    let schedule = world.machine.sim.schedule();
    // Work runs when something waits for it: what was not waited for is not there.
    world.machine.sim.set_schedule(Schedule::Lazy);
    for seed in 1..=PROGRAMS {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let kind = [Kind::Device, Kind::Managed, Kind::Pinned][random.below(3) as usize];
        let shape = Shape::random(&mut random);
        let (is_pending, is_known) = (random.below(2) == 0, random.below(2) == 0);
        let (view, which) = (
            world.view(kind, &shape, is_pending, is_known),
            random.below(4),
        );
        let what = format!(
            "program {seed}: {kind:?} {shape:?} pending {is_pending} known {is_known} way {which}"
        );
        let expected = shape.elements();

        let (copy, stream) = copied(&world, &view, which);
        let is_there = expected.is_empty() || (kind == Kind::Pinned && !is_pending);
        assert_eq!(
            copy.ready().number(),
            if is_there { Stream::None } else { stream },
            "{what}"
        );
        assert_eq!(copy.device(), kind.device(), "{what}");
        assert!(
            expected.is_empty() || copy.descriptor().data() != view.descriptor().data(),
            "{what}"
        );
        assert_eq!(elements(&copy), expected, "{what}: the copy");
        assert_eq!(elements(&view), expected, "{what}: to the CPU");
        for memory in [&view, &copy] {
            let host = on_the_host(memory);
            if !expected.is_empty() {
                assert_eq!(
                    host.is_some(),
                    kind != Kind::Device,
                    "{what}: the memory's kind"
                );
            }
            assert!(
                host.is_none_or(|found| found == expected),
                "{what}: on the host"
            );
            let device = memory
                .present_as(PresentAs::Cuda)
                .expect("reachable from the device");
            assert_eq!(device.device(), Device::cuda(0), "{what}");
            assert_eq!(elements(&device), expected, "{what}: as the device's");
        }
    }
    world.machine.sim.set_schedule(schedule);
}
