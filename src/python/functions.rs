//! The functions of the Python package.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyType};

use crate::protocol::descriptor::Device;
use crate::protocol::rule::{Field, Rule, Violation};
use crate::python::call::options::{Arguments, Check, Options, ProducerStream};
use crate::python::call::policy::{Policy, UseStream};
use crate::python::call::{policy, stream};
#[cfg(Py_GIL_DISABLED)]
use crate::python::class::alloc;
use crate::python::class::view::PyCaiView;
use crate::python::cpython::errors::driver_error;
use crate::python::cpython::int::type_name;
use crate::python::cpython::names::keys;
use crate::python::cpython::{release, thread_exit};
use crate::python::explain::{Explanation, explain};
use crate::python::export::dlpack::{Asked, Export};
use crate::python::import::cai::Takes;
use crate::python::import::cai_dict::Numbers;
use crate::python::import::dlpack::Ask;
use crate::python::import::exchange::{self, Exchanged};
use crate::python::import::known_types::{Known, Table, Traits};
use crate::python::import::mask::split_masked;
use crate::python::import::{cai, dlpack, known_types};
use crate::python::join::join;
use crate::python::{capsule, quick};
use crate::view::CaiView;

/// A view of any array that speaks CAI or DLPack, a DLPack capsule, or a CAI dict (with `owner=`).
///
/// Of the routes that the object offers, the one that knows the producer's stream is taken: the C Exchange
/// API, CAI with a stream (or version 3), then `__dlpack__`, then CAI without.
///
/// producer_stream: where the data is written, for producers that do not say it; None: nothing is pending;
/// `...`: as the producer says.
/// dtype: the element type, for producers that cannot say it; it reinterprets and never casts.
/// shape: a new shape for contiguous bytes, in elements of `dtype`.
/// read_only: overrides the producer's flag; False asserts that writing is fine.
/// owner: what keeps a bare dict's memory alive; for other objects, kept beside them.
/// ordinal: the CUDA device, known: the driver is not asked.
/// check: "device" asks the driver where the memory is; "bounds" also whether it holds all elements.
/// strict: refuse what CAI forbids and producers send (a missing version, stream 0).
#[pyfunction]
#[pyo3(signature = (obj, /, *, producer_stream=ProducerStream::default(), dtype=None, shape=None, read_only=None, owner=None, ordinal=None, check=None, strict=false))]
#[expect(clippy::too_many_arguments, reason = "the face of the Python function")]
pub(crate) fn view<'py>(
    obj: &Bound<'py, PyAny>,
    producer_stream: ProducerStream<'_, 'py>,
    dtype: Option<&Bound<'py, PyAny>>,
    shape: Option<&Bound<'py, PyAny>>,
    read_only: Option<bool>,
    owner: Option<&Bound<'py, PyAny>>,
    ordinal: Option<&Bound<'py, PyAny>>,
    check: Option<&Bound<'py, PyAny>>,
    strict: bool,
) -> PyResult<PyCaiView> {
    let arguments = Arguments {
        producer_stream,
        dtype,
        shape,
        read_only,
        owner,
        ordinal: None,
        check,
        strict,
    };
    let options = if arguments.say_nothing() {
        Options::located(ordinal)?
    } else {
        Options::parse(&Arguments {
            ordinal,
            ..arguments
        })?
    };
    let known = known_types::known(obj)?;
    if known.traits.any_of(Traits::OURS) {
        return Ok(
            again(obj, &options)?.keeping(producer_stream.object(), producer_stream.object())
        );
    }
    let view = PyCaiView::from_route(route(obj, known, &options, Takes::Structs)?);
    Ok(view.keeping(None, producer_stream.object()))
}

