//! Opens the driver library that the rest of the process uses.
//!
//! `dlopen` returns a library that is loaded already, whatever path it was loaded from, if its soname is the name
//! asked for. A driver's soname is `libcuda.so.1`, so that name comes first. `libcuda.so` without a number is a
//! name for linkers: a toolkit's `stubs` folder has a library of that name, whose `cuInit` returns
//! `CUDA_ERROR_STUB_LIBRARY`.
//!
//! **Road not taken.** cudarc's loader tries `libcuda.so` first, and keeps what it finds. A stub has a driver's
//! soname too, so that every later search for `libcuda.so.1` in the process would find the stub.

use libloading::Library;

/// The names of the driver library, in the order in which they are tried.
#[cfg(not(windows))]
const NAMES: [&str; 2] = ["libcuda.so.1", "libcuda.so"];
#[cfg(windows)]
const NAMES: [&str; 1] = ["nvcuda.dll"];

/// Opens the driver library; `None` if the loader finds none.
pub(super) fn open() -> Option<Library> {
    NAMES.into_iter().find_map(|name| {
        // SAFETY: runs the constructors of a driver, which every CUDA program runs; none is run for a library
        // that is loaded already. Its destructors run if the caller drops it, before any call but `cuInit`.
        unsafe { Library::new(name) }.ok()
    })
}
