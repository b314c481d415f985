//! Chooses the route by which an object is imported, and makes the view.
//!
//! | object | route |
//! |---|---|
//! | a `CaiView` | derived: the same owner, streams and consume block |
//! | a type with an exchange table | the table, unless `__dlpack__` must be called instead |
//! | a capsule | claimed |
//! | a dict | the CUDA Array Interface, with `owner=` |
//! | anything else | CAI if it declares the stream or nothing else is offered, and a driver names the device; else `__dlpack__` |
//! | a NumPy array that its `__dlpack__` refuses | `__array_interface__` |
//! | an array of CAI alone, or a capsule, of which `from_dlpack` is asked for a copy | as above, and the copy of its view |
//!
//! A masked array of NumPy is refused, unless it has no mask.

use std::mem::MaybeUninit;

use pyo3::exceptions::{PyRecursionError, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyType};

use crate::protocol::descriptor::Descriptor;
use crate::protocol::device::{Access, Device, Flags};
use crate::protocol::rule::{Field, Rule, Violation};
use crate::protocol::stream::Stream;
use crate::python::call::device;
use crate::python::call::options::{Check, Options};
use crate::python::capsule;
use crate::python::capsule::Claimed;
use crate::python::class::beside::Beside;
use crate::python::class::view::{PyCaiView, follow, kept};
use crate::python::cpython::errors;
use crate::python::cpython::int::type_name;
use crate::python::cpython::names::names;
use crate::python::cpython::recursion::Level;
use crate::python::cpython::release;
use crate::python::export::dlpack::not_copied_to;
use crate::python::import::cai::AllowCaiOnly;
use crate::python::import::cai_dict::{FastDict, ManyNumbers, Numbers, Values};
use crate::python::import::dlpack::{DlpackArguments, Offer};
use crate::python::import::known_types::TypeFacts;
use crate::python::import::notice::warn_of;
use crate::python::import::traits::Traits;
use crate::python::import::{
    another_copy, array_interface, cai, cai_dict, dlpack, exchange, known_types, masked_array,
    state, undeclared, why_not,
};
use crate::view;
use crate::view::{CaiView, Owner, Transfer};

/// Imports any array, or derives from a `CaiView`, for an argument.
///
/// # Errors
/// Those of the route; `protocol-missing` if there is none; `descr-fields` for a struct.
#[inline]
pub(crate) fn import<'py>(
    object: &Bound<'py, PyAny>,
    options: &Options<'_, 'py>,
) -> PyResult<CaiView> {
    let (view, may_have_moved) = import_unordered(object, options)?;
    if may_have_moved {
        follow(&view)?;
    }
    Ok(view)
}

/// As [`import`], without the wait for a producer that has moved, which the caller makes when nothing is refused any more;
/// with whether it may have: the view is of another one, or its state is that of one that is the `owner=`.
///
/// # Errors
/// Those of [`import`].
#[inline(always)]
pub(crate) fn import_unordered<'py>(
    object: &Bound<'py, PyAny>,
    options: &Options<'_, 'py>,
) -> PyResult<(CaiView, bool)> {
    let facts = known_types::facts_of(object)?;
    if facts.traits.intersects(Traits::OURS) {
        let view = object.cast::<PyCaiView>()?;
        let this = view.get();
        if options.keeps_elements() {
            this.check_array()?;
        }
        undeclared::check_view(view, options)?;
        return Ok((own(this.lend(object.py())?, options)?, true));
    }
    let mut view = MaybeUninit::uninit();
    let facts = facts.unordered();
    foreign(&mut view, object, facts, options, AllowCaiOnly::No)?;
    // SAFETY: written: `foreign` has not failed.
    let view = unsafe { view.assume_init() };
    let is_a_views = facts.traits.intersects(Traits::ANOTHER_COPY) || options.owner.is_some();
    Ok((view, is_a_views))
}

/// Imports an object that is no `CaiView`: writes the view unless it fails, and returns what stands beside it.
#[inline(always)]
pub(crate) fn foreign<'py>(
    memory: &mut MaybeUninit<CaiView>,
    object: &Bound<'py, PyAny>,
    facts: TypeFacts,
    options: &Options<'_, 'py>,
    allow: AllowCaiOnly,
) -> PyResult<Beside> {
    foreign_seen(memory, object, facts, options, allow, || ())
}

/// Like [`foreign`]; calls `by_table` if the table has returned a tensor.
#[inline(always)]
pub(crate) fn foreign_seen<'py>(
    memory: &mut MaybeUninit<CaiView>,
    object: &Bound<'py, PyAny>,
    facts: TypeFacts,
    options: &Options<'_, 'py>,
    allow: AllowCaiOnly,
    by_table: impl FnOnce(),
) -> PyResult<Beside> {
    if let Some(table) = facts.table {
        match exchange::import(memory, object, table, facts.traits, options) {
            Ok(Some(beside)) => {
                by_table();
                amend_written(memory, options)?;
                return Ok(beside);
            }
            Ok(None) => {}
            Err(error) => return after_failure(memory, object, facts, options, error),
        }
    }
    without_table(memory, object, facts, options, allow)
}