/// A view of an object with `__cuda_array_interface__`, or of such a dict (with `owner=`); CAI and
/// nothing else. The keywords are those of `view`.
#[pyfunction]
#[pyo3(signature = (obj, /, *, producer_stream=ProducerStream::default(), dtype=None, shape=None, read_only=None, owner=None, ordinal=None, check=None, strict=false))]
#[expect(clippy::too_many_arguments, reason = "the face of the Python function")]
pub(crate) fn from_cai<'py>(
    obj: &Bound<'py, PyAny>,
    producer_stream: ProducerStream<'_, 'py>,
    dtype: Option<&Bound<'py, PyAny>>,
    shape: Option<&Bound<'py, PyAny>>,
    read_only: Option<bool>,
    owner: Option<&Bound<'py, PyAny>>,
    ordinal: Option<&Bound<'py, PyAny>>,
    check: Option<&Bound<'py, PyAny>>,
    strict: bool,
) -> PyResult<PyCaiView> {
    thread_exit::stays();
    let options = Options::parse(&Arguments {
        producer_stream,
        dtype,
        shape,
        read_only,
        owner,
        ordinal,
        check,
        strict,
    })?;
    let view = PyCaiView::from_route(cai::import(obj, &options, Takes::Structs)?);
    Ok(view.keeping(None, producer_stream.object()))
}

/// A view of an object with `__dlpack__`, or of a bare capsule.
///
/// device: where the data is wanted, as (type, id); None for where it is. A transfer is the producer's.
/// copy: passed to the producer: True must copy, False must not.
/// stream: the stream on which the data is wanted; the view is ready there. None: the legacy default
/// stream (and for pinned and managed memory, the host).
/// The other keywords are those of `view`.
#[pyfunction]
#[pyo3(signature = (obj, /, *, device=None, copy=None, stream=None, producer_stream=ProducerStream::default(), dtype=None, shape=None, read_only=None))]
#[expect(clippy::too_many_arguments, reason = "the face of the Python function")]
pub(crate) fn from_dlpack<'py>(
    obj: &Bound<'py, PyAny>,
    device: Option<(i32, i32)>,
    copy: Option<bool>,
    stream: Option<&Bound<'py, PyAny>>,
    producer_stream: ProducerStream<'_, 'py>,
    dtype: Option<&Bound<'py, PyAny>>,
    shape: Option<&Bound<'py, PyAny>>,
    read_only: Option<bool>,
) -> PyResult<PyCaiView> {
    let arguments = Arguments {
        producer_stream,
        dtype,
        shape,
        read_only,
        owner: None,
        ordinal: None,
        check: None,
        strict: false,
    };
    let options = if arguments.say_nothing() {
        None
    } else {
        Some(Options::parse(&arguments)?)
    };
    let wanted = stream
        .map(|value| stream::named(value, Field::Argument("stream")))
        .transpose()?;
    let device = device
        .map(|(device_type, id)| Device::check_in(Field::Argument("device"), device_type, id))
        .transpose()?;
    let view = dlpack::import(
        obj,
        Ask {
            stream: wanted.or(options.as_ref().and_then(|options| options.producer)),
            copy,
            device,
        },
    )?;
    let view = match options {
        None => view,
        Some(options) => adjust(view, &options)?,
    };
    let view = PyCaiView::new(view);
    if stream.is_none() && !producer_stream.is_given() {
        return Ok(view);
    }
    Ok(view.keeping(stream, producer_stream.object()))
}

/// A DLPack capsule of any array that `view` takes, for a consumer that wants a capsule.
///
/// A bare capsule cannot negotiate: a consumer that calls `__dlpack__` itself is better served by `view`.
///
/// stream: the consumer's stream, as in `CaiView.__dlpack__`; "host" blocks until the data is ready, for
/// consumers whose streams cannot be named.
/// max_version, dl_device, copy: as in `CaiView.__dlpack__`.
/// writable: asserts that writing to read-only data is fine.
/// ordinal: the CUDA device, known: the driver is not asked.
#[pyfunction]
#[pyo3(signature = (obj, /, *, stream=None, max_version=None, dl_device=None, copy=None, writable=false, ordinal=None))]
pub(crate) fn to_dlpack<'py>(
    obj: &Bound<'py, PyAny>,
    stream: Option<&Bound<'py, PyAny>>,
    max_version: Option<&Bound<'py, PyAny>>,
    dl_device: Option<&Bound<'py, PyAny>>,
    copy: Option<&Bound<'py, PyAny>>,
    writable: bool,
    ordinal: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = obj.py();
    let on_host = stream.is_some_and(is_host);
    let asked = Asked {
        stream,
        max_version,
        dl_device,
        copy,
        writable,
        on_host,
    };
    let options = Options::located(ordinal)?;
    export_view(py, import(obj, &options)?, &asked)
}

