//! Tells the Python room which interpreter PyO3 builds for: `cfg(Py_LIMITED_API)` and its kind.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "pyo3")]
    pyo3_build_config::use_pyo3_cfgs();
}
