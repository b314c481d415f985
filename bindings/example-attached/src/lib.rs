//! A third extension module, whose functions do not let go of the GIL, but for `refuse`: the tests see whether the library does,
//! for each of its own calls of the driver. Yours should, as those of `bindings/example` do: cudarc does not.

use std::sync::{Arc, Mutex, PoisonError};

use cai_dlpack::Error;
use cai_dlpack::interop::cudarc::context;
use cai_dlpack::python::{In, InOut, TrustStreams};
use cudarc::driver::{CudaSlice, CudaStream, DevicePtr, DevicePtrMut};
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;

type Read = In<f32, 1, TrustStreams>;
type Written = InOut<f32, 1, TrustStreams>;
type Route = fn(&Read, &mut Written, &[Arc<CudaStream>; 2]) -> Result<(), Error>;

/// Uses of cudarc's streams, by name.
const ROUTES: &[(&str, Route)] = &[
    ("read", |a, _, [stream, _]| {
        let there = a.view().on(stream)?;
        let _ = there.device_ptr();
        there.finish().map(drop)
    }),
    ("write", |_, out, [stream, _]| {
        let there = out.view_mut().on(stream)?;
        let _ = there.device_ptr();
        there.finish().map(drop)
    }),
    ("write, dropped", |_, out, [stream, _]| {
        drop(out.view_mut().on(stream)?);
        Ok(())
    }),
    ("write parts on two streams", |_, out, [one, other]| {
        let (first, second) = out.view_mut().split(0, 2)?;
        let (first, second) = (first.on(one)?, second.on(other)?);
        first.finish()?;
        second.finish().map(drop)
    }),
    (
        "read, then write on another stream",
        |a, out, [one, other]| {
            drop(a.view().on(one)?);
            out.view_mut().on(other)?.finish().map(drop)
        },
    ),
    ("lend", |a, _, [stream, _]| {
        let mut there = a.view().on(stream)?;
        drop(there.as_slice()?.device_ptr(stream));
        there.finish().map(drop)
    }),
    ("lend mutably", |_, out, [stream, _]| {
        let mut there = out.view_mut().on(stream)?;
        drop(there.as_slice()?.device_ptr_mut(stream));
        there.finish().map(drop)
    }),
    ("lend untracked", |a, _, [stream, _]| {
        let mut there = a.view().on(stream)?;
        // SAFETY: nothing is enqueued.
        unsafe { there.with_untracked_slice(CudaSlice::len) }?;
        there.finish().map(drop)
    }),
    ("to_dlpack", |a, _, [stream, _]| {
        a.cai().to_dlpack(stream).map(drop)
    }),
    ("on", |a, _, [stream, _]| a.cai().on(stream).map(drop)),
    ("consume", |a, _, [stream, _]| {
        a.cai().consume(stream)?.finish().map(drop)
    }),
    ("copy_on", |a, _, [stream, _]| {
        a.cai().copy_on(stream).map(drop)
    }),
];

/// The names of the routes.
#[pyfunction]
fn routes() -> Vec<&'static str> {
    ROUTES.iter().map(|(name, _)| *name).collect()
}

/// Takes a route, on streams that stay: cudarc's own calls, with which they are made, are another call's.
#[pyfunction]
fn take(route: &str, a: Read, mut out: Written) -> PyResult<()> {
    let found = ROUTES.iter().find(|(name, _)| *name == route);
    let (_, take) = found.ok_or_else(|| PyKeyError::new_err(route.to_owned()))?;
    take(&a, &mut out, &streams()?).map_err(PyErr::from)
}

/// Makes the exception of a refusal where the GIL has been let go of: the library takes it for that.
#[pyfunction]
fn refuse(py: Python<'_>, a: Read) -> PyResult<()> {
    let longer = a.view().of_shape(&[Some(a.len() + 1)]);
    py.detach(|| longer.map(drop).map_err(PyErr::from))
}

/// Makes the streams.
#[pyfunction]
fn start() -> PyResult<()> {
    streams().map(drop).map_err(PyErr::from)
}

fn streams() -> Result<[Arc<CudaStream>; 2], Error> {
    static STREAMS: Mutex<Option<[Arc<CudaStream>; 2]>> = Mutex::new(None);
    let mut made = STREAMS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(streams) = &*made {
        return Ok(streams.clone());
    }
    let context = context(0)?;
    let streams = [context.new_stream()?, context.new_stream()?];
    Ok(made.insert(streams).clone())
}

/// The functions that tests call with the GIL.
#[pymodule(gil_used = false)]
fn cai_example_attached(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(routes, module)?)?;
    module.add_function(wrap_pyfunction!(refuse, module)?)?;
    module.add_function(wrap_pyfunction!(start, module)?)?;
    module.add_function(wrap_pyfunction!(take, module)?)?;
    Ok(())
}
