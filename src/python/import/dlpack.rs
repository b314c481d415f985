//! `__dlpack_device__` and `__dlpack__`: a producer of DLPack becomes a view.
//!
//! The stream is always said: torch takes an omitted one for "do not synchronise". What a producer
//! does not know is dropped keyword by keyword, and only on a `TypeError` that names the keyword:
//! any other `TypeError` is the producer's own.

use once_cell::race::OnceBox;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use pyo3::{Borrowed, ffi};

use crate::driver;
use crate::driver::ContextGuard;
use crate::protocol::descriptor::Descriptor;
use crate::protocol::device::{Device, Flags};
use crate::protocol::rule::{Field, Rule, Violation};
use crate::protocol::stream::{Platform, Stream};
use crate::python::capsule;
use crate::python::cpython::int::{IntRule, repr, type_name};
use crate::python::cpython::names::names;
use crate::python::cpython::tuple::tuple_item;
use crate::python::cpython::{int, release};
use crate::python::import::known_types;
use crate::python::import::traits::{Traits, warn_unknown};
use crate::view::{CaiView, Owner};

const DEVICE_TYPE: IntRule = IntRule::new(
    Field::DlpackDevice,
    Rule::DeviceItemType,
    Rule::DeviceUnknown,
);
const DEVICE_ID: IntRule = IntRule::new(Field::DlpackDevice, Rule::DeviceItemType, Rule::DeviceId);

/// What the caller asks of the producer.
#[derive(Clone, Copy, Default)]
pub(crate) struct DlpackArguments {
    /// The stream on which the data is wanted; `None` for the legacy default stream.
    pub(crate) stream: Option<Stream>,
    pub(crate) copy: Option<bool>,
    /// The device on which the data is wanted; `None` for where it is.
    pub(crate) device: Option<Device>,
}

/// Whether objects of this type speak DLPack.
pub(crate) fn has_dlpack(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    let is_known = known_types::facts_of(object)?
        .traits
        .intersects(Traits::HAS_DLPACK);
    Ok(is_known || object.get_type().hasattr(&names(object.py()).dlpack)?)
}

/// Imports an object that has `__dlpack__`, or a bare capsule.
#[inline(always)]
pub(crate) fn import(object: &Bound<'_, PyAny>, request: DlpackArguments) -> PyResult<CaiView> {
    if capsule::is_capsule(object) {
        return import_capsule(object, request);
    }
    let is_known = known_types::facts_of(object)?
        .traits
        .intersects(Traits::HAS_DLPACK);
    if !is_known && !object.hasattr(&names(object.py()).dlpack)? {
        return Err(missing(object, Rule::DlpackMissing, Field::DlpackCall));
    }
    import_object(object, request)
}

/// Imports an object that is known to have `__dlpack__`.
#[inline(always)]
pub(crate) fn import_object(
    object: &Bound<'_, PyAny>,
    request: DlpackArguments,
) -> PyResult<CaiView> {
    let traits = known_types::facts_of(object)?.traits;
    let announced = announced_device(object)?;
    let wanted = request.device.unwrap_or(announced);
    let ready = stream_to_request(wanted, request.stream)?;
    let (capsule, honoured) = {
        let _current = current_for(traits, announced)?;
        call(object, ready, wanted, request)?
    };
    if !capsule::is_capsule(&capsule) {
        return Err(Violation::new(Rule::CapsuleType, Field::DlpackCall, repr(&capsule)).into());
    }
    let (mut descriptor, owner) = capsule::claim(&capsule)?;
    check(&mut descriptor, wanted, request)?;
    if traits.intersects(Traits::IGNORES_STREAM)
        && request.stream.is_none()
        && ready != Stream::None
    {
        warn_unknown(object)?;
    }
    Ok(view(descriptor, owner, ready, honoured))
}

/// The array's device made current during the call, for producers that would use another one or refuse.
/// Where there is no driver the producer says so itself.
fn current_for(traits: Traits, device: Device) -> PyResult<Option<ContextGuard<'static>>> {
    if !traits.intersects(Traits::WANTS_CURRENT) || device.device_type != Device::CUDA {
        return Ok(None);
    }
    let Ok(driver) = driver::driver() else {
        return Ok(None);
    };
    Ok(Some(ContextGuard::of_device(driver, device.id)?))
}