/// Imports by `__dlpack__` if the table has failed by `RuntimeError`, into which C++ turns every exception of the
/// producer (torch: with a backtrace of C++): the method raises the producer's own, or returns the array.
#[cold]
#[inline(never)]
fn after_failure(
    memory: &mut MaybeUninit<CaiView>,
    object: &Bound<'_, PyAny>,
    facts: TypeFacts,
    options: &Options<'_, '_>,
    error: PyErr,
) -> PyResult<Beside> {
    let py = object.py();
    // A `RecursionError` is one too, and would be raised again: twice as often on each level.
    let is_vague =
        error.is_instance_of::<PyRuntimeError>(py) && !error.is_instance_of::<PyRecursionError>(py);
    if !is_vague || !facts.traits.intersects(Traits::HAS_DLPACK) {
        return Err(error);
    }
    release::drop_now(error);
    let _level = Level::begin(py)?;
    let offer = dlpack::offer_of_object(
        object,
        facts.traits,
        &request(options),
        options,
        Access::Unknown,
    )?;
    claim(memory, offer, options)?;
    Ok(Beside::default())
}

/// Requests the array of `__dlpack__` on the caller's producer stream.
#[inline(always)]
fn request(options: &Options<'_, '_>) -> DlpackArguments {
    DlpackArguments {
        stream: options.producer,
        is_producers: true,
        ..DlpackArguments::default()
    }
}

/// Requests the array on its own device, for a request of another one.
fn own_request(asked: &DlpackArguments, options: &Options<'_, '_>) -> DlpackArguments {
    DlpackArguments {
        copy: asked.copy.filter(|copy| !copy),
        ..request(options)
    }
}

/// Like [`foreign`], without the exchange table.
#[inline(never)]
fn without_table<'py>(
    memory: &mut MaybeUninit<CaiView>,
    object: &Bound<'py, PyAny>,
    facts: TypeFacts,
    options: &Options<'_, 'py>,
    allow: AllowCaiOnly,
) -> PyResult<Beside> {
    let _level = Level::begin(object.py())?;
    if !facts.traits.intersects(Traits::PLAIN) {
        if facts.traits.intersects(Traits::MASKED) {
            masked_array::check(object)?;
        }
        if capsule::is_capsule(object) {
            let offer = dlpack::offer_of_capsule(object, &request(options), options)?;
            claim(memory, offer, options)?;
            return Ok(Beside::default());
        }
        if object.is_instance_of::<PyDict>() {
            return cai::import(memory, object, facts.traits, options, allow);
        }
        state::check_values(object, facts.traits)?;
        if let Some(view) = cai::by_fields(object, facts.traits, options)? {
            memory.write(view);
            return Ok(Beside::default());
        }
        if facts.traits.intersects(Traits::ANOTHER_COPY)
            && let Some(beside) = of_another_copy(memory, object, facts.traits, options, allow)?
        {
            return Ok(beside);
        }
    }
    let dict = cai::attribute(object)?;
    let beside = by_attributes(memory, object, facts.traits, dict, options, allow)?;
    if options.owner.is_some() {
        // Its state may be that of the view that is its `owner=`.
        // SAFETY: written: `by_attributes` has not failed.
        unsafe { cai::finished(memory, |view| another_copy::wait(view, facts.traits)) }?;
    }
    Ok(beside)
}

/// Imports the view of another copy by its dict, or else by `__dlpack__`, neither of which makes anything wait; with the
/// streams that it has passed, or the one that the caller has named. `None`, with nothing done, if it has passed none.
///
/// # Errors
/// Those of the routes and of [`another_copy::wait`]; the driver's, if it is asked for the memory's context.
#[cold]
fn of_another_copy<'py>(
    memory: &mut MaybeUninit<CaiView>,
    object: &Bound<'py, PyAny>,
    traits: Traits,
    options: &Options<'_, 'py>,
    allow: AllowCaiOnly,
) -> PyResult<Option<Beside>> {
    let passed = another_copy::streams_of(object, traits, options)?;
    if passed.is_none() && options.producer.is_none() {
        return Ok(None);
    }
    let beside = match cai::unordered(object)? {
        Some(dict) => by_attributes(memory, object, traits, Some(dict), options, allow)?,
        None => {
            let request = DlpackArguments::UNORDERED;
            let offer =
                dlpack::offer_of_object(object, traits, &request, options, Access::Unknown)?;
            claim(memory, offer, options)?;
            Beside::default()
        }
    };
    let finish = |view: &mut CaiView| {
        if let Some(passed) = passed {
            view.take_streams(passed)?;
        } else if let Some(producer) = options.producer {
            // Where the data is ready is the caller's word.
            *view = view.clone().declared_on(producer);
        }
        another_copy::wait(view, traits)
    };
    // SAFETY: written: the routes have not failed.
    unsafe { cai::finished(memory, finish) }?;
    Ok(Some(beside))
}

