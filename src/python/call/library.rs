//! Reads the argument that names a library, and the library's settings.

use pyo3::prelude::*;

use crate::partners;
use crate::partners::{Call, PARTNERS, Partner, Waits};
use crate::protocol::rule::{Field, Rule, Violation};
use crate::python::call::choice::text;
use crate::python::cpython::int::repr;
use crate::python::cpython::new::new_str;
use crate::python::cpython::release;

/// Finds the partner of a name, a title or an alias.
///
/// # Errors
/// `argument-type` for anything but a str, where `wanted` completes "must be"; `argument-value` for a name that no
/// partner has.
pub(crate) fn named(
    name: &Bound<'_, PyAny>,
    argument: &'static str,
    wanted: &str,
) -> PyResult<&'static Partner> {
    let text = text(name, argument, wanted)?;
    let partner = text.and_then(|text| partners::find(&text));
    partner.ok_or_else(|| unknown(name, argument).into())
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

/// Reads an attribute of a module that has been imported, named with dots.
fn is_on(py: Python<'_>, setting: &str) -> PyResult<bool> {
    let mut names = setting.split('.');
    let module = names.next().unwrap_or_default();
    let modules = py
        .import(new_str(py, "sys")?)?
        .getattr(new_str(py, "modules")?)?;
    let mut found = modules.get_item(new_str(py, module)?)?;
    for name in names {
        found = found.getattr(new_str(py, name)?)?;
    }
    found.is_truthy()
}
