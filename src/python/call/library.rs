//! Reads the argument that names a library, and the library's settings.

use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::{PyModule, PyString, PyType};

use crate::partners;
use crate::partners::{Call, PARTNERS, Partner, Refuses, Waits};
use crate::protocol::device::Device;
use crate::protocol::rule::{Field, Rule, Violation};
use crate::python::call::choice::text;
use crate::python::cpython::int::repr;
use crate::python::cpython::names::names;
use crate::python::cpython::new::new_str;
use crate::python::cpython::{getattr, release};

/// Finds the partner that an argument names: by its name, title or alias, by its module, or by a class of its arrays.
///
/// # Errors
/// `argument-type` for anything else; `argument-value` for what no partner has.
pub(crate) fn of(library: &Bound<'_, PyAny>, argument: &'static str) -> PyResult<&'static Partner> {
    let partner = if let Ok(class) = library.cast::<PyType>() {
        of_class(class)?
    } else if let Ok(module) = library.cast::<PyModule>() {
        partners::of_module(&module.name()?.to_string_lossy())
    } else {
        let name = text(library, argument, "a library: its name, module or class")?;
        name.and_then(|name| partners::find(&name))
    };
    partner.ok_or_else(|| unknown(library, argument).into())
}

/// Finds the partner in whose modules a class is.
///
/// # Errors
/// What the class raises.
pub(crate) fn of_class(class: &Bound<'_, PyType>) -> PyResult<Option<&'static Partner>> {
    let module = class.getattr(&names(class.py()).module)?;
    let module = module.cast::<PyString>().ok();
    Ok(module.and_then(|name| partners::of_module(&name.to_string_lossy())))
}

/// Builds the refusal of a library that the table of partners does not have.
#[cold]
pub(crate) fn unknown(library: &Bound<'_, PyAny>, argument: &'static str) -> Violation {
    let names: Vec<_> = PARTNERS.iter().map(|partner| partner.name).collect();
    Violation::new(
        Rule::ArgumentValue,
        Field::Argument(argument),
        repr(library),
    )
    .with_hint(format!("must be one of {}", names.join(", ")))
}

/// Returns a call as the library's user has set it now.
pub(crate) fn as_set(py: Python<'_>, call: &Call) -> Call {
    // A library that has not been imported, or lacks the setting, waits.
    let is_off = !call.waits_if.is_empty()
        && !release::dropping(|| is_on(py, call.waits_if).unwrap_or(true));
    call.with_waits(match is_off {
        true => Waits::Nobody,
        false => call.waits,
    })
}

/// Whether the library's user has set a setting; that of a library that has not been imported is not.
pub(crate) fn is_set(py: Python<'_>, setting: &str) -> bool {
    !setting.is_empty() && release::dropping(|| is_on(py, setting).unwrap_or(false))
}

/// Whether the library has been built for the device types of [`Call::by_build`]; `None` if it has not been imported, or
/// does not tell.
pub(crate) fn is_built(py: Python<'_>, call: &Call) -> Option<bool> {
    let is_built = || {
        let found = read(py, call.build).ok()?;
        let is_false = found.cast::<PyString>().is_ok_and(|text| text == "False");
        Some(!found.is_none() && !is_false)
    };
    (!call.build.is_empty()).then(|| release::dropping(is_built))?
}

/// Refuses memory that a library has not been built for, if it has been imported and tells.
///
/// # Errors
/// `transfer-refused`.
pub(crate) fn check_build(
    py: Python<'_>,
    partner: &Partner,
    call: &Call,
    device: Device,
) -> Result<(), Violation> {
    let is_by_build = call.by_build.contains(&device.device_type);
    match is_by_build && is_built(py, call) == Some(false) {
        true => Err(not_built(partner, call, device)),
        false => Ok(()),
    }
}

/// Builds the refusal of memory that a library has not been built for.
#[cold]
pub(crate) fn not_built(partner: &Partner, call: &Call, device: Device) -> Violation {
    let (name, device_type) = (partner.name, device.device_type);
    Violation::new(
        Rule::TransferRefused,
        Field::Argument("library"),
        format_args!("'{name}'"),
    )
    .with_hint(format!(
        "as it is installed, it takes no memory of device type {device_type}: {} tells",
        call.build
    ))
}

/// Builds the refusal of an array at which some versions of a library end the process.
#[cold]
pub(crate) fn aborts(partner: &Partner, refused: &Refuses) -> Violation {
    let (field, name) = (Field::Argument("library"), partner.name);
    Violation::new(Rule::TransferRefused, field, format_args!("'{name}'")).with_hint(format!(
        "it refuses {refused}, and some versions of it end the process instead: pass a copy in C order"
    ))
}

/// Reads a setting.
fn is_on(py: Python<'_>, setting: &str) -> PyResult<bool> {
    read(py, setting)?.is_truthy()
}

/// Reads an attribute of a module that has been imported, named with dots.
fn read<'py>(py: Python<'py>, setting: &str) -> PyResult<Bound<'py, PyAny>> {
    let mut names = setting.split('.');
    let module = new_str(py, names.next().unwrap_or_default())?;
    let Some(mut found) = getattr::imported(&module)? else {
        return Err(PyKeyError::new_err(module.unbind()));
    };
    for name in names {
        found = found.getattr(new_str(py, name)?)?;
    }
    Ok(found)
}
