//! Views between the processes of one machine, by CUDA IPC (feature `ipc`, on Linux).
//!
//! ```text
//!   exporter                                             importer
//!     view.share() -> Shared -- handle.to_bytes(key) --> Handle::from_bytes(bytes, key)
//!       records an event on the ready stream               .open(stream) -> CaiView
//!       keeps the owner                                      stream waits for the event
//!     drop(Shared): no more importers                      the last view and tensor are gone:
//!       ... until the last importer is gone ...              waits for the device, closes the mapping,
//!     releases the owner                                     gives up its lock
//! ```
//! The bytes travel by whatever the two processes have: a pipe, a queue, a socket of this machine. Nothing is copied.
//!
//! | memory | how |
//! |---|---|
//! | of `cuMemAlloc` (and `cudaMalloc`) | the handle of the allocation, and the offset |
//! | of a pool, managed, page-locked, mapped by parts, the host's, another platform's | refused by `share-memory`; in Python cuda.core shares its pools |
//! | none (size 0) | the layout alone |
//!
//! **Limits.** A handle does not tell the exporter when the importer is done with the data: whoever writes the memory next
//! needs a message of the two processes' own. An importer cannot be kept from writing what is read-only. If the exporter's
//! process dies, what its importers still have is what CUDA leaves them.

mod closing;
mod handle;
#[cfg_attr(not(target_os = "linux"), path = "no_holders.rs")]
mod holders;
mod opened;
mod shared;

pub use handle::Handle;
#[cfg(feature = "pyo3")]
pub(crate) use opened::Held;
#[cfg(feature = "pyo3")]
pub(crate) use shared::Pickled;
pub use shared::Shared;

use crate::error::Error;
use crate::protocol::rule::{Field, Rule, Violation};

/// Refuses a handle of which nobody keeps the memory any more.
#[cold]
fn ended(found: &str) -> Error {
    Violation::new(Rule::ShareEnded, Field::Argument("handle"), found)
        .with_hint("keep the block of share open until the other process has opened the handle")
        .into()
}

#[cfg(test)]
mod tests;
