//! The extension module `cai_dlpack._core`.