/// Like [`foreign`], with `__cuda_array_interface__` already read.
#[inline(always)]
pub(crate) fn by_attributes<'py>(
    memory: &mut MaybeUninit<CaiView>,
    object: &Bound<'py, PyAny>,
    traits: Traits,
    dict: Option<Bound<'py, PyAny>>,
    options: &Options<'_, 'py>,
    allow: AllowCaiOnly,
) -> PyResult<Beside> {
    match by_dict_or_dlpack(memory, object, traits, dict.as_ref(), options, allow) {
        Ok(beside) => Ok(beside),
        Err(error) => without_driver(memory, object, traits, dict.as_ref(), options, error),
    }
}

/// Imports by `__dlpack__`, which states the device, if the interface was refused because there is no driver to ask.
///
/// # Errors
/// `error`, if that is not so, or the object has no `__dlpack__`.
#[cold]
#[inline(never)]
fn without_driver<'py>(
    memory: &mut MaybeUninit<CaiView>,
    object: &Bound<'py, PyAny>,
    traits: Traits,
    dict: Option<&Bound<'py, PyAny>>,
    options: &Options<'_, 'py>,
    error: PyErr,
) -> PyResult<Beside> {
    let asks_for_device = options.device.is_none() && options.check != Check::Bounds;
    let (Some(dict), true) = (
        dict,
        asks_for_device && errors::is_of_no_driver(object.py(), &error),
    ) else {
        return Err(error);
    };
    if !dlpack::has_dlpack(object, traits)? {
        return Err(error);
    }
    release::drop_now(error);
    let stated = stated_in(dict)?;
    let offer = dlpack::offer_of_object(object, traits, &request(options), options, stated)?;
    claim(memory, offer, options)?;
    Ok(Beside::default())
}

/// Imports by the interface if that suffices, else by `__dlpack__`.
#[inline(always)]
fn by_dict_or_dlpack<'py>(
    memory: &mut MaybeUninit<CaiView>,
    object: &Bound<'py, PyAny>,
    traits: Traits,
    dict: Option<&Bound<'py, PyAny>>,
    options: &Options<'_, 'py>,
    allow: AllowCaiOnly,
) -> PyResult<Beside> {
    let mut stated = Access::Unknown;
    if let Some(dict) = dict {
        let (mut values, mut numbers) = (Values::none(), Numbers::default());
        match cai::read_fast(dict, options, &mut values, &mut numbers) {
            Some(fast) if suffices(object, traits, &fast, options)? => {
                memory.write(cai::view_fast(object, fast, options)?);
                return Ok(Beside::default());
            }
            Some(_) => {}
            None => {
                // SAFETY: `dict` lives, and no Python code has run since it was read.
                if unsafe { by_any_form(memory, object, traits, &values, options) }? {
                    return Ok(Beside::default());
                }
            }
        }
        let read = cai::read(object, dict, options)?;
        if is_declared(traits, read.interface.stream(), read.is_stream_known())
            || options.producer.is_some()
            || !dlpack::has_dlpack(object, traits)?
        {
            return cai::import_parsed(memory, object, read, options, allow);
        }
        stated = read.access;
    } else if !dlpack::has_dlpack(object, traits)? {
        return Err(no_protocol(object));
    }
    match dlpack::offer_of_object(object, traits, &request(options), options, stated) {
        Ok(offer) => claim(memory, offer, options)?,
        Err(refused) => return by_array_interface(memory, object, refused, options, allow),
    };
    Ok(Beside::default())
}

/// Writes the view of a dict that is not of the plain form, and warns of it; returns whether it has, or the dict must be
/// read in full: also by a strict import, which refuses some of what others warn of.
///
/// # Safety
/// Those of [`Values::read_any_form`].
#[cold]
#[inline(never)]
unsafe fn by_any_form<'py>(
    memory: &mut MaybeUninit<CaiView>,
    object: &Bound<'py, PyAny>,
    traits: Traits,
    values: &Values,
    options: &Options<'_, 'py>,
) -> PyResult<bool> {
    let mut numbers: ManyNumbers = [0; size_of::<ManyNumbers>() / size_of::<i64>()];
    // SAFETY: this function's contract.
    let read = unsafe { values.read_any_form(object.py(), &mut numbers) };
    let Some((fast, notice)) = read else {
        return Ok(false);
    };
    if !suffices(object, traits, &fast, options)? {
        return Ok(false);
    }
    if let Some(notice) = notice {
        if options.is_strict(object.py())? {
            return Ok(false);
        }
        warn_of(object, notice)?;
    }
    memory.write(cai::view_fast(object, fast, options)?);
    Ok(true)
}

/// Whether the dict is imported, though there may be a `__dlpack__`.
#[inline(always)]
fn suffices(
    object: &Bound<'_, PyAny>,
    traits: Traits,
    fast: &FastDict<'_>,
    options: &Options<'_, '_>,
) -> PyResult<bool> {
    Ok(is_declared(traits, fast.stream, fast.is_stream_known)
        || options.producer.is_some()
        || !dlpack::has_dlpack(object, traits)?)
}

