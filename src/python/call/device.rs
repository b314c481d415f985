//! Reads a device: DLPack's pair, a name, or a device object of torch.

use pyo3::Borrowed;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple};

use crate::driver;
use crate::driver::{ContextGuard, Driver, DriverError};
use crate::protocol::device::{Device, DeviceType};
use crate::protocol::rule::{Field, Rule, Violation};
use crate::python::call::choice::{valid, wrong_type};
use crate::python::cpython::int::{IntRule, repr};
use crate::python::cpython::new::new_str;
use crate::view::detach;

const WANTED: &str = "\"cpu\", \"cuda\", \"cuda:1\", \"rocm:0\", a torch.device, or a (type, id) tuple of two ints: (1, 0) is the CPU, (2, 0) the first CUDA device";

/// What `device_id` of an import takes: interfaces are of the memory of two platforms.
pub(crate) const OF_MEMORY: &str = "the number of a CUDA device, \"cuda\", \"cuda:1\", \"rocm:0\", a torch.device, or a (type, id) tuple of two ints: (2, 0) is the first CUDA device, (10, 0) the first one of ROCm";

fn wanted(field: Field) -> &'static str {
    match field {
        Field::Argument("device_id") => OF_MEMORY,
        _ => WANTED,
    }
}

/// Reads the device of the argument `device`.
///
/// # Errors
/// `argument-type`, `argument-value`, and the rules of devices; the driver's, which is asked which device "cuda" is.
pub(crate) fn device(value: Borrowed<'_, '_, PyAny>) -> PyResult<Device> {
    let field = Field::Argument("device");
    if let Some(device) = named(&value, field)? {
        return Ok(device);
    }
    pair(value, field)
}

/// Reads DLPack's pair.
///
/// # Errors
/// `argument-type`, and the rules of devices.
pub(crate) fn pair(value: Borrowed<'_, '_, PyAny>, field: Field) -> PyResult<Device> {
    let name = match field {
        Field::Argument(name) => name,
        _ => "device",
    };
    let wrong = || PyErr::from(wrong_type(&value, name, wanted(field)));
    let pair = value.cast::<PyTuple>().map_err(|_| wrong())?;
    if pair.len() != 2 {
        return Err(wrong());
    }
    let rule = IntRule::new(field, Rule::ArgumentType, Rule::DeviceUnknown);
    let device_type: i32 = rule.read(&pair.get_item(0)?)?;
    let rule = IntRule::new(field, Rule::ArgumentType, Rule::DeviceId);
    let id: i32 = rule.read(&pair.get_item(1)?)?;
    Ok(Device::new(DeviceType::from_dlpack(device_type), id).check_in(field)?)
}

/// Reads a name, or an object that has one, as torch's devices have; `None` for any other object.
///
/// # Errors
/// `argument-value` for another name; what the object's attributes raise; the driver's errors.
pub(crate) fn named(value: &Bound<'_, PyAny>, field: Field) -> PyResult<Option<Device>> {
    let refused = || {
        let violation = Violation::new(Rule::ArgumentValue, field, repr(value));
        PyErr::from(violation.with_hint(format!("must be {}", wanted(field))))
    };
    if let Ok(text) = value.cast::<PyString>() {
        let name = valid(text).ok_or_else(refused)?;
        let (kind, id) = match name.split_once(':') {
            Some((kind, id)) => (kind, Some(index(id).ok_or_else(refused)?)),
            None => (&*name, None),
        };
        return of_kind(kind, id)?.map(Some).ok_or_else(refused);
    }
    let py = value.py();
    let Some(kind) = value.getattr_opt(new_str(py, "type")?)? else {
        return Ok(None);
    };
    let (Ok(kind), Some(index)) = (
        kind.cast::<PyString>(),
        value.getattr_opt(new_str(py, "index")?)?,
    ) else {
        return Ok(None);
    };
    let id = match index.is_none() {
        true => None,
        false => Some(IntRule::new(field, Rule::ArgumentType, Rule::DeviceId).read(&index)?),
    };
    let kind = valid(kind).ok_or_else(refused)?;
    of_kind(&kind, id)?.map(Some).ok_or_else(refused)
}

