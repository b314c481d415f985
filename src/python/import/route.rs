//! Chooses the route by which an object is imported, and makes the view.
//!
//! | object | route |
//! |---|---|
//! | a `CaiView` | derived: the same owner, streams and consume block |
//! | a type with an exchange table | the table, unless `__dlpack__` must be called instead |
//! | a capsule | claimed |
//! | a dict | the CUDA Array Interface, with `owner=` |
//! | anything else | CAI if the stream is known or nothing else is offered, else `__dlpack__` |

use std::mem::MaybeUninit;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyType};

use crate::protocol::device::Device;
use crate::protocol::rule::{Field, Rule, Violation};
use crate::python::call::options::{Check, Options};
use crate::python::capsule;
use crate::python::class::beside::Beside;
use crate::python::class::view::PyCaiView;
use crate::python::cpython::int::type_name;
use crate::python::cpython::names::names;
use crate::python::cpython::recursion::Level;
use crate::python::cpython::release;
use crate::python::import::cai::AllowStructs;
use crate::python::import::cai_dict::Numbers;
use crate::python::import::dlpack::DlpackArguments;
use crate::python::import::known_types::TypeFacts;
use crate::python::import::traits::Traits;
use crate::python::import::{cai, dlpack, exchange, known_types};
use crate::view::{CaiView, Owner};

/// Imports any array, or derives from a `CaiView`, for an export or an argument.
///
/// # Errors
/// Those of the route; `protocol-missing` if there is none; `descr-fields` for a struct.
#[inline]
pub(crate) fn import<'py>(
    object: &Bound<'py, PyAny>,
    options: &Options<'_, 'py>,
) -> PyResult<CaiView> {
    let facts = known_types::facts_of(object)?;
    if facts.traits.intersects(Traits::OURS) {
        let this = object.cast::<PyCaiView>()?.get();
        this.check_array()?;
        this.prepare()?;
        return own(this.view().clone(), options);
    }
    let mut view = MaybeUninit::uninit();
    foreign(&mut view, object, facts, options, AllowStructs::No)?;
    // SAFETY: written: `foreign` has not failed.
    Ok(unsafe { view.assume_init() })
}

/// Imports an object that is no `CaiView`: writes the view unless it fails, and returns what stands beside it.
#[inline(always)]
pub(crate) fn foreign<'py>(
    memory: &mut MaybeUninit<CaiView>,
    object: &Bound<'py, PyAny>,
    facts: TypeFacts,
    options: &Options<'_, 'py>,
    structs: AllowStructs,
) -> PyResult<Beside> {
    if let Some(table) = facts.table
        && let Some(beside) =
            exchange::import(memory, object, table, facts.traits, options.producer)?
    {
        amend_written(memory, options)?;
        return Ok(beside);
    }
    without_table(memory, object, facts, options, structs)
}

/// Like [`foreign`], without the exchange table.
#[inline(never)]
fn without_table<'py>(
    memory: &mut MaybeUninit<CaiView>,
    object: &Bound<'py, PyAny>,
    facts: TypeFacts,
    options: &Options<'_, 'py>,
    structs: AllowStructs,
) -> PyResult<Beside> {
    let _level = Level::begin(object.py())?;
    if !facts.traits.intersects(Traits::PLAIN) {
        if capsule::is_capsule(object) {
            memory.write(amend(
                dlpack::import(object, DlpackArguments::default())?,
                options,
            )?);
            return Ok(Beside::default());
        }
        if object.is_instance_of::<PyDict>() {
            return cai::import(memory, object, options, structs);
        }
    }
    by_attributes(memory, object, cai::attribute(object)?, options, structs)
}