/// Whether a dict is all that is needed to know what to wait for; else `__dlpack__` is called, if there is one.
#[inline(always)]
pub(crate) fn is_declared(traits: Traits, stream: Stream, is_stream_known: bool) -> bool {
    is_stream_known && !(stream == Stream::None && traits.intersects(Traits::SILENT_UNKNOWN))
}

/// Imports what NumPy's `__dlpack__` has refused.
#[cold]
fn by_array_interface<'py>(
    memory: &mut MaybeUninit<CaiView>,
    object: &Bound<'py, PyAny>,
    refused: PyErr,
    options: &Options<'_, 'py>,
    allow: AllowCaiOnly,
) -> PyResult<Beside> {
    let (mut view, beside) = array_interface::import(object, refused, options, allow)?;
    complete(&mut view, options)?;
    memory.write(view);
    Ok(beside)
}

/// Applies the caller's options to a view that was derived from a `CaiView`.
///
/// # Errors
/// The rules of the options.
pub(crate) fn own(view: CaiView, options: &Options<'_, '_>) -> PyResult<CaiView> {
    let view = amend(view, options)?;
    Ok(match options.producer {
        None => view,
        Some(producer) => view.declared_on(producer),
    })
}

#[cold]
fn no_protocol(object: &Bound<'_, PyAny>) -> PyErr {
    let name = &names(object.py()).cai;
    if object.is_instance_of::<PyType>() || object.get_type().hasattr(name).unwrap_or(false) {
        return cai::missing(object);
    }
    let kind = type_name(object);
    let found = format_args!("an object of type {kind}");
    let violation = Violation::new(Rule::ProtocolMissing, Field::Object, found);
    const ARRAY: &str = "__array_interface__";
    if object.get_type().hasattr(ARRAY).unwrap_or(false) {
        let hint = "np.asarray(obj) makes an array of its __array_interface__, which is taken";
        return errors::absent(violation.with_hint(hint), object, ARRAY);
    }
    why_not::with_type_hint(violation, object)
}

/// Imports by `__dlpack__`, or a capsule: writes the view unless it fails. What the object's interface states about
/// writing is merged, as [`by_attributes`] merges it.
///
/// # Errors
/// The rules of DLPack and of the options, with the capsule as it was; the exceptions of the producer.
#[inline(always)]
pub(crate) fn by_dlpack<'py>(
    memory: &mut MaybeUninit<CaiView>,
    object: &Bound<'py, PyAny>,
    request: &DlpackArguments,
    options: &Options<'_, 'py>,
) -> PyResult<()> {
    let offer = if capsule::is_capsule(object) {
        let is_elsewhere = is_elsewhere(object, request)?;
        if is_elsewhere || request.copy == Some(true) {
            return by_view_of_capsule(memory, object, is_elsewhere, request, options);
        }
        dlpack::offer_of_capsule(object, request, options)?
    } else {
        let facts = known_types::facts_of(object)?;
        if facts.traits.intersects(Traits::MASKED) {
            masked_array::check(object)?;
        }
        if !facts.traits.intersects(Traits::HAS_DLPACK)
            && (request.device.is_some() || request.copy == Some(true))
            && !dlpack::has_dlpack(object, facts.traits)?
        {
            return by_view(memory, object, request, options);
        }
        dlpack::check_has_dlpack(object, facts.traits)?;
        let is_view = facts.traits.intersects(Traits::OURS | Traits::ANOTHER_COPY);
        if is_view && is_described_first(object, facts, request, options)? {
            return by_derived(memory, object, request, options);
        }
        if options.producer.is_some() && is_transferred(object, request, options)? {
            return by_producers_stream(memory, object, facts, request, options);
        }
        match offer_of_object(object, facts, request, options) {
            Ok(offer) => offer,
            Err(refused) => match transferred(object, facts, &refused, request, options)? {
                Some(offer) => {
                    release::drop_now(refused);
                    offer
                }
                None => {
                    memory.write(refused_by_numpy(object, refused, request, options)?);
                    return Ok(());
                }
            },
        }
    };
    match request.consumer {
        None => claim(memory, offer, options),
        Some(consumer) => claim_for(object.py(), memory, offer, consumer, options),
    }
}

/// Whether a view, of this library or of another copy, has to be described, and refused, before anything waits. One of another
/// copy that is asked for as the CPU's too: its tensor would say that no stream works on the memory, which is so of what
/// was copied alone.
///
/// # Errors
/// Those of [`dlpack::announced_device`]; those of [`another_copy::streams_of`] to a strict import of a view that keeps its
/// description.
#[cold]
fn is_described_first(
    object: &Bound<'_, PyAny>,
    facts: TypeFacts,
    request: &DlpackArguments,
    options: &Options<'_, '_>,
) -> PyResult<bool> {
    if !options.keeps_view() {
        return Ok(true);
    }
    if !facts.traits.intersects(Traits::ANOTHER_COPY) {
        return Ok(false);
    }
    let wanted = match request.device {
        None => dlpack::announced_device(object)?,
        Some(wanted) => wanted,
    };
    if wanted == Device::HOST {
        return Ok(true);
    }
    if options.is_strict(object.py())? {
        another_copy::streams_of(object, facts.traits, options)?;
    }
    Ok(false)
}

