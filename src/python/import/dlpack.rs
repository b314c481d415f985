//! Imports a producer of DLPack by `__dlpack_device__` and `__dlpack__`.
//!
//! The stream is always passed: torch reads an omitted one as "do not synchronise". A keyword that a producer does not
//! have is dropped, one at a time, and only on a `TypeError` that names it; any other `TypeError` passes through.

use std::mem::MaybeUninit;

use once_cell::race::OnceBox;
use pyo3::exceptions::{PyBufferError, PyRuntimeError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple, PyType};
use pyo3::{Borrowed, ffi};

use crate::driver;
use crate::protocol::descriptor::Descriptor;
use crate::protocol::device::{Access, Device, DeviceType, Flags};
use crate::protocol::rule::{Field, Rule, Violation};
use crate::protocol::stream::{Platform, Request, Stream};
use crate::python::call::device::on_device;
use crate::python::call::options::Options;
use crate::python::call::{blocks, use_stream};
use crate::python::capsule;
use crate::python::capsule::{Claimed, Unclaimed};
use crate::python::cpython::int::{IntRule, repr, type_name};
use crate::python::cpython::names::names;
use crate::python::cpython::new::{new_dict, new_int, new_int_pair, new_ints, new_tuple, new_uint};
use crate::python::cpython::text::text;
use crate::python::cpython::tracing;
use crate::python::cpython::tuple::tuple_item;
use crate::python::cpython::{getattr, int, release};
use crate::python::export;
use crate::python::import::traits::Traits;
use crate::python::import::undeclared::has_no_streams;
use crate::python::import::{notes, state, undeclared, why_not};
use crate::view::{CaiView, Owner, Streams, Uninit, defaults_now};

const DEVICE_TYPE: IntRule = IntRule::new(
    Field::DlpackDevice,
    Rule::DeviceItemType,
    Rule::DeviceUnknown,
);
const DEVICE_ID: IntRule = IntRule::new(Field::DlpackDevice, Rule::DeviceItemType, Rule::DeviceId);

/// What the caller requests of the producer.
#[derive(Clone, Copy, Default)]
pub(crate) struct DlpackArguments {
    /// The stream on which the data is wanted; `None` for that of `use_stream`, else the legacy default stream.
    pub(crate) stream: Option<Stream>,
    /// The stream was named by `producer_stream=`.
    pub(crate) is_producers: bool,
    /// The stream that waits then, if `stream` is the producer's and the caller has named another one.
    pub(crate) consumer: Option<Stream>,
    pub(crate) copy: Option<bool>,
    /// The device on which the data is wanted; `None` for the array's own.
    pub(crate) device: Option<Device>,
}

impl DlpackArguments {
    /// Requests no order, of memory that the host reads either, and no copy: another copy of this library passes its streams.
    pub(crate) const UNORDERED: Self = Self {
        stream: Some(Stream::None),
        is_producers: false,
        consumer: Some(Stream::None),
        copy: Some(false),
        device: None,
    };

    /// Whether it is [`UNORDERED`](Self::UNORDERED): no other request names a consumer that has no stream.
    fn is_unordered(&self) -> bool {
        self.consumer == Some(Stream::None) && self.copy == Some(false) && !self.is_producers
    }

    /// Leaves out the producer's stream, which is of the producer's own device and has been waited for.
    pub(crate) fn without_producer(&self) -> Self {
        Self {
            stream: match self.is_producers {
                true => self.consumer,
                false => self.stream,
            },
            is_producers: false,
            consumer: None,
            ..*self
        }
    }
}

/// Whether the object's type, of these traits, has `__dlpack__`.
#[inline(always)]
pub(crate) fn has_dlpack(object: &Bound<'_, PyAny>, traits: Traits) -> PyResult<bool> {
    Ok(traits.intersects(Traits::HAS_DLPACK)
        || getattr::type_has(object, &names(object.py()).dlpack)?)
}

/// A tensor that a producer offers in a capsule, described and checked, of which nothing has been taken.
pub(crate) struct Offer<'py> {
    pub(crate) tensor: Unclaimed<'py>,
    streams: Streams,
    /// The object of the `use_stream` block on whose stream the data is ready.
    stream_object: Option<Bound<'py, PyAny>>,
}

