//! What ends once its last use is over: an allocation, which is freed, or an owner, which is dropped.

use super::block::{Block, Memory, Site, Use};
use crate::driver::{Driver, DriverError};
use crate::view::Owner;

/// An allocation or an owner, until its last use is over.
pub(super) enum Held {
    Memory(Block),
    Owner(Owned),
}

/// An owner whose memory a stream uses.
pub(super) struct Owned {
    pub(super) driver: &'static dyn Driver,
    /// The device of the stream; that of the memory, unless the stream reaches another one's.
    pub(super) ordinal: i32,
    pub(super) used: Use,
    pub(super) owner: Owner,
}

impl Held {
    pub(super) fn driver(&self) -> &'static dyn Driver {
        match self {
            Self::Memory(block) => block.driver,
            Self::Owner(owned) => owned.driver,
        }
    }

    pub(super) fn used(&self) -> Use {
        match self {
            Self::Memory(block) => block.used,
            Self::Owner(owned) => owned.used,
        }
    }

    /// The device whose memory the end gives back.
    pub(super) fn ordinal(&self) -> i32 {
        match self {
            Self::Memory(block) => block.ordinal,
            Self::Owner(owned) => owned.ordinal,
        }
    }

    /// The devices whose work may use it, but its own if the end waits for that. On a thread of ours, whose context
    /// changes.
    ///
    /// # Errors
    /// The driver's refusal: some device is not known.
    pub(super) fn sites_of_use(&self) -> Result<Vec<Site>, DriverError> {
        match self {
            Self::Memory(block) => block.sites_of_use(),
            Self::Owner(owned) => Ok(owned.used.site(owned.driver)?.into_iter().collect()),
        }
    }

    /// The size of an allocation.
    pub(super) fn nbytes(&self) -> u64 {
        match self {
            Self::Memory(block) => block.nbytes,
            Self::Owner(_) => 0,
        }
    }

    /// Whether only a call that waits for a device ends it.
    pub(super) fn waits_for_its_device(&self) -> bool {
        matches!(self, Self::Memory(block) if block.memory != Memory::Pool)
    }

    /// Frees the memory, or drops the owner; on a thread of ours, whose context changes. Returns what the driver cannot
    /// end now.
    ///
    /// # Safety
    /// No work that uses it is pending: on the device of an allocation that [waits](Self::waits_for_its_device), the
    /// call itself sees to that.
    pub(super) unsafe fn end(self) -> Option<Self> {
        match self {
            // SAFETY: no work is pending but what the call waits for, by this function's contract.
            Self::Memory(block) => unsafe { block.free() }.map(Self::Memory),
            Self::Owner(owned) => {
                drop(owned.owner);
                None
            }
        }
    }
}