/// Like [`claim`], of a tensor that is ready on the producer's stream: the consumer's waits for it before it is taken.
///
/// # Errors
/// Those of [`decide`] and [`Offer::order`], with the capsule as it was.
#[cold]
fn claim_for(
    py: Python<'_>,
    memory: &mut MaybeUninit<CaiView>,
    mut offer: Offer<'_>,
    consumer: Stream,
    options: &Options<'_, '_>,
) -> PyResult<()> {
    decide(&mut offer, options)?;
    offer.order(py, consumer)?;
    claim_decided(memory, offer, options)
}

/// Asks a view of the object's tensor for it on another device, if the producer has refused that device; `None` if it has
/// refused something else, or the view does not get there either.
///
/// # Errors
/// Those of [`offer_of_object`], without the device, and of [`offer_of_view`].
#[cold]
fn transferred<'py>(
    object: &Bound<'py, PyAny>,
    facts: TypeFacts,
    refused: &PyErr,
    request: &DlpackArguments,
    options: &Options<'_, 'py>,
) -> PyResult<Option<Offer<'py>>> {
    let py = object.py();
    let Some(wanted) = request.device else {
        return Ok(None);
    };
    if facts.traits.intersects(Traits::OURS) || !dlpack::is_refused_device(py, refused) {
        return Ok(None);
    }
    let plain = plain(options);
    let own = own_request(request, &plain);
    let view = match offer_of_object(object, facts, &own, &plain) {
        Ok(mut offer) => {
            decide(&mut offer, &plain)?;
            claim_view(offer, &plain)?
        }
        // It was not the device that the producer has refused.
        Err(refused) => refused_by_numpy(object, refused, &own, &plain)?,
    };
    let (own, flags) = (view.device(), view.descriptor().flags());
    let is_shared =
        own.is_host_readable() && wanted == Device::HOST && !flags.contains(Flags::IS_COPIED);
    if own == wanted || request.copy == Some(false) && !is_shared || !device::gets_to(own, wanted)?
    {
        return Ok(None);
    }
    let view = PyCaiView::new(view).into_object(py)?;
    let (facts, request) = (known_types::facts_of(&view)?, request.without_producer());
    offer_of_view(&view, facts, &request, options, Access::Unknown).map(Some)
}

/// Imports an array that has no `__dlpack__` to ask for a copy, and asks its view.
///
/// # Errors
/// Those of [`import`] and [`offer_of_view`].
#[cold]
fn by_view<'py>(
    memory: &mut MaybeUninit<CaiView>,
    object: &Bound<'py, PyAny>,
    request: &DlpackArguments,
    options: &Options<'_, 'py>,
) -> PyResult<()> {
    let view = PyCaiView::new(import(object, options)?).into_object(object.py())?;
    of_view(memory, &view, request, &of_copy(options))
}

/// Derives a view of a view, of this library or of another copy, by the caller's options, and asks that for its data.
///
/// # Errors
/// Those of [`import_unordered`] and [`offer_of_view`].
#[cold]
fn by_derived<'py>(
    memory: &mut MaybeUninit<CaiView>,
    object: &Bound<'py, PyAny>,
    request: &DlpackArguments,
    options: &Options<'_, 'py>,
) -> PyResult<()> {
    // The export makes the wait for a producer that has moved; there is none if the caller has named where the data is ready.
    let (view, _) = import_unordered(object, options)?;
    let is_there = request.device.is_none_or(|wanted| wanted == view.device());
    // It is ready on the producer's stream.
    let is_ready = options.producer.is_some() && request.consumer.is_none();
    if is_there && is_ready && request.copy != Some(true) {
        memory.write(view);
        return Ok(());
    }
    let view = PyCaiView::new(view).into_object(object.py())?;
    of_view(memory, &view, request, &of_copy(options))
}

/// The options of an array whose copy they are to describe.
fn plain<'a, 'py>(options: &Options<'a, 'py>) -> Options<'a, 'py> {
    Options {
        producer: options.producer,
        strict: options.strict,
        ..Options::default()
    }
}

/// The options of a copy of an array that they have described.
fn of_copy<'a, 'py>(options: &Options<'a, 'py>) -> Options<'a, 'py> {
    Options {
        producer: options.producer,
        read_only: options.read_only,
        ..Options::default()
    }
}

/// Whether an array that has `__dlpack__` is wanted on another device than its own, to which this package gets. The producer's
/// stream is of its own device, and so no stream to ask for the copy on.
///
/// # Errors
/// Those of [`dlpack::announced_device`]; the driver's.
#[cold]
fn is_transferred(
    object: &Bound<'_, PyAny>,
    request: &DlpackArguments,
    options: &Options<'_, '_>,
) -> PyResult<bool> {
    let Some(wanted) = request.device else {
        return Ok(false);
    };
    // A producer may share with another device; for the CPU it has no stream to be asked on.
    let has_no_stream = wanted == Device::HOST && options.producer != Some(Stream::None);
    if request.copy == Some(false) && !has_no_stream {
        return Ok(false);
    }
    let own = dlpack::announced_device(object)?;
    Ok(!dlpack::is_of(own, wanted) && device::gets_to(own, wanted)?)
}

