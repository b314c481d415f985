//! Payloads: what an owner holds, how each kind of it ends, and the node that a release waits in.
//!
//! A payload is a pointer and a static table of functions ([`Vtable`], made of a [`Kind`]). It ends on the
//! thread that releases it, or, if its kind must end elsewhere ([`EndsOn`]), in a list of [`Node`]s.
//!
//! **Chains.** The end of an owner may be the end of a view whose owner ends, and so on: re-wrapping one array
//! in a loop makes such a chain. Releases nest up to [`DEEPEST`], and further as long as they use little of the thread's
//! stack. Deeper ones, and those that follow them, go into a list of this thread, which the last release that stands at
//! half that depth empties before it returns. So owners end in the order in which they were let go of, and all of them before
//! the outermost deleter returns; what is no owner, and stands beside one this deep, ends before it. Source: our choice, after
//! CPython's own "trashcan" for containers.

use std::alloc::{Layout, alloc, dealloc};
use std::cell::Cell;
use std::ptr::{self, NonNull};

use super::stats;
use crate::process::fork::generation;
use crate::process::stack::{has_room, here};

/// A kind of payload.
pub(crate) trait Kind: Sized + 'static {
    /// The threads on which it may end.
    const ENDS_ON: EndsOn;

    /// Whether a forked child may end its copy of a payload that the parent took.
    const SURVIVES_FORK: bool = false;

    /// What a garbage collector finds in it.
    const SHOWS: Shows = Shows::Nothing;

    /// Returns the kind's vtable.
    fn vtable() -> &'static Vtable;

    /// Ends a payload, on this thread, now. Does not unwind.
    ///
    /// # Safety
    /// - `payload` is of this kind and is not used again.
    /// - [`ENDS_ON`](Self::ENDS_ON) allows this thread.
    unsafe fn end(payload: NonNull<()>);

    /// Returns the payload of this library's that a payload of this kind keeps, if it is known to keep one; alive as long.
    ///
    /// # Safety
    /// `payload` is of this kind and lives.
    unsafe fn kept_in(_payload: NonNull<()>) -> Option<RawOwner> {
        None
    }
}

/// The threads on which a payload may end.
pub(crate) enum EndsOn {
    /// Any.
    AnyThread,
    /// Those for which `here` returns true; on others `later` takes the node.
    Only {
        here: fn() -> bool,
        later: unsafe fn(NonNull<Node>),
    },
}

/// What a garbage collector finds in a payload.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Shows {
    Nothing,
    /// A reference to a Python object: the payload.
    Object,
    /// Owners, each with a payload of its own.
    Owners,
}

/// A [`Kind`] as data.
pub(crate) struct Vtable {
    /// Releases a payload, here or later; it is not used again. Does not unwind.
    pub(super) release: unsafe fn(NonNull<()>),
    /// Releases a node's payload and frees the node, here or later. Does not unwind.
    release_node: unsafe fn(NonNull<Node>),
    /// [`Kind::end`].
    end: unsafe fn(NonNull<()>),
    /// [`Kind::kept_in`].
    pub(super) kept_in: unsafe fn(NonNull<()>) -> Option<RawOwner>,
    /// [`Kind::SURVIVES_FORK`].
    survives_fork: bool,
    /// [`Kind::SHOWS`].
    pub(super) shows: Shows,
    /// Whether [`Kind::ENDS_ON`] is any thread.
    ends_anywhere: bool,
}

impl Vtable {
    pub(crate) const fn of<K: Kind>() -> Self {
        Self {
            release: release::<K>,
            release_node: release_node::<K>,
            end: K::end,
            kept_in: K::kept_in,
            survives_fork: K::SURVIVES_FORK,
            shows: K::SHOWS,
            ends_anywhere: matches!(K::ENDS_ON, EndsOn::AnyThread),
        }
    }
}

