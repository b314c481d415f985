//! The pages behind a range of simulated memory.
//!
//! With protection, a range has two mappings: one without access at the address that the program
//! sees, so that a host dereference is a SIGSEGV, and a shadow that holds the bytes.

use std::collections::BTreeMap;
use std::ptr;
use std::sync::{Mutex, PoisonError};

const PAGE: usize = 4096;

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

/// Rounds up to whole pages, at least one.
fn page_rounded(bytes: usize) -> Option<usize> {
    bytes.max(1).checked_next_multiple_of(PAGE)
}

impl Backing {
    /// Maps at least `bytes`; with `reuse`, at the address that was given up last.
    pub(crate) fn map(bytes: usize, protect: bool, reuse: bool) -> Option<Backing> {
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
        };
        if protect {
            backing.shadow = Some(map_pages(bytes, libc::PROT_READ | libc::PROT_WRITE, None)?);
        }
        let fresh = backing.host_address(0) as *mut u8;
        // SAFETY: the pages were mapped readable and writable just above, `bytes` long.
        unsafe { ptr::write_bytes(fresh, FRESH_BYTE, bytes.min(FRESH_LIMIT)) };
        Some(backing)
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
