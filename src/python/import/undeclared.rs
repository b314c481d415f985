//! Decides about data whose producer declares no stream: whether work can be pending on it at all, which stream it is
//! ordered after, whether a warning says so, and that a strict import refuses it.

use pyo3::prelude::*;

use crate::protocol::descriptor::Descriptor;
use crate::protocol::device::Device;
use crate::protocol::rule::{Field, Rule, Violation};
use crate::protocol::stream::{Platform, Stream};
use crate::python::call::options::Options;
use crate::python::class::view::PyCaiView;
use crate::python::cpython::int::type_name;
use crate::python::import::notice::{NAME_THE_STREAM, Notice, warn_of};
use crate::python::import::traits::Traits;
use crate::view::Streams;

/// The kind of a producer that has declared no stream.
#[derive(Clone, Copy, PartialEq)]
enum Silent {
    /// A library whose kernels run on a default stream.
    OnDefault,
    /// A library whose stream cannot be told.
    OnUnknown,
    /// A bare capsule: by DLPack, `stream=None` of the `__dlpack__` that made it is the legacy default stream.
    Capsule,
    /// A dict of version 0 to 2, of no library in the table: waiting for no stream is the rule of these versions.
    OldDict,
}

/// Returns the streams of an array whose dict names none. `traits` are those of its object or
/// owner; `is_declared`: version 3 of the interface, in which no stream means that the data is ready.
///
/// # Errors
/// `stream-undeclared` if the import is strict; the warning, if a filter makes it an error.
#[cold]
pub(crate) fn of_dict(
    object: &Bound<'_, PyAny>,
    descriptor: &Descriptor,
    traits: Traits,
    is_declared: bool,
    options: &Options<'_, '_>,
) -> PyResult<Streams> {
    let silent = match traits {
        _ if traits.intersects(Traits::SILENT_UNKNOWN) => Silent::OnUnknown,
        _ if traits.intersects(Traits::SILENT_LEGACY) => Silent::OnDefault,
        _ if is_declared => return Ok(Streams::here(Stream::None, Some(Stream::None))),
        _ => Silent::OldDict,
    };
    streams(object, descriptor, silent, options)
}

/// Returns the streams of an array whose producer uses no stream that it is asked for.
///
/// # Errors
/// Those of [`of_dict`].
#[cold]
pub(crate) fn of_deaf(
    object: &Bound<'_, PyAny>,
    descriptor: &Descriptor,
    options: &Options<'_, '_>,
) -> PyResult<Streams> {
    streams(object, descriptor, Silent::OnUnknown, options)
}

/// Returns the streams of a bare capsule.
///
/// # Errors
/// Those of [`of_dict`].
pub(crate) fn of_capsule(
    capsule: &Bound<'_, PyAny>,
    descriptor: &Descriptor,
    options: &Options<'_, '_>,
) -> PyResult<Streams> {
    streams(capsule, descriptor, Silent::Capsule, options)
}

/// Refuses a view that has ended; and one of undeclared order to a strict import that names no stream either. Other
/// imports keep its state.
///
/// # Errors
/// `scope-ended`, `stream-undeclared`.
#[inline(always)]
pub(crate) fn check_view(view: &Bound<'_, PyCaiView>, options: &Options<'_, '_>) -> PyResult<()> {
    view.get().check_alive()?;
    if view.get().view().is_undeclared() && options.producer.is_none() {
        return check(view, options);
    }
    Ok(())
}

fn streams(
    object: &Bound<'_, PyAny>,
    descriptor: &Descriptor,
    silent: Silent,
    options: &Options<'_, '_>,
) -> PyResult<Streams> {
    if is_ready(descriptor) {
        return Ok(Streams::here(Stream::None, Some(Stream::None)));
    }
    check(object, options)?;
    Ok(match silent {
        Silent::OnDefault => {
            Streams::undeclared(Stream::LegacyDefault, Some(Stream::LegacyDefault))
        }
        Silent::OnUnknown => {
            warn_of(object, Notice::StreamUnknown)?;
            Streams::undeclared(Stream::LegacyDefault, None)
        }
        Silent::Capsule => Streams::undeclared(Stream::LegacyDefault, None),
        Silent::OldDict => Streams::undeclared(Stream::None, None),
    })
}

/// Whether no work can be pending on the data: there is no element, or no stream that could reach the memory. Pinned and
/// managed memory is worked on by the streams of CUDA.
fn is_ready(descriptor: &Descriptor) -> bool {
    descriptor.data() == 0 || has_no_streams(descriptor.device())
}

/// Whether the device has no streams.
#[inline(always)]
pub(crate) fn has_no_streams(device: Device) -> bool {
    matches!(Platform::of(device), None | Some(Platform::Host))
}

/// Refuses an object whose order is undeclared to a strict import.
///
/// # Errors
/// `stream-undeclared` if the import is strict.
#[cold]
pub(super) fn check(object: &Bound<'_, PyAny>, options: &Options<'_, '_>) -> PyResult<()> {
    match options.is_strict(object.py())? {
        true => Err(refusal(object).into()),
        false => Ok(()),
    }
}

/// Builds the refusal of a strict import.
fn refusal(object: &Bound<'_, PyAny>) -> Violation {
    let kind = type_name(object);
    let found = format_args!("an object of type {kind}");
    Violation::new(Rule::StreamUndeclared, Field::Object, found).with_hint(NAME_THE_STREAM)
}