/// Imports an array by `__dlpack__` on the producer's stream, and asks its view for a copy, which the options describe, as they
/// do that of the producer.
///
/// # Errors
/// Those of [`offer_of_object`] and [`offer_of_view`].
#[cold]
fn by_producers_stream<'py>(
    memory: &mut MaybeUninit<CaiView>,
    object: &Bound<'py, PyAny>,
    facts: TypeFacts,
    request: &DlpackArguments,
    options: &Options<'_, 'py>,
) -> PyResult<()> {
    let plain = plain(options);
    let mut offer = offer_of_object(object, facts, &own_request(request, &plain), &plain)?;
    decide(&mut offer, &plain)?;
    let view = PyCaiView::new(claim_view(offer, &plain)?).into_object(object.py())?;
    of_view(memory, &view, request, options)
}

/// Takes what a view, which is ready on the options' producer stream if they name one, answers to a request for a copy, or for
/// another stream or device.
///
/// # Errors
/// Those of [`offer_of_view`].
fn of_view<'py>(
    memory: &mut MaybeUninit<CaiView>,
    view: &Bound<'py, PyCaiView>,
    request: &DlpackArguments,
    options: &Options<'_, 'py>,
) -> PyResult<()> {
    let rest = Options {
        producer: None,
        ..options.clone()
    };
    let (facts, request) = (known_types::facts_of(view)?, request.without_producer());
    let mut offer = offer_of_view(view, facts, &request, &rest, Access::Unknown)?;
    let made = &offer.tensor.descriptor;
    let is_copied = made.flags().contains(Flags::IS_COPIED);
    if let Some(producer) = options.producer
        && !is_copied
        && made.device() == view.get().view().device()
    {
        offer.set_producer(producer);
    }
    claim(memory, offer, &rest)
}

/// Whether the tensor of a capsule is on another device than the one that is asked for, and may be copied there.
fn is_elsewhere(capsule: &Bound<'_, PyAny>, request: &DlpackArguments) -> PyResult<bool> {
    let Some(wanted) = request.device else {
        return Ok(false);
    };
    let own = capsule::read(capsule.clone())?.descriptor.device();
    Ok(!dlpack::is_of(own, wanted))
}

/// Takes the tensor of a capsule, which has no producer to ask for a copy, and asks its view. Puts it back if that fails.
///
/// # Errors
/// Those of [`dlpack::offer_of_capsule`] and [`offer_of_view`].
#[cold]
fn by_view_of_capsule<'py>(
    memory: &mut MaybeUninit<CaiView>,
    capsule: &Bound<'py, PyAny>,
    is_elsewhere: bool,
    request: &DlpackArguments,
    options: &Options<'_, 'py>,
) -> PyResult<()> {
    // The stream of a copy on another device is of that one.
    let own = match is_elsewhere {
        true => own_request(request, options),
        false => DlpackArguments {
            copy: None,
            device: None,
            ..*request
        },
    };
    let mut offer = dlpack::offer_of_capsule(capsule, &own, options)?;
    decide(&mut offer, options)?;
    let (view, taken) = take(offer, options)?;
    let copied = PyCaiView::new(view)
        .into_object(capsule.py())
        .and_then(|view| of_view(memory, &view, request, &of_copy(options)));
    if copied.is_err() {
        taken.restore();
    }
    copied
}

#[inline(always)]
fn offer_of_object<'py>(
    object: &Bound<'py, PyAny>,
    facts: TypeFacts,
    request: &DlpackArguments,
    options: &Options<'_, '_>,
) -> PyResult<Offer<'py>> {
    let stated = match facts.table {
        // As in `foreign_seen`: a type with a table is not asked for its interface.
        Some(_) => Access::Unknown,
        None => stated(object, facts.traits)?,
    };
    if facts.traits.intersects(Traits::OURS) {
        return offer_of_view(object.cast()?, facts, request, options, stated);
    }
    dlpack::offer_of_object(object, facts.traits, request, options, stated)
}

