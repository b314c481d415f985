//! Hangs a thread that CPython kills inside this library, so that the process does not abort.
//!
//! Before 3.14 CPython ends a daemon thread that waits for the GIL of an ending interpreter by `pthread_exit`, and
//! glibc unwinds its stack. Rust aborts the process on such an unwinding: past a `catch_unwind` (PyO3 has one in every
//! function) and past a call of a function that is declared not to unwind (all of `pyo3::ffi`). From 3.14 on CPython
//! hangs the thread instead, and so does this module.
//!
//! glibc runs a handler of `_pthread_cleanup_push` before it unwinds the frame that holds the handler's record, which
//! it finds by the record's address. A record outside the stack counts as one of the innermost frame, so that its
//! handler runs before any frame is unwound. The handler searches the stack for frames of this library, and hangs the
//! thread if there is one.
//!
//! **A road not taken**: a value whose `drop` hangs, as PyO3 has around its own waits for the GIL. It must stand in the
//! frame that calls Python, by functions that are declared `C-unwind`; most calls here are made by PyO3.

#[cfg(all(target_os = "linux", target_env = "gnu", not(Py_3_14)))]
pub(crate) use glibc::guard;

/// Does nothing: here `pthread_exit` unwinds nothing, or no thread is killed.
#[inline(always)]
#[cfg(not(all(target_os = "linux", target_env = "gnu", not(Py_3_14))))]
pub(crate) fn guard() {}

#[cfg(all(target_os = "linux", target_env = "gnu", not(Py_3_14)))]
mod glibc;

/// Declares the `#[pymethods]` of a class, each beginning with [`guard`].
macro_rules! entries {
    (impl $class:ident {
        $(
            $(#[$meta:meta])*
            $visibility:vis $($qualifier_or_name:ident)+ $(<$lifetime:lifetime>)? ($($arguments:tt)*)
            $(-> $returned:ty)?
            { $($body:tt)* }
        )*
    }) => {
        #[pymethods]
        impl $class {
            $(
                $(#[$meta])*
                $visibility $($qualifier_or_name)+ $(<$lifetime>)? ($($arguments)*) $(-> $returned)? {
                    $crate::python::cpython::thread_exit::guard();
                    $($body)*
                }
            )*
        }
    };
}
pub(crate) use entries;
