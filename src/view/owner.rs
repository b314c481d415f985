//! The owner: what keeps the memory of a view or of a managed tensor alive.
//!
//! ```text
//!   Owner (inline in a CaiView)          Node (inside a managed tensor's block)
//!     raw: payload + vtable                raw: payload + vtable
//!     shared: null, or the Arc that        next: used by the release queue,
//!             took the payload over              once the deleter has run
//! ```
//!
//! **Who frees, where, how often.** Exactly one of these holds a payload at any time, and its end
//! releases it exactly once, on whatever thread that happens. How it is released is the vtable's
//! business: a Rust value is dropped at once; a Python object is released at once where this thread
//! holds the GIL and is queued otherwise (`python::release`). A forked child releases nothing that
//! its parent owned: the memory behind it is CUDA's, and CUDA does not survive `fork`.

use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use dlpark::ManagedTensorBase;

use super::stats;

/// How one kind of payload is released.
pub(crate) struct Vtable {
    /// Releases the payload; must not unwind.
    pub(crate) release: unsafe fn(NonNull<()>),
    /// Releases the node's payload, then frees the node, now or later; must not unwind.
    pub(crate) release_node: unsafe fn(NonNull<Node>),
}

/// A payload and the way to release it. Copying it copies no ownership: whoever keeps a copy says why.
#[derive(Clone, Copy)]
pub(crate) struct RawOwner {
    pub(crate) payload: NonNull<()>,
    pub(crate) vtable: &'static Vtable,
}

// SAFETY: every vtable's functions may be called on any thread (`Owner::new` demands `Send`, DLPack
// demands it of deleters, `python::release` queues), and nothing else is done with the payload.
unsafe impl Send for RawOwner {}
// SAFETY: as above; a shared reference gives no access to the payload.
unsafe impl Sync for RawOwner {}

impl RawOwner {
    /// Takes charge of a payload.
    pub(crate) fn new(payload: NonNull<()>, vtable: &'static Vtable) -> Self {
        stats::CREATED.add();
        Self { payload, vtable }
    }

    /// Takes charge of a managed tensor that somebody else produced.
    ///
    /// # Safety
    /// `tensor` is initialised, owned by the caller, and not used by the caller afterwards. Its deleter,
    /// if there is one, may be called once on any thread (DLPack's rule for deleters).
    pub(crate) unsafe fn managed<M: ManagedTensorBase>(tensor: NonNull<M>) -> Self {
        Self::new(
            tensor.cast(),
            const {
                &Vtable {
                    release: release_managed::<M>,
                    release_node: release_node_with::<M>,
                }
            },
        )
    }
}

/// What a queue of releases links; the rest of its block is freed with it.
#[repr(C)]
pub(crate) struct Node {
    /// The queue's; null while the managed tensor lives.
    pub(crate) next: *mut Node,
    pub(crate) owner: RawOwner,
    /// Frees the block that the node stands in. Touches neither `next` nor the payload.
    pub(crate) free: unsafe fn(NonNull<Node>),
    /// The generation of the process in which the payload was taken.
    pub(crate) generation: u32,
}

impl Node {
    pub(crate) fn new(owner: RawOwner, free: unsafe fn(NonNull<Node>)) -> Self {
        Self {
            next: ptr::null_mut(),
            owner,
            free,
            generation: generation(),
        }
    }

    /// Ends the node: its payload is released, its block freed.
    ///
    /// # Safety
    /// `node` is initialised and nobody else uses it or its block from now on.
    pub(crate) unsafe fn release(node: NonNull<Self>) {
        // SAFETY: initialised, by this function's contract.
        let this = unsafe { node.as_ref() };
        if this.generation != generation() {
            stats::LEAKED.add();
            return;
        }
        // SAFETY: the vtable came with this payload; the contract of `release_node` is ours.
        unsafe { (this.owner.vtable.release_node)(node) };
    }

    /// The second half of a release, for vtables whose payload is gone: frees the block.
    ///
    /// # Safety
    /// `node` is initialised, its payload released, and nobody uses it or its block from now on.
    pub(crate) unsafe fn free(node: NonNull<Self>) {
        // SAFETY: initialised, by this function's contract.
        let free = unsafe { node.as_ref() }.free;
        // SAFETY: `free` belongs to the block that this node stands in; nobody uses it any more.
        unsafe { free(node) };
    }
}