/// # Safety
/// `payload` is of this kind and is not used again.
unsafe fn release<K: Kind>(payload: NonNull<()>) {
    match K::ENDS_ON {
        EndsOn::Only { here, later } if !here() => {
            if let Some(node) = Node::boxed(RawOwner::again(payload, K::vtable())) {
                // SAFETY: a fresh node that holds the payload, ours alone.
                unsafe { later(node) };
            }
        }
        // SAFETY: of this kind and not used again, by this function's contract; this thread is allowed.
        _ => unsafe { K::end(payload) },
    }
}

/// # Safety
/// `node` holds a payload of this kind; nobody else uses it or its block from now on.
unsafe fn release_node<K: Kind>(node: NonNull<Node>) {
    match K::ENDS_ON {
        // SAFETY: the node is ours, and given away.
        EndsOn::Only { here, later } if !here() => unsafe { later(node) },
        _ => {
            // SAFETY: the node is initialised and ours.
            let payload = unsafe { node.as_ref() }.owner.payload;
            // SAFETY: of this kind, by this function's contract; this thread is allowed.
            unsafe { K::end(payload) };
            // SAFETY: the payload is gone; the node is ours.
            unsafe { Node::free(node) };
        }
    }
}

/// A payload and its vtable. A copy owns nothing: each place that keeps one says why.
#[derive(Clone, Copy)]
pub(crate) struct RawOwner {
    pub(super) payload: NonNull<()>,
    pub(super) vtable: &'static Vtable,
    /// The generation of the process that took the payload.
    generation: u32,
}

// SAFETY: every kind may be released on any thread (`Owner::new` demands `Send`, DLPack demands it of
// deleters, `python::cpython::release` queues), and nothing else is done with the payload.
unsafe impl Send for RawOwner {}
// SAFETY: a shared reference gives no access to the payload: `release` and `end` demand to be its holder.
unsafe impl Sync for RawOwner {}

impl RawOwner {
    /// Takes charge of a payload.
    #[inline]
    pub(crate) fn new(payload: NonNull<()>, vtable: &'static Vtable) -> Self {
        stats::CREATED.add();
        Self::again(payload, vtable)
    }

    /// Another holder of a payload that has been counted.
    #[inline]
    pub(crate) fn again(payload: NonNull<()>, vtable: &'static Vtable) -> Self {
        Self {
            payload,
            vtable,
            generation: generation(),
        }
    }

    /// Makes it the payload of a parent process.
    #[cfg(test)]
    pub(crate) fn as_of_parent(mut self) -> Self {
        self.generation = self.generation.wrapping_sub(1);
        self
    }

    /// Whether the payload has this vtable.
    #[inline]
    pub(crate) fn is_of(self, vtable: &'static Vtable) -> bool {
        ptr::eq(self.vtable, vtable)
    }

    /// Whether this process is a fork of the one that owns the payload, and must not release it.
    #[inline]
    pub(super) fn is_parents(self) -> bool {
        self.generation != generation() && !self.vtable.survives_fork
    }

    /// Releases the payload, here or later.
    ///
    /// # Safety
    /// The caller holds the payload, and does not use it afterwards.
    #[inline]
    pub(crate) unsafe fn release(self) {
        if self.is_parents() {
            stats::LEAKED.add();
            return;
        }
        nested(
            // SAFETY: the vtable came with this payload, which is released once.
            || unsafe { (self.vtable.release)(self.payload) },
            || Node::boxed(self),
        );
    }

    /// Like [`RawOwner::release`], on a thread where every kind of payload may end.
    ///
    /// # Safety
    /// - The caller holds the payload, and does not use it afterwards.
    /// - For payloads that end with the GIL only: it is held.
    #[inline]
    pub(crate) unsafe fn end(self) {
        if self.is_parents() {
            stats::LEAKED.add();
            return;
        }
        nested(
            // SAFETY: the vtable came with this payload, which ends once, on a thread where it may.
            || unsafe { (self.vtable.end)(self.payload) },
            || Node::boxed(self),
        );
    }
}

