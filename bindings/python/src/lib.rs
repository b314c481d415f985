//! The extension module `cai_dlpack._core`: the Python room of `cai-dlpack`, and nothing else.

mod partners;

use pyo3::prelude::*;

/// Zero-copy bridge between the CUDA Array Interface and DLPack.
#[pymodule(gil_used = false)]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_function(wrap_pyfunction!(partners::_partners, module)?)?;
    cai_dlpack::python::register(module)
}
