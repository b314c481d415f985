//! Memory that this library allocates for a copy, and frees on a thread of its own.
//!
//! A consumer may drop a copy while work that reads it is enqueued, on whatever stream. So freeing must
//! wait for the device, which a deleter must not; and it must not disturb a capture, wherever that goes on.
//! `cuMemFree` waits for all that the device executes, captures are not among it, and by the mode of the
//! thread that frees it is no call that a capture forbids. A forked child has no such thread, and no such
//! memory: it is refused the driver, and its parent's owners never end there.
//!
//! **Roads not taken.** `cuMemFreeAsync` on the consumer's stream would not wait, but that stream may be
//! gone by then. Memory of a stream-ordered pool is allocated sooner, but given back without a wait; one of
//! the whole context before it (`cuCtxSynchronize`) invalidates every capture in that context.

use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};

use crate::driver::{self, ContextGuard, Driver, DriverError, Place, RELAXED};
use crate::process::signals;
use crate::protocol::device::Device;
use crate::view::CaiView;

/// One allocation. Dropped, it is freed by another thread, once the device has done its work.
#[derive(Debug)]
pub(super) struct Allocation {
    pointer: u64,
    ordinal: i32,
    is_pinned: bool,
}

impl Allocation {
    /// Allocates memory of the array's kind, where the array is, of the size of its elements in C order.
    pub(super) fn new(driver: &dyn Driver, like: &CaiView) -> Result<Self, DriverError> {
        let (place, nbytes) = (like.place(), like.descriptor().nbytes());
        let device_type = like.device().device_type;
        let _current = ContextGuard::of_memory(driver, &place)?;
        let _relaxed = Relaxed::new(driver)?;
        let pointer = match device_type {
            Device::CUDA_MANAGED => driver.alloc_managed(nbytes),
            Device::CUDA_HOST => driver.alloc_pinned(nbytes),
            _ => driver.alloc(nbytes),
        }?;
        Ok(Self {
            pointer,
            ordinal: place.ordinal,
            is_pinned: device_type == Device::CUDA_HOST,
        })
    }

    pub(super) const fn pointer(&self) -> u64 {
        self.pointer
    }

    fn free(&self) -> Result<(), DriverError> {
        let driver = driver::driver()?;
        let place = Place::cuda(self.ordinal, self.pointer);
        let _current = ContextGuard::of_memory(driver, &place)?;
        let _relaxed = Relaxed::new(driver)?;
        if self.is_pinned {
            // SAFETY: `new` allocated it as pinned memory; freed once, by `drop`; nothing uses it later, since the
            // consumer's deleter has run and the call waits for what was enqueued by then.
            unsafe { driver.free_pinned(self.pointer) }
        } else {
            // SAFETY: `new` allocated it as device or managed memory; freed once, by `drop`; nothing uses it later,
            // since the consumer's deleter has run and the call waits for what was enqueued by then.
            unsafe { driver.free(self.pointer) }
        }
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        static FREER: OnceLock<Option<Sender<Allocation>>> = OnceLock::new();
        let freer = FREER.get_or_init(|| {
            let (sender, receiver) = channel::<Allocation>();
            let run = move || {
                signals::block();
                for allocation in receiver {
                    // A driver that is ending has freed it already; anything else leaks the memory.
                    let _ = allocation.free();
                    std::mem::forget(allocation);
                }
            };
            let name = "cai-dlpack-free".into();
            let thread = std::thread::Builder::new().name(name).spawn(run);
            thread.is_ok().then_some(sender)
        });
        let body = Self { ..*self };
        let left = match freer {
            Some(freer) => freer.send(body).err().map(|error| error.0),
            None => Some(body),
        };
        if let Some(body) = left {
            let _ = body.free();
            std::mem::forget(body);
        }
    }
}

/// Lets this thread allocate and free beside captures that go on elsewhere, until it is dropped.
struct Relaxed<'d> {
    driver: &'d dyn Driver,
    before: u32,
}

impl<'d> Relaxed<'d> {
    fn new(driver: &'d dyn Driver) -> Result<Self, DriverError> {
        let before = driver.exchange_capture_mode(RELAXED)?;
        Ok(Self { driver, before })
    }
}

impl Drop for Relaxed<'_> {
    fn drop(&mut self) {
        // Setting a mode that the driver has answered cannot fail.
        let _ = self.driver.exchange_capture_mode(self.before);
    }
}