/// A payload that is about to be released, and the block that goes with it.
///
/// Every exported managed tensor has one in its block, so that its deleter allocates nothing.
#[repr(C)]
pub(crate) struct Node {
    /// The next node of the list that it is in; null while the managed tensor lives.
    pub(super) next: *mut Node,
    owner: RawOwner,
    /// Frees the block that the node stands in, on a thread where the payload may end. Touches neither `next` nor the
    /// payload.
    free: unsafe fn(NonNull<Node>),
}

impl Node {
    pub(super) fn new(owner: RawOwner, free: unsafe fn(NonNull<Node>)) -> Self {
        Self {
            next: ptr::null_mut(),
            owner,
            free,
        }
    }

    /// The payload that it holds.
    pub(super) const fn owner(&self) -> RawOwner {
        self.owner
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

    /// Releases the payload, here or later, then frees its block.
    ///
    /// # Safety
    /// `node` is initialised and nobody else uses it or its block from now on.
    #[inline]
    pub(super) unsafe fn release(node: NonNull<Self>) {
        // SAFETY: this function's contract.
        nested(|| unsafe { Self::release_now(node) }, || Some(node));
    }

    /// Like [`Node::release`], at any depth.
    ///
    /// # Safety
    /// Those of [`Node::release`].
    #[inline]
    unsafe fn release_now(node: NonNull<Self>) {
        // SAFETY: initialised, by this function's contract.
        let owner = unsafe { node.as_ref() }.owner;
        if !owner.is_parents() {
            // SAFETY: the vtable came with this payload; the contract of `release_node` is ours.
            return unsafe { (owner.vtable.release_node)(node) };
        }
        stats::LEAKED.add();
        // Else the block is left too: the memory may be of an allocator that this thread must not call.
        if owner.vtable.ends_anywhere {
            // SAFETY: the payload is given up; the node is ours; its payload may end on any thread.
            unsafe { Self::free(node) };
        }
    }

    /// Like [`Node::release`], on a thread where the payload may end, so that none is asked for.
    ///
    /// # Safety
    /// - `node` is initialised and nobody else uses it or its block from now on.
    /// - The payload may end on this thread.
    #[inline(always)]
    pub(super) unsafe fn release_here(node: NonNull<Self>) {
        // SAFETY: initialised, by this function's contract.
        let owner = unsafe { node.as_ref() }.owner;
        if owner.is_parents() {
            // SAFETY: the contract of `release` is part of this function's.
            unsafe { Self::release(node) };
            return;
        }
        let end = || {
            // SAFETY: the vtable came with this payload, which ends once, on a thread where it may.
            unsafe { (owner.vtable.end)(owner.payload) };
            // SAFETY: the payload is gone; the node is ours, on a thread where its payload may end.
            unsafe { Self::free(node) };
        };
        nested(end, || Some(node));
    }

    /// Like [`Node::release`], on a thread where the payload may end; a payload that waits for the outermost release of
    /// the thread waits in a node of its own.
    ///
    /// # Safety
    /// - `node` is initialised and nobody else uses it or its block from now on.
    /// - For payloads that end with the GIL only: it is held.
    pub(crate) unsafe fn end(node: NonNull<Self>) {
        // SAFETY: initialised, by this function's contract.
        let owner = unsafe { node.as_ref() }.owner;
        // SAFETY: the node holds the payload and is not used again; the GIL by this function's contract.
        unsafe { owner.end() };
        // SAFETY: the payload is gone or given on; the node is ours.
        unsafe { Self::free(node) };
    }

    /// Frees the block: the second half of a release.
    ///
    /// # Safety
    /// - `node` is initialised, its payload is gone, and nobody uses it or its block from now on.
    /// - This thread is one on which the payload may end.
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

/// A few hundred bytes of stack each, more where the owners are other libraries'.
const DEEPEST: u32 = 64;
/// How many bytes of a large stack they may use; a finaliser finds as good as all of it.
const MOST: usize = 128 << 10;

struct Nest {
    /// Those that have not returned: greenlets of one thread return from theirs in any order.
    depth: Cell<u32>,
    /// Where the stack stood as the first of them began.
    begun: Cell<usize>,
    /// Nodes that wait for a release of this thread at less than half the depth, linked by `next`: the first and the last.
    waiting: Cell<*mut Node>,
    last: Cell<*mut Node>,
}

thread_local! {
    // Nothing in it needs dropping, so that it can be used until the thread's very end.
    static NEST: Nest = const {
        Nest {
            depth: Cell::new(0),
            begun: Cell::new(0),
            waiting: Cell::new(ptr::null_mut()),
            last: Cell::new(ptr::null_mut()),
        }
    };
}

/// Runs `release`, or, this deep, has `node` released by a release of this thread that stands at less than half the depth.
///
/// `node` hands out a node that is the caller's alone, and gives it away; `None` gives up.
#[inline]
fn nested(release: impl FnOnce(), node: impl FnOnce() -> Option<NonNull<Node>>) {
    // loom's threads are one thread to `NEST`.
    if cfg!(all(loom, test)) {
        return release();
    }
    NEST.with(|nest| {
        let depth = nest.depth.get();
        if depth == 0 {
            nest.begun.set(here());
        } else if nest.must_wait(depth) {
            nest.keep(node());
            return;
        }
        nest.depth.set(depth + 1);
        release();
        nest.leave();
    });
}

/// Whether owners wait on this thread for a release to return.
#[inline]
pub(super) fn ends_wait() -> bool {
    !cfg!(all(loom, test)) && NEST.with(|nest| !nest.waiting.get().is_null())
}

impl Nest {
    /// Ends the level of a release that has returned, after those that wait if there is room for them.
    #[inline(always)]
    fn leave(&self) {
        if !self.waiting.get().is_null() && self.may_empty() {
            self.release_waiting();
        }
        self.depth.set(self.depth.get() - 1);
    }

    /// Whether a release within another one has to wait: it is too deep, or comes after one that waits.
    #[inline]
    fn must_wait(&self, depth: u32) -> bool {
        !self.waiting.get().is_null() || depth >= DEEPEST && !has_room(self.begun.get(), MOST)
    }

    /// Whether what waits can end here, as there is room for its own ends to nest.
    #[cold]
    fn may_empty(&self) -> bool {
        self.depth.get() <= DEEPEST / 2 || has_room(self.begun.get(), MOST / 2)
    }

    #[cold]
    fn keep(&self, node: Option<NonNull<Node>>) {
        if let Some(node) = node {
            // SAFETY: initialised and given away to this list (`nested`).
            unsafe { (*node.as_ptr()).next = ptr::null_mut() };
            self.append(node.as_ptr(), node.as_ptr());
        }
    }

    /// Appends a list, which may be empty, from its first node to its last one.
    fn append(&self, first: *mut Node, last: *mut Node) {
        if first.is_null() {
            return;
        }
        match NonNull::new(self.last.replace(last)) {
            // SAFETY: a node in this list is initialised and ours.
            Some(before) => unsafe { (*before.as_ptr()).next = first },
            None => self.waiting.set(first),
        }
    }

    /// Nodes that have to wait in the release of one come before the others, as they would if they had nested. Each ends, or this
    /// would go on for ever where the depth at which they wait begins below.
    #[cold]
    fn release_waiting(&self) {
        while let Some(node) = NonNull::new(self.waiting.replace(ptr::null_mut())) {
            let last = self.last.replace(ptr::null_mut());
            // SAFETY: a node in this list is initialised and ours.
            let next = unsafe { node.as_ref() }.next;
            self.depth.set(self.depth.get() + 1);
            // SAFETY: out of the list, and ours.
            unsafe { Node::release_now(node) };
            self.leave();
            self.append(next, last);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