/// A capsule cannot be asked anything: its data is ready where the caller says.
fn import_capsule(capsule: &Bound<'_, PyAny>, request: DlpackArguments) -> PyResult<CaiView> {
    let (mut descriptor, owner) = capsule::claim(capsule)?;
    let wanted = request.device.unwrap_or(descriptor.device());
    let ready = stream_to_request(wanted, request.stream)?;
    check(&mut descriptor, wanted, request)?;
    Ok(view(descriptor, owner, ready, StreamHonoured::Yes))
}

/// Whether the producer was honoured the stream.
#[derive(Clone, Copy, PartialEq)]
enum StreamHonoured {
    Yes,
    /// It takes none; whatever it has enqueued is taken to be on the legacy default stream, which
    /// waits for every blocking stream.
    No,
    /// It takes none, and its export has waited (TensorFlow).
    ExportWaited,
}

#[inline(always)]
fn view(descriptor: Descriptor, owner: Owner, asked: Stream, honoured: StreamHonoured) -> CaiView {
    let ready = match honoured {
        StreamHonoured::Yes => asked,
        StreamHonoured::No if asked == Stream::None => Stream::None,
        StreamHonoured::No => Stream::LegacyDefault,
        StreamHonoured::ExportWaited => Stream::None,
    };
    let is_host = descriptor.device().device_type == Device::CPU;
    let goes_on = is_host.then_some(Stream::None);
    // SAFETY: the owner is the managed tensor, whose data is valid until its deleter runs (DLPack).
    unsafe { CaiView::of(descriptor, ready, goes_on, owner) }
}

/// The device that the object says it is on. `(1, None)` and `(3, None)`, as paddle says, count as id 0.
pub(crate) fn announced_device(object: &Bound<'_, PyAny>) -> PyResult<Device> {
    let py = object.py();
    // SAFETY: an object and an interned name; a new reference, or NULL with an exception set.
    let answer = unsafe {
        let argument = object.as_ptr();
        ffi::PyObject_VectorcallMethod(
            names(py).dlpack_device.as_ptr(),
            &raw const argument,
            1,
            std::ptr::null_mut(),
        )
    };
    // SAFETY: as above.
    let answer = unsafe { Bound::from_owned_ptr_or_err(py, answer) };
    let answer = match answer {
        Ok(answer) => answer,
        Err(error) if !object.hasattr(&names(py).dlpack_device)? => {
            release::drop_now(error);
            return Err(missing(object, Rule::DeviceMissing, Field::DlpackDevice));
        }
        Err(error) => return Err(error),
    };
    let Ok(pair) = answer.cast::<PyTuple>() else {
        return Err(bad_pair(&answer));
    };
    if pair.len() != 2 {
        return Err(bad_pair(&answer));
    }
    let part = |at| {
        // SAFETY: a tuple of two.
        let part = unsafe { tuple_item(pair.as_ptr(), at) };
        // SAFETY: an item of the tuple, which lives as long.
        unsafe { Borrowed::from_ptr(py, part) }
    };
    let read_fast = |at| i32::try_from(int::read_fast(part(at))?).ok();
    if let (Some(device_type), Some(id)) = (read_fast(0), read_fast(1)) {
        return Ok(Device::check(device_type, id)?);
    }
    device(&part(0), &part(1))
}

/// The same from any ints: what does not fit is named.
#[cold]
fn device(device_type: &Bound<'_, PyAny>, id: &Bound<'_, PyAny>) -> PyResult<Device> {
    let device_type: i32 = DEVICE_TYPE.read(device_type)?;
    let is_host = matches!(device_type, Device::CPU | Device::CUDA_HOST);
    let id: i32 = if id.is_none() && is_host {
        0
    } else {
        DEVICE_ID.read(id)?
    };
    Ok(Device::check(device_type, id)?)
}

#[cold]
fn bad_pair(answer: &Bound<'_, PyAny>) -> PyErr {
    Violation::new(Rule::DevicePair, Field::DlpackDevice, repr(answer)).into()
}

