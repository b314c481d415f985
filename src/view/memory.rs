//! What the driver knows about the memory behind a view, compared with what the view says.

use super::CaiView;
use crate::driver::{self, Driver, MemoryKind, PointerInfo};
use crate::error::Error;
use crate::protocol::descriptor::Device;
use crate::protocol::rule::{Field, Rule, Violation};

impl CaiView {
    /// Compares device and bounds with the driver's knowledge, by one query.
    ///
    /// No query is made without elements, for memory that CUDA does not know, and where there is no
    /// driver: then the producer is believed. So is a range that the driver does not know.
    ///
    /// # Errors
    /// `pointer-unknown`, `pointer-device`, `out-of-bounds`; or the driver's refusal.
    pub(crate) fn prove_memory(&self) -> Result<(), Error> {
        let device = self.device();
        if !device.is_cuda_accessible() {
            return Ok(());
        }
        let Some(span) = self.descriptor().byte_span() else {
            return Ok(());
        };
        let driver = match driver::driver() {
            Err(error) if error.is_absent() => return Ok(()),
            driver => driver?,
        };
        let info = driver.pointer_info(self.descriptor().data(), true)?;
        check_place(self.descriptor().data(), device, &info)?;
        check_range(driver, span, &info)
    }
}

/// The device. Pinned and managed memory may be called the device's, since it is reachable from there.
fn check_place(data: u64, device: Device, info: &PointerInfo) -> Result<(), Violation> {
    let is_cuda = device.device_type == Device::CUDA;
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

fn check_range(driver: &dyn Driver, span: (u64, u64), info: &PointerInfo) -> Result<(), Error> {
    let Some((start, size)) = info.range else {
        return Ok(());
    };
    let end = start.saturating_add(size);
    if span.0 >= start && (span.1 <= end || goes_on(driver, span.1, info)?) {
        return Ok(());
    }
    let found = format_args!("bytes {:#x} to {:#x}", span.0, span.1);
    let hint = format!("the allocation is {start:#x} to {end:#x}");
    Err(Violation::new(Rule::OutOfBounds, Field::TensorData, found)
        .with_hint(hint)
        .into())
}

/// Whether the memory goes on in another mapping: torch's expandable segments are made of many, of
/// which the driver shows one at a time. It names no context for memory that is mapped so.
fn goes_on(driver: &dyn Driver, end: u64, info: &PointerInfo) -> Result<bool, Error> {
    if info.context.is_some() {
        return Ok(false);
    }
    let last = driver.pointer_info(end.saturating_sub(1), false)?;
    Ok(last.kind == info.kind && last.ordinal == info.ordinal && last.mapped)
}
