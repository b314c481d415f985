//! An object with `__cuda_array_interface__` becomes a view.

use std::mem::MaybeUninit;

use pyo3::exceptions::PyUserWarning;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyType};

use crate::driver;
use crate::driver::{MemoryKind, PointerInfo};
use crate::protocol::descriptor::Descriptor;
use crate::protocol::device::Device;
use crate::protocol::interface::{CaiInterface, Version};
use crate::protocol::rule::{Field, Rule, Violation};
use crate::protocol::stream::Stream;
use crate::python::call::options::{Check, Options};
use crate::python::class::beside::Beside;
use crate::python::cpython::int::{repr, type_name};
use crate::python::cpython::names::keys;
use crate::python::cpython::{getattr, release};
use crate::python::import::cai_dict::{Numbers, Read, Usual};
use crate::python::import::{cai_dict, dtype_hint, fields};
use crate::view::{CaiView, Owner, check_range};

/// Whether an import takes arrays whose items have fields.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum AllowStructs {
    /// For a view, which keeps the fields beside the array.
    Yes,
    /// For an export, which refuses them.
    No,
}

/// Imports by CAI and nothing else: an object with the attribute, or a dict with `owner=`.
pub(crate) fn import<'py>(
    memory: &mut MaybeUninit<CaiView>,
    object: &Bound<'py, PyAny>,
    options: &Options<'_, 'py>,
    structs: AllowStructs,
) -> PyResult<Beside> {
    let is_dict = object.is_instance_of::<PyDict>();
    if is_dict && options.owner.is_none() {
        return Err(Violation::new(Rule::OwnerMissing, Field::Argument("owner"), "").into());
    }
    let dict = match is_dict {
        true => object.clone(),
        false => attribute(object)?.ok_or_else(|| missing(object))?,
    };
    let mut numbers = Numbers::default();
    if let Some(usual) = usual(&dict, options, &mut numbers) {
        memory.write(usual_view(object, usual, options)?);
        return Ok(Beside::default());
    }
    any(
        memory,
        object,
        read(object, &dict, options)?,
        options,
        structs,
    )
}

/// Reads `object.__cuda_array_interface__`, once; `None` where it has none. Only an `AttributeError`
/// says so: torch, cuDF and others raise something else for a tensor that cannot be exported.
#[inline(always)]
pub(crate) fn attribute<'py>(object: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
    getattr::optional(object, &keys(object.py()).cai)
}

/// Reads the dict of `object`. On a class the attribute is the property object: said as such.
#[inline]
pub(crate) fn read<'py>(
    object: &Bound<'py, PyAny>,
    dict: &Bound<'py, PyAny>,
    options: &Options<'_, '_>,
) -> PyResult<Read<'py>> {
    cai_dict::read(dict, options.strict).map_err(|error| {
        if object.is_instance_of::<PyType>() {
            release::drop_now(error);
            missing(object)
        } else {
            error
        }
    })
}

/// Says what is wrong with an object that has no CAI.
#[cold]
pub(crate) fn missing(object: &Bound<'_, PyAny>) -> PyErr {
    let name = type_name(object);
    let found = format_args!("an object of type {name}");
    if object.is_instance_of::<PyType>() {
        return Violation::new(
            Rule::ClassNotInstance,
            Field::Object,
            format_args!("{object}"),
        )
        .into();
    }
    match object.get_type().hasattr(&keys(object.py()).cai) {
        Ok(true) => Violation::new(Rule::CaiUnavailable, Field::Cai, found)
            .with_hint("a tensor on the CPU has no CUDA Array Interface; from_dlpack takes it")
            .into(),
        Ok(false) => Violation::new(Rule::CaiMissing, Field::Object, found).into(),
        Err(error) => error,
    }
}

/// The view of what a dict said, kept alive by `object` (or by `owner=`, for a bare dict); of a struct
/// with its fields.
pub(crate) fn any<'py>(
    memory: &mut MaybeUninit<CaiView>,
    object: &Bound<'py, PyAny>,
    mut read: Read<'py>,
    options: &Options<'_, 'py>,
    structs: AllowStructs,
) -> PyResult<Beside> {
    let is_struct = fields::is_one(object, &mut read, options)?;
    if !is_struct || structs == AllowStructs::No {
        memory.write(view(object, read, options)?);
        return Ok(Beside::default());
    }
    check(object, &read)?;
    let (stream, known) = (read.interface.stream(), read.knows_stream());
    let device = Device::cuda(options.device_id.unwrap_or(0));
    let (descriptor, fields) = read.interface.into_struct(device)?;
    memory.write(finish(object, descriptor, stream, known, options)?);
    Ok(Beside::default().with_fields(fields))
}

