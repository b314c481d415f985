//! A thread that CPython kills inside our code stays where it is.
//!
//! Before 3.14 CPython ends a daemon thread that wants the GIL of an interpreter that ends, by
//! `pthread_exit`, and glibc then unwinds the thread's stack. Rust cannot be unwound so: neither past a
//! `catch_unwind` (PyO3 has one in every function) nor past a call of a function that was declared not to
//! unwind (all of `pyo3::ffi`), and the process aborts. But nothing on that stack needs to end: the thread
//! waits for a GIL that it will never have. From 3.14 on CPython lets it wait for ever, and so do we.
//!
//! How: glibc runs a handler of `_pthread_cleanup_push` before it unwinds the frame in which the handler's
//! record stands, and knows that frame by the record's address. A record that is not on the stack counts as
//! one of the innermost frame, so that its handler runs before anything is unwound. It looks for our code
//! on the stack. Where there is none, the thread's end is no concern of ours, and takes its course.
//!
//! **A road not taken**: a value whose `drop` hangs, as PyO3 has it around its own waits for the GIL. It
//! must stand in the very frame that calls Python, by functions that were declared `C-unwind`, and most
//! of our calls are made by PyO3.

#[cfg(all(target_os = "linux", target_env = "gnu", not(Py_3_14)))]
pub(crate) use glibc::guard;

/// Elsewhere `pthread_exit` unwinds nothing, or no thread is killed.
#[inline(always)]
#[cfg(not(all(target_os = "linux", target_env = "gnu", not(Py_3_14))))]
pub(crate) fn guard() {}

#[cfg(all(target_os = "linux", target_env = "gnu", not(Py_3_14)))]
mod glibc;

/// Declares the methods of a class, each of which begins with [`guard`]: nothing else may be a `#[pymethods]`.
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
