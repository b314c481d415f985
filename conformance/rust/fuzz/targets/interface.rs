//! libFuzzer on `interface`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| cai_dlpack_fuzz::interface::run(data));
