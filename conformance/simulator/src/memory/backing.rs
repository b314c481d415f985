//! The pages behind a range of simulated memory.
//!
//! With protection, a range has two mappings: one without access at the address that the program
//! sees, so that a host dereference is a SIGSEGV, and a shadow that holds the bytes.
//!
//! Memory is private to the process until it is exported: then its bytes move to a segment, which
//! takes the place of the pages at the same address.

use std::collections::BTreeMap;
use std::ptr;
use std::sync::{Mutex, PoisonError};

use crate::memory::segment::{Segment, page_rounded};

/// Fills fresh memory, so that a read before any write does not look like zeros.
const FRESH_BYTE: u8 = 0xA5;
/// Limits the fill to this many bytes of a range: the rest stays untouched and cheap.
const FRESH_LIMIT: usize = 1 << 20;

/// Owns the pages. The thread that drops it last unmaps them; the address range itself stays
/// reserved, so that no other mapping of the process can take it.
pub(crate) struct Backing {
    base: usize,
    shadow: Option<usize>,
    bytes: usize,
    reuse: bool,
    /// The bytes, if other processes can map them.
    segment: Option<Segment>,
}

/// Address ranges given up, by length: the mode that reuses addresses takes the last one first.
static RETIRED: Mutex<BTreeMap<usize, Vec<usize>>> = Mutex::new(BTreeMap::new());

fn last_retired(bytes: usize) -> Option<usize> {
    RETIRED
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .get_mut(&bytes)?
        .pop()
}

impl Backing {
    /// Maps at least `bytes`; with `reuse`, at the address that was given up last.
    pub(crate) fn map(bytes: usize, protect: bool, reuse: bool) -> Option<Backing> {
        let backing = Backing::reserve(bytes, protect, reuse)?;
        let fresh = backing.host_address(0) as *mut u8;
        // SAFETY: `reserve` mapped the pages readable and writable, `bytes` long.
        unsafe { ptr::write_bytes(fresh, FRESH_BYTE, backing.bytes.min(FRESH_LIMIT)) };
        Some(backing)
    }

    /// Maps a segment of another process.
    pub(crate) fn import(segment: Segment, protect: bool, reuse: bool) -> Option<Backing> {
        let mut backing = Backing::reserve(segment.bytes(), protect, reuse)?;
        backing.place(&segment)?;
        backing.segment = Some(segment);
        Some(backing)
    }

    fn reserve(bytes: usize, protect: bool, reuse: bool) -> Option<Backing> {
        let bytes = page_rounded(bytes)?;
        let wanted = if reuse { last_retired(bytes) } else { None };
        let access = if protect {
            libc::PROT_NONE
        } else {
            libc::PROT_READ | libc::PROT_WRITE
        };
        let base = map_pages(bytes, access, wanted)?;
        let mut backing = Backing {
            base,
            shadow: None,
            bytes,
            reuse,
            segment: None,
        };
        if protect {
            backing.shadow = Some(map_pages(bytes, libc::PROT_READ | libc::PROT_WRITE, None)?);
        }
        Some(backing)
    }

    /// Moves the bytes to a segment and maps that in their place, at the same address. The exclusive
    /// borrow shows that no work touches them meanwhile.
    pub(crate) fn export(&mut self, segment: Segment) -> Option<&Segment> {
        segment.fill(self.host_address(0), self.bytes)?;
        self.place(&segment)?;
        Some(self.segment.insert(segment))
    }

    /// Maps a segment's bytes where this backing has them.
    fn place(&self, segment: &Segment) -> Option<()> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let address = ptr::with_exposed_provenance_mut(self.host_address(0));
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        // SAFETY: replaces pages of this backing only: the range is its own and `bytes` long. No
        // span of it exists, as it is borrowed exclusively or was made just now.
        let placed = unsafe { libc::mmap(address, self.bytes, access, flags, segment.number(), 0) };
        (placed != libc::MAP_FAILED).then_some(())
    }

    /// Returns the segment that holds the bytes, if they are shared with other processes.
    pub(crate) fn segment(&self) -> Option<&Segment> {
        self.segment.as_ref()
    }

    pub(crate) fn base(&self) -> usize {
        self.base
    }

    /// Returns the address at which the byte at `offset` can be read and written.
    pub(crate) fn host_address(&self, offset: usize) -> usize {
        self.shadow.unwrap_or(self.base) + offset
    }
}

impl Drop for Backing {
    fn drop(&mut self) {
        // Replacing the pages frees them and keeps the address range reserved and inaccessible.
        let _ = map_pages(self.bytes, libc::PROT_NONE, Some(self.base));
        if let Some(shadow) = self.shadow {
            // SAFETY: the shadow was mapped by `map` and is `bytes` long; its address is in this
            // value and in spans, which hold this value and so are gone.
            unsafe { libc::munmap(ptr::with_exposed_provenance_mut(shadow), self.bytes) };
        }
        if self.reuse {
            let mut retired = RETIRED.lock().unwrap_or_else(PoisonError::into_inner);
            retired.entry(self.bytes).or_default().push(self.base);
        }
    }
}

/// Maps anonymous pages. At `fixed` they replace those that were there, so it must be an address
/// range that this module mapped earlier.
fn map_pages(bytes: usize, access: i32, fixed: Option<usize>) -> Option<usize> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let (hint, flags) = match fixed {
        Some(address) => (
            ptr::with_exposed_provenance_mut(address),
            flags | libc::MAP_FIXED,
        ),
        None => (ptr::null_mut(), flags),
    };
    // SAFETY: an anonymous mapping; with MAP_FIXED the range belongs to a `Backing` that gives it
    // up (`drop`) or to the retired ranges, in which nothing lives.
    let pages = unsafe { libc::mmap(hint, bytes, access, flags, -1, 0) };
    (pages != libc::MAP_FAILED).then(|| pages.expose_provenance())
}
