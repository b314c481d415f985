//! Detects forks by a generation counter.
//!
//! A forked child has its parent's owners in its memory and must release none of them: what they keep
//! alive is CUDA's and the parent's, and CUDA does not survive `fork`. So each payload remembers the
//! generation of the process that took it.

use std::sync::atomic::{AtomicU32, Ordering};

static GENERATION: AtomicU32 = AtomicU32::new(0);

/// Returns the number of forks between this process and the one that loaded the library.
#[inline]
pub(crate) fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// Has the generation counted in every forked child. Cheap after the first call.
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

/// Registers `run` to be called in every forked child, by `fork` itself; in the order of registration.
///
/// A failure (no memory) leaves the library without fork detection, as on platforms without `fork`.
///
/// # Safety
/// `run` does only what POSIX allows between `fork` and `exec` of a threaded process: atomics, no
/// locks, no allocation.
pub(crate) unsafe fn in_child(run: extern "C" fn()) {
    #[cfg(unix)]
    // SAFETY: a handler of this signature, which lives for ever; what it does is this function's contract.
    unsafe {
        libc::pthread_atfork(None, None, Some(run));
    }
    #[cfg(not(unix))]
    let _ = run;
}

/// Registers `before` to be called before every `fork`, and `after` when it is done, in both processes.
///
/// A failure (no memory) leaves the library without, as on platforms without `fork`.
///
/// # Safety
/// As [`in_child`], for both; `before` waits for nothing but what other threads do without waiting.
pub(crate) unsafe fn around_forks(before: extern "C" fn(), after: extern "C" fn()) {
    #[cfg(unix)]
    // SAFETY: handlers of this signature, which live for ever; what they do is this function's contract.
    unsafe {
        libc::pthread_atfork(Some(before), Some(after), Some(after));
    }
    #[cfg(not(unix))]
    let _ = (before, after);
}
