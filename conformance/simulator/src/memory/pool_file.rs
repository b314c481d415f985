//! What a memory pool is known by to other processes: a file, whose descriptor is the pool's handle.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::process::peer::{Identity, Peer};
use crate::process::shared::{SharedFile, Words};

const BYTES: usize = 4096;
/// "cusimPOL".
const MARK: u64 = u64::from_le_bytes(*b"cusimPOL");

/// The file of a pool.
pub(crate) struct PoolFile {
    pub(crate) file: SharedFile,
    /// The process that made the pool; None for this one's.
    pub(crate) owner: Option<Arc<Peer>>,
}

impl PoolFile {
    /// Makes the file for a pool on a device of the machine.
    pub(crate) fn create(device: usize) -> Option<PoolFile> {
        let own = Identity::own()?;
        let file = SharedFile::create(BYTES)?;
        let words = Words::map(&file, 0, BYTES)?;
        let facts = [MARK, u64::from(own.pid), own.start, device as u64];
        for (index, fact) in facts.into_iter().enumerate() {
            words.word(index).store(fact, Ordering::Release);
        }
        Some(PoolFile { file, owner: None })
    }

    /// Reads a pool's file, and returns it with the machine's number of the device; None if it is no
    /// such file or its process has ended.
    pub(crate) fn received(number: i32) -> Option<(PoolFile, usize)> {
        let file = SharedFile::received(number)?;
        let words = Words::map(&file, 0, BYTES)?;
        let [mark, pid, start, device] =
            [0, 1, 2, 3].map(|index| words.word(index).load(Ordering::Acquire));
        if mark != MARK {
            return None;
        }
        let pid = u32::try_from(pid).ok()?;
        let owner = Some(Arc::new(Peer::find(Identity { pid, start })?));
        Some((PoolFile { file, owner }, usize::try_from(device).ok()?))
    }
}
