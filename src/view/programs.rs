//! Random programs over the safe functions, on the scripted driver: under Miri no order of calls, clones, drops and
//! threads is undefined behaviour, and each owner is dropped once.
//!
//! Memory is real and the views of it are honest, so that all that is left to go wrong is this library's.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use super::*;
use crate::driver::script::{self, Script};
use crate::protocol::descriptor::RawTensor;
use crate::protocol::device::Flags;

const CONTEXT: u64 = 0xa;
const HANDLES: [Stream; 4] = [
    Stream::from_raw(0xa1),
    Stream::from_raw(0xa2),
    Stream::LegacyDefault,
    Stream::PerThreadDefault,
];
const PROGRAMS: u64 = if cfg!(miri) { 6 } else { 2_000 };
const STEPS: usize = 60;

/// Memory that counts its end.
struct Memory {
    // No box: its unique pointer moves with it, and what was derived from it would end.
    _values: Vec<f32>,
    ended: Arc<AtomicUsize>,
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.ended.fetch_add(1, Ordering::Relaxed);
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 8) as usize % end.max(1)
    }

    fn stream(&mut self) -> Stream {
        HANDLES[self.below(HANDLES.len())]
    }
}

/// A tensor of either layout.
enum Exported {
    Versioned(DlpackTensor<DLManagedTensorVersioned>),
    Legacy(DlpackTensor<DLManagedTensor>),
}

/// What a program holds.
struct Held {
    random: Random,
    views: Vec<CaiView>,
    tensors: Vec<Exported>,
    owners: Vec<Owner>,
    guards: Vec<ConsumeGuard>,
    made: usize,
    ended: Arc<AtomicUsize>,
}

impl Held {
    /// Makes a view of fresh memory, on the host or as a device's; rarely without elements or axes.
    fn make(&mut self) {
        let shapes: [&[i64]; 5] = [&[2, 3], &[6], &[], &[0, 4], &[1, 2, 1, 3, 1]];
        let values: Vec<f32> = (0_u8..6).map(f32::from).collect();
        let device = [Device::HOST, Device::cuda(0)][self.random.below(2)];
        let descriptor = Descriptor::new(&RawTensor {
            data: values.as_ptr().expose_provenance() as u64,
            device_type: device.device_type,
            device_id: device.id,
            shape: shapes[self.random.below(5)],
            flags: [Flags::NONE, Flags::READ_ONLY][self.random.below(2)],
            ..RawTensor::EXAMPLE
        });
        let (ready, producer) = match device {
            Device::HOST => (Stream::None, Stream::None),
            _ => (self.random.stream(), self.random.stream()),
        };
        let ended = Arc::clone(&self.ended);
        self.made += 1;
        let owner = Owner::new(Memory {
            _values: values,
            ended,
        });
        let descriptor = descriptor.expect("a valid tensor");
        // SAFETY: the elements lie in the vector, which the owner keeps; the scripted driver follows no stream.
        let view = unsafe { CaiView::new(descriptor, ready, owner) };
        // SAFETY: nothing works on the memory.
        self.views.push(unsafe { view.with_producer(producer) });
    }

    fn step(&mut self) {
        let at = self.random.below(self.views.len());
        let Some(mut view) = self.views.get(at).cloned() else {
            return self.make();
        };
        let other = self.any_view();
        let stream = self.live(&other);
        match self.random.below(16) {
            0 => self.make(),
            1 => self.views.extend([view.clone()]),
            2 => drop(self.views.swap_remove(at)),
            3 => self
                .tensors
                .extend(view.to_dlpack(stream).map(Exported::Versioned)),
            4 => self
                .tensors
                .extend(view.to_dlpack(LiveStream::NONE).map(Exported::Versioned)),
            5 => self.tensors.extend(
                view.to_dlpack_legacy(LiveStream::NONE)
                    .map(Exported::Legacy),
            ),
            6 => self.take_over(),
            7 => drop(self.tensors.pop()),
            8 => {
                if let Ok(typed) = view.typed::<f32>() {
                    let values = typed.as_view_of_all();
                    assert!(values.iter().all(|value| (0.0..6.0).contains(value)));
                }
                assert!(view.typed::<i8>().is_err());
            }
            9 => {
                if let Ok(mut typed) = view.typed_mut::<f32>() {
                    let again = typed.reborrow();
                    let _ = (again.shape().len(), again.as_view().as_ptr());
                }
            }
            10 => self
                .views
                .extend(view.on(stream).into_iter().chain(view.synchronize())),
            11 => self.guards.extend(view.consume(stream)),
            12 => self.end_a_guard(),
            13 => self.views.extend(
                view.present_as(PresentAs::Host)
                    .into_iter()
                    .chain(view.copy_to_host_if_host()),
            ),
            14 => {
                self.owners.push(view.owner().share());
                let _ = (
                    view.interface(),
                    view.borrow_memory().is_ok(),
                    view.borrow_memory_mut().is_ok(),
                );
            }
            _ => self.on_a_thread(),
        }
    }