#[cold]
fn missing(object: &Bound<'_, PyAny>, rule: Rule, field: Field) -> PyErr {
    Violation::new(
        rule,
        field,
        format_args!("an object of type {}", type_name(object)),
    )
    .into()
}

/// The stream that the producer is honoured, and on which the data is then ready.
fn stream_to_request(device: Device, wanted: Option<Stream>) -> PyResult<Stream> {
    match (Platform::from_device_type(device.device_type), wanted) {
        (Some(Platform::Host), Some(stream)) if stream != Stream::None => {
            Err(Violation::new(Rule::StreamCpu, Field::Argument("stream"), stream.raw()).into())
        }
        (Some(Platform::Cuda | Platform::Rocm), None) => Ok(Stream::LegacyDefault),
        // Pinned and managed memory: the producer's None is the host's wait (docs/streams.md).
        (_, None) => Ok(Stream::None),
        (_, Some(stream)) => Ok(stream),
    }
}

/// Calls `__dlpack__`, with fewer keywords where the producer does not know them.
fn call<'py>(
    object: &Bound<'py, PyAny>,
    stream: Stream,
    wanted: Device,
    request: DlpackArguments,
) -> PyResult<(Bound<'py, PyAny>, StreamHonoured)> {
    if request.copy.is_none() && request.device.is_none() {
        match call_fast(object, stream, wanted) {
            Err(error)
                if error.is_instance_of::<PyTypeError>(object.py()) || is_tensorflow(object) =>
            {
                release::dropping(|| call_stepwise(object, stream, wanted, request, Some(error)))
            }
            answer => Ok((answer?, StreamHonoured::Yes)),
        }
    } else {
        release::dropping(|| call_stepwise(object, stream, wanted, request, None))
    }
}

/// `object.__dlpack__(stream=..., max_version=(1, 3))`, without a dict of arguments.
fn call_fast<'py>(
    object: &Bound<'py, PyAny>,
    stream: Stream,
    device: Device,
) -> PyResult<Bound<'py, PyAny>> {
    static KEYWORDS: OnceBox<Py<PyTuple>> = OnceBox::new();
    let py = object.py();
    let keywords = KEYWORDS.get_or_try_init(|| {
        let keywords = PyTuple::new(py, [&names(py).stream, &names(py).max_version])?;
        Ok::<_, PyErr>(Box::new(keywords.unbind()))
    })?;
    let stream = stream_argument(py, stream, device)?;
    let arguments = [object.as_ptr(), stream.as_ptr(), our_version(py)?.as_ptr()];
    // SAFETY: one positional argument (the object) and two named ones, all alive during the call; a
    // new reference, or NULL with an exception set.
    let answer = unsafe {
        ffi::PyObject_VectorcallMethod(
            names(py).dlpack.as_ptr(),
            arguments.as_ptr(),
            1,
            keywords.as_ptr(),
        )
    };
    // SAFETY: as above.
    unsafe { Bound::from_owned_ptr_or_err(py, answer) }
}