impl<'py> Offer<'py> {
    /// Takes the tensor, into a view that is written in place: the point of no return.
    ///
    /// # Errors
    /// `capsule-used` if another importer has taken it meanwhile; nothing is written then.
    #[inline(always)]
    pub(crate) fn claim(self, memory: &mut MaybeUninit<CaiView>) -> PyResult<&mut CaiView> {
        let Self {
            tensor,
            streams,
            stream_object,
        } = self;
        let held = stream_object.map(Held::new).transpose()?;
        let owner = tensor.claim()?;
        let view = Uninit::new(memory).describe(tensor.descriptor, owner);
        let ready = streams.ready();
        // SAFETY: DLPack: the data is valid until the deleter of the managed tensor runs, which is the owner.
        let view = unsafe { view.finish(streams) };
        view.remember_context();
        // Its destructor is code of the producer's, too.
        drop(tensor.capsule);
        if let Some(owner) = held.and_then(|held| held.owner_of_left(ready)) {
            view.keep_beside(owner);
        }
        Ok(view)
    }

    /// Returns what puts the tensor back once it has been taken.
    pub(crate) fn to_restore(&self) -> Claimed<'py> {
        self.tensor.to_restore()
    }

    /// Makes a view that owns nothing, for the order of streams before the tensor is taken.
    pub(crate) fn unowned(&self) -> CaiView {
        let (descriptor, owner) = (self.tensor.descriptor.clone(), Owner::new(()));
        // SAFETY: the capsule, which owns the data, is borrowed as long as the view is used (the caller's `Offer`), and
        // its streams alone are used: no element is read.
        unsafe { CaiView::on_streams(descriptor, self.streams.clone(), owner) }
    }

    /// Has a stream wait for the data, which is ready there then.
    ///
    /// # Errors
    /// The rules of the order; the driver's errors.
    #[cold]
    pub(crate) fn order(&mut self, py: Python<'_>, stream: Stream) -> PyResult<()> {
        export::dlpack::order(py, &self.unowned(), Request::Stream(stream))?;
        if self.streams.ready() != Stream::None {
            self.streams = Streams::here(stream, self.streams.producer());
        }
        Ok(())
    }

    /// Names the stream on which the producer goes on working: a default stream is that of the context of the ready one.
    pub(crate) fn set_producer(&mut self, producer: Stream) {
        self.streams = self.streams.going_on(producer);
    }

    /// Takes the streams of a view of the same memory.
    pub(crate) fn set_streams(&mut self, streams: Streams) {
        self.streams = streams;
    }

    /// Notes that the stream on which the data is ready is undeclared.
    pub(crate) fn set_undeclared(&mut self) {
        self.streams = Streams::undeclared(self.streams.ready(), None);
    }
}

/// Returns the streams of a tensor that is ready on `ready`. DLPack does not name the producer's.
#[inline(always)]
fn declared(ready: Stream, descriptor: &Descriptor) -> Streams {
    let is_on_cpu = descriptor.device().device_type == DeviceType::CPU;
    Streams::here(ready, is_on_cpu.then_some(Stream::None))
}

/// Checks that the type of an object, which has these traits, has `__dlpack__`: what decides about an import beside it (a
/// mask, pending values, the stream that the producer ignores) is known by the type, so that an attribute of the object
/// alone does not count.
///
/// # Errors
/// `dlpack-missing`, `class-not-instance`, `array-traced`.
#[inline(always)]
pub(crate) fn check_has_dlpack(object: &Bound<'_, PyAny>, traits: Traits) -> PyResult<()> {
    match traits.intersects(Traits::HAS_DLPACK) {
        true => Ok(()),
        false => check_type_has_dlpack(object),
    }
}

/// Checks that a type has `__dlpack__` by now, or by its metaclass.
#[cold]
fn check_type_has_dlpack(object: &Bound<'_, PyAny>) -> PyResult<()> {
    if object.is_instance_of::<PyType>() {
        return Err(why_not::class(object).into());
    }
    match getattr::type_has(object, &names(object.py()).dlpack)? {
        true => Ok(()),
        false => Err(missing(object, Rule::DlpackMissing, Field::DlpackCall)),
    }
}

