//! Imports an object with `__cuda_array_interface__`.

use std::mem::MaybeUninit;

use pyo3::Borrowed;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyType};

use crate::driver;
use crate::driver::{DriverError, MemoryKind, PointerInfo};
use crate::protocol::descriptor::Descriptor;
use crate::protocol::device::{Access, Device, DeviceType, Flags};
use crate::protocol::interface::{CaiInterface, Descr, Version};
use crate::protocol::rule::{Field, Rule, Violation};
use crate::protocol::stream::Stream;
use crate::python::call::options;
use crate::python::call::options::{Check, Options};
use crate::python::class::beside::Beside;
use crate::python::class::view::{PyCaiView, kept};
use crate::python::cpython::int::{repr, type_name};
use crate::python::cpython::names::names;
use crate::python::cpython::new::new_tuple;
use crate::python::cpython::{errors, getattr, release};
use crate::python::import::cai_dict::{FastDict, Numbers, ParsedDict, Values};
use crate::python::import::dict_streams::Told;
use crate::python::import::notice::{Notice, warn_of};
use crate::python::import::of_view::OfView;
use crate::python::import::traits::Traits;
use crate::python::import::{
    cai_dict, dict_streams, dlpack, dtype_hint, fields, known_types, numba, state, why_not,
};
use crate::view::{CaiView, Owner, Streams, check_range, with_driver};

/// Whether an import takes arrays that DLPack cannot describe.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum AllowCaiOnly {
    /// For a view, which leaves by CAI too.
    Yes,
    /// For an export by DLPack, and for a typed argument.
    No,
}

/// Imports by CAI alone: an object with the attribute, or a dict with `owner=`. Writes the view unless it fails. `traits` are
/// those of the object's type, and of the import ([`OfView::complete`]).
///
/// # Errors
/// The rules of the interface and of the options; the driver's; the exceptions of the producer.
pub(crate) fn import<'py>(
    memory: &mut MaybeUninit<CaiView>,
    object: &Bound<'py, PyAny>,
    traits: Traits,
    options: &Options<'_, 'py>,
    allow: AllowCaiOnly,
) -> PyResult<Beside> {
    let said = OfView::read(object, traits, options)?;
    let dict = match said.is_unordered {
        true => unordered(object)?,
        false => None,
    };
    let beside = import_any(memory, object, dict, options, allow)?;
    // SAFETY: written: `import_any` has not failed.
    unsafe { finished(memory, |view| said.complete(view, traits, options)) }?;
    Ok(beside)
}

/// Finishes a view that was written. Drops it if that fails.
///
/// # Safety
/// The view is written, and not used after an error.
///
/// # Errors
/// Those of `finish`.
pub(crate) unsafe fn finished(
    memory: &mut MaybeUninit<CaiView>,
    finish: impl FnOnce(&mut CaiView) -> PyResult<()>,
) -> PyResult<()> {
    // SAFETY: this function's contract.
    let finished = finish(unsafe { memory.assume_init_mut() });
    if finished.is_err() {
        // SAFETY: this function's contract.
        unsafe { memory.assume_init_drop() };
    }
    finished
}

/// Like [`import`], without what a view says beside its dict, which is given if it has been read.
fn import_any<'py>(
    memory: &mut MaybeUninit<CaiView>,
    object: &Bound<'py, PyAny>,
    dict: Option<Bound<'py, PyAny>>,
    options: &Options<'_, 'py>,
    allow: AllowCaiOnly,
) -> PyResult<Beside> {
    let is_dict = object.is_instance_of::<PyDict>();
    if is_dict && options.owner.is_none() {
        return Err(without_owner(object));
    }
    let dict = match (is_dict, dict) {
        (true, _) => object.clone(),
        (false, Some(dict)) => dict,
        (false, None) => {
            let traits = known_types::facts_of(object)?.traits;
            state::check_values(object, traits)?;
            if let Some(view) = by_fields(object, traits, options)? {
                memory.write(view);
                return Ok(Beside::default());
            }
            attribute(object)?.ok_or_else(|| missing(object))?
        }
    };
    let mut numbers = Numbers::default();
    if let Some(fast) = read_fast(&dict, options, &mut Values::none(), &mut numbers) {
        memory.write(view_fast(object, fast, options)?);
        return Ok(Beside::default());
    }
    import_parsed(
        memory,
        object,
        read(object, &dict, options)?,
        options,
        allow,
    )
}

