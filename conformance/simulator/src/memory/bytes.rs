//! Reading and writing bytes at addresses: the only access to simulated memory besides `fill`.

use std::ptr;

/// Copies bytes between two addresses, which may overlap.
pub(crate) fn move_bytes(dst: usize, src: usize, bytes: usize) {
    let from = ptr::with_exposed_provenance::<u8>(src);
    let to = ptr::with_exposed_provenance_mut::<u8>(dst);
    // SAFETY: `from` is readable and `to` writable for `bytes` bytes, as each is one of these: in a
    // span, which was checked to hold as many and keeps them mapped; pageable memory, which the
    // caller of the API promises until the work is done; a buffer of `read` or `write`, with its
    // own length. A `u8` needs no alignment, and `copy` allows overlap.
    unsafe { ptr::copy(from, to, bytes) };
}

/// Copies bytes out of a span.
pub(crate) fn read(address: usize, length: usize) -> Vec<u8> {
    let mut bytes = vec![0u8; length];
    move_bytes(bytes.as_mut_ptr().expose_provenance(), address, length);
    bytes
}

/// Copies bytes into a span.
pub(crate) fn write(address: usize, bytes: &[u8]) {
    move_bytes(address, bytes.as_ptr().expose_provenance(), bytes.len());
}