/// Keeps memory alive; releases what it holds when dropped, on any thread, exactly once.
///
/// An owner is unique until it is first shared ([`Owner::share`]); then an [`Arc`] holds its payload
/// and sharing again costs one atomic increment. No interpreter is needed for either.
pub struct Owner {
    raw: RawOwner,
    /// Null, or an `Arc<Shared>` that took `raw` over.
    shared: AtomicPtr<Shared>,
    generation: u32,
}

struct Shared(RawOwner);

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: `Shared` was made by taking the payload over, and the last `Arc` is ending.
        unsafe { (self.0.vtable.release)(self.0.payload) };
    }
}

static SHARED: Vtable = Vtable {
    release: release_arc,
    release_node: release_node_arc,
};

impl Owner {
    /// Keeps `value` until the last view of it and the last managed tensor made from it are gone.
    ///
    /// The value is dropped on the thread where that happens. A panic of its `drop` is caught and
    /// counted ([`Stats::panics`](super::Stats::panics)), since DLPack deleters cannot unwind.
    pub fn new<T: Send + 'static>(value: T) -> Self {
        watch_forks();
        let payload = NonNull::from(Box::leak(Box::new(value))).cast();
        Self::from_raw(RawOwner::new(
            payload,
            const {
                &Vtable {
                    release: release_box::<T>,
                    release_node: release_node_box::<T>,
                }
            },
        ))
    }

    #[inline]
    pub(crate) fn from_raw(raw: RawOwner) -> Self {
        Self {
            raw,
            shared: AtomicPtr::new(ptr::null_mut()),
            generation: generation(),
        }
    }

    /// The payload, if it is of the kind that `vtable` releases; alive as long as `self`.
    #[cfg_attr(
        not(feature = "pyo3"),
        expect(dead_code, reason = "asked by the Python room")
    )]
    pub(crate) fn payload(&self, vtable: &'static Vtable) -> Option<NonNull<()>> {
        let raw = if ptr::eq(self.raw.vtable, &raw const SHARED) {
            // SAFETY: the payload of an owner with this vtable is a count of an `Arc<Shared>`.
            unsafe { self.raw.payload.cast::<Shared>().as_ref() }.0
        } else {
            self.raw
        };
        ptr::eq(raw.vtable, vtable).then_some(raw.payload)
    }

    /// The payload, where this owner is its only one: what a garbage collector may count as held here.
    #[cfg(feature = "pyo3")]
    pub(crate) fn sole_payload(&self, vtable: &'static Vtable) -> Option<NonNull<()>> {
        let is_sole = self.shared.load(Ordering::Acquire).is_null();
        (is_sole && ptr::eq(self.raw.vtable, vtable)).then_some(self.raw.payload)
    }

    /// A second owner of the same payload, which lives until both are gone.
    #[must_use]
    pub fn share(&self) -> Self {
        Self::from_raw(RawOwner {
            payload: self.share_arc().cast(),
            vtable: &SHARED,
        })
    }

    /// One strong count of the `Arc` that holds the payload.
    fn share_arc(&self) -> NonNull<Shared> {
        let arc = if ptr::eq(self.raw.vtable, &raw const SHARED) {
            self.raw.payload.cast().as_ptr()
        } else {
            self.promote()
        };
        // SAFETY: `arc` came from `Arc::into_raw` and `self` keeps a count of it while we are here.
        unsafe { Arc::increment_strong_count(arc.cast_const()) };
        // SAFETY: pointers from `Arc::into_raw` are not null.
        unsafe { NonNull::new_unchecked(arc) }
    }

    /// Moves the payload into an `Arc` of which `self` keeps one count; once, whoever comes first.
    fn promote(&self) -> *mut Shared {
        let current = self.shared.load(Ordering::Acquire);
        if !current.is_null() {
            return current;
        }
        let mine = Arc::into_raw(Arc::new(ManuallyDrop::new(Shared(self.raw))))
            .cast_mut()
            .cast();
        match self.shared.compare_exchange(
            ptr::null_mut(),
            mine,
            Ordering::AcqRel,
            Ordering::Acquire,
        ) {
            Ok(_) => mine,
            Err(theirs) => {
                // SAFETY: `mine` came from `Arc::into_raw` above, as an `Arc` of the type that does not
                // drop its content (`ManuallyDrop` is transparent), and nobody else has seen it.
                drop(unsafe { Arc::from_raw(mine.cast::<ManuallyDrop<Shared>>()) });
                theirs
            }
        }
    }

    /// Moves the payload out, for a managed tensor's block. Nothing is released here.
    pub(crate) fn into_raw(self) -> RawOwner {
        let this = ManuallyDrop::new(self);
        NonNull::new(this.shared.load(Ordering::Acquire)).map_or(this.raw, |arc| RawOwner {
            payload: arc.cast(),
            vtable: &SHARED,
        })
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if self.generation != generation() {
            stats::LEAKED.add();
            return;
        }
        match NonNull::new(*self.shared.get_mut()) {
            // SAFETY: `shared` is a count of an `Arc<Shared>` that belongs to `self`.
            Some(arc) => unsafe { release_arc(arc.cast()) },
            // SAFETY: never shared, so that `self` alone holds the payload; `drop` runs once.
            None => unsafe { (self.raw.vtable.release)(self.raw.payload) },
        }
    }
}

