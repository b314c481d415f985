//! Copies on the device.

use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};

use super::{Whole, view_of};
use crate::driver::{self, CopyPlan, Driver, DriverError, copy_strided};
use crate::error::Error;
use crate::protocol::rule::{Field, Rule, Violation};
use crate::protocol::stream::{Capture, Request, Stream, SyncPolicy};
use crate::python::current::Current;
use crate::view::{CaiView, Owner, ReturnEdge};

/// `CUDA_ERROR_NOT_SUPPORTED`: a device without memory pools.
const NOT_SUPPORTED: u32 = 801;

/// Copies to the same device, on the stream of whoever asked.
pub(super) fn copy(
    view: &CaiView,
    whole: &Whole,
    request: Request,
    policy: SyncPolicy,
) -> Result<CaiView, Error> {
    let (source, device) = (view.descriptor(), view.device());
    let Some(plan) = CopyPlan::new(source.shape(), &whole.byte_strides, whole.itemsize) else {
        let empty = whole.at(0, device, source)?;
        // SAFETY: there is no memory to own.
        return unsafe { view_of(empty, Stream::None, Owner::new(())) };
    };
    let driver = driver::driver()?;
    let stream = match request {
        Request::Stream(stream) if stream != Stream::None => stream,
        _ => named(view.ready()),
    };
    let loan = view.consume_with(stream, policy)?;
    let memory = {
        let _current = Current::of_stream(driver, stream, source)?;
        refuse_capture(driver, stream)?;
        let memory = DeviceBlock::new(driver, source.nbytes(), stream, device.id)?;
        // SAFETY: the block has room for every element in C order and outlives its work, since it is
        // freed only after a wait for that; the source outlives it by the return edge or the wait.
        unsafe { copy_strided(driver, &plan, memory.pointer, source.data(), stream) }?;
        let is_ordered = matches!(
            loan.return_edge(),
            ReturnEdge::Event | ReturnEdge::SameStream
        );
        if request == Request::Host || !is_ordered {
            driver.stream_synchronize(stream)?;
        }
        memory
    };
    loan.finish()?;
    let ready = if request == Request::Host {
        Stream::None
    } else {
        stream
    };
    let descriptor = whole.at(memory.pointer, device, source)?;
    // SAFETY: the block is what the copy writes, on `stream`.
    unsafe { view_of(descriptor, ready, Owner::new(memory)) }
}

/// A stream for work where the consumer named none.
const fn named(ready: Stream) -> Stream {
    match ready {
        Stream::None => Stream::LegacyDefault,
        named => named,
    }
}

/// Memory that is allocated in a graph lives in the graph alone.
fn refuse_capture(driver: &dyn Driver, stream: Stream) -> Result<(), Error> {
    match driver.capture(stream)? {
        Capture::Idle => Ok(()),
        Capture::Active | Capture::Invalidated | Capture::BlocksLegacy => {
            let found = format_args!("a copy on {stream}");
            Err(
                Violation::new(Rule::CaptureConsumer, Field::Argument("copy"), found)
                    .with_hint("copy before the capture begins")
                    .into(),
            )
        }
    }
}

/// Memory of a device that this library allocated. Dropped, it is freed by another thread.
struct DeviceBlock {
    pointer: u64,
    ordinal: i32,
}

impl DeviceBlock {
    /// The device's context is current.
    fn new(
        driver: &dyn Driver,
        nbytes: u64,
        stream: Stream,
        ordinal: i32,
    ) -> Result<Self, DriverError> {
        let pointer = match driver.alloc_async(nbytes, stream) {
            Err(error) if is_unsupported(&error) => driver.alloc(nbytes),
            answer => answer,
        }?;
        Ok(Self { pointer, ordinal })
    }

    fn free(&self) -> Result<(), DriverError> {
        let driver = driver::driver()?;
        let _current = Current::of_pointer(driver, self.pointer, self.ordinal)?;
        // A free of memory from a pool does not wait by itself.
        driver.context_synchronize()?;
        // SAFETY: allocated by `new`, freed once (by `drop`), and used by nobody later: the consumer's
        // deleter has run, and the work that it had enqueued by then is done.
        unsafe { driver.free(self.pointer) }
    }
}

fn is_unsupported(error: &DriverError) -> bool {
    error.code().is_none_or(|code| code == NOT_SUPPORTED)
}

impl Drop for DeviceBlock {
    /// What the consumer has enqueued, on whatever stream, must be waited for, which a deleter must not: it
    /// is left to a thread that holds no lock. (Freeing in the order of the copy's stream would not wait,
    /// but that stream is the consumer's, and may be gone.)
    fn drop(&mut self) {
        static FREER: OnceLock<Option<Sender<DeviceBlock>>> = OnceLock::new();
        let freer = FREER.get_or_init(|| {
            let (sender, receiver) = channel::<DeviceBlock>();
            let run = move || {
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
