//! Whether this process works with ROCm's runtime and not with CUDA.
//!
//! There is no driver for ROCm here. One would answer the same questions by HIP: `hipPointerGetAttributes`,
//! `hipEventCreateWithFlags`, `hipEventRecord`, `hipEventDestroy`, `hipStreamWaitEvent`, `hipStreamSynchronize`,
//! `hipStreamIsCapturing`, `hipSetDevice`, `hipGetDevice`, `hipGetDeviceCount`, `hipMemcpyAsync` and, for copies,
//! `hipMallocAsync` with `hipFreeAsync`. HIP has one context for each device, so that a [`Context`](super::Context) is the
//! device's number. Its default stream is 0: of the interface's codes 1 means that stream, and so does 2, which HIP itself
//! crashes on (cupy #4458).

use std::fs;
use std::sync::atomic::{AtomicU8, Ordering};

/// Linux's list of the files that are loaded.
const LOADED: &str = "/proc/self/maps";

/// Whether HIP is loaded and CUDA's driver is not: found out once, by what is loaded at the first question.
///
/// Elsewhere than on Linux it is not known, and false.
pub(crate) fn is_rocm() -> bool {
    const UNKNOWN: u8 = 2;
    // Not a cell of the standard library: of one that another thread was filling, a forked child would wait for ever.
    static FOUND: AtomicU8 = AtomicU8::new(UNKNOWN);
    match FOUND.load(Ordering::Relaxed) {
        UNKNOWN => {
            let found = fs::read_to_string(LOADED).is_ok_and(|maps| has_only_rocm(&maps));
            let kept = FOUND.compare_exchange(
                UNKNOWN,
                u8::from(found),
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
            kept.map_or_else(|first| first == 1, |_| found)
        }
        known => known == 1,
    }
}

fn has_only_rocm(maps: &str) -> bool {
    let has = |library: &str| {
        let mut names = maps.lines().filter_map(|line| line.rsplit('/').next());
        names.any(|name| name.starts_with(library))
    };
    has("libamdhip64.so") && !has("libcuda.so")
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::has_only_rocm;

    #[rstest]
    #[case("", false)]
    #[case("7f0-7f1 r--p 0 00:00 0 /opt/rocm/lib/libamdhip64.so.6.2", true)]
    #[case("7f0-7f1 r--p 0 00:00 0 /usr/lib/libcuda.so.1", false)]
    #[case("a /usr/lib/libamdhip64.so\nb /usr/lib/libcuda.so.580.65.06", false)]
    #[case("a /usr/lib/libamdhip64.so\nb /usr/lib/libcudart.so.12", true)]
    #[case("a /libamdhip64.so/other", false)]
    fn rocm_without_cuda(#[case] maps: &str, #[case] expected: bool) {
        assert_eq!(has_only_rocm(maps), expected);
    }
}