    fn any_view(&mut self) -> CaiView {
        let at = self.random.below(self.views.len());
        self.views[at].clone()
    }

    /// A view's stream, which its owner keeps, or a promised one.
    fn live<'a>(&mut self, other: &'a CaiView) -> LiveStream<'a> {
        match self.random.below(2) {
            0 => other.ready(),
            // SAFETY: the scripted driver's streams are alive to the end.
            _ => unsafe { LiveStream::new(self.random.stream()) },
        }
    }

    fn take_over(&mut self) {
        let Some(tensor) = self.tensors.pop() else {
            return;
        };
        let other = self.any_view();
        let ready = self.live(&other);
        let view = match tensor {
            Exported::Versioned(tensor) => CaiView::from_dlpack(tensor, ready),
            Exported::Legacy(tensor) => CaiView::from_dlpack(tensor, ready),
        };
        // SAFETY: nothing works on the memory, and the scripted driver's streams are alive to the end.
        self.views
            .extend(view.map(|view| unsafe { view.with_producer(ready.number()) }));
    }

    fn end_a_guard(&mut self) {
        let Some(guard) = self.guards.pop() else {
            return;
        };
        self.views.push(guard.view().clone());
        match self.random.below(2) {
            0 => drop(guard),
            _ => drop(guard.finish()),
        }
    }

    /// Another thread ends some things, while this one uses what shares their owners.
    fn on_a_thread(&mut self) {
        let shared: Vec<_> = self.views.iter().map(CaiView::clone).collect();
        let half = self.views.split_off(self.views.len() / 2);
        let (tensors, owners) = (
            std::mem::take(&mut self.tensors),
            std::mem::take(&mut self.owners),
        );
        let there = thread::spawn(move || {
            let read: Vec<_> = half
                .iter()
                .map(|view| view.clone().typed::<f32>().map(|typed| typed.len()))
                .collect();
            drop((tensors, half, owners));
            read.len()
        });
        for view in &shared {
            let _ = (
                view.owner().share(),
                view.to_dlpack(LiveStream::NONE).is_ok(),
            );
        }
        drop(shared);
        assert!(there.join().is_ok(), "a thread that ends well");
    }
}

impl CaiView {
    fn copy_to_host_if_host(&self) -> Result<Self, crate::error::Error> {
        match self.device() {
            Device::HOST => self.copy_to_host(),
            _ => Ok(self.clone()),
        }
    }
}

impl View<'_, f32> {
    /// The elements, where the host can read them.
    fn as_view_of_all(&self) -> Vec<f32> {
        self.copy_to_vec().unwrap_or_default()
    }
}

#[test]
fn random_programs_of_safe_calls() {
    let driver = Script::leak();
    driver
        .stream(0xa1, CONTEXT)
        .stream(0xa2, CONTEXT)
        .primary(0, CONTEXT)
        .current(CONTEXT);
    let _installed = script::install(driver);
    for seed in 1..=PROGRAMS {
        let ended = Arc::default();
        let mut held = Held {
            random: Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            views: Vec::new(),
            tensors: Vec::new(),
            owners: Vec::new(),
            guards: Vec::new(),
            made: 0,
            ended: Arc::clone(&ended),
        };
        for _ in 0..STEPS {
            held.step();
        }
        let made = held.made;
        drop(held);
        assert_eq!(
            ended.load(Ordering::Relaxed),
            made,
            "program {seed}: each owner ends once"
        );
        driver.take_calls();
    }
}
