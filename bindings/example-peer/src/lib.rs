//! A second extension module, which knows nothing of the first: they meet by protocol. It also offers
//! what the tests need to look at arguments from Rust.

use cai_dlpack::protocol::device::Device;
use cai_dlpack::python::{In, InOut, TrustStreams, Wait};
use cai_dlpack::view::{Bool, Element, View, ViewMut};
use cai_dlpack::{CaiView, Error};
use pyo3::prelude::*;

cai_dlpack::elements! {
    /// The types that this module adds up.
    enum Number {
        F32(f32),
        F64(f64),
        I32(i32),
        Bool(Bool),
    }
}

/// Any array, as this module's own view of it.
#[pyfunction]
fn view_of(a: CaiView) -> CaiView {
    a
}

/// The address of a matrix's element (row, column), as Rust sees it.
#[pyfunction]
fn address(a: In<f32, 2>, row: usize, column: usize) -> u64 {
    let (start, [rows, columns]) = (a.cai().descriptor().data(), a.shape());
    assert!(row < rows && column < columns, "an element of the matrix");
    let [down, right] = a.elem_strides();
    start.wrapping_add_signed(((row as isize * down + column as isize * right) * 4) as i64)
}

/// The elements of host memory, in C order; the GIL is let go of while the host waits.
#[pyfunction]
fn elements(a: In<f64, 2>) -> PyResult<Vec<f64>> {
    Ok(a.view().copy_to_vec()?)
}

/// How many are true.
#[pyfunction]
fn count(mask: In<Bool, 1>) -> PyResult<usize> {
    let mask = mask.view().copy_to_vec()?;
    Ok(mask.into_iter().filter(|each| each.get()).count())
}

/// Doubles the elements of host memory, in place.
#[pyfunction]
fn double(mut out: InOut<f64, 1>) -> PyResult<()> {
    let mut out = out.view_mut().host()?;
    // SAFETY: the caller of this function promises it: the tests, which run on one thread.
    for element in unsafe { out.host_slice_mut() }? {
        *element *= 2.0;
    }
    Ok(())
}

/// Takes an argument, and does nothing: benches/extraction.py counts what that costs.
#[pyfunction]
fn extract(_a: In<f32, 2>) {}