/// Asks an object that has `__dlpack__` for its tensor. `stated` is what its interface has stated, if that has been read.
///
/// # Errors
/// The rules of DLPack; the exceptions of the producer.
#[inline(always)]
pub(crate) fn offer_of_object<'py>(
    object: &Bound<'py, PyAny>,
    traits: Traits,
    request: &DlpackArguments,
    options: &Options<'_, '_>,
    stated: Access,
) -> PyResult<Offer<'py>> {
    if traits.intersects(Traits::CHECKED_FIRST) {
        check_first(object, traits, request, options)?;
    }
    let announced = announced_device(object)?;
    let wanted = request.device.unwrap_or(announced);
    // Before the producer exports anything: the tensor has to be there.
    let is_there = options.check_device(wanted);
    is_there.map_err(|refused| match request.device {
        None => refused,
        Some(_) => refused.with_hint(format!("the data is asked for on {:?}", wanted.to_dlpack())),
    })?;
    let named = match request.stream {
        None => work_stream(object.py(), traits, wanted)?,
        given => given,
    };
    let asked = stream_to_request(wanted, named, request)?;
    // The producer's code may leave the block, which keeps the stream alive until then.
    let held = match blocks::are_open() {
        true => use_stream::object_of(object.py(), asked)?,
        false => None,
    };
    // The producer's code may make another context current. A view's own asks its producer's table before the order,
    // which is made in the context that is current then, as it still is when the tensor is claimed.
    let is_placed = asked.is_default()
        && Platform::of(wanted) == Some(Platform::HostReadable)
        && !traits.intersects(Traits::OURS | Traits::ANOTHER_COPY);
    let whose = is_placed.then(defaults_now);
    tracing::mark(|marks| marks.route = Some("dlpack"));
    let called = match traits.intersects(Traits::WANTS_CURRENT) {
        true => call_on_its_device(object, announced, asked, wanted, request)?,
        false => call(object, asked, wanted, request),
    };
    let (capsule, honoured) = called.map_err(|error| {
        let (rule, field) = (Rule::DlpackMissing, Field::DlpackCall);
        why_not::failed_call(object, &names(object.py()).dlpack, rule, field, error)
    })?;
    if !capsule::is_capsule(&capsule) {
        return Err(Violation::new(Rule::CapsuleType, Field::DlpackCall, repr(&capsule)).into());
    }
    let mut tensor = capsule::read(capsule)?;
    let descriptor = &mut tensor.descriptor;
    check(descriptor, Some(announced), request)?;
    descriptor.set_access(access(descriptor, traits, stated));
    let streams = match honoured {
        StreamHonoured::ExportWaited => declared(Stream::None, descriptor),
        StreamHonoured::Yes if !traits.intersects(Traits::IGNORES_STREAM) => {
            declared(asked, descriptor)
        }
        _ => pending(object, descriptor, options)?,
    };
    let streams = match whose {
        Some(whose) => streams.with_defaults(whose),
        None => streams,
    };
    Ok(Offer {
        tensor,
        stream_object: held.filter(|_| streams.ready() == asked),
        streams,
    })
}

/// The object of the `use_stream` block on whose stream the data is ready, and an owner of it, made while the tensor can still be
/// refused.
struct Held<'py>(Bound<'py, PyAny>, Owner);

impl<'py> Held<'py> {
    /// # Errors
    /// Those of [`release::own`].
    #[cold]
    fn new(object: Bound<'py, PyAny>) -> PyResult<Self> {
        let owner = Owner::from_raw(release::own(object.clone())?);
        Ok(Self(object, owner))
    }

    /// Returns the owner if the producer's code has left the block, which kept the object: a view looks for the blocks that are
    /// open when it is made.
    #[cold]
    fn owner_of_left(self, stream: Stream) -> Option<Owner> {
        let Self(object, owner) = self;
        match use_stream::object_of(object.py(), stream) {
            Ok(Some(open)) if open.is(&object) => None,
            Ok(_) => Some(owner),
            Err(error) => {
                release::drop_now(error);
                Some(owner)
            }
        }
    }
}

