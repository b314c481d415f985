//! Copies to memory of a device, managed and pinned memory: of the same kind, or to another device.

use std::ffi::c_void;

use super::allocation::{Allocation, both, home_of_copy, refuse_capture};
use super::host::{HostBlock, gather, unit};
use super::made::view_of;
use crate::driver::{
    self, Context, ContextGuard, CopyPlan, Defaults, Driver, DriverError, KeptPrimary, Place,
    PrivateStream, UNTOLD,
};
use crate::error::Error;
use crate::protocol::device::{Device, DeviceType};
use crate::protocol::rule::{Field, Rule, Violation};
use crate::protocol::stream::{Request, Stream, SyncPolicy};
use crate::protocol::whole::Whole;
use crate::view::keep::{self, Use};
use crate::view::streams::Placed;
use crate::view::{CaiView, Kept, Owner};

/// Copies to memory of `device`, the array's own or a CUDA device: on the stream that `request` names; if it names none,
/// finished.
pub(super) fn copy(
    view: &CaiView,
    whole: &Whole,
    device: Device,
    request: Request,
    policy: SyncPolicy,
    stream: Used,
) -> Result<CaiView, Error> {
    let source = view.descriptor();
    let Some(plan) = CopyPlan::new(source.shape(), &whole.byte_strides, whole.itemsize) else {
        let empty = whole.at(0, device, source)?;
        // SAFETY: there is no memory to own.
        return Ok(unsafe { view_of(empty, Stream::None, Owner::new(())) });
    };
    let driver = driver::driver()?;
    let is_elsewhere = device != view.device();
    let mut place = match is_elsewhere {
        true => Place::cuda(device.id, 0),
        false => view.place(),
    };
    if request == Request::Stream(Stream::None) {
        // The stream is the data's, and not one of the consumer's.
        place.requested = match view.ready_number() {
            Stream::None => Defaults::OfMemory,
            _ => place.ready,
        };
    }
    let staged = match view.device().device_type {
        DeviceType::CPU => Some(stage(view, &plan, policy)?),
        _ => None,
    };
    let copy = Copy {
        driver,
        view,
        whole,
        plan,
        used: stream,
        device,
        place,
        is_elsewhere,
        staged,
    };
    match request {
        Request::Stream(Stream::None) => copy.on(named(view.ready_number()), policy),
        Request::Stream(stream) => copy.on(stream, policy),
        Request::Host | Request::NoSync => copy.finished(request),
    }
}

/// Chooses a stream for a caller that leaves the choice.
const fn named(ready: Stream) -> Stream {
    match ready {
        Stream::None => Stream::LegacyDefault,
        named => named,
    }
}

/// A copy that has something to copy.
pub(super) struct Copy<'a> {
    pub(super) driver: &'static dyn Driver,
    pub(super) view: &'a CaiView,
    whole: &'a Whole,
    pub(super) plan: CopyPlan,
    used: Used,
    /// The device of the copy's memory.
    device: Device,
    /// Where it will be; the default streams are those of the consumer.
    pub(super) place: Place,
    /// Whether the copy goes to another device.
    is_elsewhere: bool,
    /// The elements of an array on the CPU.
    staged: Option<HostBlock>,
}

/// Whether `stream` of `device` is not being captured. In a device whose primary context is inactive no stream is.
#[cfg(feature = "pyo3")]
pub(super) fn is_idle(device: Device, stream: Stream) -> Result<bool, Error> {
    let driver = driver::driver()?;
    if !driver.primary_context_active(device.id)? {
        return Ok(true);
    }
    let mut current = ContextGuard::of_stream(driver, stream, &Place::cuda(device.id, 0))?;
    let capture = driver.capture(stream)?;
    current.restore()?;
    Ok(capture == crate::protocol::stream::Capture::Idle)
}

/// Copies an array on the CPU, in C order, to memory of this library's: when the driver reads it is not told, and the caller
/// may write to the array at once.
fn stage(view: &CaiView, plan: &CopyPlan, policy: SyncPolicy) -> Result<HostBlock, Error> {
    let source = view.descriptor();
    let block = HostBlock::new(source.nbytes())?;
    view.order(Request::Host, policy)?;
    // SAFETY: the block has room for every element in C order, and the source's elements are there, ready, readable on the
    // host, and not written but by atomic operations (`CaiView::new`).
    unsafe { gather(plan, unit(source), block.address(), source.data()) };
    Ok(block)
}

