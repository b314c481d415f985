//! The calling thread: its number and its stack of contexts.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::abi::arguments::ContextHandle;

/// Identifies a thread, for its per-thread default streams; never reused.
pub(crate) type ThreadKey = u64;

thread_local! {
    static STACK: RefCell<Vec<ContextHandle>> = const { RefCell::new(Vec::new()) };
    static KEY: Cell<ThreadKey> = const { Cell::new(0) };
}

/// Returns the calling thread's number.
pub(crate) fn key() -> ThreadKey {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let fresh = || NEXT.fetch_add(1, Ordering::Relaxed);
    KEY.try_with(|key| {
        if key.get() == 0 {
            key.set(fresh());
        }
        key.get()
    })
    .unwrap_or_else(|_| fresh())
}

/// Runs `f` on the calling thread's stack of contexts; on an empty one if the thread's locals are
/// gone already.
pub(crate) fn with_stack<R>(f: impl Fn(&mut Vec<ContextHandle>) -> R) -> R {
    STACK
        .try_with(|stack| f(&mut stack.borrow_mut()))
        .unwrap_or_else(|_| f(&mut Vec::new()))
}

/// Returns the context on top of the calling thread's stack.
pub(crate) fn current_context() -> Option<ContextHandle> {
    with_stack(|stack| stack.last().copied())
}
