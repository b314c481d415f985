//! The table of partners as Python objects, for this project's own tests and its conformance matrix.

use cai_dlpack::partners::{Call, Mutability, PARTNERS, Partner};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

/// The table of partners: a dict for each.
#[pyfunction]
pub(crate) fn _partners(py: Python<'_>) -> PyResult<Bound<'_, PyList>> {
    let rows: PyResult<Vec<_>> = PARTNERS.iter().map(|partner| row(py, partner)).collect();
    PyList::new(py, rows?)
}

fn row<'py>(py: Python<'py>, partner: &Partner) -> PyResult<Bound<'py, PyDict>> {
    let row = PyDict::new(py);
    row.set_item("name", partner.name)?;
    row.set_item("title", partner.title)?;
    row.set_item("aliases", partner.aliases)?;
    row.set_item("distribution", partner.distribution)?;
    row.set_item("distributions", partner.distributions)?;
    row.set_item("version", partner.version)?;
    row.set_item("checked", partner.checked.name())?;
    row.set_item("modules", partner.modules)?;
    row.set_item("produces", partner.producer.is_some())?;
    let exports = partner.producer.iter().flat_map(|from| from.exports);
    let exports: Vec<_> = exports.map(|reads| reads.name()).collect();
    row.set_item("exports", exports)?;
    let untold = partner.producer.as_ref().and_then(|from| from.untold);
    row.set_item("untold", untold.map(Mutability::name))?;
    let quirks = partner.producer.iter().flat_map(|producer| producer.quirks);
    let quirks: Vec<_> = quirks.map(|quirk| quirk.name()).collect();
    row.set_item("quirks", quirks)?;
    let faults = partner
        .faults
        .iter()
        .map(|fault| (fault.what, fault.reproduction, fault.report));
    row.set_item("faults", faults.collect::<Vec<_>>())?;
    let silence = partner
        .producer
        .as_ref()
        .map(|producer| producer.silence.to_string());
    row.set_item("silence", silence)?;
    let calls: PyResult<Vec<_>> = partner.calls().map(|call| entry(py, call)).collect();
    row.set_item("calls", calls?)?;
    let launch = partner.launch.as_ref().map(|call| entry(py, call));
    row.set_item("launch", launch.transpose()?)?;
    Ok(row)
}

fn entry<'py>(py: Python<'py>, call: &Call) -> PyResult<Bound<'py, PyDict>> {
    let entry = PyDict::new(py);
    entry.set_item("import", call.import)?;
    entry.set_item("code", call.code)?;
    entry.set_item("reads", call.reads.name())?;
    entry.set_item("waits", call.waits.name())?;
    let devices = call.devices.iter().map(|device| device.to_dlpack());
    entry.set_item("devices", PyList::new(py, devices)?)?;
    entry.set_item("needs", call.needs())?;
    entry.set_item("copies", call.copies)?;
    let drops: Vec<_> = call.drops.iter().map(|drops| drops.name()).collect();
    entry.set_item("drops", drops)?;
    entry.set_item("takes_capsules", call.takes_capsules)?;
    Ok(entry)
}
