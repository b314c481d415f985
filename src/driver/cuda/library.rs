//! Opens the driver library that the rest of the process uses.
//!
//! `dlopen` returns a library that is loaded already, whatever path it was loaded from, if its soname is the name
//! asked for. A driver's soname is `libcuda.so.1`, so that name comes first. `libcuda.so` without a number is a
//! name for linkers: a toolkit's `stubs` folder has a library of that name, whose `cuInit` returns
//! `CUDA_ERROR_STUB_LIBRARY`.
//!
//! **Road not taken.** cudarc's loader tries `libcuda.so` first, and keeps what it finds. A stub has a driver's
//! soname too, so that every later search for `libcuda.so.1` in the process would find the stub.

use std::sync::atomic::{AtomicU64, Ordering};

use libloading::Library;

/// The names of the driver library, in the order in which they are tried.
#[cfg(not(windows))]
const NAMES: [&str; 2] = ["libcuda.so.1", "libcuda.so"];
#[cfg(windows)]
const NAMES: [&str; 1] = ["nvcuda.dll"];

/// How many libraries the process had loaded when the last search began that found no driver; 0 if none has failed.
static SEARCHED_AT: AtomicU64 = AtomicU64::new(0);

/// Whether the process may have loaded a driver: false if a search has found none, and nothing was loaded since.
pub(super) fn may_be_loaded() -> bool {
    match SEARCHED_AT.load(Ordering::Relaxed) {
        0 => true,
        searched => searched != loads(),
    }
}

/// Counts the libraries that the process has loaded so far; 0 if the platform does not.
#[cfg(all(target_os = "linux", target_env = "gnu", not(miri)))]
pub(in crate::driver) fn loads() -> u64 {
    use std::ffi::{c_int, c_void};

    unsafe extern "C" fn count_loads(
        info: *mut libc::dl_phdr_info,
        _: usize,
        loads: *mut c_void,
    ) -> c_int {
        // SAFETY: glibc passes a description of a library, which it fills as far as `dlpi_adds` since 2.4.
        let adds = unsafe { (*info).dlpi_adds };
        // SAFETY: the address of `loads` below, which lives.
        unsafe { loads.cast::<u64>().write(adds) };
        // No other library need be looked at.
        1
    }

    let mut loads = 0_u64;
    // SAFETY: `count_loads` takes what the call passes it, and neither unwinds nor keeps it.
    unsafe { libc::dl_iterate_phdr(Some(count_loads), (&raw mut loads).cast()) };
    loads
}

#[cfg(not(all(target_os = "linux", target_env = "gnu", not(miri))))]
pub(in crate::driver) const fn loads() -> u64 {
    0
}

/// Opens the driver library; `None` if the loader finds none, which it is not asked again until the process has loaded
/// another library: a search of its path takes as long as hundreds of conversions.
pub(super) fn open() -> Option<Library> {
    if !may_be_loaded() {
        return None;
    }
    // Before the search: what another thread loads meanwhile counts as loaded since.
    let loads = loads();
    let found = find();
    if found.is_none() {
        SEARCHED_AT.store(loads, Ordering::Relaxed);
    }
    found
}

fn find() -> Option<Library> {
    if cfg!(miri) {
        // Miri loads no library.
        return None;
    }
    NAMES.into_iter().find_map(|name| {
        // SAFETY: runs the constructors of a driver, which every CUDA program runs; none is run for a library
        // that is loaded already. Its destructors run if the caller drops it, before any call but `cuInit`.
        unsafe { Library::new(name) }.ok()
    })
}
