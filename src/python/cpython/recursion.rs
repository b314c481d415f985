//! Bounds how deep conversions nest, for producers whose attributes convert themselves.
//!
//! CPython counts calls as well, by the stack that its own functions need: 3.12 and 3.13 admit some 10 000 nested calls
//! of C functions. A conversion needs 2 to 4 KiB of stack, so that a producer without Python code of its own
//! (`__cuda_array_interface__ = property(cai_dlpack.view)`) would overflow the stack before.
//!
//! So conversions that run now are counted, and beyond a few of them each one looks at the stack that its thread has
//! left. Under the GIL one count serves all threads, as that needs no look-up of a thread's own memory, which costs more
//! than the count: with many threads the stack is looked at in vain.

use std::cell::Cell;
#[cfg(not(Py_GIL_DISABLED))]
use std::sync::atomic::{AtomicU32, Ordering};

use pyo3::exceptions::PyRecursionError;
use pyo3::prelude::*;

/// The conversions that may nest before the stack is looked at.
const FEW: u32 = 4;
/// The conversions that may nest where the stack cannot be looked at.
const MANY: u32 = 256;
/// The stack that must be left: for a conversion that calls the driver, a finaliser, and the error itself.
const RESERVE: usize = 128 << 10;

/// One level of nesting, until it is dropped. Stands around what reads attributes of objects that are not ours.
pub(crate) struct Level(());

impl Level {
    /// Begins a level.
    ///
    /// # Errors
    /// `RecursionError` if the stack is nearly used up.
    #[inline(always)]
    pub(crate) fn begin(_py: Python<'_>) -> PyResult<Self> {
        if depth() >= FEW && is_too_deep(depth()) {
            return Err(too_deep());
        }
        set_depth(depth().wrapping_add(1));
        Ok(Self(()))
    }
}

impl Drop for Level {
    #[inline(always)]
    fn drop(&mut self) {
        // The GIL is held, as when the level began.
        set_depth(depth().wrapping_sub(1));
    }
}

/// The levels of all threads. Read and written with the GIL.
#[cfg(not(Py_GIL_DISABLED))]
static DEPTH: AtomicU32 = AtomicU32::new(0);

#[cfg(not(Py_GIL_DISABLED))]
#[inline(always)]
fn depth() -> u32 {
    DEPTH.load(Ordering::Relaxed)
}

#[cfg(not(Py_GIL_DISABLED))]
#[inline(always)]
fn set_depth(depth: u32) {
    DEPTH.store(depth, Ordering::Relaxed);
}

#[cfg(Py_GIL_DISABLED)]
thread_local! {
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

#[cfg(Py_GIL_DISABLED)]
#[inline(always)]
fn depth() -> u32 {
    DEPTH.get()
}

#[cfg(Py_GIL_DISABLED)]
#[inline(always)]
fn set_depth(depth: u32) {
    DEPTH.set(depth);
}

#[cold]
#[inline(never)]
fn is_too_deep(depth: u32) -> bool {
    let here = (&raw const depth).addr();
    match lowest() {
        Some(lowest) if here > lowest => here - lowest < RESERVE,
        // Also on a stack that is not the thread's own.
        _ => depth >= MANY,
    }
}

/// Returns the lowest address of this thread's stack; `None` if it is unknown.
fn lowest() -> Option<usize> {
    thread_local! {
        static LOWEST: Cell<usize> = const { Cell::new(0) };
    }
    LOWEST.with(|lowest| {
        if lowest.get() == 0 {
            lowest.set(stack().unwrap_or(0));
        }
        (lowest.get() != 0).then_some(lowest.get())
    })
}

#[cfg(target_os = "linux")]
fn stack() -> Option<usize> {
    let mut attributes = std::mem::MaybeUninit::uninit();
    // SAFETY: may be called at any time.
    let this = unsafe { libc::pthread_self() };
    // SAFETY: this thread, and memory for its attributes.
    if unsafe { libc::pthread_getattr_np(this, attributes.as_mut_ptr()) } != 0 {
        return None;
    }
    let (mut lowest, mut size) = (std::ptr::null_mut(), 0);
    // SAFETY: initialised by the call above, and memory for two values.
    let code =
        unsafe { libc::pthread_attr_getstack(attributes.as_ptr(), &raw mut lowest, &raw mut size) };
    // SAFETY: initialised above, and not used afterwards.
    unsafe { libc::pthread_attr_destroy(attributes.as_mut_ptr()) };
    (code == 0).then(|| lowest.addr())
}

#[cfg(target_os = "macos")]
fn stack() -> Option<usize> {
    // SAFETY: may be called at any time.
    let this = unsafe { libc::pthread_self() };
    // SAFETY: this thread.
    let highest = unsafe { libc::pthread_get_stackaddr_np(this) };
    // SAFETY: this thread.
    let size = unsafe { libc::pthread_get_stacksize_np(this) };
    highest.addr().checked_sub(size)
}

#[cfg(not(any(target_os = "linux", target_os = "macos")))]
fn stack() -> Option<usize> {
    None
}

#[cold]
fn too_deep() -> PyErr {
    PyRecursionError::new_err("maximum recursion depth exceeded while converting an array")
}
