//! Signals are for the program's own threads: one that is delivered to a thread of this library interrupts nothing.

/// Blocks every signal on the calling thread.
pub(crate) fn block() {
    #[cfg(unix)]
    {
        let mut every = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: initialises the set.
        unsafe { libc::sigfillset(every.as_mut_ptr()) };
        // SAFETY: an initialised set; the old one is not asked for.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, every.as_ptr(), std::ptr::null_mut()) };
    }
}
