//! Memory that several processes map: the bytes of one allocation, and a page of words about it.

use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;

use crate::memory::bytes;
use crate::process::shared::{SharedFile, Words};

const PAGE: usize = 4096;

/// Rounds up to whole pages, at least one.
pub(crate) fn page_rounded(bytes: usize) -> Option<usize> {
    bytes.max(1).checked_next_multiple_of(PAGE)
}

/// What the exporting process says of the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shared {
    /// The work of its stream-ordered allocation has not run.
    Unborn,
    Alive,
    Freed,
}

/// The page of words follows the bytes.
const BYTES: usize = 0;
const DEVICE: usize = 1;
const LIFE: usize = 2;

/// The file that holds the bytes of one allocation.
pub(crate) struct Segment {
    file: SharedFile,
    words: Words,
}

impl Segment {
    /// Makes the file for an allocation of so many bytes on a device of the machine.
    pub(crate) fn create(bytes: usize, device: usize, life: Shared) -> Option<Segment> {
        let rounded = page_rounded(bytes)?;
        let file = SharedFile::create(rounded.checked_add(PAGE)?)?;
        let words = Words::map(&file, rounded, PAGE)?;
        words.word(BYTES).store(bytes as u64, Ordering::Relaxed);
        words.word(DEVICE).store(device as u64, Ordering::Relaxed);
        let segment = Segment { file, words };
        segment.set_life(life);
        Some(segment)
    }

    /// Takes a file of another process; None if it is no segment.
    pub(crate) fn open(file: SharedFile) -> Option<Segment> {
        let rounded = file.bytes().checked_sub(PAGE)?;
        let words = Words::map(&file, rounded, PAGE)?;
        let segment = Segment { file, words };
        (page_rounded(segment.bytes()) == Some(rounded)).then_some(segment)
    }

    /// Returns the size of the allocation.
    pub(crate) fn bytes(&self) -> usize {
        self.words.word(BYTES).load(Ordering::Relaxed) as usize
    }

    /// Returns the device, as the machine counts them.
    pub(crate) fn device(&self) -> usize {
        self.words.word(DEVICE).load(Ordering::Relaxed) as usize
    }

    pub(crate) fn life(&self) -> Shared {
        match self.words.word(LIFE).load(Ordering::Acquire) {
            0 => Shared::Unborn,
            1 => Shared::Alive,
            _ => Shared::Freed,
        }
    }

    pub(crate) fn set_life(&self, life: Shared) {
        self.words.word(LIFE).store(life as u64, Ordering::Release);
    }

    pub(crate) fn number(&self) -> i32 {
        self.file.number()
    }

    pub(crate) fn inode(&self) -> u64 {
        self.file.inode()
    }

    /// Copies the bytes at an address into the file. Pages of zeros stay holes.
    pub(crate) fn fill(&self, address: usize, length: usize) -> Option<()> {
        for offset in (0..length).step_by(PAGE) {
            let page = bytes::read(address + offset, PAGE.min(length - offset));
            if page.iter().any(|byte| *byte != 0) {
                self.file.file().write_all_at(&page, offset as u64).ok()?;
            }
        }
        Some(())
    }
}
