//! Memory that this library allocates for a copy or a consumer's result. It ends after the stream that it was made for.

use std::cell::Cell;
use std::ptr::NonNull;

use crate::driver::{ContextGuard, Driver, DriverError, Place, twice};
use crate::error::Error;
use crate::process::fork;
use crate::protocol::device::{Device, DeviceType};
use crate::protocol::rule::{Field, Rule, Violation};
use crate::protocol::stream::{Capture, Stream};
use crate::view::keep::{self, Block, Memory, Use};
use crate::view::kinds::Boxed;
use crate::view::payload::{RawOwner, Vtable};
use crate::view::{Kept, Owner, Placed};

/// One allocation. Dropped, it is freed by another thread, once the stream that it is for is done with it.
#[derive(Debug)]
pub(super) struct Allocation {
    /// `None` once it is being dropped.
    block: Option<Block>,
    pointer: u64,
    /// The keepers of its stream, and of the context that it ends with. The block keeps both, and these are for copies of the
    /// copy: each keeps them, and not the copies before.
    stream: Option<Kept>,
    home: Option<Kept>,
}

/// An owner of another type has another address here.
static ALLOCATION: Vtable = Vtable::of::<Boxed<Allocation>>();

/// Keeps both.
pub(super) fn both(one: Option<Kept>, other: Option<Kept>) -> Option<Kept> {
    match (one, other) {
        (Some(one), Some(other)) => Some(Kept::by((one, other))),
        (one, other) => one.or(other),
    }
}

impl Allocation {
    /// Allocates `nbytes` of the kind of memory that `device` is, at `place`. `used` is where it will be used, whose
    /// context is current: the memory's, if that is on no stream. `kept` is kept until its end, or until [`keep`](Self::keep).
    ///
    /// # Errors
    /// The driver's refusal; `capture-consumer`, which names `field`, if a capture of the stream has begun while the host
    /// waited for memory.
    pub(super) fn new(
        driver: &'static dyn Driver,
        (device, nbytes): (Device, u64),
        place: &Place,
        used: Use,
        kept: Option<Kept>,
        field: Field,
    ) -> Result<Self, Error> {
        keep::mark_own(driver, used);
        let may_go_on = || match used.stream() {
            Some(stream) => refuse_capture(driver, stream, field),
            None => Ok(()),
        };
        let unrestored = Cell::new(None);
        let allocate = || allocate(driver, (device, nbytes), place, used, &unrestored);
        let mut block = keep::with_room(driver, place, used, may_go_on, allocate)?;
        block.stream = kept;
        if let Some(refused) = unrestored.take() {
            keep::end(block);
            return Err(DriverError::into(refused));
        }
        keep::start_for(&block);
        Ok(Self {
            pointer: block.pointer(),
            block: Some(block),
            stream: None,
            home: None,
        })
    }

    pub(super) const fn pointer(&self) -> u64 {
        self.pointer
    }

    /// Whether it is of the pool of a device.
    pub(super) fn is_pooled(&self) -> bool {
        self.block.as_ref().is_some_and(Block::is_pooled)
    }

    /// Whether the stream that writes to it is known to be one of its device.
    pub(super) fn is_at_home(&self) -> bool {
        self.block.as_ref().is_some_and(Block::is_at_home)
    }

    /// Whether the stream that it is for may still use it: it was a dropped copy's.
    pub(super) fn is_in_use(&self) -> bool {
        self.block.as_ref().is_some_and(|block| block.is_in_use)
    }

    /// Keeps the stream that it is for, and `home`, which it ends with, until its end has come after that stream's work.
    pub(super) fn keep(&mut self, stream: Option<Kept>, home: Option<Kept>) {
        if let Some(block) = &mut self.block {
            block.is_stream_kept = stream.as_ref().is_some_and(|kept| !kept.is_promise());
            block.stream = both(stream.clone(), home.clone());
        }
        (self.stream, self.home) = (stream, home);
    }

    /// Ends it now, but for what `own` holds, whose context is current, and is kept by `kept`: the stream that it is for may not
    /// wait for that.
    pub(super) fn end_after(&mut self, driver: &'static dyn Driver, own: Stream, kept: Kept) {
        self.let_go();
        if let Some(block) = self.block.take() {
            keep::end_after(driver, own, kept, block);
        }
    }

