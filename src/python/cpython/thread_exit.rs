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
//! thread if there is one and the interpreter ends.
//!
//! What glibc's source admits beside (`unwind_stop`, `__pthread_cleanup_upto`, `__pthread_register_cancel`):
//!
//! | a thread of ours | the handler |
//! |---|---|
//! | leaves C by `longjmp` | is off the list, which the jump empties (of the records below ours, too); back when it calls this library after another thread did, unless there is another record by then, such as that of another extension's copy of this library |
//! | first calls this library inside `pthread_once` (C++'s `call_once`), or another region with such a record | is off the list when the region ends; back as above |
//! | calls it again inside a region of C's `pthread_cleanup_push`, compiled without `-fexceptions` | is not called before the region's own, as glibc stops at the records that are older than the region: the process aborts. Regions of C++, and of C with `-fexceptions`, leave no trace in the list |
//! | leaves C by `longjmp` inside such a region, and is cancelled there in `pthread_cond_wait` or `pthread_once` | is missed: glibc looks for our record at the end of the emptied list, and crashes, also if nothing of ours is on the stack |
//! | throws C++ exceptions, runs greenlets (parts of the thread's own stack) | stays |
//! | is on a stack other than its own (`makecontext`, Boost.Context) | may be called too late, as the order of addresses is another one there: the process aborts. A `longjmp` from there may call it, too, though no thread ends |
//! | is ended by itself, or cancelled, with this library on its stack, while the interpreter runs | lets the process abort: a thread that hangs with the GIL would hang it |
//!
//! musl has no such unwinding: `pthread_exit` calls handlers and ends the thread, whose frames are gone without a drop.
//! Their values are leaked, and no lock of this library is held while Python runs.
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

/// Declares the `#[pymethods]` of a class. Each begins with [`guard`], and raises `MemoryError` where PyO3 finds no memory
/// for an object ([`Entry`](crate::python::cpython::panic::Entry)).
macro_rules! entries {
    (impl $class:ident {
        $(
            $(#[$meta:meta])*
            $visibility:vis $($qualifier_or_name:ident)+ $(<$lifetime:lifetime>)? ($($arguments:tt)*)
            -> $returned:ty
            { $($body:tt)* }
        )*
    }) => {
        #[pymethods]
        impl $class {
            $(
                $(#[$meta])*
                $visibility $($qualifier_or_name)+ $(<$lifetime>)? ($($arguments)*) -> $returned {
                    $crate::python::cpython::thread_exit::guard();
                    <$returned as $crate::python::cpython::panic::Entry>::run(|| { $($body)* })
                }
            )*
        }
    };
}
pub(crate) use entries;
