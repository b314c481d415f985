//! What an object offers, and why the route is the one that it is, in words.

use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::explanation::sentence;
use crate::python::call::options::Options;
use crate::python::capsule;
use crate::python::class::view::PyCaiView;
use crate::python::cpython::errors::is_of_the_process;
use crate::python::cpython::{gil, release};
use crate::python::import::traits::Traits;
use crate::python::import::{cai, dlpack, known_types};

/// Lists the protocols of an object.
pub(super) fn of(object: &Bound<'_, PyAny>) -> PyResult<String> {
    let facts = known_types::facts_of(object)?;
    if facts.traits.intersects(Traits::OURS) {
        let is_cai_only = object
            .cast::<PyCaiView>()
            .is_ok_and(|view| view.get().view().descriptor().cai_only().is_some());
        return Ok(match is_cai_only {
            false => "both protocols, and the C Exchange API".to_owned(),
            true => "the array interfaces; DLPack cannot describe it".to_owned(),
        });
    }
    if capsule::is_capsule(object) {
        return Ok("a DLPack capsule".to_owned());
    }
    let mut offers = Vec::new();
    if facts.table.is_some() {
        offers.push("the C Exchange API".to_owned());
    }
    offers.extend(interface(object)?);
    if dlpack::has_dlpack(object, facts.traits).unwrap_or(false) {
        offers.push(match dlpack::announced_device(object) {
            Ok(device) => format!("__dlpack__ on {:?}", device.to_dlpack()),
            Err(error) => in_brackets("__dlpack__", error)?,
        });
    }
    match offers.is_empty() {
        true => Ok("neither protocol".to_owned()),
        false => Ok(offers.join("; ")),
    }
}

/// The interface of an object, or a bare dict.
fn interface(object: &Bound<'_, PyAny>) -> PyResult<Option<String>> {
    const NAME: &str = "__cuda_array_interface__";
    let dict = match object.is_instance_of::<PyDict>() {
        true => Ok(Some(object.clone())),
        false => {
            let traits = known_types::facts_of(object)?.traits;
            match traits.intersects(Traits::ANOTHER_COPY) {
                true => cai::unordered(object),
                false => cai::attribute(object),
            }
        }
    };
    let read = match dict {
        Ok(None) => return Ok(None),
        Ok(Some(dict)) => cai::read(object, &dict, Options::NONE),
        Err(error) => Err(error),
    };
    Ok(Some(match read {
        Ok(read) => {
            let (version, ready) = (read.interface.version(), read.interface.stream());
            format!("{NAME} version {}, {ready}", version.number())
        }
        Err(error) => in_brackets(NAME, error)?,
    }))
}

/// Returns the name of a protocol, and why it cannot be read.
///
/// # Errors
/// The error itself, if it tells of the process.
fn in_brackets(name: &str, error: PyErr) -> PyResult<String> {
    gil::with(|py| {
        if is_of_the_process(py, &error) {
            return Err(error);
        }
        let why = sentence(py, &error);
        release::drop_now(error);
        Ok(format!("{name} ({why})"))
    })
}

/// Why a route was taken.
pub(super) const fn why(route: &str, is_undeclared: bool, is_unasked: bool) -> &'static str {
    match (route.as_bytes(), is_undeclared) {
        (b"view", _) => "it is a view already",
        (b"capsule", _) => "it can be consumed once, and cannot be asked anything",
        (b"exchange", false) => {
            "it is the quickest, and names the stream that the producer works on"
        }
        (b"exchange", true) => "it is the quickest; it names no stream: pass producer_stream=",
        (b"array_interface", _) => "NumPy does not export it by __dlpack__",
        (b"cai", false) => {
            "it names the stream that the data is ready on, or says that it is ready, so that nothing else is asked"
        }
        (b"cai", true) => "it names no stream: pass producer_stream= if work is pending on another",
        (_, true) => "the producer ignores the stream that it is told: pass producer_stream=",
        (_, false) if is_unasked => {
            "the producer makes the data ready on the stream that it is told"
        }
        (_, false) => "the producer was asked, and has no stream to wait for",
    }
}
