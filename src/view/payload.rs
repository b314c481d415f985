//! Kinds of payload, and how each ends.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;

use dlpark::ManagedTensorBase;

use super::node::Node;
use super::owner::RawOwner;
use super::stats;

/// One kind of payload.
pub(crate) trait Kind: Sized + 'static {
    /// On which threads it may end.
    const WHERE: Where;

    /// Its vtable.
    fn vtable() -> &'static Vtable;

    /// Ends a payload, on this thread, now. Does not unwind.
    ///
    /// # Safety
    /// `payload` is of this kind, is not used again, and this thread is one where it may end.
    unsafe fn end(payload: NonNull<()>);
}

/// On which threads a payload may end.
pub(crate) enum Where {
    /// On any.
    Anywhere,
    /// Where `here` says so; elsewhere `later` takes the node.
    #[cfg_attr(
        not(feature = "pyo3"),
        expect(dead_code, reason = "what the Python room does")
    )]
    Only {
        here: fn() -> bool,
        later: unsafe fn(NonNull<Node>),
    },
}

/// A [`Kind`] as data.
pub(crate) struct Vtable {
    /// Releases a payload, here or later; it is not used again. Does not unwind.
    pub(crate) release: unsafe fn(NonNull<()>),
    /// Releases a node's payload and frees the node, here or later. Does not unwind.
    pub(crate) release_node: unsafe fn(NonNull<Node>),
    /// [`Kind::end`].
    pub(crate) end: unsafe fn(NonNull<()>),
}

impl Vtable {
    pub(crate) const fn of<K: Kind>() -> Self {
        Self {
            release: release::<K>,
            release_node: release_node::<K>,
            end: K::end,
        }
    }
}

/// # Safety
/// `payload` is of this kind and is not used again.
unsafe fn release<K: Kind>(payload: NonNull<()>) {
    match K::WHERE {
        Where::Only { here, later } if !here() => {
            if let Some(node) = Node::boxed(RawOwner::again(payload, K::vtable())) {
                // SAFETY: a fresh node that holds the payload, ours alone.
                unsafe { later(node) };
            }
        }
        // SAFETY: by this function's contract; this thread is allowed.
        _ => unsafe { K::end(payload) },
    }
}

/// # Safety
/// `node` holds a payload of this kind; nobody else uses it or its block from now on.
unsafe fn release_node<K: Kind>(node: NonNull<Node>) {
    match K::WHERE {
        // SAFETY: the node is ours, and given away.
        Where::Only { here, later } if !here() => unsafe { later(node) },
        _ => {
            // SAFETY: the node is initialised and ours.
            let payload = unsafe { node.as_ref() }.owner.payload;
            // SAFETY: a payload of this kind, on a thread that is allowed.
            unsafe { K::end(payload) };
            // SAFETY: the payload is gone; the node is ours.
            unsafe { Node::free(node) };
        }
    }
}

/// A `Box<T>` made by [`Owner::new`](super::Owner::new).
pub(crate) struct Boxed<T>(std::marker::PhantomData<T>);

impl<T: Send + 'static> Kind for Boxed<T> {
    const WHERE: Where = Where::Anywhere;

    fn vtable() -> &'static Vtable {
        const { &Vtable::of::<Self>() }
    }

    unsafe fn end(payload: NonNull<()>) {
        stats::RELEASED.add();
        // SAFETY: `Owner::new` leaked this box of a `T`, and a payload ends once.
        let value = unsafe { Box::from_raw(payload.cast::<T>().as_ptr()) };
        contain(|| drop(value));
    }
}

/// Catches and counts a panic: a deleter's caller is C. What was thrown may panic in its turn as it is
/// dropped, and so on; whoever does that for ever is let go.
fn contain(run: impl FnOnce()) {
    let mut thrown = catch_unwind(AssertUnwindSafe(run)).err();
    for _ in 0..8 {
        let Some(panic) = thrown else { return };
        stats::PANICS.add();
        thrown = catch_unwind(AssertUnwindSafe(|| drop(panic))).err();
    }
    std::mem::forget(thrown);
}

/// Somebody else's managed tensor, whose deleter may be called on any thread (DLPack's rule).
pub(crate) struct Foreign<M>(std::marker::PhantomData<M>);

impl<M: ManagedTensorBase + 'static> Kind for Foreign<M> {
    const WHERE: Where = Where::Anywhere;

    fn vtable() -> &'static Vtable {
        const { &Vtable::of::<Self>() }
    }

    unsafe fn end(payload: NonNull<()>) {
        stats::RELEASED.add();
        // SAFETY: initialised and ours; `drop_raw` calls its deleter once, or nothing if it is NULL.
        unsafe { M::drop_raw(payload.cast::<M>().as_ptr()) };
    }
}

#[cfg(test)]
mod tests;