/// What belongs to the streams of a copy but not to their numbers.
pub(super) struct Used {
    /// What keeps the stream that the copy is made on.
    pub(super) kept: Option<Kept>,
    /// Whether the copy keeps the context of its memory, which that of a default stream is if `kept` has none: safe code may let
    /// go of it.
    pub(super) keeps_contexts: bool,
    /// Where the producer works now ([`CaiView::producer_moved`]).
    pub(super) moved: Option<Placed>,
    /// That stream, if the ready one has to wait for it first.
    pub(super) pending: Option<Placed>,
    /// Whether the consumer may work on other streams than the copy's, too: its memory then ends after devices.
    pub(super) is_anywhere: bool,
    /// Whether the host can write the source. Then what uses the memory anew need not be in the order of any stream.
    pub(super) may_host_write: bool,
}

impl Copy<'_> {
    /// Copies on `stream`, where the copy is ready, and whose later work its end follows.
    fn on(self, stream: Stream, policy: SyncPolicy) -> Result<CaiView, Error> {
        let current = ContextGuard::of_stream(self.driver, stream, &self.place)?;
        // Who waits for memory may end what this thread has.
        let mut current = current.with_others();
        let made = self.on_current(stream, policy)?;
        current.restore()?;
        Ok(made)
    }

    /// Copies on `stream`, whose context is current.
    fn on_current(mut self, stream: Stream, policy: SyncPolicy) -> Result<CaiView, Error> {
        let context = match self.is_elsewhere {
            true => self.check_device(stream)?,
            false => None,
        };
        refuse_capture(self.driver, stream, Field::Argument("copy"))?;
        let moved = (self.used.moved, self.used.pending);
        let guard = self
            .view
            .consume_uncaptured(stream, context, moved, policy)?;
        let pool = self.keep_pool()?;
        let mut allocation = match self.used.is_anywhere {
            true => self.allocate_for_any()?,
            false => self.allocate(Use::new(self.driver, stream)?, pool.clone())?,
        };
        self.keep_home(&mut allocation, pool)?;
        if self.is_host_work() && self.view.ready_number() == Stream::None {
            let ready = self.gather_for(&allocation, stream)?;
            guard.finish_at_once()?;
            return self.made(allocation, ready);
        }
        // SAFETY: `on` keeps the source until the stream has read it, by its owner, or by the return edge if what uses
        // the memory anew is in the order of the producer's stream.
        let copied = unsafe { self.enqueue(&mut allocation, stream) };
        // Also after a failure: what was enqueued before it reads the source. One call that failed has enqueued nothing.
        let reads_source = copied.is_ok() || !self.is_one_call();
        if reads_source && (self.used.may_host_write || !guard.makes_producer_wait()) {
            self.keep_source(stream);
        }
        copied?;
        if let Err(refused) = guard.finish_at_once() {
            // Some stream of the producer's does not wait for the copy, which reads the source all the same.
            self.keep_source(stream);
            return Err(refused);
        }
        self.made(allocation, stream)
    }

    /// Copies, and waits until the copy is there: for a host, or a consumer whose streams are unknown.
    ///
    /// The data is waited for first, so that captures are asked about before anything is enqueued; the copy then runs on
    /// a stream of ours, which waits for no other work.
    fn finished(self, request: Request) -> Result<CaiView, Error> {
        let place = Place {
            // A consumer that names no stream is on the device; a device that wants managed memory to itself has it.
            may_be_managed: request == Request::Host
                && !self.is_elsewhere
                && self.view.place().may_be_managed,
            ..self.view.place()
        };
        let ready = self.view.ready_number();
        if driver::needed(ready, Request::Host, &place, SyncPolicy::Event) {
            driver::synchronize(self.driver, ready, &place)?;
        }
        let mut current = ContextGuard::of_memory(self.driver, &self.place)?.with_others();
        let made = self.finished_current(&place, current.original())?;
        current.restore()?;
        Ok(made)
    }

    /// Copies data that is ready, and waits for the copy. The context of the copy's memory is current, and was `original`
    /// before.
    fn finished_current(
        mut self,
        place: &Place,
        original: Option<Context>,
    ) -> Result<CaiView, Error> {
        let used = Use::anywhere(self.driver, original)?;
        let mut allocation = self.allocate(used, None)?;
        if self.is_host_work() {
            self.gather(&allocation);
            return self.made(allocation, Stream::None);
        }
        let private = PrivateStream::new(self.driver)?;
        let stream = private.stream();
        // SAFETY: the host waits below until the stream has read the source, which else is kept until then.
        let copied = unsafe { self.enqueue(&mut allocation, stream) };
        // Also after a failure: what was enqueued before it reads the source.
        if let Err(refused) = self.driver.stream_synchronize(stream) {
            self.keep_source(stream);
            return Err(refused.into());
        }
        copied?;
        if place.may_be_managed {
            driver::synchronize(self.driver, Stream::None, place)?;
        }
        self.made(allocation, Stream::None)
    }

    pub(super) fn nbytes(&self) -> u64 {
        self.view.descriptor().nbytes()
    }

    /// Allocates memory that may be of the pool which `pool` keeps.
    fn allocate(&self, used: Use, pool: Option<Kept>) -> Result<Allocation, Error> {
        let home = self.used.keeps_contexts.then(|| self.home_of_source());
        Allocation::new(
            self.driver,
            (self.device, self.nbytes()),
            &self.place,
            used,
            both(self.used.kept.clone(), both(home, pool)),
            Field::Argument("copy"),
        )
    }

    /// Returns what keeps the context of the source's memory.
    fn home_of_source(&self) -> Kept {
        home_of_copy(self.view.owner()).unwrap_or_else(|| self.view.keep_owner())
    }

    /// Allocates for work on any stream, in the context of the copy's memory; a stream's is current.
    #[cold]
    fn allocate_for_any(&self) -> Result<Allocation, Error> {
        let mut current = ContextGuard::of_memory(self.driver, &self.place)?.with_others();
        let used = Use::anywhere(self.driver, current.original())?;
        let allocation = self.allocate(used, None)?;
        current.restore()?;
        Ok(allocation)
    }

    /// Returns what keeps the pool of the copy's device, which ends with the primary context.
    fn keep_pool(&self) -> Result<Option<Kept>, Error> {
        if !self.used.keeps_contexts || self.device.device_type != DeviceType::CUDA {
            return Ok(None);
        }
        Ok(KeptPrimary::of_device(self.driver, self.device.id)?.map(Kept::of_primary))
    }

    /// Has the copy keep its stream, and what its memory ends with: that of a pool with `pool`, else with its context, a primary
    /// one by itself, another one by what keeps the source, which is of the same.
    ///
    /// # Errors
    /// The driver's; all of them are kept until the memory is freed.
    fn keep_home(&mut self, allocation: &mut Allocation, pool: Option<Kept>) -> Result<(), Error> {
        let stream = self.used.kept.take();
        let home = match self.used.keeps_contexts {
            false => None,
            true if allocation.is_pooled() => pool,
            true => {
                let mut current = ContextGuard::of_memory(self.driver, &self.place)?;
                let primary = KeptPrimary::of_current(self.driver)?;
                current.restore()?;
                Some(primary.map_or_else(|| self.home_of_source(), Kept::of_primary))
            }
        };
        allocation.keep(stream.clone(), home.clone());
        self.used.kept = both(stream, home);
        Ok(())
    }

    /// Refuses a stream of another device than the copy's; returns its context, which is current.
    fn check_device(&self, stream: Stream) -> Result<Option<Context>, Error> {
        let ordinal = self.driver.current_device()?;
        if ordinal != self.device.id {
            let found = format_args!("{stream}, of device {ordinal}");
            let refused = Violation::new(Rule::StreamDevice, Field::Argument("stream"), found);
            let hint = format!("the copy is made on a stream of {}", self.device);
            return Err(refused.with_hint(hint).into());
        }
        Ok(self.driver.current_context()?)
    }

    /// Whether the host copies, as the driver would keep it waiting: "for transfers from any host memory to any host
    /// memory, the function is fully synchronous with respect to the host" (driver API, API synchronization behavior).
    fn is_host_work(&self) -> bool {
        self.device.device_type == DeviceType::CUDA_HOST
    }

    /// Whether the copy is between the memories of two devices.
    fn is_between_devices(&self) -> bool {
        self.is_elsewhere && !self.used.may_host_write
    }

    /// Whether the copy is enqueued by one call of the driver.
    fn is_one_call(&self) -> bool {
        let is_packed = !self.is_between_devices() || self.plan.is_one_row();
        self.is_host_work() || self.staged.is_some() || (self.plan.calls() == 1 && is_packed)
    }

    /// Copies by the host, now, to memory that nothing uses.
    fn gather(&self, allocation: &Allocation) {
        self.gather_to(allocation.pointer());
    }

    /// Copies by the host, now, to memory of this library's that has room for every element in C order.
    fn gather_to(&self, to: u64) {
        let from = self.view.descriptor().data();
        // SAFETY: there is room for every element in C order; the source's elements are there, ready and readable on the
        // host and not written but by atomic operations (`CaiView::new`), for pinned memory; a fresh allocation overlaps
        // nothing.
        unsafe { gather(&self.plan, unit(self.view.descriptor()), to, from) };
    }

    /// Enqueues the copy.
    ///
    /// # Safety
    /// The source's memory stays until the work of `stream` is done.
    unsafe fn enqueue(&self, allocation: &mut Allocation, stream: Stream) -> Result<(), Error> {
        let (to, from) = (allocation.pointer(), self.view.descriptor().data());
        if let Some(staged) = &self.staged {
            let nbytes = self.nbytes();
            // SAFETY: both have the size of the elements; the block is kept until the stream has read it, as is said of
            // the source, and the allocation outlives its work.
            unsafe { self.driver.copy_async(to, staged.address(), nbytes, stream) }?;
            return Ok(());
        }
        if self.is_between_devices() {
            // SAFETY: the allocation has the size of the elements and outlives its work, since its end comes after what the
            // stream holds; the source outlives it by this function's contract.
            return unsafe { self.enqueue_between(to, stream) };
        }
        if !self.is_host_work() {
            // SAFETY: as for a copy between devices.
            return unsafe { self.enqueue_packed(allocation, stream) };
        }
        let job = Gather {
            plan: self.plan.clone(),
            unit: unit(self.view.descriptor()),
            to,
            from,
            _staged: None,
        };
        // SAFETY: the allocation has room for every element and outlives its work; the source's elements are there once
        // the stream gets to the copy, and stay until then by this function's contract; a fresh allocation overlaps
        // nothing, nor does one that was taken over.
        Ok(unsafe { job.enqueue(self.driver, stream) }?)
    }

    /// Copies ready data by the host, now, and returns where the copy is ready: on `stream` if that may still use the
    /// memory, which is written in its order then, out of memory of the CPU.
    fn gather_for(&self, allocation: &Allocation, stream: Stream) -> Result<Stream, Error> {
        let nbytes = self.nbytes();
        let bytes = CopyPlan::new(&[nbytes.cast_signed()], &[1], 1);
        let Some(plan) = bytes.filter(|_| allocation.is_in_use()) else {
            self.gather(allocation);
            return Ok(Stream::None);
        };
        let staged = HostBlock::new(nbytes)?;
        self.gather_to(staged.address());
        let job = Gather {
            plan,
            unit: unit(self.view.descriptor()),
            to: allocation.pointer(),
            from: staged.address(),
            _staged: Some(staged),
        };
        // SAFETY: the allocation has `nbytes` bytes and outlives its work; the job owns what it reads; the two are memory
        // of different allocators.
        unsafe { job.enqueue(self.driver, stream) }?;
        Ok(stream)
    }

    /// Keeps the source's owner until `stream`, whose context is current, has read it: nothing else orders its end.
    fn keep_source(&mut self, stream: Stream) {
        let staged = self.staged.take();
        let keep = |owner: &Owner, device| {
            let (stream, begun) = ((stream, self.used.kept.clone()), keep::Begun::OnStream);
            keep::by_stream_of(self.driver, None, stream, owner, device, begun);
        };
        match staged {
            Some(block) => keep(&Owner::new(block), Device::HOST),
            None => keep(self.view.owner(), self.view.device()),
        }
    }

    /// Makes the view of the copy.
    fn made(&self, allocation: Allocation, ready: Stream) -> Result<CaiView, Error> {
        let source = self.view.descriptor();
        let descriptor = self.whole.at(allocation.pointer(), self.device, source)?;
        // SAFETY: the allocation owns the memory, which is written on `ready`, or has been.
        let made = unsafe { view_of(descriptor, ready, allocation.into_owner()) };
        if made.streams().placed_ready().whose == Defaults::Untold {
            return Err(UNTOLD.into());
        }
        Ok(made)
    }
}

