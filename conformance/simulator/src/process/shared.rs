//! Files in memory that other processes of this user can open, and mappings of them.
//!
//! A file has no name: another process opens `/proc/PID/fd/N`. So nothing is left behind when a
//! process is killed, and a file lives for as long as somebody has it open or mapped.

use std::fs::{self, File};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64};

use crate::process::peer::Identity;

/// What `/proc/PID/fd/N` links to, so that a number which means something else by now is not opened.
const LINK: &str = "/memfd:cusim";

/// A file in memory; its size never changes.
pub(crate) struct SharedFile {
    file: File,
    inode: u64,
    bytes: usize,
}

impl SharedFile {
    /// Makes a file of zeros.
    pub(crate) fn create(bytes: usize) -> Option<SharedFile> {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: a NUL-terminated name and flags of memfd_create.
        let number = unsafe { libc::memfd_create(c"cusim".as_ptr(), flags) };
        if number < 0 {
            return None;
        }
        // SAFETY: the descriptor was opened just now and nothing else has it.
        let file = File::from(unsafe { OwnedFd::from_raw_fd(number) });
        file.set_len(bytes as u64).ok()?;
        // A process that has the file mapped must not find its end moved: that would be a SIGBUS.
        // SAFETY: the descriptor is open, and F_ADD_SEALS takes an int.
        let failed = unsafe {
            libc::fcntl(
                file.as_raw_fd(),
                libc::F_ADD_SEALS,
                libc::F_SEAL_SHRINK | libc::F_SEAL_GROW,
            )
        };
        if failed != 0 {
            return None;
        }
        SharedFile::known(file)
    }

    /// Opens a file of another process; None if it has none with this number and inode.
    pub(crate) fn open(owner: Identity, number: i32, inode: u64) -> Option<SharedFile> {
        let path = format!("/proc/{}/fd/{number}", owner.pid);
        let link = fs::read_link(&path).ok()?;
        if !link.to_string_lossy().starts_with(LINK) {
            return None;
        }
        let file = File::options()
            .read(true)
            .write(true)
            .custom_flags(libc::O_CLOEXEC | libc::O_NONBLOCK)
            .open(&path)
            .ok()?;
        SharedFile::known(file).filter(|file| file.inode == inode)
    }

    /// Takes a file whose descriptor somebody has sent; the descriptor stays theirs.
    pub(crate) fn received(number: i32) -> Option<SharedFile> {
        SharedFile::known(File::from(duplicate(number)?))
    }

    /// Returns a descriptor for the caller to send to another process and to close.
    pub(crate) fn to_send(&self) -> Option<i32> {
        duplicate(self.number()).map(IntoRawFd::into_raw_fd)
    }

    fn known(file: File) -> Option<SharedFile> {
        let facts = file.metadata().ok()?;
        Some(SharedFile {
            file,
            inode: facts.ino(),
            bytes: usize::try_from(facts.len()).ok()?,
        })
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Returns the number of the descriptor in this process.
    pub(crate) fn number(&self) -> i32 {
        self.file.as_raw_fd()
    }

    /// Identifies the file, for as long as it exists.
    pub(crate) fn inode(&self) -> u64 {
        self.inode
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

fn duplicate(number: i32) -> Option<OwnedFd> {
    // SAFETY: F_DUPFD_CLOEXEC takes an int; a number that is not open gives -1.
    let copy = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 0) };
    // SAFETY: the descriptor was made just now and nothing else has it.
    (copy >= 0).then(|| unsafe { OwnedFd::from_raw_fd(copy) })
}

/// A mapping of words that several processes read and write, atomically. Unmapped when dropped.
pub(crate) struct Words {
    base: usize,
    bytes: usize,
}

impl Words {
    /// Maps `bytes` bytes of a file from `offset` on, a multiple of the page size.
    pub(crate) fn map(file: &SharedFile, offset: usize, bytes: usize) -> Option<Words> {
        if offset.checked_add(bytes)? > file.bytes() {
            return None;
        }
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses, of an open descriptor.
        let base = unsafe {
            libc::mmap(
                ptr::null_mut(),
                bytes,
                access,
                libc::MAP_SHARED,
                file.number(),
                libc::off_t::try_from(offset).ok()?,
            )
        };
        (base != libc::MAP_FAILED).then(|| Words {
            base: base.expose_provenance(),
            bytes,
        })
    }

    /// Returns the 64-bit word at `index`.
    ///
    /// # Panics
    /// If the mapping is shorter.
    pub(crate) fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.bytes / 8, "a word beyond the mapping");
        let word = ptr::with_exposed_provenance::<AtomicU64>(self.base + index * 8);
        // SAFETY: within the mapping (checked above), which lives as long as `self`; aligned, as
        // the base is a page's; every process reads and writes these words atomically only.
        unsafe { &*word }
    }

    /// Returns the lower half of the word at `index`: what a futex is.
    pub(crate) fn half(&self, index: usize) -> &AtomicU32 {
        let word: *const AtomicU64 = self.word(index);
        // SAFETY: the first four bytes of a word of the mapping, which lives as long as `self`;
        // aligned as the word is, and no other access to such a word is 64 bits wide.
        unsafe { &*word.cast::<AtomicU32>() }
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this length; references to its words borrow this value.
        unsafe { libc::munmap(ptr::with_exposed_provenance_mut(self.base), self.bytes) };
    }
}
