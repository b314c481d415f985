//! Queues releases that must wait, behind a gate that ends it.
//!
//! A push is lock-free and never blocks: deleters call it on threads that may hold any lock. There is
//! one consumer at a time per call of [`Queue::take`], but any number may call it.

use std::ptr::{self, NonNull};
use std::sync::atomic::Ordering;

use super::loom::{AtomicPtr, AtomicUsize, yield_now};
use super::payload::Node;

/// Intrusive lists of [`Node`]s. A node is in one from its push until some `take` returns it.
pub(crate) struct Queue {
    /// Nodes that were pushed, the last one first.
    pushed: AtomicPtr<Node>,
    /// Nodes that were put back, the first one first: they come before all that are pushed.
    put_back: AtomicPtr<Node>,
}

impl Queue {
    #[cfg(not(all(loom, test)))]
    pub(crate) const fn new() -> Self {
        Self {
            pushed: AtomicPtr::new(ptr::null_mut()),
            put_back: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Adds a node; returns true if the queue was empty, so that its consumer must be woken.
    ///
    /// # Safety
    /// `node` is initialised, and from now on the queue's alone.
    pub(crate) unsafe fn push(&self, node: NonNull<Node>) -> bool {
        let mut head = self.pushed.load(Ordering::Relaxed);
        loop {
            // SAFETY: the node is ours until the exchange below publishes it.
            unsafe { (*node.as_ptr()).next = head };
            // `Release` publishes the node's content with it; no ABA, since `take` takes everything.
            match self.pushed.compare_exchange_weak(
                head,
                node.as_ptr(),
                Ordering::Release,
                Ordering::Relaxed,
            ) {
                Ok(_) => return head.is_null(),
                Err(now) => head = now,
            }
        }
    }

    /// Takes every node, for the caller to own: the first one that was pushed comes first, as an owner may need one that is let go
    /// of after it.
    pub(crate) fn take(&self) -> Taken {
        let last_first = Taken(self.pushed.swap(ptr::null_mut(), Ordering::Acquire));
        let mut first = ptr::null_mut();
        for node in last_first {
            // SAFETY: the iterator has handed out the node, which is ours.
            unsafe { (*node.as_ptr()).next = first };
            first = node.as_ptr();
        }
        let before = self.put_back.swap(ptr::null_mut(), Ordering::Acquire);
        let Some(last) = Taken(before).last() else {
            return Taken(first);
        };
        // SAFETY: the iterator has handed out the node, which is ours.
        unsafe { (*last.as_ptr()).next = first };
        Taken(before)
    }

    /// Gives back a node that was taken, and those that come after it: they come before all others at the next `take`. One
    /// caller of `take` at a time does so.
    ///
    /// # Safety
    /// `node` is initialised, and from now on the queue's alone.
    pub(crate) unsafe fn put_back(&self, node: NonNull<Node>, rest: &mut Taken) {
        // SAFETY: the node is ours until the store below publishes it.
        unsafe { (*node.as_ptr()).next = rest.0 };
        rest.0 = ptr::null_mut();
        self.put_back.store(node.as_ptr(), Ordering::Release);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pushed.load(Ordering::Relaxed).is_null()
            && self.put_back.load(Ordering::Relaxed).is_null()
    }
}

/// Nodes taken from a [`Queue`]; what is not iterated over is leaked.
pub(crate) struct Taken(*mut Node);

impl Iterator for Taken {
    type Item = NonNull<Node>;

    fn next(&mut self) -> Option<NonNull<Node>> {
        let node = NonNull::new(self.0)?;
        // SAFETY: `take` made the whole chain ours; the node is handed out only after this read.
        self.0 = unsafe { node.as_ref() }.next;
        Some(node)
    }
}

const CLOSED: usize = 1;
const ONE_INSIDE: usize = 2;

/// Lets users of the interpreter in until it ends, and waits until the last of them has left.
pub(crate) struct Gate(AtomicUsize);

impl Gate {
    #[cfg(not(all(loom, test)))]
    pub(crate) const fn new() -> Self {
        Self(AtomicUsize::new(0))
    }

    /// Runs `inside` unless the gate is closed. Never blocks.
    pub(crate) fn enter<R>(&self, inside: impl FnOnce() -> R) -> Option<R> {
        // Sequentially consistent with `close`: either it sees us inside, or we see it closed.
        if self.0.fetch_add(ONE_INSIDE, Ordering::SeqCst) & CLOSED != 0 {
            self.0.fetch_sub(ONE_INSIDE, Ordering::SeqCst);
            return None;
        }
        let result = inside();
        self.0.fetch_sub(ONE_INSIDE, Ordering::SeqCst);
        Some(result)
    }

    /// Closes the gate for ever, and waits until no thread is inside: a few instructions each.
    pub(crate) fn close(&self) {
        self.0.fetch_or(CLOSED, Ordering::SeqCst);
        while self.0.load(Ordering::SeqCst) != CLOSED {
            yield_now();
        }
    }

    /// Forgets, in a forked child, the threads of the parent that were inside.
    pub(crate) fn forget_who_is_inside(&self) {
        self.0.fetch_and(CLOSED, Ordering::SeqCst);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.0.load(Ordering::SeqCst) & CLOSED != 0
    }
}

#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(all(test, loom))]
mod orders;
