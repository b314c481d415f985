//! dlpark's own way in and out of Python, as its documentation shows it.

use std::ptr;
use std::sync::Mutex;

use dlpark::DlpackFlags;
use dlpark::ffi::{DLDevice, DLDeviceType};
use dlpark::python::consumer::stream::cuda;
use dlpark::python::{DlpackStream, ImportRequest, ImportedDlpack, StreamArg, from_dlpack};
use dlpark::tensor::Error;
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;

/// Imports, validates and gives back.
#[pyfunction]
fn take(object: &Bound<'_, PyAny>) -> PyResult<()> {
    let tensor = from_dlpack(object.as_borrowed(), None, Some(false))?;
    match tensor.validate() {
        Ok(_) => Ok(()),
        Err(why) => Err(refusal(&why)),
    }
}

/// Imports, and answers a capsule of the same tensor.
#[pyfunction]
fn pass_on<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    match from_dlpack(object.as_borrowed(), None, Some(false))? {
        ImportedDlpack::Legacy(tensor) => tensor.into_pyobject(object.py()),
        ImportedDlpack::Versioned(tensor) => tensor.into_pyobject(object.py()),
    }
}

/// A tensor that dlpark has imported, for the conformance kit to look at: a capsule of it would be dlpark's export, which
/// has rules of its own.
#[pyclass(frozen)]
struct Imported(Mutex<ImportedDlpack>);

/// CUDA's legacy default stream, in which the kit then reads.
struct LegacyDefault;

// SAFETY: the legacy default stream is a live stream of each CUDA device, which alone is asked for; `cuda` encodes it by the
// convention of CUDA; it is valid as long as the process.
unsafe impl DlpackStream for LegacyDefault {
    fn as_python_arg(&self, _: Python<'_>, _: DLDevice) -> PyResult<StreamArg> {
        Ok(cuda(ptr::null_mut()))
    }
}

type Described = (usize, Vec<i64>, Vec<i64>, (u8, u8, u16), (u32, i32), bool);

#[pymethods]
impl Imported {
    /// Imports with the `copy` that the caller names, and validates.
    #[new]
    #[pyo3(signature = (object, *, copy = None))]
    fn new(object: &Bound<'_, PyAny>, copy: Option<bool>) -> PyResult<Self> {
        let request = ImportRequest::new(object.as_borrowed())?;
        let on_cuda = request
            .device()
            .is_ok_and(|device| device.device_type == DLDeviceType::CUDA);
        let tensor =
            request.import(on_cuda.then_some(&LegacyDefault as &dyn DlpackStream), copy)?;
        tensor.validate().map_err(|why| refusal(&why))?;
        Ok(Self(Mutex::new(tensor)))
    }

    /// Returns the address of the first element, the shape, the strides in elements, the type, the device, and whether
    /// the elements must not be written.
    fn described(&self) -> PyResult<Described> {
        let imported = self.0.lock().expect("no holder of the lock panics");
        let tensor = imported.validate().map_err(|why| refusal(&why))?;
        let strides = tensor.strides_or_compact().map_err(|why| refusal(&why))?;
        let (dtype, device) = (tensor.dtype(), tensor.device());
        Ok((
            tensor.data_ptr() as usize + tensor.byte_offset() as usize,
            tensor.shape().to_vec(),
            strides.into_owned(),
            (dtype.code.0, dtype.bits, dtype.lanes),
            (device.device_type.0, device.device_id),
            imported.flags().contains(DlpackFlags::READ_ONLY),
        ))
    }
}

fn refusal(why: &Error) -> PyErr {
    PyBufferError::new_err(why.to_string())
}

#[pymodule]
fn dlpark_path(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Imported>()?;
    module.add_function(wrap_pyfunction!(take, module)?)?;
    module.add_function(wrap_pyfunction!(pass_on, module)?)
}