/// The same without extraction, to be subtracted.
#[pyfunction]
fn ignore(_a: &Bound<'_, PyAny>) {}

/// Two arguments, the second to be written; answers nothing.
#[pyfunction]
fn borrow_both(_a: In<f64, 1>, _out: InOut<f64, 1>) {}

/// Calls back while an argument is borrowed for writing.
#[pyfunction]
fn borrow_and_call(_out: InOut<f64, 1>, callback: &Bound<'_, PyAny>) -> PyResult<()> {
    callback.call0().map(drop)
}

/// Lends any array beside one that is written, to be read or to be written.
#[pyfunction]
fn lend_beside(_out: InOut<f64, 1>, mut other: CaiView, write: bool) -> Result<usize, Error> {
    Ok(if write {
        other.typed_mut::<f64>()?.len()
    } else {
        other.typed::<f64>()?.len()
    })
}

/// Lends a clone of an array that is read, to be written.
#[pyfunction]
fn write_a_clone(a: In<f64, 1>) -> Result<usize, Error> {
    Ok(a.cai().clone().typed_mut::<f64>()?.len())
}

/// Makes one demand of a matrix.
#[pyfunction]
fn demand(a: In<f32, 2>, what: &str) -> PyResult<usize> {
    let view = a.view().named("a");
    let view = match what {
        "C" => view.c_order(),
        "F" => view.f_order(),
        "contiguous" => view.contiguous(),
        "cuda" => view.cuda(),
        "host" => view.host(),
        "cuda:1" => view.on_device(Device::cuda(1)),
        "(any, 3)" => view.of_shape(&[None, Some(3)]),
        _ => Ok(view),
    }?;
    Ok(view.len())
}

/// Extents and strides of an array of any number of axes.
#[pyfunction]
fn layout(a: In<f64>) -> (Vec<usize>, Vec<isize>) {
    (a.shape().to_vec(), a.elem_strides().to_vec())
}

/// The sum of an array of one of four types, and the type's name.
#[pyfunction]
fn total(a: In<Number>) -> PyResult<(&'static str, f64)> {
    fn sum<T: Element + Into<f64>>(a: &View<'_, T>) -> PyResult<f64> {
        Ok(a.copy_to_vec()?.into_iter().map(Into::into).sum())
    }
    Ok(match a.view() {
        Number::F32(a) => ("float32", sum(&a)?),
        Number::F64(a) => ("float64", sum(&a)?),
        Number::I32(a) => ("int32", sum(&a)?),
        Number::Bool(a) => {
            let all = a.copy_to_vec()?;
            (
                "bool",
                all.into_iter().filter(|each| each.get()).count() as f64,
            )
        }
    })
}

/// Sets every element of a vector of one of four types to zero, on the host.
#[pyfunction]
fn clear(mut out: InOut<Number, 1>) -> PyResult<()> {
    fn clear<T: Element>(mut out: ViewMut<'_, T>) -> PyResult<()> {
        // SAFETY: the caller of this function promises it: the tests, which run on one thread.
        unsafe { out.host_slice_mut() }?.fill(T::zeroed());
        Ok(())
    }
    match out.view_mut() {
        Number::F32(out) => clear(out),
        Number::F64(out) => clear(out),
        Number::I32(out) => clear(out),
        Number::Bool(out) => clear(out),
    }
}

/// Calls back while an argument is borrowed for writing, for which it has waited; returns that.
#[pyfunction]
fn wait_and_call(out: InOut<f64, 1, Wait>, callback: &Bound<'_, PyAny>) -> PyResult<CaiView> {
    callback.call0()?;
    Ok(out.into_cai())
}

/// Calls back while an argument is borrowed for reading, for which it has waited.
#[pyfunction]
fn wait_to_read(_a: In<f64, 1, Wait>, callback: &Bound<'_, PyAny>) -> PyResult<()> {
    callback.call0().map(drop)
}

/// Calls back while an argument is borrowed for writing, beside others of such.
#[pyfunction]
fn trust_and_call(_out: InOut<f64, 1, TrustStreams>, callback: &Bound<'_, PyAny>) -> PyResult<()> {
    callback.call0().map(drop)
}

/// A second extension.
#[pymodule(gil_used = false)]
fn cai_example_peer(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(view_of, module)?)?;
    module.add_function(wrap_pyfunction!(address, module)?)?;
    module.add_function(wrap_pyfunction!(elements, module)?)?;
    module.add_function(wrap_pyfunction!(count, module)?)?;
    module.add_function(wrap_pyfunction!(double, module)?)?;
    module.add_function(wrap_pyfunction!(extract, module)?)?;
    module.add_function(wrap_pyfunction!(ignore, module)?)?;
    module.add_function(wrap_pyfunction!(borrow_both, module)?)?;
    module.add_function(wrap_pyfunction!(borrow_and_call, module)?)?;
    module.add_function(wrap_pyfunction!(lend_beside, module)?)?;
    module.add_function(wrap_pyfunction!(write_a_clone, module)?)?;
    module.add_function(wrap_pyfunction!(demand, module)?)?;
    module.add_function(wrap_pyfunction!(layout, module)?)?;
    module.add_function(wrap_pyfunction!(total, module)?)?;
    module.add_function(wrap_pyfunction!(clear, module)?)?;
    module.add_function(wrap_pyfunction!(wait_and_call, module)?)?;
    module.add_function(wrap_pyfunction!(wait_to_read, module)?)?;
    module.add_function(wrap_pyfunction!(trust_and_call, module)?)?;
    Ok(())
}