/// Asks a view for its tensor, which says less than the view: unknown access is exported as read-only, and undeclared
/// order as ready on the stream that was asked for.
fn offer_of_view<'py>(
    view: &Bound<'py, PyCaiView>,
    facts: TypeFacts,
    request: &DlpackArguments,
    options: &Options<'_, '_>,
    stated: Access,
) -> PyResult<Offer<'py>> {
    undeclared::check_view(view, options)?;
    if let Some(wanted) = request.device {
        // By the name of the caller's argument, which `__dlpack__` has another one for.
        let own = view.get().view().device();
        let device = device::exported(own, wanted, |hint| refused_device(wanted, hint))?;
        let descriptor = view.get().view().descriptor();
        let is_refused = match device {
            _ if device == own => false,
            Device::HOST => !own.is_host_readable() && !Transfer::can_copy_to_host(descriptor),
            _ => !Transfer::can_copy_to(descriptor, device),
        };
        if is_refused && request.copy.is_none() && descriptor.cai_only().is_none() {
            let field = Field::Argument("device");
            return Err(not_copied_to(field, wanted, descriptor.borrowed()).into());
        }
    }
    let mut offer = dlpack::offer_of_object(view, facts.traits, request, options, stated)?;
    let own = view.get().view();
    let descriptor = &mut offer.tensor.descriptor;
    if !descriptor.flags().contains(Flags::IS_COPIED) {
        descriptor.set_access(own.descriptor().access());
        if descriptor.device() == Device::HOST {
            // The host has waited. The next writer's stream stays the view's: a device may reach the memory.
            let streams = own.streams_by(descriptor.device())?;
            offer.set_streams(streams.waited());
        }
    }
    if own.is_undeclared() && options.producer.is_none() {
        offer.set_undeclared();
    }
    Ok(offer)
}

/// Builds the refusal of the argument `device`.
#[cold]
fn refused_device(wanted: Device, hint: String) -> Violation {
    let pair = wanted.to_dlpack();
    let field = Field::Argument("device");
    Violation::new(Rule::TransferRefused, field, format_args!("{pair:?}")).with_hint(hint)
}

/// Returns what the object's interface states about writing; unknown if it has none, or one that cannot be read: that
/// is no reason to refuse what comes by DLPack.
///
/// # Errors
/// A `BaseException` that is no `Exception`: an interrupt.
#[inline(always)]
fn stated(object: &Bound<'_, PyAny>, traits: Traits) -> PyResult<Access> {
    let read = match traits.intersects(Traits::ANOTHER_COPY) {
        // Its getter waits for a producer that has moved, as its `__dlpack__` does.
        true => cai::unordered(object),
        false => cai::attribute(object),
    };
    match read {
        Ok(None) => Ok(Access::Unknown),
        Ok(Some(dict)) => stated_in(&dict),
        Err(error) => unless_exception(object.py(), error),
    }
}

#[cold]
fn stated_in(dict: &Bound<'_, PyAny>) -> PyResult<Access> {
    let read = || -> PyResult<Access> {
        let data = dict.get_item(&names(dict.py()).data)?;
        cai_dict::access(&data.get_item(1)?)
    };
    match release::dropping(read) {
        Ok(access) => Ok(access),
        Err(error) => unless_exception(dict.py(), error),
    }
}

#[cold]
fn unless_exception(py: Python<'_>, error: PyErr) -> PyResult<Access> {
    if errors::is_of_the_process(py, &error) {
        return Err(error);
    }
    release::drop_now(error);
    Ok(Access::Unknown)
}

/// Imports a NumPy array that its `__dlpack__` has refused and DLPack can describe, as [`by_attributes`] does, and
/// copies it if that is asked for.
///
/// # Errors
/// `refused` for any other object; `transfer-refused`; the rules of the interface and of DLPack.
#[cold]
fn refused_by_numpy<'py>(
    object: &Bound<'py, PyAny>,
    refused: PyErr,
    request: &DlpackArguments,
    options: &Options<'_, 'py>,
) -> PyResult<CaiView> {
    let (mut view, _) = array_interface::import(object, refused, options, AllowCaiOnly::No)?;
    if let Some(device) = request.device.filter(|device| *device != Device::HOST) {
        let refused = |hint| refused_device(device, hint);
        device::exported(Device::HOST, device, refused)?;
        return Err(refused(device::lies_on(Device::HOST)).into());
    }
    if request.copy == Some(true) {
        view = view.copy_to_host()?;
        if let Some(read_only) = options.read_only {
            let descriptor = view.descriptor().clone();
            let descriptor = descriptor.with_access(Access::of_flag(read_only));
            // SAFETY: the same bytes; the copy may be written.
            unsafe { view.set_descriptor(descriptor) };
        }
    }
    complete(&mut view, options)?;
    Ok(view)
}

/// Reads a capsule and applies the caller's options to what it describes. Takes nothing.
///
/// # Errors
/// Those of [`by_dlpack`].
pub(crate) fn offer_of_capsule<'py>(
    capsule: &Bound<'py, PyAny>,
    options: &Options<'_, '_>,
) -> PyResult<Offer<'py>> {
    let mut offer = dlpack::offer_of_capsule(capsule, &request(options), options)?;
    decide(&mut offer, options)?;
    Ok(offer)
}

/// Takes an offered tensor, described by the caller's options. Writes the view in place, and nothing if it fails.
#[inline(always)]
fn claim(
    memory: &mut MaybeUninit<CaiView>,
    offer: Offer<'_>,
    options: &Options<'_, '_>,
) -> PyResult<()> {
    if options.keeps_view() {
        return offer.claim(memory).map(drop);
    }
    claim_amended(memory, offer, options)
}