/// Returns the device of the tensor that is exported to a requested one; `refused` makes the refusal with its hint.
///
/// # Errors
/// The refusal, if the data does not get there, or this machine has no such device; the driver's.
#[inline(always)]
pub(crate) fn exported(
    own: Device,
    wanted: Device,
    refused: impl FnOnce(String) -> Violation,
) -> PyResult<Device> {
    if wanted == own {
        return Ok(own);
    }
    match transferred(own, wanted)? {
        Ok(device) => Ok(device),
        Err(hint) => Err(refused(hint).into()),
    }
}

/// Whether data gets from one device to another, which this machine has.
///
/// # Errors
/// The driver's.
pub(crate) fn gets_to(own: Device, wanted: Device) -> Result<bool, DriverError> {
    transferred(own, wanted).map(|found| found.is_ok())
}

/// Returns the device of the tensor, or why there is none.
#[cold]
fn transferred(own: Device, wanted: Device) -> Result<Result<Device, String>, DriverError> {
    let Some(device) = own.exported_on(wanted) else {
        return Ok(Err(lies_on(own)));
    };
    if device == own || device.device_type != DeviceType::CUDA {
        return Ok(Ok(device));
    }
    match detach(|| driver::driver()?.device_count()) {
        Ok(count) if wanted.id < count => Ok(Ok(device)),
        Ok(count) => Ok(Err(not_here(wanted.id, count))),
        Err(error) if error.is_absent() => Ok(Err(error.to_string())),
        Err(error) => Err(error),
    }
}

/// The hint of a refused device: the one that can be asked for.
pub(crate) fn lies_on(own: Device) -> String {
    format!("the data is on {:?}", own.to_dlpack())
}

/// The hint of a CUDA device that this machine does not have.
fn not_here(id: i32, count: i32) -> String {
    let has = match count {
        0 => "none".to_owned(),
        1 => "1 device".to_owned(),
        _ => format!("{count} devices"),
    };
    format!("this machine has no cuda:{id}; it has {has}")
}

/// Reads the id after the colon: digits alone.
fn index(text: &str) -> Option<i32> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok()).flatten()
}

/// Calls code of others while the primary context of a device is current; then the caller's is so again.
///
/// # Errors
/// The driver's refusal, before the call.
pub(crate) fn on_device<R>(
    py: Python<'_>,
    ordinal: i32,
    call: impl FnOnce() -> R,
) -> Result<R, DriverError> {
    let driver = driver::driver()?;
    // The driver is called without the GIL; so must the guard be dropped.
    let there = py.detach(|| ContextGuard::of_device(driver, ordinal))?;
    let called = call();
    py.detach(|| drop(there));
    Ok(called)
}

/// Returns the device of a kind, which without an id is that of this thread's context; `None` if there is no such device.
fn of_kind(kind: &str, id: Option<i32>) -> Result<Option<Device>, DriverError> {
    Ok(match (kind, id) {
        ("cpu", None | Some(0)) => Some(Device::HOST),
        ("cuda", Some(id)) if id >= 0 => Some(Device::cuda(id)),
        ("cuda", None) => Some(Device::cuda(current()?)),
        ("rocm", Some(id)) if id >= 0 => Some(Device::new(DeviceType::ROCM, id)),
        _ => None,
    })
}

/// Returns the id of the current context's device; 0 without a driver or a context.
fn current() -> Result<i32, DriverError> {
    let Ok(driver) = driver::driver() else {
        return Ok(0);
    };
    let ask = |driver: &dyn Driver| match driver.current_context()? {
        Some(_) => driver.current_device(),
        None => Ok(0),
    };
    detach(|| ask(driver))
}