/// Refuses a mask, and warns of what should not be there.
pub(crate) fn check(object: &Bound<'_, PyAny>, read: &Read<'_>) -> PyResult<()> {
    if let Some(mask) = &read.mask {
        return Err(cai_dict::refuse_mask(mask, read.interface.shape()));
    }
    if read.stream_was_zero || matches!(read.interface.version(), Version::Newer(_)) {
        warn(object, read)?;
    }
    Ok(())
}

/// [`any`], of what is no struct.
pub(crate) fn view<'py>(
    object: &Bound<'py, PyAny>,
    read: Read<'py>,
    options: &Options<'_, 'py>,
) -> PyResult<CaiView> {
    check(object, &read)?;
    let known = read.knows_stream();
    let stream = read.interface.stream();
    // Everything that can be said without the driver is said first.
    let typestr = read.typestr;
    let proven = if options.dtype.is_none() && options.shape.is_none() {
        dtype_hint::of(object, read.interface.typestr())?
    } else {
        None
    };
    let described = match proven {
        None => describe(read.interface, options),
        proven => {
            let device = Device::cuda(options.device_id.unwrap_or(0));
            read.interface.into_descriptor(proven, device)
        }
    };
    let descriptor = described.map_err(|violation| verbatim(violation, typestr.as_ref()))?;
    finish(object, descriptor, stream, known, options)
}

/// Reads the usual dict, where the caller does not know its elements better.
#[inline(always)]
pub(crate) fn usual<'a>(
    dict: &Bound<'_, PyAny>,
    options: &Options<'_, '_>,
    numbers: &'a mut Numbers,
) -> Option<Usual<'a>> {
    if options.dtype.is_some() || options.shape.is_some() {
        return None;
    }
    cai_dict::usual(dict, numbers)
}

/// [`view`] of what the usual dict said.
#[inline(always)]
pub(crate) fn usual_view<'py>(
    object: &Bound<'py, PyAny>,
    usual: Usual<'_>,
    options: &Options<'_, 'py>,
) -> PyResult<CaiView> {
    let device = Device::cuda(options.device_id.unwrap_or(0));
    let mut descriptor = usual.array.descriptor(device);
    if dtype_hint::is_doubtful(object, descriptor.dtype())
        && let Some(dtype) = dtype_hint::special(object, 2)?
    {
        descriptor = descriptor.with_dtype(dtype)?;
    }
    finish(
        object,
        descriptor,
        usual.stream,
        usual.knows_stream,
        options,
    )
}

/// Adds what a dict does not say: where the memory is, and who keeps it alive.
#[inline(always)]
pub(crate) fn finish<'py>(
    object: &Bound<'py, PyAny>,
    mut descriptor: Descriptor,
    stream: Stream,
    known: bool,
    options: &Options<'_, 'py>,
) -> PyResult<CaiView> {
    let (device, names_context) = locate(&descriptor, options)?;
    descriptor.set_device(device);
    if let Some(read_only) = options.read_only {
        descriptor = descriptor.with_read_only(read_only);
    }
    let owner = Owner::from_raw(release::own(owner(object, options)?)?);
    let mut view = with_streams(descriptor, stream, known, options.producer, owner);
    if !names_context {
        view.remember_primary();
    }
    Ok(view)
}

/// What DLPack says of it, on a device that is not known yet.
#[inline]
pub(crate) fn describe(
    interface: CaiInterface,
    options: &Options<'_, '_>,
) -> Result<Descriptor, Violation> {
    let device = Device::cuda(options.device_id.unwrap_or(0));
    match &options.shape {
        None => interface.into_descriptor(options.dtype, device),
        Some(shape) => {
            let bytes = interface.into_descriptor(None, device)?;
            let dtype = options.dtype.unwrap_or(bytes.dtype());
            bytes.with_shape(dtype, shape)
        }
    }
}