    /// Leaves the end of what is kept to the block, which may end it as soon as it is handed over.
    fn let_go(&mut self) {
        (self.stream, self.home) = (None, None);
    }

    pub(super) fn into_owner(self) -> Owner {
        fork::watch();
        let payload = NonNull::from(Box::leak(Box::new(self)));
        Owner::from_raw(RawOwner::new(payload.cast(), &ALLOCATION))
    }

    /// Returns the allocation that an owner is of, which may have come back as a tensor.
    fn of(owner: &Owner) -> Option<&Self> {
        let payload = owner.payload_within(&ALLOCATION)?.cast::<Self>();
        // SAFETY: an owner with this vtable is one of `into_owner`, which leaked a box of an allocation; it lives as long as the
        // owner, and nothing changes it before.
        Some(unsafe { payload.as_ref() })
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        self.let_go();
        if let Some(block) = self.block.take() {
            keep::end(block);
        }
    }
}

/// Returns what keeps a stream, or that it is a promise, if `owner` is a copy's that was made on it.
pub(crate) fn kept_by_copy(owner: &Owner, named: Placed) -> Option<Kept> {
    let copy = Allocation::of(owner)?;
    if !copy.block.as_ref()?.is_for(named) {
        return None;
    }
    match named.stream.is_default() {
        // Without a keeper of its own it is one of the memory's context.
        true => copy.stream.clone().or_else(|| copy.home.clone()),
        false => Some(copy.stream.clone().unwrap_or(Kept::Promise)),
    }
}

/// Returns what a copy's memory ends with, if `owner` is one's that keeps it by itself.
pub(super) fn home_of_copy(owner: &Owner) -> Option<Kept> {
    Allocation::of(owner)?.home.clone()
}

/// Refuses a captured stream: its work runs when the graph is launched, if ever, and the memory would not be there.
pub(super) fn refuse_capture(
    driver: &dyn Driver,
    stream: Stream,
    field: Field,
) -> Result<(), Error> {
    match driver.capture(stream)? {
        Capture::Idle => Ok(()),
        Capture::Active | Capture::Invalidated | Capture::BlocksLegacy => {
            let found = format_args!("an allocation on {stream}");
            Err(Violation::new(Rule::CaptureConsumer, field, found)
                .with_hint("allocate before the capture begins")
                .into())
        }
    }
}

/// Allocates once. `unrestored` is why the context of before is not current again, if it is not: what follows would be
/// enqueued in another one.
fn allocate(
    driver: &'static dyn Driver,
    (device, nbytes): (Device, u64),
    place: &Place,
    used: Use,
    unrestored: &Cell<Option<DriverError>>,
) -> Result<Block, DriverError> {
    let memory = match device.device_type {
        DeviceType::CUDA_MANAGED => Memory::Managed,
        DeviceType::CUDA_HOST => Memory::Pinned,
        _ => Memory::Device,
    };
    if memory == Memory::Device
        && let Some(stream) = used.stream()
        && is_home(driver, stream, used, place.ordinal)?
    {
        match keep::allocate_pooled(driver, nbytes, place.ordinal, stream, used) {
            Err(error) if error.is_unsupported() => {}
            made => return made,
        }
    }
    // A copy for no stream has made the memory's context current.
    let enter = |_| ContextGuard::of_memory(driver, place);
    let current = used.stream().map(enter).transpose()?;
    let block = keep::allocate(driver, memory, nbytes, used);
    if let Some(mut current) = current
        && let Err(refused) = twice(|| current.restore())
    {
        unrestored.set(Some(refused));
    }
    block
}

/// Whether memory of the device's pool has the same streams as other memory there: it belongs to no context, so that
/// a default stream means the primary context's; and it cannot be reached from other devices.
fn is_home(
    driver: &dyn Driver,
    stream: Stream,
    used: Use,
    ordinal: i32,
) -> Result<bool, DriverError> {
    if driver.current_device()? != ordinal {
        return Ok(false);
    }
    Ok(!stream.is_default() || used.is_in_primary(driver, ordinal)?)
}