/// Reads `object.__cuda_array_interface__` once; `None` if reading it raises `AttributeError`. Of other exceptions, which
/// torch, cuDF and others raise for a tensor that cannot be exported, [`why_not`] decides.
#[inline(always)]
pub(crate) fn attribute<'py>(object: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
    match getattr::optional(object, &names(object.py()).cai) {
        Ok(found) => Ok(found),
        Err(error) => Err(why_not::failed(object, error)),
    }
}

/// Reads the dict of another copy's view, without the wait for a producer that has moved: the import makes it, by its own
/// policy, unless the caller names where the data is ready. `None` if there is no dict.
///
/// # Errors
/// Those of [`attribute`].
pub(crate) fn unordered<'py>(object: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
    match getattr::optional(object, &names(object.py()).interface_unordered) {
        Ok(Some(dict)) if dict.is_instance_of::<PyDict>() => Ok(Some(dict)),
        Ok(_) => attribute(object),
        Err(error) => Err(why_not::failed(object, error)),
    }
}

/// Makes the view of an array of Numba's whose fields are read without its getter; `None`, with nothing done, for every
/// other object, and if the caller describes its elements.
///
/// # Errors
/// Those of [`numba::read_fast`] and [`view_fast`].
#[inline(always)]
pub(crate) fn by_fields<'py>(
    object: &Bound<'py, PyAny>,
    traits: Traits,
    options: &Options<'_, 'py>,
) -> PyResult<Option<CaiView>> {
    if !traits.intersects(Traits::NUMBA) || options.dtype.is_some() || options.shape.is_some() {
        return Ok(None);
    }
    let mut numbers = Numbers::default();
    match numba::read_fast(object, &mut numbers)? {
        Some(fast) => view_fast(object, fast, options).map(Some),
        None => Ok(None),
    }
}

/// Reads the dict of `object` in full. If `object` is a class, whose attribute is the property object, the error
/// names the class.
#[inline]
pub(crate) fn read<'py>(
    object: &Bound<'py, PyAny>,
    dict: &Bound<'py, PyAny>,
    options: &Options<'_, '_>,
) -> PyResult<ParsedDict<'py>> {
    cai_dict::read(dict, options.is_strict(dict.py())?).map_err(|error| {
        if object.is_instance_of::<PyType>() {
            release::drop_now(error);
            missing(object)
        } else {
            error
        }
    })
}

/// Builds the error for an object without CAI.
#[cold]
pub(crate) fn missing(object: &Bound<'_, PyAny>) -> PyErr {
    let name = type_name(object);
    let found = format_args!("an object of type {name}");
    if object.is_instance_of::<PyType>() {
        return why_not::class(object).into();
    }
    match object.get_type().hasattr(&names(object.py()).cai) {
        Ok(true) => unavailable(object),
        Ok(false) => match why_not::traced(object) {
            Some(traced) => traced.into(),
            None => Violation::new(Rule::CaiMissing, Field::Object, found).into(),
        },
        Err(error) => error,
    }
}

/// Builds the error for an object whose property raises `AttributeError`, with that exception as its cause. Reads the
/// property again, as its first exception was not kept.
#[cold]
fn unavailable(object: &Bound<'_, PyAny>) -> PyErr {
    let names = names(object.py());
    let kind = type_name(object);
    let found = format_args!("an object of type {kind}");
    let violation = Violation::new(Rule::CaiUnavailable, Field::Cai, found);
    let has_dlpack = object.get_type().hasattr(&names.dlpack).unwrap_or(false);
    let other_way = match has_dlpack {
        true => "; cai_dlpack.view and from_dlpack take the object by __dlpack__",
        false => "",
    };
    match object.getattr(&names.cai) {
        Ok(_) => violation
            .with_hint(format!("a second try returned it{other_way}"))
            .into(),
        Err(cause) if errors::is_of_the_process(object.py(), &cause) => cause,
        Err(cause) => {
            let unavailable = || {
                let text = errors::raised(&cause);
                violation.with_hint(format!("it raised {text}{other_way}"))
            };
            match why_not::state(object, &cause) {
                Ok(state) => errors::caused_by(state.unwrap_or_else(unavailable), cause),
                Err(of_the_process) => of_the_process,
            }
        }
    }
}