/// Shows a refused typestr as the producer wrote it: `<M8[ns]`, and not what was understood of it.
#[cold]
fn verbatim(violation: Violation, typestr: Option<&Bound<'_, PyAny>>) -> Violation {
    match typestr {
        Some(text) if violation.field() == Field::CaiTypestr => violation.with_found(repr(text)),
        _ => violation,
    }
}

/// What to wait for: where the caller says that the data is written, else where the producer says.
#[inline(always)]
fn with_streams(
    descriptor: Descriptor,
    declared: Stream,
    known: bool,
    producer: Option<Stream>,
    owner: Owner,
) -> CaiView {
    let ready = producer.unwrap_or(declared);
    let goes_on = producer.or(known.then_some(declared));
    // SAFETY: the producer's promise (CAI): the object keeps the memory and the stream alive.
    unsafe { CaiView::of(descriptor, ready, goes_on, owner) }
}

/// What keeps the memory alive: the object, the named owner of a bare dict, or both.
#[inline(always)]
fn owner<'py>(
    object: &Bound<'py, PyAny>,
    options: &Options<'_, 'py>,
) -> PyResult<Bound<'py, PyAny>> {
    match options.owner {
        None => Ok(object.clone()),
        Some(owner) if object.is_instance_of::<PyDict>() => Ok(owner.to_owned()),
        Some(owner) => Ok((object, owner).into_pyobject(object.py())?.into_any()),
    }
}

/// Where the memory is: as the caller says, else as the driver says; and whether the driver may name a context for it,
/// which it does not for a pool's. Size 0 asks nobody.
#[inline(always)]
pub(crate) fn locate(
    descriptor: &Descriptor,
    options: &Options<'_, '_>,
) -> PyResult<(Device, bool)> {
    let is_known = options.device_id.is_some() && options.check == Check::Device;
    if descriptor.data() == 0 || is_known {
        return Ok((descriptor.device(), true));
    }
    Ok(ask_driver(descriptor, options)?)
}

/// One pointer query: which device and kind of memory and, where asked for, whether it holds everything.
fn ask_driver(
    descriptor: &Descriptor,
    options: &Options<'_, '_>,
) -> Result<(Device, bool), crate::Error> {
    let wants_range = options.check != Check::Device;
    let driver = driver::driver()?;
    let info = driver.pointer_info(descriptor.data(), wants_range)?;
    let device = device_of(&info).ok_or_else(|| unknown(descriptor.data()))?;
    if let Some(device_id) = options.device_id
        && info.ordinal != device_id
    {
        let hint = format!("the driver says device {}", info.ordinal);
        let field = Field::Argument("device_id");
        let violation = Violation::new(Rule::PointerDevice, field, device_id);
        return Err(violation.with_hint(hint).into());
    }
    if let (true, Some(span)) = (wants_range, descriptor.byte_span()) {
        check_range(driver, span, &info, Field::CaiData)?;
    }
    Ok((device, info.context.is_some()))
}

/// Where the driver says that an address is.
pub(crate) fn device_at(data: u64) -> Result<Device, crate::Error> {
    let info = driver::driver()?.pointer_info(data, false)?;
    Ok(device_of(&info).ok_or_else(|| unknown(data))?)
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
        MemoryKind::Managed => Some(Device {
            device_type: Device::CUDA_MANAGED,
            id: 0,
        }),
        MemoryKind::Pinned => Some(Device {
            device_type: Device::CUDA_HOST,
            id: 0,
        }),
        MemoryKind::Unknown => None,
    }
}

/// One warning per producer type for what is accepted though it should not be there.
#[cold]
fn warn(object: &Bound<'_, PyAny>, read: &Read<'_>) -> PyResult<()> {
    let name = type_name(object);
    let text = match read.interface.version() {
        Version::Newer(version) => format!(
            "{name} exports version {version} of the CUDA Array Interface, newer than the 3 that is known; it is read as 3"
        ),
        _ => format!(
            "{name} exports stream 0 in its CUDA Array Interface, which version 3 forbids; it is taken as 1, the legacy default stream [stream-zero]"
        ),
    };
    crate::python::cpython::warn::once(
        object,
        &text,
        object.py().get_type::<PyUserWarning>().as_any(),
    )
}
