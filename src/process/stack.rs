//! Tells how much is left of the calling thread's stack.

use std::cell::Cell;
use std::ops::Range;

/// In bytes: what this much is not left of, nothing may use in depth.
const LEAST: usize = 1 << 20;

/// Whether a half of the calling thread's stack is left, and a mebibyte. `false` if that is not known: of a stack that is not the
/// thread's own, and elsewhere than on Linux.
#[cold]
pub(crate) fn has_half_left() -> bool {
    thread_local! {
        static STACK: Cell<Option<(usize, usize)>> = const { Cell::new(None) };
    }
    let (start, end) = STACK.get().unwrap_or_else(|| {
        // Once for each thread, whatever the answer is.
        let of = of_thread().unwrap_or_default();
        STACK.set(Some((of.start, of.end)));
        (of.start, of.end)
    });
    let here = 0_u8;
    let here = (&raw const here).addr();
    let is_own = (start..end).contains(&here);
    is_own && here - start >= LEAST.max((end - start) / 2)
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

#[cfg(all(test, target_os = "linux", not(miri)))]
mod tests;
