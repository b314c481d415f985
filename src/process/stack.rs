//! Tells how much is left of the calling thread's stack.

use std::cell::Cell;
use std::ops::Range;

/// In bytes: what has to be left of it in any case.
const LEAST: usize = 1 << 20;

/// The address of a variable on the calling thread's stack.
#[inline]
pub(crate) fn here() -> usize {
    let here = 0_u8;
    (&raw const here).addr()
}

/// Whether less than `most` bytes of the calling thread's stack have been used since [`here`] was `begun`, and half of the whole is
/// left, and a mebibyte. `false` if that is not known: of a stack that is not the thread's own, and elsewhere than on Linux.
#[cold]
pub(crate) fn has_room(begun: usize, most: usize) -> bool {
    thread_local! {
        static STACK: Cell<Option<(usize, usize)>> = const { Cell::new(None) };
    }
    let (start, end) = STACK.get().unwrap_or_else(|| {
        // Once for each thread, whatever the answer is: of the first one a file is read.
        let of = of_thread().unwrap_or_default();
        STACK.set(Some((of.start, of.end)));
        (of.start, of.end)
    });
    let (start, here) = (start.max(end.saturating_sub(limit())), here());
    let is_own = (start..end).contains(&here) && (start..end).contains(&begun);
    is_own && begun.abs_diff(here) < most && here - start >= LEAST.max((end - start) / 2)
}

/// The size to which the first thread's stack may grow, which the program may change.
#[cfg(all(target_os = "linux", not(miri)))]
fn limit() -> usize {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: writes to a live local.
    match unsafe { libc::getrlimit(libc::RLIMIT_STACK, &mut limit) } {
        0 => usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX),
        _ => 0,
    }
}

#[cfg(not(all(target_os = "linux", not(miri))))]
fn limit() -> usize {
    0
}

/// The addresses of the calling thread's stack, which grows downwards.
#[cfg(all(target_os = "linux", not(miri)))]
fn of_thread() -> Option<Range<usize>> {
    let mut attributes = std::mem::MaybeUninit::<libc::pthread_attr_t>::uninit();
    // SAFETY: has no conditions.
    let thread = unsafe { libc::pthread_self() };
    // SAFETY: the calling thread, which lives; writes to a live local.
    if unsafe { libc::pthread_getattr_np(thread, attributes.as_mut_ptr()) } != 0 {
        return None;
    }
    let (mut start, mut bytes) = (std::ptr::null_mut(), 0);
    // SAFETY: the attributes have been written; the others are live locals.
    let told = unsafe { libc::pthread_attr_getstack(attributes.as_ptr(), &mut start, &mut bytes) };
    // SAFETY: written, destroyed once, and not used any more.
    unsafe { libc::pthread_attr_destroy(attributes.as_mut_ptr()) };
    (told == 0).then(|| start.addr()..start.addr() + bytes)
}

#[cfg(not(all(target_os = "linux", not(miri))))]
fn of_thread() -> Option<Range<usize>> {
    None
}

#[cfg(all(test, not(loom)))]
mod tests;
#[cfg(all(test, not(loom)))]
pub(crate) use tests::on_stack_of;
