//! The ranges of addresses: kind, owner, and the pages behind each.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::abi::arguments::{ContextHandle, PoolHandle};
use crate::abi::codes::{Code, Status};
use crate::memory::backing::Backing;
use crate::memory::segment::Shared;
use crate::process::peer::Peer;

/// The call that made a range, as far as the pointer attributes tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// cuMemAlloc.
    Device,
    /// cuMemAllocAsync and cuMemAllocFromPoolAsync.
    Pool(PoolHandle),
    /// cuMemAllocManaged.
    Managed,
    /// cuMemHostAlloc; the flags of the call.
    Pinned(u32),
    /// cuMemHostRegister; the memory is the caller's.
    Registered(u32),
    /// cuIpcOpenMemHandle: cuMemAlloc's memory of another process.
    Opened,
}

/// Whether work on streams may touch a range yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    /// A stream-ordered allocation whose work has not run yet.
    Unborn,
    Alive,
}

/// Where memory of another process comes from.
pub(crate) struct Origin {
    pub(crate) owner: Arc<Peer>,
    /// The device, as the machine counts them; it may not be visible here.
    pub(crate) device: usize,
    /// How often the range was opened and not closed yet.
    pub(crate) opens: u64,
}

/// One range of addresses.
pub(crate) struct Allocation {
    /// CU_POINTER_ATTRIBUTE_BUFFER_ID: never reused.
    pub(crate) buffer: u64,
    pub(crate) base: u64,
    pub(crate) bytes: usize,
    pub(crate) kind: Kind,
    pub(crate) device: usize,
    /// The context it was made in; null for memory that belongs to a pool.
    pub(crate) context: ContextHandle,
    pub(crate) life: Life,
    /// None for registered memory, which the caller owns.
    pub(crate) backing: Option<Arc<Backing>>,
    pub(crate) sync_memops: bool,
    /// None for memory of this process.
    pub(crate) origin: Option<Origin>,
}

impl Allocation {
    pub(crate) fn is_host(&self) -> bool {
        matches!(self.kind, Kind::Pinned(_) | Kind::Registered(_))
    }

    /// Returns whether the range counts against the device's memory: that of another process counts there.
    fn is_on_device(&self) -> bool {
        let kind = matches!(self.kind, Kind::Device | Kind::Pool(_) | Kind::Managed);
        kind && self.origin.is_none()
    }

    /// Returns whether work may touch the range now. Memory of another process ends when that
    /// process frees it or ends itself: "undefined behavior" by the documentation, an error here.
    pub(crate) fn is_alive(&self) -> bool {
        let segment = self.backing.as_ref().and_then(|backing| backing.segment());
        let there = match (&self.origin, segment) {
            (Some(origin), Some(segment)) => {
                segment.life() == Shared::Alive && origin.owner.is_alive()
            }
            _ => true,
        };
        there && self.life == Life::Alive
    }

    /// Tells the processes that have opened this memory what became of it.
    fn tell(&self, life: Shared) {
        let segment = self.backing.as_ref().and_then(|backing| backing.segment());
        if let (None, Some(segment)) = (&self.origin, segment) {
            segment.set_life(life);
        }
    }
}

/// The table of all ranges.
pub(crate) struct Memory {
    ranges: BTreeMap<u64, Allocation>,
}

impl Memory {
    pub(crate) fn new() -> Memory {
        Memory {
            ranges: BTreeMap::new(),
        }
    }

    pub(crate) fn insert(&mut self, allocation: Allocation) {
        self.ranges.insert(allocation.base, allocation);
    }

    /// Returns the range that an address lies in.
    pub(crate) fn find(&self, address: u64) -> Option<&Allocation> {
        let (_, candidate) = self.ranges.range(..=address).next_back()?;
        (address - candidate.base < candidate.bytes as u64).then_some(candidate)
    }

    pub(crate) fn at_base_mut(&mut self, base: u64) -> Option<&mut Allocation> {
        self.ranges.get_mut(&base)
    }

    pub(crate) fn at_base(&self, base: u64) -> Option<&Allocation> {
        self.ranges.get(&base)
    }

    /// Returns the first range that starts inside, or covers the start of, the given one.
    pub(crate) fn overlapping(&self, base: u64, bytes: usize) -> Option<&Allocation> {
        let inside = self
            .ranges
            .range(base..base.saturating_add(bytes as u64))
            .next();
        inside
            .map(|(_, allocation)| allocation)
            .or_else(|| self.find(base))
    }

    /// Removes a range. Its bytes are unmapped as soon as no running work holds them.
    pub(crate) fn remove(&mut self, base: u64) -> Option<Allocation> {
        let range = self.ranges.remove(&base)?;
        range.tell(Shared::Freed);
        Some(range)
    }

    /// Returns the range for which `wanted` holds.
    pub(crate) fn find_by(&self, wanted: impl Fn(&Allocation) -> bool) -> Option<&Allocation> {
        self.ranges.values().find(|range| wanted(range))
    }

    /// Removes all ranges of a destroyed context.
    pub(crate) fn remove_context(&mut self, context: ContextHandle) {
        let gone: Vec<u64> = self
            .ranges
            .values()
            .filter(|range| range.context == context)
            .map(|range| range.base)
            .collect();
        for base in gone {
            self.remove(base);
        }
    }

    pub(crate) fn used_on(&self, device: usize) -> u64 {
        let there = self
            .ranges
            .values()
            .filter(|range| range.device == device && range.is_on_device());
        there.map(|range| range.bytes as u64).sum()
    }

    pub(crate) fn used_in_pool(&self, pool: PoolHandle) -> u64 {
        let there = self
            .ranges
            .values()
            .filter(|range| range.kind == Kind::Pool(pool));
        there.map(|range| range.bytes as u64).sum()
    }

    pub(crate) fn live_count(&self) -> usize {
        self.ranges.len()
    }

    /// Runs a stream-ordered allocation: the memory may be touched from here on.
    pub(crate) fn begin_life(&mut self, buffer: u64) -> Status {
        let range = self
            .ranges
            .values_mut()
            .find(|range| range.buffer == buffer);
        let range = range.ok_or(Code::ILLEGAL_ADDRESS)?;
        range.life = Life::Alive;
        range.tell(Shared::Alive);
        Ok(())
    }

    /// Runs a stream-ordered free. A second free of the same range is an illegal address.
    pub(crate) fn end_life(&mut self, buffer: u64) -> Status {
        let range = self.ranges.values().find(|range| range.buffer == buffer);
        let base = range.map(|range| range.base).ok_or(Code::ILLEGAL_ADDRESS)?;
        self.remove(base);
        Ok(())
    }
}