/// Returns the streams of a producer that uses no stream: the caller's, else assumed ones.
///
/// # Errors
/// Those of [`undeclared::of_deaf`].
#[cold]
fn pending(
    object: &Bound<'_, PyAny>,
    descriptor: &Descriptor,
    options: &Options<'_, '_>,
) -> PyResult<Streams> {
    match options.producer {
        Some(producer) => Ok(declared(producer, descriptor)),
        None => undeclared::of_deaf(object, descriptor, options),
    }
}

/// Refuses what a producer's `__dlpack__` exports wrongly, or ends the process for.
///
/// # Errors
/// `values-lazy`, `producer-dtype`; what reading the object's attributes raises.
#[inline(never)]
fn check_first(
    object: &Bound<'_, PyAny>,
    traits: Traits,
    request: &DlpackArguments,
    options: &Options<'_, '_>,
) -> PyResult<()> {
    state::check_values(object, traits)?;
    if traits.intersects(Traits::ABORTS_ON_DTYPE) {
        why_not::check_dtype(object)?;
    }
    if traits.intersects(Traits::TRIED) {
        let device = announced_device(object)?;
        let is_unordered = request.is_unordered() || traits.intersects(Traits::IGNORES_STREAM);
        let waits = !has_no_streams(device) && !is_unordered;
        notes::ask(object, device, waits, options)?;
    }
    Ok(())
}

/// Like [`call`], with the array's device current, for producers that use the current one or refuse another. Without a
/// driver the producer raises the error itself.
///
/// # Errors
/// Those of the driver; those of the call stand inside.
#[cold]
#[inline(never)]
fn call_on_its_device<'py>(
    object: &Bound<'py, PyAny>,
    device: Device,
    stream: Stream,
    wanted: Device,
    request: &DlpackArguments,
) -> PyResult<PyResult<(Bound<'py, PyAny>, StreamHonoured)>> {
    let py = object.py();
    let call = || call(object, stream, wanted, request);
    match device.device_type {
        DeviceType::CUDA if driver::driver().is_ok() => Ok(on_device(py, device.id, call)?),
        _ => Ok(call()),
    }
}

/// Reads the tensor of a capsule, whose data is ready on the caller's stream: a capsule names none.
///
/// # Errors
/// The rules of DLPack and those of [`undeclared::of_capsule`], with the capsule as it was.
pub(crate) fn offer_of_capsule<'py>(
    capsule: &Bound<'py, PyAny>,
    request: &DlpackArguments,
    options: &Options<'_, '_>,
) -> PyResult<Offer<'py>> {
    capsule::check_alive(capsule)?;
    let mut tensor = capsule::read(capsule.clone())?;
    let wanted = request.device.unwrap_or(tensor.descriptor.device());
    let ready = stream_to_request(wanted, request.stream, request)?;
    check(&mut tensor.descriptor, None, request)?;
    let streams = match request.stream {
        Some(_) => declared(ready, &tensor.descriptor),
        None => undeclared::of_capsule(capsule, &tensor.descriptor, options)?,
    };
    Ok(Offer {
        tensor,
        streams,
        stream_object: None,
    })
}

/// Whether the producer has made the data ready on the stream that was passed.
#[derive(Clone, Copy, PartialEq)]
enum StreamHonoured {
    Yes,
    /// It takes no stream.
    No,
    /// It takes no stream, and its export has waited for the data (TensorFlow).
    ExportWaited,
}