/// Builds the error for a dict without `owner=`, which may be no interface at all.
#[cold]
fn without_owner(dict: &Bound<'_, PyAny>) -> PyErr {
    let names = names(dict.py());
    let required = [&names.shape, &names.typestr, &names.data];
    if required
        .iter()
        .any(|key| dict.contains(key).unwrap_or(false))
    {
        return Violation::new(Rule::OwnerMissing, Field::Argument("owner"), "")
            .with_hint("pass owner=, the object that keeps the memory alive")
            .into();
    }
    Violation::new(Rule::ProtocolMissing, Field::Object, repr(dict))
        .with_hint("a dict is taken if it is an interface, with shape, typestr, data and version")
        .into()
}

/// Writes the view of a dict that was read in full. `object` (`owner=` for a bare dict) keeps the memory alive.
pub(crate) fn import_parsed<'py>(
    memory: &mut MaybeUninit<CaiView>,
    object: &Bound<'py, PyAny>,
    mut read: ParsedDict<'py>,
    options: &Options<'_, 'py>,
    allow: AllowCaiOnly,
) -> PyResult<Beside> {
    fields::complete(object, &mut read, options)?;
    memory.write(view(object, read, options, allow)?);
    Ok(Beside::default())
}

/// Refuses a mask, and warns of a stream 0 and a newer version.
pub(crate) fn check(object: &Bound<'_, PyAny>, read: &ParsedDict<'_>) -> PyResult<()> {
    if let Some(mask) = &read.mask {
        return Err(cai_dict::refuse_mask(mask, read.interface.shape()));
    }
    match read.interface.version() {
        Version::Newer(version) => warn_of(object, Notice::NewerVersion(version)),
        _ if read.stream_was_zero => warn_of(object, Notice::StreamZero),
        _ => Ok(()),
    }
}

/// Makes the view of a dict that was read in full.
pub(crate) fn view<'py>(
    object: &Bound<'py, PyAny>,
    read: ParsedDict<'py>,
    options: &Options<'_, 'py>,
    allow: AllowCaiOnly,
) -> PyResult<CaiView> {
    check(object, &read)?;
    let is_stream_known = read.is_stream_known();
    let stream = read.interface.stream();
    let (access, address) = (read.access, read.address);
    // Everything that needs no driver is checked before the driver is called.
    let mut descriptor = described(object, read, options, allow)?;
    descriptor.set_access(access);
    finish(
        object,
        descriptor,
        address,
        stream,
        is_stream_known,
        options,
    )
}

/// Describes the array of a dict that was read in full, on a device that is located later.
///
/// # Errors
/// The rules of the items and of `dtype=` and `shape=`; the exceptions of the object's `dtype`.
pub(crate) fn described(
    object: &Bound<'_, PyAny>,
    read: ParsedDict<'_>,
    options: &Options<'_, '_>,
    allow: AllowCaiOnly,
) -> PyResult<Descriptor> {
    let (interface, typestr) = (read.interface, read.typestr);
    let device = options.device.unwrap_or(Device::cuda(0));
    let quoted = |violation| verbatim(violation, &typestr);
    let has_fields = matches!(interface.descr(), Descr::Fields(_));
    let proven = match options.keeps_elements() && !has_fields {
        true => dtype_hint::of(&speaker(object, options), interface.typestr())?,
        false => None,
    };
    let described = match proven {
        Some(dtype) => interface.into_named(dtype, device),
        None if allow == AllowCaiOnly::Yes && options.keeps_elements() => {
            return Ok(interface.describe_with(device, quoted).map_err(quoted)?);
        }
        None => describe(interface, options, device),
    };
    Ok(described.map_err(quoted)?)
}

/// Reads the dict fast, unless the caller describes its elements.
#[inline(always)]
pub(crate) fn read_fast<'a>(
    dict: &Bound<'_, PyAny>,
    options: &Options<'_, '_>,
    values: &mut Values,
    numbers: &'a mut Numbers,
) -> Option<FastDict<'a>> {
    if options.dtype.is_some() || options.shape.is_some() {
        return None;
    }
    cai_dict::read_fast(dict, values, numbers)
}

/// Makes the view of a dict that was read fast.
#[inline(always)]
pub(crate) fn view_fast<'py>(
    object: &Bound<'py, PyAny>,
    dict: FastDict<'_>,
    options: &Options<'_, 'py>,
) -> PyResult<CaiView> {
    let device = options.device.unwrap_or(Device::cuda(0));
    let mut descriptor = dict.array.descriptor(device);
    if dtype_hint::is_often_mislabelled(descriptor.dtype())
        && let speaker = speaker(object, options)
        && dtype_hint::mislabels(&speaker)
        && let Some(dtype) = dtype_hint::special(&speaker, 2)?
    {
        descriptor = descriptor.with_dtype(dtype)?;
    }
    finish(
        object,
        descriptor,
        dict.address,
        dict.stream,
        dict.is_stream_known,
        options,
    )
}