/// [`to_dlpack`], once `__cuda_array_interface__` has been read.
pub(crate) fn to_dlpack_by_attribute<'py>(
    obj: &Bound<'py, PyAny>,
    dict: Option<Bound<'py, PyAny>>,
    ordinal: Option<&Bound<'py, PyAny>>,
    asked: &Asked<'_, 'py>,
) -> PyResult<Bound<'py, PyAny>> {
    let options = Options::located(ordinal)?;
    let found = by_attribute(obj, dict, &options, Takes::Arrays)?;
    export_view(obj.py(), found.view, asked)
}

/// The capsule of a view that nobody keeps.
fn export_view<'py>(
    py: Python<'py>,
    view: CaiView,
    asked: &Asked<'_, 'py>,
) -> PyResult<Bound<'py, PyAny>> {
    let export = Export::decide(view.descriptor().described(), asked)?;
    let view = match export.copied(py, &view)? {
        Some(copy) => copy,
        None => {
            export.order(py, &view)?;
            view
        }
    };
    let (descriptor, owner) = view.into_parts();
    export.capsule(py, descriptor.described(), owner)
}

fn is_host(stream: &Bound<'_, PyAny>) -> bool {
    stream.cast::<PyString>().is_ok_and(|text| text == "host")
}

/// Takes the route that knows the producer.
#[inline]
pub(crate) fn import<'py>(object: &Bound<'py, PyAny>, options: &Options<'py>) -> PyResult<CaiView> {
    let known = known_types::known(object)?;
    if known.traits.any_of(Traits::OURS) {
        let this = object.cast::<PyCaiView>()?.get();
        this.check_array()?;
        own_view(this, object.py(), options)
    } else {
        route(object, known, options, Takes::Arrays).map(|found| found.view)
    }
}

/// As [`import`], for what is no view of ours; with the place to ask again for the producer's stream.
#[inline(always)]
fn route<'py>(
    object: &Bound<'py, PyAny>,
    known: Known,
    options: &Options<'py>,
    takes: Takes,
) -> PyResult<Exchanged> {
    if let Some(table) = known.table
        && let Some(found) = by_table(object, table, known.traits, options)?
    {
        return Ok(found);
    }
    by_protocol(object, options, takes)
}

/// The route through the table of the object's type.
#[inline(never)]
fn by_table<'py>(
    object: &Bound<'py, PyAny>,
    table: Table,
    traits: Traits,
    options: &Options<'py>,
) -> PyResult<Option<Exchanged>> {
    let Some(found) = exchange::import(object, table, traits, options.producer)? else {
        return Ok(None);
    };
    let view = adjust(found.view, options)?;
    Ok(Some(Exchanged { view, ..found }))
}

/// The routes through Python attributes.
#[inline(always)]
pub(crate) fn by_protocol<'py>(
    object: &Bound<'py, PyAny>,
    options: &Options<'py>,
    takes: Takes,
) -> PyResult<Exchanged> {
    if capsule::is_capsule(object) {
        let view = adjust(dlpack::import(object, Ask::default())?, options)?;
        return Ok(Exchanged::plain(view));
    }
    if object.is_instance_of::<PyDict>() {
        return cai::import(object, options, takes);
    }
    by_attribute(object, cai::attribute(object)?, options, takes)
}