/// Like [`foreign`], with `__cuda_array_interface__` already read.
#[inline(always)]
pub(crate) fn by_attributes<'py>(
    memory: &mut MaybeUninit<CaiView>,
    object: &Bound<'py, PyAny>,
    dict: Option<Bound<'py, PyAny>>,
    options: &Options<'_, 'py>,
    structs: AllowStructs,
) -> PyResult<Beside> {
    if let Some(dict) = dict {
        let mut numbers = Numbers::default();
        if let Some(fast) = cai::read_fast(&dict, options, &mut numbers)
            && (fast.is_stream_known || options.producer.is_some() || !dlpack::has_dlpack(object)?)
        {
            memory.write(cai::view_fast(object, fast, options)?);
            return Ok(Beside::default());
        }
        let read = cai::read(object, &dict, options)?;
        if read.is_stream_known() || options.producer.is_some() || !dlpack::has_dlpack(object)? {
            return cai::import_parsed(memory, object, read, options, structs);
        }
    } else if !dlpack::has_dlpack(object)? {
        return Err(no_protocol(object));
    }
    let request = DlpackArguments {
        stream: options.producer,
        ..DlpackArguments::default()
    };
    memory.write(amend(dlpack::import_object(object, request)?, options)?);
    Ok(Beside::default())
}

/// Applies the caller's options to a view that was derived from a `CaiView`.
///
/// # Errors
/// The rules of the options.
pub(crate) fn own(view: CaiView, options: &Options<'_, '_>) -> PyResult<CaiView> {
    let view = amend(view, options)?;
    Ok(match options.producer {
        None => view,
        Some(producer) => view.with_ready(producer),
    })
}

#[cold]
fn no_protocol(object: &Bound<'_, PyAny>) -> PyErr {
    let name = &names(object.py()).cai;
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

/// Applies the caller's options to a view that was imported by DLPack, with its device and owner.
///
/// # Errors
/// The rules of the options.
#[inline(always)]
pub(crate) fn amend(view: CaiView, options: &Options<'_, '_>) -> PyResult<CaiView> {
    if options.keeps_view() {
        return Ok(view);
    }
    let mut memory = MaybeUninit::new(view);
    amend_given(&mut memory, options)?;
    // SAFETY: written by `new`; `amend_given`, which has not failed, keeps it written.
    Ok(unsafe { memory.assume_init() })
}

/// Like [`amend`], in place. Drops the view if it fails.
#[inline(always)]
fn amend_written(memory: &mut MaybeUninit<CaiView>, options: &Options<'_, '_>) -> PyResult<()> {
    if options.keeps_view() {
        return Ok(());
    }
    amend_given(memory, options)
}

#[inline(never)]
fn amend_given(memory: &mut MaybeUninit<CaiView>, options: &Options<'_, '_>) -> PyResult<()> {
    if !options.keeps_elements() || options.read_only.is_some() {
        // SAFETY: written by both callers; moved out once, and written again unless `redescribe` drops it and fails.
        memory.write(redescribe(unsafe { memory.assume_init_read() }, options)?);
    }
    // SAFETY: written by both callers, and again above.
    let amended = amend_in_place(unsafe { memory.assume_init_mut() }, options);
    if amended.is_err() {
        // SAFETY: written, and not used after an error.
        unsafe { memory.assume_init_drop() };
    }
    amended
}

fn amend_in_place(view: &mut CaiView, options: &Options<'_, '_>) -> PyResult<()> {
    let device = view.device();
    if let Some(device_id) = options.device_id
        && device.device_type == Device::CUDA
        && device.id != device_id
    {
        let field = Field::Argument("device_id");
        let violation = Violation::new(Rule::PointerDevice, field, device_id);
        return Err(violation
            .with_hint(format!("the array is on device {}", device.id))
            .into());
    }
    match options.check {
        Check::Device => {}
        Check::Bounds => view.check_memory()?,
        Check::BoundsIfKnown => view.prove_memory()?,
    }
    if let Some(owner) = options.owner {
        view.keep_beside(Owner::from_raw(release::own(owner.to_owned())?));
    }
    if let Some(producer) = options.producer {
        view.set_producer(producer);
    }
    Ok(())
}

/// Describes the same bytes by the caller's type, shape and flag.
fn redescribe(view: CaiView, options: &Options<'_, '_>) -> PyResult<CaiView> {
    // SAFETY: `with_dtype`, `with_shape` and the flag describe the bytes of the view, and no others.
    unsafe {
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
    }
    .map_err(PyErr::from)
}
