//! Builds an exported managed tensor: header, node, shape and strides in one allocation.
//!
//! ```text
//!   | DLManagedTensor[Versioned] | Node | ndim | ticket | shape[ndim] | strides[ndim] |
//!     ^ the pointer that the consumer holds and passes to the deleter
//! ```
//!
//! dlpark's own allocator aborts if memory is short; this one refuses.

use std::alloc::{Layout, alloc, dealloc};
use std::mem::offset_of;
use std::ptr::{self, NonNull};

use dlpark::DlpackFlags;
use dlpark::ManagedTensorBase;
use dlpark::ffi::{
    DLDataType, DLDataTypeCode, DLDevice, DLDeviceType, DLManagedTensor, DLManagedTensorVersioned,
    DLPackVersion, DLTensor,
};

use super::payload::{Node, RawOwner};
use super::ticket::Ticket;
use crate::error::Error;
use crate::protocol::descriptor::DescriptorRef;
use crate::protocol::device::Flags;

#[repr(C)]
struct Block<M> {
    tensor: M,
    node: Node,
    ndim: u32,
    /// The number of the [`Ticket`] of a tensor in a capsule; 0 for others.
    ticket: u16,
    /// Where `shape[ndim]` and `strides[ndim]` begin.
    dims: [i64; 0],
}

/// The two layouts of a managed tensor that DLPack 1.3 knows.
pub(crate) trait Abi: ManagedTensorBase + Sized + 'static {
    /// The deleter that goes into the header.
    const DELETER: unsafe extern "C" fn(*mut Self);

    /// Returns the deleter of a tensor in a capsule, in such memory, which gives its ticket back.
    fn deleter_in_capsule<A: Memory>() -> unsafe extern "C" fn(*mut Self);

    /// Reads the version, and nothing else; `None` for the layout that has none.
    ///
    /// # Safety
    /// `tensor` is aligned, and its version may be read.
    unsafe fn version_at(tensor: *const Self) -> Option<DLPackVersion>;

    /// Returns the flags; [`Flags::LEGACY`] for the layout that has none.
    fn stated_flags(&self) -> Flags;
}

impl Abi for DLManagedTensor {
    const DELETER: unsafe extern "C" fn(*mut Self) = delete_legacy;

    fn deleter_in_capsule<A: Memory>() -> unsafe extern "C" fn(*mut Self) {
        delete_legacy_in_capsule::<A>
    }

    #[inline(always)]
    unsafe fn version_at(_: *const Self) -> Option<DLPackVersion> {
        None
    }

    #[inline(always)]
    fn stated_flags(&self) -> Flags {
        Flags::LEGACY
    }
}

impl Abi for DLManagedTensorVersioned {
    const DELETER: unsafe extern "C" fn(*mut Self) = delete_versioned;

    fn deleter_in_capsule<A: Memory>() -> unsafe extern "C" fn(*mut Self) {
        delete_versioned_in_capsule::<A>
    }

    #[inline(always)]
    unsafe fn version_at(tensor: *const Self) -> Option<DLPackVersion> {
        // SAFETY: inside the header, of which this much may be read; nothing is read yet.
        let version = unsafe { &raw const (*tensor).version };
        // SAFETY: aligned, and may be read (this function's contract).
        Some(unsafe { version.read() })
    }

    #[inline(always)]
    fn stated_flags(&self) -> Flags {
        Flags::from_bits(self.flags().bits())
    }
}

/// Where a block's memory comes from.
pub(crate) trait Memory: 'static {
    /// Whether the threads on which the payload of the block's owner may end exclude one another, by a lock that is the
    /// same for all memory that says so: the GIL.
    const IS_EXCLUSIVE: bool;

    /// Whether this thread is one of them.
    fn may_end_here() -> bool;

    /// Returns memory; null if there is none.
    ///
    /// # Safety
    /// - The layout is not of size zero.
    /// - This thread is one on which the payload of the block's owner may end.
    unsafe fn allocate(layout: Layout) -> *mut u8;

    /// Frees memory.
    ///
    /// # Safety
    /// - It came from `allocate` with this layout, and is not used any more.
    /// - This thread is one on which the payload of the block's owner may end.
    unsafe fn free(memory: *mut u8, layout: Layout);
}

/// Rust's allocator, which every thread may call.
pub(crate) struct Heap;

impl Memory for Heap {
    const IS_EXCLUSIVE: bool = false;

    fn may_end_here() -> bool {
        false
    }

    #[inline(always)]
    unsafe fn allocate(layout: Layout) -> *mut u8 {
        // SAFETY: not of size zero (this function's contract).
        unsafe { alloc(layout) }
    }

    #[inline(always)]
    unsafe fn free(memory: *mut u8, layout: Layout) {
        // SAFETY: from `alloc` with this layout, and not used any more (this function's contract).
        unsafe { dealloc(memory, layout) };
    }
}

