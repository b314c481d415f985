//! Copies to the CPU.

use std::alloc::{Layout as Block, alloc, alloc_zeroed, dealloc};
use std::ptr::NonNull;

use super::made::view_of;
use crate::driver::{self, ContextGuard, CopyPlan, Driver, PrivateStream, copy_strided};
use crate::error::Error;
use crate::protocol::descriptor::Descriptor;
use crate::protocol::device::Device;
use crate::protocol::stream::{Request, Stream, SyncPolicy};
use crate::protocol::whole::Whole;
use crate::view::{CaiView, Owner, keep, load};

/// Above this number of driver calls the whole span is fetched by one, and sorted out on the host.
const MANY_CALLS: u64 = 256;
/// The span that is fetched so, in multiples of the elements' bytes.
const WIDEST_SPAN: u64 = 16;
/// DLPack's header speaks of 256 bytes.
const ALIGN: usize = 256;

/// Memory of the CPU that this library allocated.
pub(super) struct HostBlock {
    start: NonNull<u8>,
    block: Block,
}

// SAFETY: it owns plain memory, which any thread may free.
unsafe impl Send for HostBlock {}

impl HostBlock {
    pub(super) fn new(nbytes: u64) -> Result<Self, Error> {
        Self::by(alloc, nbytes)
    }

    pub(super) fn zeroed(nbytes: u64) -> Result<Self, Error> {
        Self::by(alloc_zeroed, nbytes)
    }

    fn by(allocate: unsafe fn(Block) -> *mut u8, nbytes: u64) -> Result<Self, Error> {
        let size = usize::try_from(nbytes).map_err(|_| Error::OutOfMemory)?;
        let block = Block::from_size_align(size.max(1), ALIGN).map_err(|_| Error::OutOfMemory)?;
        // SAFETY: the size is not zero.
        let start = NonNull::new(unsafe { allocate(block) }).ok_or(Error::OutOfMemory)?;
        Ok(Self { start, block })
    }

    pub(super) fn address(&self) -> u64 {
        self.start.as_ptr().expose_provenance() as u64
    }
}

impl Drop for HostBlock {
    fn drop(&mut self) {
        // SAFETY: allocated by `new` with this layout; dropped once.
        unsafe { dealloc(self.start.as_ptr(), self.block) };
    }
}

/// Copies to the CPU; the data is there when this returns.
pub(super) fn copy(view: &CaiView, whole: &Whole, policy: SyncPolicy) -> Result<CaiView, Error> {
    let source = view.descriptor();
    let mut block = HostBlock::new(source.nbytes())?;
    view.order(Request::Host, policy)?;
    if let Some(plan) = CopyPlan::new(source.shape(), &whole.byte_strides, whole.itemsize) {
        if source.device().is_host_readable() {
            // SAFETY: the block has room for every element in C order, and the source's elements are
            // there, ready, readable on the host, and not written but by atomic operations (`CaiView::new`).
            unsafe { gather(&plan, unit(source), block.address(), source.data()) };
        } else {
            block = fetch(view, &plan, block)?;
        }
    }
    let descriptor = whole.at(block.address(), Device::HOST, source)?;
    // SAFETY: the block holds what was just written, and the host has waited.
    Ok(unsafe { view_of(descriptor, Stream::None, Owner::new(block)) })
}

/// Copies from device memory, which is ready, and waits until it is done: on a stream of ours, which no thread captures
/// and which waits for no other. Returns the block, which holds the copy.
fn fetch(view: &CaiView, plan: &CopyPlan, block: HostBlock) -> Result<HostBlock, Error> {
    let driver = driver::driver()?;
    let fetch = || fetch_current(driver, view, plan, block);
    ContextGuard::of_memory(driver, &view.place())?.around_call(fetch)
}

/// Copies and waits, with the context of the memory current.
fn fetch_current(
    driver: &'static dyn Driver,
    view: &CaiView,
    plan: &CopyPlan,
    block: HostBlock,
) -> Result<HostBlock, Error> {
    let source = view.descriptor();
    let private = PrivateStream::new(driver)?;
    let stream = private.stream();
    if plan.calls() > MANY_CALLS
        && let Some(span) = short_span(source)
    {
        let between = HostBlock::new(span.1 - span.0)?;
        // SAFETY: the span lies in the array's memory, the block has its size, and both stay until the
        // wait below.
        unsafe { driver.copy_async(between.address(), span.0, span.1 - span.0, stream) }?;
        let between = fetched(view, driver, stream, between)?;
        let first = between.address() + (source.data() - span.0);
        // SAFETY: the same elements at the same distances, now on the host.
        unsafe { gather(plan, unit(source), block.address(), first) };
        return Ok(block);
    }
    // SAFETY: the block has room for every element in C order; both stay until the wait below.
    let copied = unsafe { copy_strided(driver, plan, block.address(), source.data(), stream) };
    // Also after a failure: what was enqueued before it writes to the block.
    let block = fetched(view, driver, stream, block)?;
    Ok(copied.map(|()| block)?)
}

/// Waits until `stream` has filled `block` from the view's memory. If the driver refuses that, both are kept until the
/// stream has got past it.
fn fetched(
    view: &CaiView,
    driver: &'static dyn Driver,
    stream: Stream,
    block: HostBlock,
) -> Result<HostBlock, Error> {
    if let Err(refused) = driver.stream_synchronize(stream) {
        // By one mark: in the context of a second one nothing might be kept any more.
        let both = view.owner().share().beside(Owner::new(block));
        keep::by_stream(driver, stream, &both, view.device(), keep::Begun::OnStream);
        return Err(refused.into());
    }
    Ok(block)
}

fn short_span(source: &Descriptor) -> Option<(u64, u64)> {
    let span = source.byte_span()?;
    let limit = source.nbytes().saturating_mul(WIDEST_SPAN);
    (span.1 - span.0 <= limit).then_some(span)
}

/// The size of the loads that read an array's elements.
pub(super) fn unit(array: &Descriptor) -> usize {
    array.dtype().align() as usize
}

/// Carries a plan out on the host.
///
/// # Safety
/// Every element that the plan describes is readable from `from` on, its packed copy writable from `to`
/// on, and the two do not overlap. Writes to the source meanwhile are atomic ones of [`unit()`] bytes, or not Rust's.
pub(super) unsafe fn gather(plan: &CopyPlan, unit: usize, to: u64, from: u64) {
    for at in 0..plan.calls() {
        let rows = plan.rectangle(at, to, from);
        for row in 0..rows.height {
            let target = (rows.to + row * rows.to_pitch) as usize;
            let source = (rows.from + row * rows.from_pitch) as usize;
            let target = std::ptr::with_exposed_provenance_mut::<u8>(target);
            let source = std::ptr::with_exposed_provenance::<u8>(source);
            // SAFETY: a row of the plan, for which the caller vouches.
            unsafe { load::copy(source, target, rows.width as usize, unit) };
        }
    }
}
