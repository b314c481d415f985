//! The one way in: which route an object takes, and the view that it becomes.
//!
//! | object | route |
//! |---|---|
//! | a view of ours | derived: the same owner, streams and consume block |
//! | a type with an exchange table | the table, unless `__dlpack__` must be asked instead |
//! | a capsule | claimed |
//! | a dict | the CUDA Array Interface, with `owner=` |
//! | anything else | CAI if the stream is known or nothing else is offered, else `__dlpack__` |

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyType};

use crate::protocol::rule::{Field, Rule, Violation};
use crate::python::call::options::{Check, Options};
use crate::python::capsule;
use crate::python::class::view::PyCaiView;
use crate::python::cpython::int::type_name;
use crate::python::cpython::names::keys;
use crate::python::import::cai::AllowStructs;
use crate::python::import::cai_dict::Numbers;
use crate::python::import::dlpack::DlpackArguments;
use crate::python::import::exchange::Imported;
use crate::python::import::known_types::Known;
use crate::python::import::traits::Traits;
use crate::python::import::{cai, dlpack, exchange, known_types};
use crate::view::CaiView;

/// Imports any array, a view of ours among them, for an export or an argument.
///
/// # Errors
/// Those of the route that is taken; `protocol-missing` if there is none; `descr-fields` for a struct.
#[inline]
pub(crate) fn import<'py>(
    object: &Bound<'py, PyAny>,
    options: &Options<'_, 'py>,
) -> PyResult<CaiView> {
    let known = known_types::known(object)?;
    if known.traits.intersects(Traits::OURS) {
        let this = object.cast::<PyCaiView>()?.get();
        this.check_array()?;
        own(this, object.py(), options)
    } else {
        foreign(object, known, options, AllowStructs::No).map(|found| found.view)
    }
}

/// Imports what is no view of ours.
///
/// # Errors
/// As [`import`].
#[inline(always)]
pub(crate) fn foreign<'py>(
    object: &Bound<'py, PyAny>,
    known: Known,
    options: &Options<'_, 'py>,
    structs: AllowStructs,
) -> PyResult<Imported> {
    if let Some(table) = known.table
        && let Some(found) = exchange::import(object, table, known.traits, options.producer)?
    {
        let view = amend(found.view, options)?;
        return Ok(Imported { view, ..found });
    }
    without_table(object, known, options, structs)
}

/// As [`foreign`], of an object whose type has no table, or whose table cannot export it.
///
/// # Errors
/// As [`import`].
#[inline(always)]
pub(crate) fn without_table<'py>(
    object: &Bound<'py, PyAny>,
    known: Known,
    options: &Options<'_, 'py>,
    structs: AllowStructs,
) -> PyResult<Imported> {
    if !known.traits.intersects(Traits::PLAIN) {
        if capsule::is_capsule(object) {
            let view = dlpack::import(object, DlpackArguments::default())?;
            return amend(view, options).map(Imported::plain);
        }
        if object.is_instance_of::<PyDict>() {
            return cai::import(object, options, structs);
        }
    }
    by_attributes(object, cai::attribute(object)?, options, structs)
}

/// As [`without_table`], once `__cuda_array_interface__` has been read.
///
/// # Errors
/// As [`import`].
#[inline(always)]
pub(crate) fn by_attributes<'py>(
    object: &Bound<'py, PyAny>,
    dict: Option<Bound<'py, PyAny>>,
    options: &Options<'_, 'py>,
    structs: AllowStructs,
) -> PyResult<Imported> {
    if let Some(dict) = dict {
        let mut numbers = Numbers::default();
        if let Some(usual) = cai::usual(&dict, options, &mut numbers)
            && (usual.knows_stream || options.producer.is_some() || !dlpack::speaks(object)?)
        {
            return cai::usual_view(object, usual, options).map(Imported::plain);
        }
        let read = cai::read(object, &dict, options)?;
        if read.knows_stream() || options.producer.is_some() || !dlpack::speaks(object)? {
            return cai::any(object, read, options, structs);
        }
    } else if !dlpack::speaks(object)? {
        return Err(speaks_nothing(object));
    }
    let ask = DlpackArguments {
        stream: options.producer,
        ..DlpackArguments::default()
    };
    amend(dlpack::import_speaking(object, ask)?, options).map(Imported::plain)
}

/// A view of a view: the same owner and streams.
///
/// # Errors
/// `scope-ended`; what the producer's table raises; the rules of the options.
pub(crate) fn own(
    this: &PyCaiView,
    py: Python<'_>,
    options: &Options<'_, '_>,
) -> PyResult<CaiView> {
    this.prepare(py)?;
    let view = this.view();
    // SAFETY: the same description of the same memory.
    let view = amend(unsafe { view.derive(view.descriptor().clone()) }, options)?;
    Ok(match options.producer {
        None => view,
        Some(producer) => view.with_ready(producer),
    })
}

#[cold]
fn speaks_nothing(object: &Bound<'_, PyAny>) -> PyErr {
    let name = &keys(object.py()).cai;
    if object.is_instance_of::<PyType>() || object.get_type().hasattr(name).unwrap_or(false) {
        return cai::missing(object);
    }
    Violation::new(
        Rule::ProtocolMissing,
        Field::Object,
        format_args!("an object of type {}", type_name(object)),
    )
    .into()
}

/// Applies the caller's options to a view that came by DLPack.
///
/// # Errors
/// The rules of the options.
#[inline(always)]
pub(crate) fn amend(view: CaiView, options: &Options<'_, '_>) -> PyResult<CaiView> {
    if options.keeps_view() {
        return Ok(view);
    }
    amend_given(view, options)
}

#[inline(never)]
fn amend_given(view: CaiView, options: &Options<'_, '_>) -> PyResult<CaiView> {
    // SAFETY: `dtype=`, `shape=` and the flag describe the very bytes that the view describes.
    let view = unsafe {
        view.try_map(|descriptor| {
            let descriptor = match (&options.shape, options.dtype) {
                (None, None) => descriptor,
                (None, Some(dtype)) => descriptor.with_dtype(dtype)?,
                (Some(shape), dtype) => {
                    let dtype = dtype.unwrap_or(descriptor.dtype());
                    descriptor.with_shape(dtype, shape)?
                }
            };
            Ok::<_, Violation>(match options.read_only {
                None => descriptor,
                Some(read_only) => descriptor.with_read_only(read_only),
            })
        })
    }?;
    match options.check {
        Check::Device => {}
        Check::Bounds => view.check_memory()?,
        Check::BoundsIfKnown => view.prove_memory()?,
    }
    Ok(match options.producer {
        None => view,
        Some(producer) => view.on_producer(producer),
    })
}