/// Adds the device and the owner, which a dict does not state. `address` is the dict's, of an array without elements too.
#[inline(always)]
pub(crate) fn finish<'py>(
    object: &Bound<'py, PyAny>,
    mut descriptor: Descriptor,
    address: u64,
    stream: Stream,
    is_stream_known: bool,
    options: &Options<'_, 'py>,
) -> PyResult<CaiView> {
    let told = dict_streams::of(object, &descriptor, stream, is_stream_known, options)?;
    let names_context = locate(object, &mut descriptor, address, options)?;
    let (streams, passed) = match told {
        Told::Here(streams) => (streams, None),
        Told::ByView(view) => {
            let own = view.get().view();
            (own.streams_by(descriptor.device())?, None)
        }
        Told::Passed(passed) => (Streams::here(passed.ready.0, None), Some(passed)),
    };
    if let Some(read_only) = options.read_only {
        descriptor.set_access(Access::of_flag(read_only));
    }
    let owner = Owner::from_raw(release::own(owner(object, options)?)?);
    // SAFETY: CAI: the object, which the owner holds, keeps the memory and the stream alive.
    let mut view = unsafe { CaiView::on_streams(descriptor, streams, owner) };
    if !names_context {
        view.remember_primary();
    }
    if let Some(passed) = passed {
        view.take_streams(passed)?;
    }
    Ok(view)
}

/// Converts the interface into DLPack's metadata.
#[inline]
pub(crate) fn describe(
    interface: CaiInterface,
    options: &Options<'_, '_>,
    device: Device,
) -> Result<Descriptor, Violation> {
    match &options.shape {
        None => interface.into_descriptor(options.dtype, device),
        Some(shape) => {
            let items = interface.describe(device)?;
            let dtype = options.dtype.unwrap_or(items.dtype());
            let described = options::reshaped(items, dtype, shape);
            described.map_err(|violation| match violation.field() {
                Field::TensorData => violation.in_field(Field::CaiData),
                _ => violation,
            })
        }
    }
}

/// Replaces a refused typestr by the producer's own text, such as `<M8[ns]`.
#[cold]
pub(crate) fn verbatim(violation: Violation, typestr: &Bound<'_, PyAny>) -> Violation {
    match violation.field() {
        Field::CaiTypestr => violation.with_found(repr(typestr)),
        _ => violation,
    }
}

/// Returns the object whose array a dict describes: the one that it was read from, or the `owner=` of a bare dict.
fn speaker<'a, 'py>(
    object: &'a Bound<'py, PyAny>,
    options: &Options<'a, 'py>,
) -> Borrowed<'a, 'py, PyAny> {
    match options.owner {
        Some(owner) if object.is_instance_of::<PyDict>() => owner,
        _ => object.as_borrowed(),
    }
}

/// Returns what keeps the memory alive: the object, the `owner=` of a bare dict, or both.
#[inline(always)]
fn owner<'py>(
    object: &Bound<'py, PyAny>,
    options: &Options<'_, 'py>,
) -> PyResult<Bound<'py, PyAny>> {
    match options.owner {
        None => Ok(object.clone()),
        Some(owner) if object.is_instance_of::<PyDict>() => kept(owner),
        Some(owner) => {
            // A tuple lets go of its last item first.
            let both = [kept(owner), Ok(object.clone())];
            Ok(new_tuple(object.py(), both)?.into_any())
        }
    }
}

/// Sets the device of the memory, unless the caller has named it, and returns whether the driver may name a context for
/// the memory, which it does not for a pool's.
#[inline(always)]
fn locate(
    object: &Bound<'_, PyAny>,
    descriptor: &mut Descriptor,
    address: u64,
    options: &Options<'_, '_>,
) -> PyResult<bool> {
    if options.device.is_some() && options.check == Check::Device {
        return Ok(true);
    }
    if descriptor.data() == 0 {
        descriptor.set_device(device_of_none(object, address, options)?);
        return Ok(true);
    }
    Ok(query_driver(descriptor, options)?)
}