/// Calls `__dlpack_device__`. `(1, None)` and `(3, None)`, which paddle returns, count as id 0.
///
/// # Errors
/// `device-...` rules; the producer's exception.
pub(crate) fn announced_device(object: &Bound<'_, PyAny>) -> PyResult<Device> {
    let py = object.py();
    // SAFETY: a str, and one argument (the object), both alive during the call; the GIL is held.
    let answer = unsafe {
        let argument = object.as_ptr();
        ffi::PyObject_VectorcallMethod(
            names(py).dlpack_device.as_ptr(),
            &raw const argument,
            1,
            std::ptr::null_mut(),
        )
    };
    // SAFETY: a new reference, or NULL with an exception set.
    let answer = unsafe { Bound::from_owned_ptr_or_err(py, answer) };
    let answer = match answer {
        Ok(answer) => answer,
        // A property that raises AttributeError is there: its own exception names the cause.
        Err(error)
            if !object.get_type().hasattr(&names(py).dlpack_device)?
                && !object.hasattr(&names(py).dlpack_device)? =>
        {
            release::drop_now(error);
            return Err(missing(object, Rule::DeviceMissing, Field::DlpackDevice));
        }
        Err(error) => {
            let (rule, field) = (Rule::DeviceMissing, Field::DlpackDevice);
            let name = &names(py).dlpack_device;
            return Err(why_not::failed_call(object, name, rule, field, error));
        }
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
        // SAFETY: an item is not null, and lives as long as the tuple.
        unsafe { Borrowed::from_ptr(py, part) }
    };
    let read_fast = |at| i32::try_from(int::read_fast(part(at))?).ok();
    if let (Some(device_type), Some(id)) = (read_fast(0), read_fast(1)) {
        return Ok(Device::check(DeviceType::from_dlpack(device_type), id)?);
    }
    device(&part(0), &part(1))
}

/// Reads the device from any ints.
#[cold]
fn device(device_type: &Bound<'_, PyAny>, id: &Bound<'_, PyAny>) -> PyResult<Device> {
    let device_type = DeviceType::from_dlpack(DEVICE_TYPE.read(device_type)?);
    let is_host = matches!(device_type, DeviceType::CPU | DeviceType::CUDA_HOST);
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
    if let Some(traced) = why_not::traced(object) {
        return traced.into();
    }
    let violation = Violation::new(
        rule,
        field,
        format_args!("an object of type {}", type_name(object)),
    );
    if rule != Rule::DlpackMissing {
        return why_not::with_type_hint(violation, object);
    }
    match why_not::seems_to_have(object, &names(object.py()).cai) {
        Ok(true) => {
            why_not::with_type_hint(violation.with_hint("view reads its interface"), object)
        }
        Ok(false) => why_not::with_type_hint(violation, object),
        Err(of_the_process) => of_the_process,
    }
}

/// Returns the stream of the current `use_stream` block, or the legacy default one; `None` for a producer that is asked
/// for none, or would not make it wait. A per-thread default stream is not passed: torch refuses it.
#[inline(always)]
fn work_stream(py: Python<'_>, traits: Traits, device: Device) -> PyResult<Option<Stream>> {
    if device.device_type != DeviceType::CUDA || traits.intersects(Traits::IGNORES_STREAM) {
        return Ok(None);
    }
    let stream = use_stream::work_stream(py, device)?.stream;
    Ok(Some(stream).filter(|stream| *stream != Stream::PerThreadDefault))
}

/// Chooses the stream that is passed to the producer, and on which the data is then ready: `stream`, which is the request's, or
/// that of the block if the request names none.
///
/// # Errors
/// `stream-cpu`.
#[inline(always)]
pub(super) fn stream_to_request(
    device: Device,
    stream: Option<Stream>,
    request: &DlpackArguments,
) -> PyResult<Stream> {
    match (Platform::of(device), stream) {
        (Some(Platform::Host) | None, Some(_)) => without_streams(request),
        (Some(Platform::Cuda | Platform::Rocm), None) => Ok(Stream::LegacyDefault),
        // Pinned and managed memory: with None the producer makes the host wait (docs/streams.md).
        (_, None) => Ok(Stream::None),
        (_, Some(stream)) => Ok(stream),
    }
}

/// Accepts no stream but none.
///
/// # Errors
/// `stream-cpu`.
#[cold]
fn without_streams(request: &DlpackArguments) -> PyResult<Stream> {
    let name = match request.is_producers {
        true => "producer_stream",
        false => "stream",
    };
    for (name, stream) in [(name, request.stream), ("stream", request.consumer)] {
        if let Some(stream) = stream.filter(|stream| *stream != Stream::None) {
            let (rule, field) = (Rule::StreamCpu, Field::Argument(name));
            return Err(Violation::new(rule, field, stream.raw()).into());
        }
    }
    Ok(Stream::None)
}

/// Calls `__dlpack__`, with fewer keywords if the producer does not have them.
fn call<'py>(
    object: &Bound<'py, PyAny>,
    stream: Stream,
    wanted: Device,
    request: &DlpackArguments,
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