#[inline(never)]
fn claim_amended(
    memory: &mut MaybeUninit<CaiView>,
    mut offer: Offer<'_>,
    options: &Options<'_, '_>,
) -> PyResult<()> {
    decide(&mut offer, options)?;
    claim_decided(memory, offer, options)
}

/// Takes a tensor that [`decide`] has accepted. Writes the view in place.
///
/// # Errors
/// `capsule-used` if another importer has taken it meanwhile; nothing is written then.
#[inline(always)]
pub(crate) fn claim_decided(
    memory: &mut MaybeUninit<CaiView>,
    offer: Offer<'_>,
    options: &Options<'_, '_>,
) -> PyResult<()> {
    let beside = beside(options)?;
    let view = offer.claim(memory)?;
    if let Some(owner) = beside {
        view.keep_beside(owner);
    }
    Ok(())
}

/// What puts back a tensor that has been taken from its capsule.
pub(crate) struct Taken<'py> {
    claimed: Claimed<'py>,
    kept: Owner,
}

impl Taken<'_> {
    /// Puts the tensor back once its view is gone, unless work that was enqueued before still reads the data.
    #[cold]
    pub(crate) fn restore(self) {
        self.claimed.restore(self.kept);
    }
}

/// Takes a tensor that [`decide`] has accepted, and that may be refused later.
///
/// # Errors
/// Those of [`claim_decided`].
pub(crate) fn take<'py>(
    offer: Offer<'py>,
    options: &Options<'_, '_>,
) -> PyResult<(CaiView, Taken<'py>)> {
    let claimed = offer.to_restore();
    let view = claim_view(offer, options)?;
    let kept = view.owner().share();
    Ok((view, Taken { claimed, kept }))
}

/// Takes a tensor that [`decide`] has accepted.
///
/// # Errors
/// Those of [`claim_decided`].
pub(crate) fn claim_view(offer: Offer<'_>, options: &Options<'_, '_>) -> PyResult<CaiView> {
    let mut view = MaybeUninit::uninit();
    claim_decided(&mut view, offer, options)?;
    // SAFETY: `claim_decided` has not failed, and so has written the view.
    Ok(unsafe { view.assume_init() })
}

/// Applies the options that describe the array, while its capsule can still be refused.
fn decide(offer: &mut Offer<'_>, options: &Options<'_, '_>) -> PyResult<()> {
    options.check_device(offer.tensor.descriptor.device())?;
    if let Some(producer) = options.producer {
        // Not of every request: another copy of this library is asked for no order.
        let device = offer.tensor.descriptor.device();
        dlpack::stream_to_request(device, Some(producer), &request(options))?;
        offer.set_producer(producer);
    }
    if options.redescribes() {
        offer.tensor.descriptor = options.described(offer.tensor.descriptor.clone())?;
    }
    check_bounds(&offer.tensor.descriptor, options)
}

/// Applies the caller's options to a view that was derived from one of ours, with its device and owner.
///
/// # Errors
/// The rules of the options.
#[inline(always)]
fn amend(mut view: CaiView, options: &Options<'_, '_>) -> PyResult<CaiView> {
    if !options.keeps_view() {
        amend_in_place(&mut view, options)?;
    }
    Ok(view)
}

/// Like [`amend`], for a view that was imported by its producer's table. Drops the view if it fails.
#[inline(always)]
fn amend_written(memory: &mut MaybeUninit<CaiView>, options: &Options<'_, '_>) -> PyResult<()> {
    if options.keeps_view() {
        return Ok(());
    }
    // SAFETY: written by the caller, and not used after an error.
    unsafe { cai::finished(memory, |view| amend_in_place(view, options)) }
}

#[inline(never)]
fn amend_in_place(view: &mut CaiView, options: &Options<'_, '_>) -> PyResult<()> {
    let device = view.descriptor().device();
    options.check_device(device)?;
    dlpack::stream_to_request(device, options.producer, &request(options))?;
    if options.redescribes() {
        let descriptor = options.described(view.descriptor().clone())?;
        // SAFETY: `described` describes the bytes of the view, and no others.
        unsafe { view.set_descriptor(descriptor) };
    }
    complete(view, options)
}

/// Applies the options that do not describe the array.
fn complete(view: &mut CaiView, options: &Options<'_, '_>) -> PyResult<()> {
    check_bounds(view.descriptor(), options)?;
    if let Some(owner) = beside(options)? {
        view.keep_beside(owner);
    }
    Ok(())
}

/// Compares the memory with the driver's knowledge, if the caller asks for it.
fn check_bounds(descriptor: &Descriptor, options: &Options<'_, '_>) -> PyResult<()> {
    match options.check {
        Check::Device => {}
        Check::Bounds => view::check_memory(descriptor)?,
        Check::BoundsIfKnown => view::prove_memory(descriptor)?,
    }
    Ok(())
}

/// Returns the `owner=` that a view keeps beside its own: made before the tensor is taken, since it can fail.
fn beside(options: &Options<'_, '_>) -> PyResult<Option<Owner>> {
    let owner = options.owner.map(|owner| release::own(kept(owner)?));
    Ok(owner.transpose()?.map(Owner::from_raw))
}