/// Makes a managed tensor of what is described, which holds `owner`.
///
/// The legacy layout has no flags: the caller has refused data that is known to be read-only, or was told to export it
/// as writable.
///
/// # Errors
/// `descr-fields` and [`Error::OutOfMemory`], with `owner` not taken: nothing was moved.
#[inline(always)]
pub(crate) fn build<M: Abi>(
    described: DescriptorRef<'_>,
    flags: u64,
    owner: RawOwner,
) -> Result<NonNull<M>, Error> {
    // SAFETY: every thread may call this allocator.
    unsafe { build_with::<M, Heap>(described, flags, owner, M::DELETER, 0) }
}

/// Like [`build`], for a capsule; also returns the ticket, which is valid until the deleter is called.
///
/// # Errors
/// Those of [`build`].
///
/// # Safety
/// This thread is one on which the payload of `owner` may end, unless the memory is [`Heap`]'s.
#[inline(always)]
pub(crate) unsafe fn build_in_capsule<M: Abi, A: Memory>(
    described: DescriptorRef<'_>,
    flags: u64,
    owner: RawOwner,
) -> Result<(NonNull<M>, Ticket), Error> {
    // The lock, if there is one, is held: the payload may end here (this function's contract).
    let (ticket, deleter) = (Ticket::take(A::IS_EXCLUSIVE), M::deleter_in_capsule::<A>());
    // SAFETY: this function's contract.
    let built = unsafe { build_with::<M, A>(described, flags, owner, deleter, ticket.number()) };
    match built {
        Ok(tensor) => Ok((tensor, ticket)),
        Err(error) => {
            Ticket::end(ticket.number(), A::IS_EXCLUSIVE);
            Err(error)
        }
    }
}

/// # Safety
/// This thread is one on which the payload of `owner` may end, unless the memory is [`Heap`]'s.
#[inline(always)]
unsafe fn build_with<M: Abi, A: Memory>(
    described: DescriptorRef<'_>,
    flags: u64,
    owner: RawOwner,
    deleter: unsafe extern "C" fn(*mut M),
    ticket: u16,
) -> Result<NonNull<M>, Error> {
    if described.dtype.is_cai_only() {
        return Err(described.dtype.undescribed().into());
    }
    let (values, ndim) = (described.values, described.values.len() / 2);
    // SAFETY: the layout is that of a `Block`, which is not of size zero; the thread by this function's contract.
    let block = unsafe { A::allocate(layout::<M>(ndim)) }.cast::<Block<M>>();
    let Some(block) = NonNull::new(block) else {
        return Err(Error::OutOfMemory);
    };
    // SAFETY: the field lies inside the allocation; nothing is read.
    let dims = unsafe { &raw mut (*block.as_ptr()).dims }.cast::<i64>();
    // SAFETY: the allocation has 2 * ndim extents from `dims` on (`layout`).
    let strides_at = unsafe { dims.add(ndim) };
    // SAFETY: aligned memory for 2 * ndim numbers, of which `values` has no more, and it lies elsewhere.
    unsafe { ptr::copy_nonoverlapping(values.as_ptr(), dims, 2 * ndim) };

    let mut tensor = M::from_parts(
        header(described, ndim, dims, strides_at),
        // The deleter does not read it. Paddle calls none of a tensor without it.
        block.as_ptr().cast(),
        Some(deleter),
    );
    // SAFETY: IS_COPIED is among the flags only if the caller made a copy that nobody else holds.
    unsafe { tensor.set_flags_unchecked(DlpackFlags::from_bits_retain(flags)) };
    let node = Node::new(owner, free::<M, A>);
    // The point of no return: from here on the block holds the owner, and nothing below can fail.
    // SAFETY: the block is ours, aligned and large enough.
    unsafe {
        block.write(Block {
            tensor,
            node,
            ndim: ndim as u32,
            ticket,
            dims: [],
        })
    };
    Ok(block.cast())
}

/// Returns the payload that a tensor of [`build`]'s holds, told by its deleter; alive as long as the tensor.
///
/// # Safety
/// `tensor` is initialised and lives.
pub(super) unsafe fn owner_in<M: Abi>(tensor: NonNull<M>) -> Option<RawOwner> {
    // SAFETY: initialised, and nobody writes to a tensor that has been taken over.
    let deleter = unsafe { tensor.as_ref() }.deleter()?;
    if !ptr::fn_addr_eq(deleter, M::DELETER) {
        return None;
    }
    // SAFETY: a tensor with this deleter is one of `build`'s, in a block that lives.
    let node = unsafe { node_of(tensor.as_ptr()) };
    // SAFETY: `build` initialised it, and it changes when the deleter is called, not before.
    Some(unsafe { node.as_ref() }.owner())
}