fn our_version(py: Python<'_>) -> PyResult<&Bound<'_, PyTuple>> {
    static VERSION: OnceBox<Py<PyTuple>> = OnceBox::new();
    VERSION
        .get_or_try_init(|| PyTuple::new(py, [1, 3]).map(|version| Box::new(version.unbind())))
        .map(|version| version.bind(py))
}

/// The protocol's integer, or `None` where the device has no streams or the host is to wait.
fn stream_argument(py: Python<'_>, stream: Stream, device: Device) -> PyResult<Bound<'_, PyAny>> {
    let number = match Platform::from_device_type(device.device_type) {
        Some(platform @ (Platform::Cuda | Platform::Rocm)) => stream.to_dlpack_arg_on(platform),
        _ if stream == Stream::None => return Ok(py.None().into_bound(py)),
        _ => stream.to_dlpack_arg(),
    };
    Ok(match i64::try_from(number) {
        Ok(number) => number.into_pyobject(py)?.into_any(),
        Err(_) => number.into_pyobject(py)?.into_any(),
    })
}

/// One keyword less per try, named by the producer's own `TypeError`.
#[cold]
fn call_stepwise<'py>(
    object: &Bound<'py, PyAny>,
    stream: Stream,
    wanted: Device,
    request: DlpackArguments,
    mut failed: Option<PyErr>,
) -> PyResult<(Bound<'py, PyAny>, StreamHonoured)> {
    let py = object.py();
    let names = names(py);
    let arguments = PyDict::new(py);
    arguments.set_item(&names.stream, stream_argument(py, stream, wanted)?)?;
    arguments.set_item(&names.max_version, our_version(py)?)?;
    if let Some(device) = request.device {
        arguments.set_item(&names.dl_device, (device.device_type, device.id))?;
    }
    if let Some(copy) = request.copy {
        arguments.set_item(&names.copy, copy)?;
    }
    let mut honoured = StreamHonoured::Yes;
    loop {
        if let Some(error) = failed.take() {
            honoured = drop_keyword(object, &arguments, request, error)?.unwrap_or(honoured);
        }
        match object.call_method(&names.dlpack, (), Some(&arguments)) {
            Ok(capsule) => return Ok((capsule, honoured)),
            Err(error) => failed = Some(error),
        }
    }
}

/// Drops the keyword that the producer's error names; the error itself where it names none that may go.
fn drop_keyword(
    object: &Bound<'_, PyAny>,
    arguments: &Bound<'_, PyDict>,
    request: DlpackArguments,
    error: PyErr,
) -> PyResult<Option<StreamHonoured>> {
    let py = object.py();
    if is_tensorflow(object) && arguments.contains(&names(py).stream)? {
        // It refuses a stream by RuntimeError, and its export waits for its own.
        arguments.del_item(&names(py).stream)?;
        return Ok(Some(StreamHonoured::ExportWaited));
    }
    if !error.is_instance_of::<PyTypeError>(py) {
        return Err(error);
    }
    let text = error.value(py).to_string();
    // A transfer cannot be left out; `copy=False` can: a producer that knows no copy makes none.
    let may_go = ["max_version", "copy", "stream"];
    for name in may_go {
        if names_keyword(&text, name)
            && arguments.contains(name)?
            && !(name == "copy" && request.copy == Some(true))
        {
            arguments.del_item(name)?;
            return Ok((name == "stream").then_some(StreamHonoured::No));
        }
    }
    // "takes no keyword arguments" and the like: an old `__dlpack__(self)`.
    if text.contains("no keyword arguments")
        && arguments.len() > 0
        && request.device.is_none()
        && request.copy != Some(true)
    {
        arguments.clear();
        return Ok(Some(StreamHonoured::No));
    }
    Err(error)
}

/// Whether an error's text names this keyword, quoted as Python does or as a whole word.
fn names_keyword(text: &str, name: &str) -> bool {
    text.contains("keyword")
        && text
            .split(|c: char| !(c.is_alphanumeric() || c == '_'))
            .any(|word| word == name)
}

/// TensorFlow's eager tensors, by their type's module; without importing it.
fn is_tensorflow(object: &Bound<'_, PyAny>) -> bool {
    release::dropping(|| {
        let module = object.get_type().getattr(&names(object.py()).module);
        module.is_ok_and(|module| module.to_string().starts_with("tensorflow."))
    })
}

/// Compares what came with what was announced and asked for.
#[inline(always)]
fn check(descriptor: &mut Descriptor, wanted: Device, request: DlpackArguments) -> PyResult<()> {
    if request.copy == Some(false) && descriptor.flags().contains(Flags::IS_COPIED) {
        return Err(Violation::new(Rule::CopiedUnasked, Field::TensorFlags, "IS_COPIED").into());
    }
    let came = descriptor.device();
    // torch announces pinned memory and sends it as the CPU's; managed memory has no id of its own.
    let same = came == wanted
        || (wanted.device_type == Device::CUDA_HOST && came.device_type == Device::CPU)
        || (wanted.device_type == Device::CUDA_MANAGED && came.device_type == Device::CUDA_MANAGED);
    if !same {
        let found = format_args!("({}, {})", came.device_type, came.id);
        let hint = format!("({}, {}) was announced", wanted.device_type, wanted.id);
        return Err(
            Violation::new(Rule::DeviceMismatch, Field::TensorDevice, found)
                .with_hint(hint)
                .into(),
        );
    }
    descriptor.set_device(wanted);
    Ok(())
}