/// [`by_protocol`], once `__cuda_array_interface__` has been read.
#[inline(always)]
pub(crate) fn by_attribute<'py>(
    object: &Bound<'py, PyAny>,
    dict: Option<Bound<'py, PyAny>>,
    options: &Options<'py>,
    takes: Takes,
) -> PyResult<Exchanged> {
    if let Some(dict) = dict {
        let mut numbers = Numbers::default();
        if let Some(usual) = cai::usual(&dict, options, &mut numbers)
            && (usual.knows_stream || options.producer.is_some() || !dlpack::speaks(object)?)
        {
            return cai::usual_view(object, usual, options).map(Exchanged::plain);
        }
        let read = cai::read(object, &dict, options)?;
        if read.knows_stream() || options.producer.is_some() || !dlpack::speaks(object)? {
            return cai::any(object, read, options, takes);
        }
    } else if !dlpack::speaks(object)? {
        return Err(speaks_nothing(object));
    }
    let ask = Ask {
        stream: options.producer,
        ..Ask::default()
    };
    adjust(dlpack::import_speaking(object, ask)?, options).map(Exchanged::plain)
}

/// A view of a view: the same loan, stream and owner, and no call of anything.
fn again(object: &Bound<'_, PyAny>, options: &Options<'_>) -> PyResult<PyCaiView> {
    let this = object.cast::<PyCaiView>()?.get();
    let view = own_view(this, object.py(), options)?;
    Ok(this.described(object.py(), view))
}

fn own_view(this: &PyCaiView, py: Python<'_>, options: &Options<'_>) -> PyResult<CaiView> {
    this.prepare(py)?;
    let view = this.view();
    // SAFETY: the same description of the same memory.
    let view = adjust(unsafe { view.derive(view.descriptor().clone()) }, options)?;
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

/// Applies what the caller knows better to what came by DLPack.
#[inline(never)]
fn adjust(view: CaiView, options: &Options<'_>) -> PyResult<CaiView> {
    let says_nothing =
        options.shape.is_none() && options.dtype.is_none() && options.read_only.is_none();
    let view = if says_nothing {
        view
    } else {
        redescribe(view, options)?
    };
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

/// The same bytes by the caller's type, shape and flag.
fn redescribe(view: CaiView, options: &Options<'_>) -> PyResult<CaiView> {
    // SAFETY: `dtype=`, `shape=` and the flag describe the very bytes that the view describes.
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

/// Counters of ownership: what is alive, what waits, what was given up on purpose.
#[pyfunction]
pub(crate) fn stats(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    thread_exit::stays();
    let stats = crate::view::stats();
    let dict = PyDict::new(py);
    dict.set_item("live", stats.live)?;
    dict.set_item("pending", stats.pending)?;
    dict.set_item("released", stats.released)?;
    dict.set_item("leaked_at_exit", stats.leaked_at_exit)?;
    dict.set_item("panics", stats.panics)?;
    dict.set_item("open_guards", stats.open_guards)?;
    Ok(dict)
}

/// Adds everything to an extension module.
///
/// # Errors
/// `ImportError` in a subinterpreter; what Python raises while the module is filled.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    release::refuse_subinterpreters(module.py())?;
    policy::check_environment()?;
    #[cfg(Py_GIL_DISABLED)]
    {
        // Now, since CPython's interning races with itself where several threads come at once.
        keys(module.py());
        alloc::prepare(&module.py().get_type::<PyCaiView>())?;
    }
    module.add_class::<PyCaiView>()?;
    module.add_class::<Policy>()?;
    module.add_class::<UseStream>()?;
    module.add("DriverError", driver_error(module.py())?)?;
    quick::add(module)?;
    module.add_function(wrap_pyfunction!(from_cai, module)?)?;
    module.add_class::<Explanation>()?;
    module.add_function(wrap_pyfunction!(explain, module)?)?;
    module.add_function(wrap_pyfunction!(join, module)?)?;
    module.add_function(wrap_pyfunction!(split_masked, module)?)?;
    module.add_function(wrap_pyfunction!(stats, module)?)?;
    Ok(())
}
