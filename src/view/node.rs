//! The node: what a release that must wait is linked by.

use std::alloc::{Layout, alloc, dealloc};
use std::ptr::{self, NonNull};

use super::owner::RawOwner;
use super::{nested, stats};

/// A payload that is about to be released, and the block that goes with it.
///
/// Every exported managed tensor has one in its block, so that its deleter allocates nothing.
#[repr(C)]
pub(crate) struct Node {
    /// The list's that the node is in; null while the managed tensor lives.
    pub(crate) next: *mut Node,
    pub(crate) owner: RawOwner,
    /// Frees the block that the node stands in. Touches neither `next` nor the payload.
    pub(crate) free: unsafe fn(NonNull<Node>),
}

impl Node {
    pub(crate) fn new(owner: RawOwner, free: unsafe fn(NonNull<Node>)) -> Self {
        Self {
            next: ptr::null_mut(),
            owner,
            free,
        }
    }

    /// A node of its own, for a payload that has none; without memory the payload is leaked, and counted.
    pub(crate) fn boxed(owner: RawOwner) -> Option<NonNull<Self>> {
        // SAFETY: a node is not of size zero.
        let node = NonNull::new(unsafe { alloc(Layout::new::<Self>()) }.cast::<Self>());
        match node {
            // SAFETY: fresh memory of a node's size and alignment.
            Some(node) => unsafe { node.write(Self::new(owner, free_box)) },
            None => stats::LEAKED.add(),
        }
        node
    }

    /// Ends the node wherever this thread may: its payload is released, here or later, then its block.
    ///
    /// # Safety
    /// `node` is initialised and nobody else uses it or its block from now on.
    #[inline]
    pub(crate) unsafe fn release(node: NonNull<Self>) {
        // SAFETY: initialised, by this function's contract.
        let owner = unsafe { node.as_ref() }.owner;
        if owner.is_parents() {
            stats::LEAKED.add();
            // SAFETY: the payload is given up; the node is ours.
            return unsafe { Self::free(node) };
        }
        nested::run(
            // SAFETY: the vtable came with this payload; the contract of `release_node` is ours.
            || unsafe { (owner.vtable.release_node)(node) },
            || Some(node),
        );
    }

    /// As [`Node::release`], where the caller knows that the payload may be ended on this thread now.
    ///
    /// # Safety
    /// As [`Node::release`]; and for payloads that want the GIL: it is held.
    #[cfg_attr(
        not(any(feature = "pyo3", test)),
        expect(dead_code, reason = "called by the Python room")
    )]
    pub(crate) unsafe fn end(node: NonNull<Self>) {
        // SAFETY: initialised, by this function's contract.
        let owner = unsafe { node.as_ref() }.owner;
        if owner.is_parents() {
            stats::LEAKED.add();
        } else {
            // SAFETY: the vtable came with this payload, which may be ended here.
            nested::run(
                || unsafe { (owner.vtable.end)(owner.payload) },
                || Self::boxed(owner),
            );
        }
        // SAFETY: the payload is gone or given on; the node is ours.
        unsafe { Self::free(node) };
    }

    /// The second half of a release: frees the block.
    ///
    /// # Safety
    /// `node` is initialised, its payload is gone, and nobody uses it or its block from now on.
    pub(crate) unsafe fn free(node: NonNull<Self>) {
        // SAFETY: initialised, by this function's contract.
        let free = unsafe { node.as_ref() }.free;
        // SAFETY: `free` belongs to the block that this node stands in; nobody uses it any more.
        unsafe { free(node) };
    }
}

/// # Safety
/// `node` came from [`Node::boxed`], and is not used any more.
unsafe fn free_box(node: NonNull<Node>) {
    // SAFETY: allocated by `boxed` with this layout; a node has nothing to drop.
    unsafe { dealloc(node.as_ptr().cast(), Layout::new::<Node>()) };
}