/// Calls `object.__dlpack__(stream=..., max_version=(1, 3))`, without a dict of arguments.
fn call_fast<'py>(
    object: &Bound<'py, PyAny>,
    stream: Stream,
    device: Device,
) -> PyResult<Bound<'py, PyAny>> {
    static KEYWORDS: OnceBox<Py<PyTuple>> = OnceBox::new();
    let py = object.py();
    let keywords = KEYWORDS.get_or_try_init(|| {
        let names = [&names(py).stream, &names(py).max_version];
        let keywords = new_tuple(py, names.map(|name| Ok(name.bind(py).clone())))?;
        Ok::<_, PyErr>(Box::new(keywords.unbind()))
    })?;
    let stream = stream_argument(py, stream, device)?;
    let arguments = [object.as_ptr(), stream.as_ptr(), our_version(py)?.as_ptr()];
    // SAFETY: a str, one positional argument (the object) and as many named ones as the tuple of names has, all alive
    // during the call; the GIL is held.
    let answer = unsafe {
        ffi::PyObject_VectorcallMethod(
            names(py).dlpack.as_ptr(),
            arguments.as_ptr(),
            1,
            keywords.as_ptr(),
        )
    };
    // SAFETY: a new reference, or NULL with an exception set.
    unsafe { Bound::from_owned_ptr_or_err(py, answer) }
}

