//! Whether this process works with ROCm's runtime and not with CUDA.
//!
//! There is no driver for ROCm here. One would answer the same questions by HIP: `hipPointerGetAttributes`,
//! `hipEventCreateWithFlags`, `hipEventRecord`, `hipEventDestroy`, `hipStreamWaitEvent`, `hipStreamSynchronize`,
//! `hipStreamIsCapturing`, `hipSetDevice`, `hipGetDevice`, `hipGetDeviceCount`, `hipMemcpyAsync` and, for copies,
//! `hipMallocAsync` with `hipFreeAsync`. HIP has one context for each device, so that a [`Context`](super::Context) is the
//! device's number. Its default stream is 0: of the interface's codes 1 means that stream, and so does 2, which HIP itself
//! crashes on (cupy #4458).

use std::fs;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use super::cuda::loads;

/// Linux's list of the files that are loaded.
const LOADED: &str = "/proc/self/maps";

const UNKNOWN: u8 = 2;

/// Whether HIP alone is loaded, once that is known. No cell of the standard library: a forked child would wait for ever for
/// one that another thread was filling.
static FOUND: AtomicU8 = AtomicU8::new(UNKNOWN);

/// How many libraries the process had loaded when neither was found among them; 0 if that was not counted.
static LOOKED_AT: AtomicU64 = AtomicU64::new(0);

/// Whether HIP is loaded and CUDA's driver is not: known from the first of the two that is found loaded.
///
/// Of a process that has neither, what it has loaded since is looked at. Elsewhere than on Linux it is not known, and
/// false.
#[inline]
pub(crate) fn is_rocm() -> bool {
    match FOUND.load(Ordering::Relaxed) {
        UNKNOWN => look(),
        known => known == 1,
    }
}

#[cold]
fn look() -> bool {
    // Before the list is read: what another thread loads meanwhile counts as loaded since.
    let loads = loads();
    if loads != 0 && loads == LOOKED_AT.load(Ordering::Relaxed) {
        return false;
    }
    let found = fs::read_to_string(LOADED).map_or(Some(false), |maps| has_only_rocm(&maps));
    let Some(found) = found else {
        LOOKED_AT.store(loads, Ordering::Relaxed);
        return false;
    };
    let kept = FOUND.compare_exchange(
        UNKNOWN,
        u8::from(found),
        Ordering::Relaxed,
        Ordering::Relaxed,
    );
    kept.map_or_else(|first| first == 1, |_| found)
}

/// `None` if neither is loaded, and either may be.
fn has_only_rocm(maps: &str) -> Option<bool> {
    let has = |library: &str| {
        let mut names = maps.lines().filter_map(|line| line.rsplit('/').next());
        names.any(|name| name.starts_with(library))
    };
    match (has("libamdhip64.so"), has("libcuda.so")) {
        (_, true) => Some(false),
        (true, false) => Some(true),
        (false, false) => None,
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::has_only_rocm;

    #[rstest]
    #[case("", None)]
    #[case("7f0-7f1 r--p 0 00:00 0 /opt/rocm/lib/libamdhip64.so.6.2", Some(true))]
    #[case("7f0-7f1 r--p 0 00:00 0 /usr/lib/libcuda.so.1", Some(false))]
    #[case(
        "a /usr/lib/libamdhip64.so\nb /usr/lib/libcuda.so.580.65.06",
        Some(false)
    )]
    #[case("a /usr/lib/libamdhip64.so\nb /usr/lib/libcudart.so.12", Some(true))]
    #[case("a /libamdhip64.so/other", None)]
    fn rocm_without_cuda(#[case] maps: &str, #[case] expected: Option<bool>) {
        assert_eq!(has_only_rocm(maps), expected);
    }
}
