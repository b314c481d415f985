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

use crate::driver;
use crate::driver::{Driver, DriverError, RELAXED};
use crate::process::signals;
use crate::protocol::descriptor::{Descriptor, Device};
use crate::python::current::Current;

/// One allocation. Dropped, it is freed by another thread, once the device has done its work.
#[derive(Debug)]
pub(super) struct Block {
    pointer: u64,
    ordinal: i32,
    is_pinned: bool,
}

impl Block {
    /// As much memory of the array's kind, where the array is, as its elements take in C order.
    pub(super) fn new(driver: &dyn Driver, like: &Descriptor) -> Result<Self, DriverError> {
        let (device, nbytes) = (like.device(), like.nbytes());
        let _current = Current::of_memory(driver, like)?;
        let _relaxed = Relaxed::new(driver)?;
        let pointer = match device.device_type {
            Device::CUDA_MANAGED => driver.alloc_managed(nbytes),
            Device::CUDA_HOST => driver.alloc_pinned(nbytes),
            _ => driver.alloc(nbytes),
        }?;
        Ok(Self {
            pointer,
            ordinal: if device.device_type == Device::CUDA {
                device.id
            } else {
                -1
            },
            is_pinned: device.device_type == Device::CUDA_HOST,
        })
    }

    pub(super) const fn pointer(&self) -> u64 {
        self.pointer
    }

    fn free(&self) -> Result<(), DriverError> {
        let driver = driver::driver()?;
        let _current = Current::of_pointer(driver, self.pointer, self.ordinal)?;
        let _relaxed = Relaxed::new(driver)?;
        // Freed once (by `drop`), and used by nobody later: the consumer's deleter has run, and what it had
        // enqueued by then is waited for.
        if self.is_pinned {
            // SAFETY: `new` allocated it as pinned memory; see above.
            unsafe { driver.free_pinned(self.pointer) }
        } else {
            // SAFETY: `new` allocated it as device or managed memory; see above.
            unsafe { driver.free(self.pointer) }
        }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        static FREER: OnceLock<Option<Sender<Block>>> = OnceLock::new();
        let freer = FREER.get_or_init(|| {
            let (sender, receiver) = channel::<Block>();
            let run = move || {
                signals::block();
                for block in receiver {
                    // A driver that is ending has freed it already; anything else leaks the block.
                    let _ = block.free();
                    std::mem::forget(block);
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

/// This thread allocates and frees beside captures that go on elsewhere, until it is dropped.
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