/// A copy that the driver has a thread of the host make.
struct Gather {
    plan: CopyPlan,
    unit: usize,
    to: u64,
    from: u64,
    /// What `from` lies in, if it is memory of the CPU that the copy is made out of.
    _staged: Option<HostBlock>,
}

impl Gather {
    /// Enqueues the copy.
    ///
    /// # Safety
    /// As [`gather`], for its plan and addresses, until the work of `stream` is done.
    unsafe fn enqueue(self, driver: &dyn Driver, stream: Stream) -> Result<(), DriverError> {
        let job = Box::into_raw(Box::new(self));
        // SAFETY: `run` may be called once with the box, which is its own from here on; it calls no driver.
        let enqueued = unsafe { driver.host_function(stream, run, job.cast()) };
        if enqueued.is_err() {
            // SAFETY: from `into_raw` above; the driver has not taken it.
            drop(unsafe { Box::from_raw(job) });
        }
        enqueued
    }
}

/// Makes a copy, once.
///
/// # Safety
/// - `data` is a `Gather` from `Box::into_raw`, which is not used afterwards.
/// - As [`gather`], for its plan and addresses.
unsafe extern "C" fn run(data: *mut c_void) {
    // SAFETY: a box of this type, by this function's contract.
    let job = unsafe { Box::from_raw(data.cast::<Gather>()) };
    // SAFETY: by this function's contract.
    unsafe { gather(&job.plan, job.unit, job.to, job.from) };
}