/// Makes the header alone, around arrays of `ndim` extents and strides that the caller keeps.
pub(crate) fn header(
    described: DescriptorRef<'_>,
    ndim: usize,
    shape: *mut i64,
    strides: *mut i64,
) -> DLTensor {
    let (device, dtype) = (described.device, described.dtype);
    DLTensor {
        data: ptr::with_exposed_provenance_mut(described.data as usize),
        device: DLDevice {
            device_type: DLDeviceType(device.device_type.to_dlpack().cast_unsigned()),
            device_id: device.id,
        },
        ndim: ndim as i32,
        dtype: DLDataType {
            code: DLDataTypeCode(dtype.code()),
            bits: dtype.bits(),
            lanes: dtype.lanes(),
        },
        shape,
        strides,
        byte_offset: described.byte_offset,
    }
}

fn layout<M>(ndim: usize) -> Layout {
    let block = Layout::new::<Block<M>>();
    // `ndim` is at most 64 (`layout::MAX_NDIM`), so that neither sum nor rounding can overflow.
    let size = block.size() + 2 * ndim * size_of::<i64>();
    // SAFETY: the alignment is a type's, and the size is far below `isize::MAX`.
    unsafe { Layout::from_size_align_unchecked(size, block.align()) }
}

unsafe extern "C" fn delete_legacy(tensor: *mut DLManagedTensor) {
    // SAFETY: DLPack: the deleter is called once, with the tensor that it stands in.
    unsafe { delete(tensor) };
}

unsafe extern "C" fn delete_versioned(tensor: *mut DLManagedTensorVersioned) {
    // SAFETY: DLPack: the deleter is called once, with the tensor that it stands in.
    unsafe { delete(tensor) };
}

unsafe extern "C" fn delete_legacy_in_capsule<A: Memory>(tensor: *mut DLManagedTensor) {
    // SAFETY: DLPack: the deleter is called once, with the tensor that it stands in, which is in such memory
    // (`build_in_capsule`).
    unsafe { delete_in_capsule::<_, A>(tensor) };
}

unsafe extern "C" fn delete_versioned_in_capsule<A: Memory>(tensor: *mut DLManagedTensorVersioned) {
    // SAFETY: DLPack: the deleter is called once, with the tensor that it stands in, which is in such memory
    // (`build_in_capsule`).
    unsafe { delete_in_capsule::<_, A>(tensor) };
}

/// # Safety
/// `tensor` came from [`build_in_capsule`] with such memory, and nobody uses it afterwards.
#[inline(always)]
unsafe fn delete_in_capsule<M, A: Memory>(tensor: *mut M) {
    // SAFETY: the tensor is the first field of its block, which lives; `build_with` initialised it.
    let ticket = unsafe { (*tensor.cast::<Block<M>>()).ticket };
    // SAFETY: the tensor stands in a living block.
    let node = unsafe { node_of(tensor) };
    // The ticket ends first: what a payload's end runs may look at the capsule.
    if A::IS_EXCLUSIVE && A::may_end_here() {
        Ticket::end(ticket, true);
        // SAFETY: `build_with` initialised the node, and nobody else uses the block now; its payload may end here.
        unsafe { Node::release_here(node) };
    } else {
        Ticket::end(ticket, false);
        // SAFETY: `build_with` initialised the node, and nobody else uses the block now.
        unsafe { Node::release(node) };
    }
}

/// # Safety
/// `tensor` came from [`build`] and nobody uses it afterwards.
unsafe fn delete<M>(tensor: *mut M) {
    // SAFETY: the tensor stands in a living block.
    let node = unsafe { node_of(tensor) };
    // SAFETY: `build` initialised the node, and nobody else uses the block now.
    unsafe { Node::release(node) };
}

/// # Safety
/// `tensor` stands in a living block.
#[inline(always)]
unsafe fn node_of<M>(tensor: *mut M) -> NonNull<Node> {
    // SAFETY: the tensor is the first field of its block; the projection stays inside and keeps the
    // provenance of the whole block.
    let node = unsafe { &raw mut (*tensor.cast::<Block<M>>()).node };
    // SAFETY: a field of a living block is not at address 0.
    unsafe { NonNull::new_unchecked(node) }
}

/// # Safety
/// `node` stands in a `Block<M>` of this memory that nobody uses any more; on a thread where its payload may end.
unsafe fn free<M, A: Memory>(node: NonNull<Node>) {
    // SAFETY: the node stands at this offset inside its block.
    let block = unsafe { node.byte_sub(offset_of!(Block<M>, node)) }.cast::<Block<M>>();
    // SAFETY: initialised by `build`; consumers do not know of this field.
    let ndim = unsafe { (*block.as_ptr()).ndim } as usize;
    // SAFETY: allocated by `build_with` with this layout, and not used any more; the thread by this function's contract.
    // No field needs dropping.
    unsafe { A::free(block.as_ptr().cast(), layout::<M>(ndim)) };
}

#[cfg(test)]
mod tests;