impl std::fmt::Debug for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Owner")
            .field("payload", &self.raw.payload)
            .finish_non_exhaustive()
    }
}

/// # Safety
/// `payload` came from `Owner::new::<T>` and is released here.
unsafe fn release_box<T>(payload: NonNull<()>) {
    // SAFETY: `Owner::new` leaked this box of a `T`, and its payload is released once.
    let value = unsafe { Box::from_raw(payload.cast::<T>().as_ptr()) };
    if catch_unwind(AssertUnwindSafe(|| drop(value))).is_err() {
        stats::PANICS.add();
    }
    stats::RELEASED.add();
}

/// # Safety
/// As [`release_box`], and of [`Vtable::release_node`].
unsafe fn release_node_box<T>(node: NonNull<Node>) {
    // SAFETY: the node is initialised and ours.
    let payload = unsafe { node.as_ref() }.owner.payload;
    // SAFETY: the payload of a node with this vtable is the box of a `T`.
    unsafe { release_box::<T>(payload) };
    // SAFETY: the payload is gone; the node is ours.
    unsafe { Node::free(node) };
}

/// # Safety
/// `payload` is a managed tensor taken by [`RawOwner::managed`], released here.
unsafe fn release_managed<M: ManagedTensorBase>(payload: NonNull<()>) {
    // SAFETY: initialised and owned by us; `drop_raw` calls its deleter once, or nothing if it is NULL.
    unsafe { M::drop_raw(payload.cast::<M>().as_ptr()) };
    stats::RELEASED.add();
}

/// # Safety
/// As [`release_managed`], and of [`Vtable::release_node`].
unsafe fn release_node_with<M: ManagedTensorBase>(node: NonNull<Node>) {
    // SAFETY: the node is initialised and ours.
    let payload = unsafe { node.as_ref() }.owner.payload;
    // SAFETY: the payload of a node with this vtable is such a managed tensor.
    unsafe { release_managed::<M>(payload) };
    // SAFETY: the payload is gone; the node is ours.
    unsafe { Node::free(node) };
}

/// # Safety
/// `payload` is one count of an `Arc<Shared>`, given up here.
unsafe fn release_arc(payload: NonNull<()>) {
    // SAFETY: the count came from `Arc::into_raw` or `increment_strong_count`.
    unsafe { Arc::decrement_strong_count(payload.cast::<Shared>().as_ptr().cast_const()) };
}

/// # Safety
/// As [`release_arc`], and of [`Vtable::release_node`].
unsafe fn release_node_arc(node: NonNull<Node>) {
    // SAFETY: the node is initialised and ours.
    let payload = unsafe { node.as_ref() }.owner.payload;
    // SAFETY: the payload of a node with this vtable is one count.
    unsafe { release_arc(payload) };
    // SAFETY: the payload is gone; the node is ours.
    unsafe { Node::free(node) };
}

static GENERATION: AtomicU32 = AtomicU32::new(0);

/// Which process of a chain of forks this is, counted from the one that loaded the library.
#[inline]
pub(crate) fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// Has a forked child know that it is one. Cheap after the first call.
pub(crate) fn watch_forks() {
    #[cfg(unix)]
    {
        static ONCE: std::sync::Once = std::sync::Once::new();
        extern "C" fn in_child() {
            GENERATION.fetch_add(1, Ordering::Relaxed);
        }
        // SAFETY: the handler only adds to an atomic, which is allowed after `fork`. A failure (no
        // memory) leaves the library without fork detection, as on platforms that have no `fork`.
        ONCE.call_once(|| unsafe {
            libc::pthread_atfork(None, None, Some(in_child));
        });
    }
}
