//! Which process of a chain of forks this is, for the rooms that keep what a child must not use.
//!
//! A forked child has its parent's owners in its memory and must release none of them: what they keep
//! alive is CUDA's and the parent's, and CUDA does not survive `fork`. So each payload remembers the
//! generation of the process that took it.

use std::sync::atomic::{AtomicU32, Ordering};

static GENERATION: AtomicU32 = AtomicU32::new(0);

/// The number of forks between this process and the one that loaded the library.
#[inline]
pub(crate) fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// Has a forked child know that it is one. Cheap after the first call.
pub(crate) fn watch() {
    extern "C" fn count() {
        GENERATION.fetch_add(1, Ordering::Relaxed);
    }
    static WATCHED: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);
    if !WATCHED.load(Ordering::Relaxed) && !WATCHED.swap(true, Ordering::Relaxed) {
        // SAFETY: `count` only adds to an atomic.
        unsafe { in_child(count) };
    }
}

/// Has `run` called in every forked child, by `fork` itself; in the order of registration.
///
/// A failure (no memory) leaves the library without fork detection, as on platforms without `fork`.
///
/// # Safety
/// `run` does only what POSIX allows between `fork` and `exec` of a threaded process: atomics, no
/// locks, no allocation.
pub(crate) unsafe fn in_child(run: extern "C" fn()) {
    #[cfg(unix)]
    // SAFETY: handlers of this signature; what they may do is this function's contract.
    unsafe {
        libc::pthread_atfork(None, None, Some(run));
    }
    #[cfg(not(unix))]
    let _ = run;
}

/// Has `before` called by whoever forks, and `after` when it is done, in both processes.
///
/// A failure (no memory) leaves the library without, as on platforms without `fork`.
///
/// # Safety
/// As [`in_child`], of both; `before` waits for nothing but what other threads do without waiting.
#[cfg(feature = "pyo3")]
pub(crate) unsafe fn around_forks(before: extern "C" fn(), after: extern "C" fn()) {
    #[cfg(unix)]
    // SAFETY: handlers of this signature; what they may do is this function's contract.
    unsafe {
        libc::pthread_atfork(Some(before), Some(after), Some(after));
    }
    #[cfg(not(unix))]
    let _ = (before, after);
}
