//! The extension module `cai_dlpack._core`: the Python room of `cai-dlpack`, and nothing else.

mod partners;

use pyo3::prelude::*;

/// Zero-copy bridge between the CUDA Array Interface and DLPack.
#[pymodule(gil_used = false)]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    // Not by `add_function`, which makes a name public.
    let partners = wrap_pyfunction!(partners::_partners, module)?;
    module.setattr("_partners", partners)?;
    cai_dlpack::python::register(module)
}
