//! Reads the argument that names a library.

use pyo3::prelude::*;

use crate::partners;
use crate::partners::{PARTNERS, Partner};
use crate::protocol::rule::{Field, Rule, Violation};
use crate::python::call::choice::text;
use crate::python::cpython::int::repr;

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
