//! Releases inside releases: a chain of any length in a bounded stack.
//!
//! The end of an owner may be the end of a view whose owner ends, and so on: re-wrapping one array in
//! a loop makes such a chain. Up to [`DEEPEST`] releases nest; what would be deeper is put into a list
//! of this thread, which the outermost release empties before it returns. So everything is released
//! when the outermost deleter returns, as if it had nested.
//!
//! Source: our choice, after CPython's own "trashcan" for containers.

use std::cell::Cell;
use std::ptr::{self, NonNull};

use super::node::Node;

/// A few hundred bytes of stack each, more where the owners are other libraries'.
const DEEPEST: u32 = 64;

struct Nest {
    depth: Cell<u32>,
    /// Nodes that wait for the outermost release of this thread, linked by `next`.
    waiting: Cell<*mut Node>,
}

thread_local! {
    // Nothing in it needs dropping, so that it can be used until the thread's very end.
    static NEST: Nest = const {
        Nest { depth: Cell::new(0), waiting: Cell::new(ptr::null_mut()) }
    };
}

/// Runs `release`, or, this deep, has `node` released by the outermost release of this thread.
///
/// `node` hands out a node that is the caller's alone, and gives it away; `None` gives up.
#[inline]
pub(crate) fn run(release: impl FnOnce(), node: impl FnOnce() -> Option<NonNull<Node>>) {
    // loom's threads are one thread to `NEST`.
    if cfg!(all(loom, test)) {
        return release();
    }
    NEST.with(|nest| {
        let depth = nest.depth.get();
        if depth == DEEPEST {
            nest.keep(node());
            return;
        }
        nest.depth.set(depth + 1);
        release();
        if depth == 0 && !nest.waiting.get().is_null() {
            nest.release_waiting();
        }
        nest.depth.set(depth);
    });
}

impl Nest {
    #[cold]
    fn keep(&self, node: Option<NonNull<Node>>) {
        if let Some(node) = node {
            // SAFETY: initialised and given away to this list (`run`).
            unsafe { (*node.as_ptr()).next = self.waiting.get() };
            self.waiting.set(node.as_ptr());
        }
    }

    /// Called at depth 1, so that what these nodes release nests again.
    #[cold]
    fn release_waiting(&self) {
        while let Some(node) = NonNull::new(self.waiting.get()) {
            // SAFETY: a node in this list is initialised and ours.
            self.waiting.set(unsafe { node.as_ref() }.next);
            // SAFETY: out of the list, and ours.
            unsafe { Node::release(node) };
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