/// Returns the device of an array without elements: the caller's, else the one that its view or `__dlpack_device__`
/// tells, so that all imports agree, else that of the address in its dict, else the first one. The address may be any,
/// so that no array is refused for it.
///
/// # Errors
/// Those of reading the type, and those of `__dlpack_device__` that tell of the process.
#[cold]
fn device_of_none(
    object: &Bound<'_, PyAny>,
    address: u64,
    options: &Options<'_, '_>,
) -> PyResult<Device> {
    if let Some(device) = options.device {
        return Ok(device);
    }
    let speaker = speaker(object, options);
    let told = match speaker.cast::<PyCaiView>() {
        Ok(view) => Some(view.get().view().device()),
        Err(_) => announced(&speaker)?,
    };
    // An interface is of memory that CUDA reads: cuda.core announces the CPU for every array without elements.
    if let Some(device) = told.filter(|device| device.is_cuda_accessible()) {
        return Ok(device);
    }
    // Without a driver no memory is of a device, and a search for one costs more than all else.
    let info = match address {
        0 => None,
        _ if !driver::may_have_memory() => None,
        _ => pointer_info(address, false).ok(),
    };
    let found = info.and_then(|info| device_of(&info));
    Ok(found.unwrap_or(Device::cuda(0)))
}

/// Returns the device that an object announces by DLPack, if it does.
fn announced(object: &Bound<'_, PyAny>) -> PyResult<Option<Device>> {
    let traits = known_types::facts_of(object)?.traits;
    if !traits.intersects(Traits::HAS_DLPACK) {
        return Ok(None);
    }
    match dlpack::announced_device(object) {
        Ok(device) => Ok(Some(device)),
        Err(error) if errors::is_of_the_process(object.py(), &error) => Err(error),
        Err(error) => {
            release::drop_now(error);
            Ok(None)
        }
    }
}

/// Queries the driver for the device and the kind of the memory and, with `check="bounds"`, for its range.
fn query_driver(
    descriptor: &mut Descriptor,
    options: &Options<'_, '_>,
) -> Result<bool, crate::Error> {
    let wants_range = options.check != Check::Device;
    if let Some(device) = options
        .device
        .filter(|device| device.device_type == DeviceType::ROCM)
    {
        let found = format_args!("\"bounds\", with device_id=(10, {})", device.id);
        return Err(
            Violation::new(Rule::ArgumentValue, Field::Argument("check"), found)
                .with_hint("only CUDA's driver is asked, which knows no memory of ROCm")
                .into(),
        );
    }
    let info = pointer_info(descriptor.data(), wants_range)?;
    let device = device_of(&info).ok_or_else(|| unknown(descriptor.data()))?;
    if let Some(device) = options.device
        && info.ordinal != device.id
    {
        let hint = format!("the driver says device {}", info.ordinal);
        let field = Field::Argument("device_id");
        let violation = Violation::new(Rule::PointerDevice, field, device.id);
        return Err(violation.with_hint(hint).into());
    }
    if let (true, Some(span)) = (wants_range, descriptor.byte_span()) {
        with_driver(|driver| check_range(driver, span, &info, Field::CaiData))?;
    }
    descriptor.set_device(device);
    if info.kind == MemoryKind::Device {
        descriptor.set_memory(Flags::OF_DEVICE);
    }
    Ok(info.context.is_some())
}

/// Queries the driver for the device of an address.
///
/// # Errors
/// `pointer-unknown`; the driver's.
pub(crate) fn device_at(data: u64) -> Result<Device, crate::Error> {
    let info = pointer_info(data, false)?;
    Ok(device_of(&info).ok_or_else(|| unknown(data))?)
}

fn pointer_info(data: u64, wants_range: bool) -> Result<PointerInfo, DriverError> {
    with_driver(|driver| driver.pointer_info(data, wants_range))
}

#[cold]
fn unknown(data: u64) -> Violation {
    Violation::new(
        Rule::PointerUnknown,
        Field::CaiData,
        format_args!("{data:#x}"),
    )
}

fn device_of(info: &PointerInfo) -> Option<Device> {
    match info.kind {
        MemoryKind::Device => Some(Device::cuda(info.ordinal)),
        MemoryKind::Managed => Some(Device::new(DeviceType::CUDA_MANAGED, 0)),
        MemoryKind::Pinned => Some(Device::new(DeviceType::CUDA_HOST, 0)),
        MemoryKind::Unknown => None,
    }
}