fn our_version(py: Python<'_>) -> PyResult<&Bound<'_, PyTuple>> {
    static VERSION: OnceBox<Py<PyTuple>> = OnceBox::new();
    VERSION
        .get_or_try_init(|| new_ints(py, [1, 3]).map(|version| Box::new(version.unbind())))
        .map(|version| version.bind(py))
}

/// Converts a stream into the protocol's integer; `None` if the device has no streams or the host is to wait.
fn stream_argument(py: Python<'_>, stream: Stream, device: Device) -> PyResult<Bound<'_, PyAny>> {
    let number = match Platform::of(device) {
        Some(platform @ (Platform::Cuda | Platform::Rocm)) => stream.to_dlpack_arg_on(platform),
        _ if stream == Stream::None => return Ok(py.None().into_bound(py)),
        _ => stream.to_dlpack_arg(),
    };
    match (i64::try_from(number), u64::try_from(number)) {
        (Ok(number), _) => new_int(py, number),
        (_, Ok(handle)) => new_uint(py, handle),
        _ => unreachable!("-1, or a handle"),
    }
}

/// Calls `__dlpack__` with one keyword less per try, by the producer's `TypeError`.
#[cold]
fn call_stepwise<'py>(
    object: &Bound<'py, PyAny>,
    stream: Stream,
    wanted: Device,
    request: &DlpackArguments,
    mut failed: Option<PyErr>,
) -> PyResult<(Bound<'py, PyAny>, StreamHonoured)> {
    let py = object.py();
    let names = names(py);
    let arguments = new_dict(py)?;
    let stream = match request.is_unordered() && !has_no_streams(wanted) {
        true => new_int(py, -1)?,
        false => stream_argument(py, stream, wanted)?,
    };
    arguments.set_item(&names.stream, stream)?;
    arguments.set_item(&names.max_version, our_version(py)?)?;
    if let Some(device) = request.device {
        let device = new_int_pair(py, device.to_dlpack())?;
        arguments.set_item(&names.dl_device, device)?;
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

/// Drops the keyword that the producer's error names.
///
/// # Errors
/// The producer's error, if it names no keyword that may be dropped.
fn drop_keyword(
    object: &Bound<'_, PyAny>,
    arguments: &Bound<'_, PyDict>,
    request: &DlpackArguments,
    error: PyErr,
) -> PyResult<Option<StreamHonoured>> {
    let py = object.py();
    let may_refuse = error.get_type(py).is(py.get_type::<PyRuntimeError>());
    if may_refuse && is_tensorflow(object) && arguments.contains(&names(py).stream)? {
        // TensorFlow refuses a stream by RuntimeError, and its export waits for its own.
        arguments.del_item(&names(py).stream)?;
        return Ok(Some(StreamHonoured::ExportWaited));
    }
    if !error.is_instance_of::<PyTypeError>(py) {
        return Err(error);
    }
    let text = text(error.value(py)).unwrap_or_default();
    // `copy=False` may be dropped: a producer without the keyword makes no copy. A transfer may not.
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

/// Whether a producer has raised this since it does not export to the requested device: by a `BufferError`, as the array
/// API has it, or since it takes no `dl_device`.
pub(crate) fn is_refused_device(py: Python<'_>, error: &PyErr) -> bool {
    let takes_none = || text(error.value(py)).is_some_and(|text| names_keyword(&text, "dl_device"));
    error.is_instance_of::<PyBufferError>(py)
        || (error.is_instance_of::<PyTypeError>(py) && takes_none())
}

/// Whether an error's text names this keyword as a whole word.
fn names_keyword(text: &str, name: &str) -> bool {
    text.contains("keyword")
        && text
            .split(|c: char| !(c.is_alphanumeric() || c == '_'))
            .any(|word| word == name)
}

/// Whether the object is an eager tensor of TensorFlow, by its type's module.
fn is_tensorflow(object: &Bound<'_, PyAny>) -> bool {
    release::dropping(|| {
        let module = object.get_type().getattr(&names(object.py()).module);
        let module = module.ok().and_then(|module| text(&module));
        module.is_some_and(|module| module.starts_with("tensorflow."))
    })
}

/// Combines what the tensor and the object's interface have stated. If neither could, the table of partners decides:
/// the arrays of some libraries can always be written.
#[inline(always)]
fn access(descriptor: &Descriptor, traits: Traits, stated: Access) -> Access {
    // The interface is of the object's own memory, not of a copy.
    if descriptor.flags().contains(Flags::IS_COPIED) {
        return descriptor.access();
    }
    match descriptor.access().merge(stated) {
        Access::Unknown if traits.intersects(Traits::IS_MUTABLE) => Access::Writable,
        merged => merged,
    }
}

/// Whether memory that a tensor calls `found` is that of `wanted`: managed memory has no id of its own.
#[inline(always)]
pub(crate) fn is_of(found: Device, wanted: Device) -> bool {
    let managed = DeviceType::CUDA_MANAGED;
    found == wanted || (wanted.device_type == managed && found.device_type == managed)
}

/// Compares the tensor with the device that its producer has announced, if there is one to ask, and the caller's request.
#[inline(always)]
fn check(
    descriptor: &mut Descriptor,
    announced: Option<Device>,
    request: &DlpackArguments,
) -> PyResult<()> {
    if request.copy == Some(false) && descriptor.flags().contains(Flags::IS_COPIED) {
        return Err(Violation::new(Rule::CopiedUnasked, Field::TensorFlags, "IS_COPIED").into());
    }
    let found = descriptor.device();
    let wanted = request.device.or(announced).unwrap_or(found);
    let device = match is_of(found, wanted) {
        true => wanted,
        false => pinned(descriptor, wanted, announced, request)?,
    };
    descriptor.set_device(device);
    Ok(())
}

/// Returns the device of a tensor that is said to be of the CPU's memory, of a producer that has announced pinned memory:
/// torch sends it so, and a copy of it is of the CPU's.
///
/// # Errors
/// `device-mismatch` for any other tensor.
#[cold]
fn pinned(
    descriptor: &Descriptor,
    wanted: Device,
    announced: Option<Device>,
    request: &DlpackArguments,
) -> Result<Device, Violation> {
    let found = descriptor.device();
    let is_pinned = |device: Device| device.device_type == DeviceType::CUDA_HOST;
    let is_copied = request.copy == Some(true) || descriptor.flags().contains(Flags::IS_COPIED);
    if found.device_type == DeviceType::CPU && announced.is_some_and(is_pinned) {
        match is_copied {
            false if is_pinned(wanted) => return Ok(wanted),
            true if request.device.is_none() => return Ok(found),
            _ => {}
        }
    }
    let how = match request.device {
        Some(_) => "requested",
        None => "announced",
    };
    let hint = format!("{:?} was {how}", wanted.to_dlpack());
    let pair = found.to_dlpack();
    let found = format_args!("{pair:?}");
    Err(Violation::new(Rule::DeviceMismatch, Field::TensorDevice, found).with_hint(hint))
}
