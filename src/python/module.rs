//! Registers the classes, the functions and the exception in an extension module.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use crate::python::call::blocks::Entered;
use crate::python::call::policy::{self, Policy, SetPolicy};
use crate::python::call::use_stream::{NameStream, UseStream};
#[cfg(Py_GIL_DISABLED)]
use crate::python::class::alloc;
use crate::python::class::awaiting::Awaited;
use crate::python::class::consume::PyConsume;
use crate::python::class::dtype::PyDType;
use crate::python::class::view::PyCaiView;
use crate::python::cpython::errors::{add_refusals, driver_error};
use crate::python::cpython::fastcall::{self, Function};
#[cfg(Py_GIL_DISABLED)]
use crate::python::cpython::names::names;
use crate::python::cpython::{gil, own_module, release, version, warn};
use crate::python::derived::{AsKind, Consume, On, OneField, Synchronize, Wait};
use crate::python::exchange_table;
use crate::python::explain::{Explain, Explanation};
use crate::python::functions::{FromCai, FromDlpack, Stats, ToDlpack, View};
use crate::python::import::mask::SplitMasked;
use crate::python::join::Join;
use crate::python::methods::{Dlpack, DlpackDevice, ToCai};
use crate::python::share::{Open, PyHeld, PyShare, Share, handle_class};
use crate::python::to::To;
use crate::view;

/// Adds everything to an extension module.
///
/// # Errors
/// `ImportError` in a subinterpreter, and on another CPython than this was built for or tested with (unless by the stable
/// ABI); `ValueError` for an unknown value of `CAI_DLPACK_SYNC`, `CAI_DLPACK_STRICT` or `CAI_DLPACK_TRACE`; out of memory.
///
/// ```no_run
/// use pyo3::prelude::*;
///
/// /// `arrays.view`, `arrays.explain` and all else of the package, beside functions of this module.
/// #[pymodule]
/// fn arrays(module: &Bound<'_, PyModule>) -> PyResult<()> {
///     cai_dlpack::python::register(module)
/// }
/// # fn main() {}
/// ```
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    version::check(module.py())?;
    release::refuse_subinterpreters(module.py())?;
    policy::read_environment()?;
    own_module::is_the_package();
    gil::learn(module.py())?;
    // PyO3 looks once whether there is an interpreter, and panics if it has ended by then: also inside PyO3, where an
    // exception of a finaliser is examined.
    module.py().detach(|| Python::attach(|_| ()));
    view::set_detach(gil::detach);
    view::set_end_own(gil::end_own_objects);
    view::set_ask(exchange_table::ask);
    #[cfg(Py_GIL_DISABLED)]
    {
        // At import, since without the GIL CPython's interning races with itself.
        names(module.py());
        alloc::prepare(&module.py().get_type::<PyCaiView>())?;
    }
    module.add_class::<PyCaiView>()?;
    module.add_class::<PyDType>()?;
    module.add_class::<Explanation>()?;
    module.add_class::<PyConsume>()?;
    make_classes(module.py());
    add_refusals(module)?;
    module.add("DriverError", driver_error(module.py())?)?;
    module.add("Handle", handle_class(module.py())?)?;
    let warnings = warn::classes(module.py())?;
    module.add("InterchangeWarning", &warnings.base)?;
    module.add("StreamWarning", &warnings.stream)?;
    module.add("VersionWarning", &warnings.version)?;
    module.add("ConsumeWarning", &warnings.consume)?;
    let stub = PyDict::new(module.py());
    add::<View>(module, &stub)?;
    add::<FromCai>(module, &stub)?;
    add::<FromDlpack>(module, &stub)?;
    add::<ToDlpack>(module, &stub)?;
    add::<To>(module, &stub)?;
    add::<Explain>(module, &stub)?;
    add::<Join>(module, &stub)?;
    add::<SplitMasked>(module, &stub)?;
    add::<Share>(module, &stub)?;
    add::<Open>(module, &stub)?;
    add::<Stats>(module, &stub)?;
    add::<SetPolicy>(module, &stub)?;
    add::<NameStream>(module, &stub)?;
    stub.set_item("CaiView.__dlpack__", fastcall::stub::<Dlpack>("self"))?;
    stub.set_item("CaiView.on", fastcall::stub::<On>("self"))?;
    stub.set_item("CaiView.consume", fastcall::stub::<Consume>("self"))?;
    stub.set_item("CaiView.present_as", fastcall::stub::<AsKind>("self"))?;
    stub.set_item("CaiView.field", fastcall::stub::<OneField>("self"))?;
    stub.set_item("CaiView.synchronize", fastcall::stub::<Synchronize>("self"))?;
    stub.set_item("CaiView.wait", fastcall::stub::<Wait>("self"))?;
    stub.set_item("CaiView.to_cai", fastcall::stub::<ToCai>("self"))?;
    stub.set_item(
        "CaiView.__dlpack_device__",
        fastcall::stub::<DlpackDevice>("self"),
    )?;
    // Not by `add`, which lists it in `__all__`.
    module.setattr("_stub", stub)
}

/// Adds a function to the module, and its line to the stub.
fn add<F: Function>(module: &Bound<'_, PyModule>, stub: &Bound<'_, PyDict>) -> PyResult<()> {
    let name = PyString::new(module.py(), &F::NAME.to_string_lossy());
    stub.set_item(&name, fastcall::stub::<F>(""))?;
    module.add(&name, fastcall::function::<F>(module)?)
}

/// Makes the classes that the module does not show: if PyO3 first needs one without memory, it panics.
fn make_classes(py: Python<'_>) {
    py.get_type::<Entered>();
    py.get_type::<UseStream>();
    py.get_type::<Policy>();
    py.get_type::<Awaited>();
    py.get_type::<PyShare>();
    py.get_type::<PyHeld>();
}
