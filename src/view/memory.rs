//! Compares the memory that a view describes with the driver's knowledge of it.

use super::with_driver;
use crate::driver::{Driver, MemoryKind, PointerInfo};
use crate::error::Error;
use crate::protocol::descriptor::Descriptor;
use crate::protocol::device::{Device, DeviceType};
use crate::protocol::rule::{Field, Rule, Violation};

/// Like [`check_memory`]; without a driver the producer is believed.
pub(crate) fn prove_memory(array: &Descriptor) -> Result<(), Error> {
    match check_memory(array) {
        Err(Error::Driver(error)) if error.is_absent() => Ok(()),
        checked => checked,
    }
}

/// Compares device and bounds with the driver's knowledge, by one query.
///
/// No query is made without elements, and for memory that CUDA does not know. A range that the
/// driver does not know is believed.
///
/// # Errors
/// `pointer-unknown`, `pointer-device`, `out-of-bounds`; or the driver's refusal.
pub(crate) fn check_memory(array: &Descriptor) -> Result<(), Error> {
    memory_kind(array).map(drop)
}

/// Like [`check_memory`]; returns the driver's kind of the memory, under whatever name it came; `None` without a query.
pub(crate) fn memory_kind(array: &Descriptor) -> Result<Option<MemoryKind>, Error> {
    let device = array.device();
    if !device.is_cuda_accessible() {
        return Ok(None);
    }
    let Some(span) = array.byte_span() else {
        return Ok(None);
    };
    with_driver(|driver| {
        let info = driver.pointer_info(array.data(), true)?;
        check_place(array.data(), device, &info)?;
        check_range(driver, span, &info, Field::TensorData)?;
        Ok(Some(info.kind))
    })
}

/// Checks the device. Pinned and managed memory may be called the device's, since it is reachable from there.
fn check_place(data: u64, device: Device, info: &PointerInfo) -> Result<(), Violation> {
    let is_cuda = device.device_type == DeviceType::CUDA;
    match info.kind {
        MemoryKind::Unknown if is_cuda => Err(Violation::new(
            Rule::PointerUnknown,
            Field::TensorData,
            format_args!("{data:#x}"),
        )),
        MemoryKind::Device if !is_cuda || info.ordinal != device.id => {
            let hint = format!("the driver says device {}", info.ordinal);
            Err(Violation::new(Rule::PointerDevice, Field::TensorDevice, device).with_hint(hint))
        }
        _ => Ok(()),
    }
}

/// Checks that `span` lies inside the allocation that `info` is of, or in those that follow it without a gap.
///
/// # Errors
/// `out-of-bounds`; or the driver's refusal.
pub(crate) fn check_range(
    driver: &dyn Driver,
    span: (u64, u64),
    info: &PointerInfo,
    field: Field,
) -> Result<(), Error> {
    let Some((start, size)) = info.range else {
        return Ok(());
    };
    let end = start.saturating_add(size);
    if span.0 >= start && (span.1 <= end || goes_on(driver, end, span.1, info)?) {
        return Ok(());
    }
    let found = format_args!("bytes {:#x} to {:#x}", span.0, span.1);
    let hint = format!("the allocation is {start:#x} to {end:#x}");
    Err(Violation::new(Rule::OutOfBounds, field, found)
        .with_hint(hint)
        .into())
}

/// The number of mappings that one array is followed over; a larger one is believed.
const MAPPINGS: usize = 4096;

/// Whether the memory from `end` on is mapped without a gap as far as `wanted`.
///
/// torch's expandable segments are many mappings side by side, of which the driver shows one at a time.
/// It names no context for memory that is mapped so, nor for memory of a pool.
fn goes_on(
    driver: &dyn Driver,
    mut end: u64,
    wanted: u64,
    info: &PointerInfo,
) -> Result<bool, Error> {
    if info.context.is_some() {
        return Ok(false);
    }
    for _ in 0..MAPPINGS {
        let next = driver.pointer_info(end, true)?;
        let is_same = next.kind == info.kind && next.ordinal == info.ordinal && next.mapped;
        let Some((start, size)) = next.range.filter(|_| is_same) else {
            return Ok(false);
        };
        if start != end || size == 0 {
            return Ok(false);
        }
        end = end.saturating_add(size);
        if wanted <= end {
            return Ok(true);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests;
