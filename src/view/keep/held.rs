//! What ends once its last use is over: an allocation, which is freed, or an owner, which is dropped.

#[cfg(feature = "cudarc")]
use std::sync::Arc;

use super::block::{Block, Memory, Site, Use};
use super::room::{self, Due};
use crate::driver::{Driver, DriverError, Event};
use crate::view::{Kept, Owner};

/// An allocation or an owner, until its last use is over.
pub(super) struct Held {
    ends: Ends,
    due: Due,
}

enum Ends {
    Memory(Block),
    Owner(Owned),
}

/// An owner whose memory a stream uses.
pub(super) struct Owned {
    pub(super) driver: &'static dyn Driver,
    /// The device of the stream.
    pub(super) ordinal: i32,
    /// The device of the memory, as far as it is known.
    pub(super) memory_ordinal: i32,
    pub(super) used: Use,
    /// An event of the context of the use, which that waits for: the owner keeps it.
    pub(super) after: Option<Event>,
    pub(super) owner: Owner,
    /// Keeps the stream that uses it, as its [mark](super::block::StreamMark) does: a mark may be lost.
    pub(super) stream: Option<Kept>,
    /// Tells writers that the use goes on ([`readers`](super::readers)).
    #[cfg(feature = "cudarc")]
    pub(super) reader: Arc<()>,
}

impl Held {
    pub(super) fn memory(block: Block) -> Self {
        let due = Due::new(block.ordinal);
        let ends = Ends::Memory(block);
        Self { ends, due }
    }

    pub(super) fn owner(owned: Owned) -> Self {
        let due = Due::new(owned.memory_ordinal);
        let ends = Ends::Owner(owned);
        Self { ends, due }
    }

    /// The allocation, if it is one.
    pub(super) const fn block(&self) -> Option<&Block> {
        match &self.ends {
            Ends::Memory(block) => Some(block),
            Ends::Owner(_) => None,
        }
    }

    /// Returns the keeper of its stream, and of the contexts that it ends with.
    pub(super) fn kept(&self) -> Option<Kept> {
        let kept = match &self.ends {
            Ends::Memory(block) => &block.stream,
            Ends::Owner(owned) => &owned.stream,
        };
        kept.clone()
    }

    /// Takes the allocation, if it is one, for another use.
    pub(super) fn into_block(self) -> Option<Block> {
        match self.ends {
            Ends::Memory(block) => Some(block),
            Ends::Owner(_) => None,
        }
    }

    /// Whether the end hangs on what [no thread should wait for](Due::set_stuck).
    pub(super) const fn is_stuck(&self) -> bool {
        self.due.is_stuck()
    }

    pub(super) fn set_stuck(&mut self, is_stuck: bool) {
        self.due.set_stuck(is_stuck);
    }

    pub(super) fn driver(&self) -> &'static dyn Driver {
        match &self.ends {
            Ends::Memory(block) => block.driver,
            Ends::Owner(owned) => owned.driver,
        }
    }

    pub(super) fn used(&self) -> Use {
        match &self.ends {
            Ends::Memory(block) => block.used,
            Ends::Owner(owned) => owned.used,
        }
    }

    /// Whether a thread of ours may name the stream that it is for: something keeps that until the end.
    pub(super) fn keeps_its_stream(&self) -> bool {
        let kept = self.block().is_some_and(|block| block.is_stream_kept);
        kept && self.used().has_handle()
    }

    /// The device whose memory the end gives back.
    pub(super) fn ordinal(&self) -> i32 {
        match &self.ends {
            Ends::Memory(block) => block.ordinal,
            Ends::Owner(owned) => owned.ordinal,
        }
    }

    /// The contexts whose work may use it, but its own if the end waits for that. `None` as long as the use waits for its event:
    /// its context cannot be done before, and a call that waited for that would hold up what other threads enqueue there, for
    /// ever if the event is one of a process that has died.
    ///
    /// # Errors
    /// The driver's refusal: some device is not known.
    pub(super) fn sites_of_use(&self) -> Result<Option<Vec<Site>>, DriverError> {
        let sites = match &self.ends {
            Ends::Memory(block) => block.sites_of_use(),
            Ends::Owner(Owned {
                driver,
                used,
                after,
                ..
            }) => {
                if let Some(event) = *after
                    && !used.has_reached(*driver, event)?
                {
                    return Ok(None);
                }
                used.sites(*driver)
            }
        };
        sites.map(Some)
    }

    /// Whether only a call that waits for its context ends it.
    pub(super) fn waits_for_its_context(&self) -> bool {
        self.block()
            .is_some_and(|block| block.memory != Memory::Pool)
    }

    /// Frees the memory, or drops the owner; on a thread of ours. Returns what the driver cannot
    /// end now.
    ///
    /// # Safety
    /// No work that uses it is pending: in the context of an allocation that [waits](Self::waits_for_its_context), the
    /// call itself sees to that.
    pub(super) unsafe fn end(self) -> Option<Self> {
        let Self { ends, due } = self;
        match ends {
            Ends::Memory(mut block) => {
                let kept = block.stream.take();
                // SAFETY: no work is pending but what the call waits for, by this function's contract.
                if let Some(mut left) = unsafe { block.free() } {
                    left.stream = kept;
                    let ends = Ends::Memory(left);
                    return Some(Self { ends, due });
                }
                if let Some(kept) = kept {
                    room::changed(due.ordinal());
                    room::end_owner(kept);
                }
                None
            }
            Ends::Owner(owned) => {
                #[cfg(feature = "cudarc")]
                drop(owned.reader);
                room::end_owner((owned.owner, owned.stream));
                None
            }
        }
    }
}
