//! An extension module that takes GPU arrays of any library. docs/rust.md goes through it line by line.

mod device;
mod kernel;

use cai_dlpack::protocol::device::Device;
use cai_dlpack::python::{In, InOut, TrustStreams};
use cai_dlpack::{CaiView, Error};
use cudarc::driver::CudaSlice;
use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;

use device::stream_of;

/// Both arrays as the rows of a new one: two copies on the GPU, and no wait.
#[pyfunction]
fn stack(py: Python<'_>, a: In<f32, 1>, b: In<f32, 1>) -> Result<CaiView, Error> {
    let a_there = a.view().named("a").c_order()?.cuda()?;
    let b_there = b
        .view()
        .named("b")
        .of_shape(&[Some(a.len())])?
        .c_order()?
        .cuda()?;
    if a.is_empty() {
        return Ok(CaiView::empty::<f32>(a.device(), [2, 0])?);
    }
    let stream = stream_of(a.device())?;
    py.detach(|| {
        let mut out: CudaSlice<f32> = stream.alloc_zeros(2 * a.len())?;
        let (mut first, mut second) = out.split_at_mut(a.len());
        let mut x = a_there.on(&stream)?;
        let mut y = b_there.on(&stream)?;
        stream.memcpy_dtod(&x.as_slice()?, &mut first)?;
        stream.memcpy_dtod(&y.as_slice()?, &mut second)?;
        // Here the guards end: the streams of both producers wait for the copies.
        drop((x, y));
        CaiView::from_cudarc(out, [2, a.len()])
    })
}

/// The sum of two matrices, by a kernel.
#[pyfunction]
fn add(py: Python<'_>, a: In<f32, 2>, b: In<f32, 2>) -> Result<CaiView, Error> {
    let [m, k] = a.shape();
    let a_there = a.view().named("a").c_order()?.cuda()?;
    let b_there = b
        .view()
        .named("b")
        .of_shape(&[Some(m), Some(k)])?
        .c_order()?
        .cuda()?;
    if a.is_empty() {
        return Ok(CaiView::empty::<f32>(a.device(), [m, k])?);
    }
    let stream = stream_of(a.device())?;
    py.detach(|| {
        let mut out: CudaSlice<f32> = stream.alloc_zeros(m * k)?;
        let x = a_there.on(&stream)?;
        let y = b_there.on(&stream)?;
        // SAFETY: three arrays of m * k floats in C order, on the stream's device (`on`), of which the
        // last is ours alone.
        unsafe { kernel::add(&stream, &x, &y, &mut out) }?;
        drop((x, y));
        CaiView::from_cudarc(out, [m, k])
    })
}

/// Sets every element to 0, in place.
#[pyfunction]
fn zero(py: Python<'_>, mut out: InOut<f32, 1>) -> Result<(), Error> {
    let stream = stream_of(out.device())?;
    py.detach(|| {
        let mut there = out.view_mut().named("out").c_order()?.on(&stream)?;
        stream.memset_zeros(&mut there.as_slice()?)?;
        there.finish()?;
        Ok(())
    })
}

/// Copies `a` into `out`, and hands `out` back: two arguments that must not share memory. Threads that use one array are
/// kept apart by the one stream that this module has for its device.
#[pyfunction]
fn copy_into(
    py: Python<'_>,
    a: In<f32, 1, TrustStreams>,
    mut out: InOut<f32, 1, TrustStreams>,
) -> Result<CaiView, Error> {
    let from = a
        .view()
        .named("a")
        .of_shape(&[Some(out.len())])?
        .c_order()?;
    let stream = stream_of(out.device())?;
    py.detach(|| {
        let mut x = from.on(&stream)?;
        let mut y = out.view_mut().named("out").c_order()?.on(&stream)?;
        stream.memcpy_dtod(&x.as_slice()?, &mut y.as_slice()?)?;
        Ok::<_, Error>(())
    })?;
    Ok(out.into_cai())
}

/// The elements twice, where they are: an array of NumPy's if the host can read them, else one of this module on the GPU.
#[pyfunction]
fn twice<'py>(py: Python<'py>, a: In<f32, 1>) -> PyResult<Bound<'py, PyAny>> {
    if a.device().is_host_readable() {
        let array = PyArray1::from_vec(py, a.view().copy_to_vec()?.repeat(2));
        return Ok(array.into_any());
    }
    let of_gpu = match a.is_empty() {
        true => CaiView::empty::<f32>(a.device(), [0])?,
        false => twice_on_gpu(py, &a)?,
    };
    Ok(of_gpu.into_pyobject(py)?.into_any())
}

fn twice_on_gpu(py: Python<'_>, a: &In<f32, 1>) -> Result<CaiView, Error> {
    let there = a.view().named("a").c_order()?.cuda()?;
    let stream = stream_of(a.device())?;
    py.detach(|| {
        let mut out: CudaSlice<f32> = stream.alloc_zeros(2 * a.len())?;
        let (mut first, mut second) = out.split_at_mut(a.len());
        let mut x = there.on(&stream)?;
        stream.memcpy_dtod(&x.as_slice()?, &mut first)?;
        stream.memcpy_dtod(&x.as_slice()?, &mut second)?;
        drop(x);
        CaiView::from_cudarc(out, [2 * a.len()])
    })
}

/// The scalar product of any array that the host can read and one of NumPy's. Both are read: rust-numpy's borrows and those
/// of an `InOut` do not see each other.
#[pyfunction]
fn dot(a: In<f32, 1>, b: PyReadonlyArray1<'_, f32>) -> PyResult<f32> {
    let a = a.view().named("a").of_shape(&[Some(b.len()?)])?;
    let products = a.copy_to_vec()?.into_iter().zip(b.as_array());
    Ok(products.map(|(x, y)| x * y).sum())
}

/// Zeros on the first device.
#[pyfunction]
fn zeros(py: Python<'_>, count: usize) -> Result<CaiView, Error> {
    if count == 0 {
        return Ok(CaiView::empty::<f32>(Device::cuda(0), [0])?);
    }
    py.detach(|| {
        let stream = stream_of(Device::cuda(0))?;
        CaiView::from_cudarc(stream.alloc_zeros::<f32>(count)?, [count])
    })
}

/// An extension in Rust, for arrays of any library.
#[pymodule(gil_used = false)]
fn cai_example(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(stack, module)?)?;
    module.add_function(wrap_pyfunction!(add, module)?)?;
    module.add_function(wrap_pyfunction!(zero, module)?)?;
    module.add_function(wrap_pyfunction!(copy_into, module)?)?;
    module.add_function(wrap_pyfunction!(zeros, module)?)?;
    module.add_function(wrap_pyfunction!(twice, module)?)?;
    module.add_function(wrap_pyfunction!(dot, module)?)?;
    Ok(())
}
