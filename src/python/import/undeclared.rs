//! Decides about data whose producer declares no stream: it is ordered after the stream that the table of partners
//! assumes, warned of if the table cannot tell, and refused if the import is strict.

use pyo3::prelude::*;

use crate::protocol::device::Device;
use crate::protocol::rule::{Field, Rule, Violation};
use crate::protocol::stream::{Platform, Stream};
use crate::python::call::options::Options;
use crate::python::cpython::int::type_name;
use crate::python::cpython::warn::{Warning, warn};
use crate::python::import::notes;
use crate::python::import::traits::Traits;

/// Returns the ready stream and the producer's of an array whose dict names no stream; the second is `None` if it is
/// unknown. `is_declared`: version 3 of the interface, in which no stream means that the data is ready.
///
/// # Errors
/// `stream-undeclared` if the import is strict; the warning, if a filter makes it an error.
#[cold]
pub(crate) fn streams(
    object: &Bound<'_, PyAny>,
    traits: Traits,
    is_declared: bool,
    options: &Options<'_, '_>,
) -> PyResult<(Stream, Option<Stream>)> {
    if traits.intersects(Traits::SILENT_UNKNOWN) {
        return Ok((unknown(object, options)?, None));
    }
    if traits.intersects(Traits::SILENT_LEGACY) {
        check(object, options)?;
        return Ok((Stream::LegacyDefault, Some(Stream::LegacyDefault)));
    }
    if is_declared {
        return Ok((Stream::None, Some(Stream::None)));
    }
    // The library is not in the table: versions 0 to 2 have no stream, and waiting for none is their rule.
    check(object, options)?;
    Ok((Stream::None, None))
}

/// Warns that the stream of the data is unknown, and returns the one that is taken instead.
///
/// # Errors
/// `stream-undeclared` if the import is strict; the warning, if a filter makes it an error.
#[cold]
pub(crate) fn unknown(object: &Bound<'_, PyAny>, options: &Options<'_, '_>) -> PyResult<Stream> {
    check(object, options)?;
    let text = format!(
        "{} does not say which stream it works on: the legacy default stream is taken, which waits for no \
         non-blocking stream; {HINT} [{}]",
        type_name(object),
        Rule::StreamUndeclared.id(),
    );
    warn(object.py(), Warning::Stream, &text)?;
    Ok(Stream::LegacyDefault)
}

/// What the caller does about it.
const HINT: &str = "name the stream by producer_stream=, or None where nothing is pending";

/// # Errors
/// `stream-undeclared` if the import is strict.
fn check(object: &Bound<'_, PyAny>, options: &Options<'_, '_>) -> PyResult<()> {
    notes::note_undeclared(object);
    match options.is_strict(object.py())? {
        true => Err(refusal(object).into()),
        false => Ok(()),
    }
}

/// Builds the refusal of a strict import.
fn refusal(object: &Bound<'_, PyAny>) -> Violation {
    let kind = type_name(object);
    let found = format_args!("an object of type {kind}");
    Violation::new(Rule::StreamUndeclared, Field::Object, found).with_hint(HINT)
}

/// Whether the device has no streams.
#[inline(always)]
pub(crate) fn has_no_streams(device: Device) -> bool {
    matches!(
        Platform::from_device_type(device.device_type),
        None | Some(Platform::Host)
    )
}
