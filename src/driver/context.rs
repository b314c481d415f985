//! The calling thread's context, changed for a while.

use crate::driver::{Context, Driver, DriverError};
use crate::protocol::descriptor::{Descriptor, Device};
use crate::protocol::stream::Stream;

/// A context that is current on this thread until it is dropped.
pub(crate) struct Current<'d> {
    driver: &'d dyn Driver,
    before: Option<Context>,
    retained: Option<i32>,
}

impl<'d> Current<'d> {
    /// The context that `stream` lives in: its own, or for a default stream the array's.
    pub(crate) fn of_stream(
        driver: &'d dyn Driver,
        stream: Stream,
        array: &Descriptor,
    ) -> Result<Self, DriverError> {
        if stream.is_default() {
            return Self::of_memory(driver, array);
        }
        let context = {
            let _any = match driver.current_context()? {
                Some(_) => None,
                None => Some(Self::of_memory(driver, array)?),
            };
            driver.stream_context(stream)?
        };
        Self::enter(driver, context, None)
    }

    /// The context that a stream with a handle was created in.
    pub(crate) fn of_handle(driver: &'d dyn Driver, stream: Stream) -> Result<Self, DriverError> {
        let context = {
            let _any = match driver.current_context()? {
                Some(_) => None,
                None => Self::of_whoever_has_one(driver)?,
            };
            driver.stream_context(stream)?
        };
        Self::enter(driver, context, None)
    }

    /// A thread without a context may not ask about streams, and any context serves: the first that is alive.
    pub(crate) fn of_whoever_has_one(driver: &'d dyn Driver) -> Result<Option<Self>, DriverError> {
        for ordinal in 0..driver.device_count()? {
            if driver.primary_context_active(ordinal)? {
                return Self::of_device(driver, ordinal).map(Some);
            }
        }
        Ok(None)
    }

    /// The context of an array's memory, else its device's primary one.
    pub(crate) fn of_memory(
        driver: &'d dyn Driver,
        array: &Descriptor,
    ) -> Result<Self, DriverError> {
        let device = array.device();
        let ordinal = if device.device_type == Device::CUDA {
            device.id
        } else {
            -1
        };
        Self::of_pointer(driver, array.data(), ordinal)
    }

    /// The context of an allocation, else the primary one of device `ordinal` (negative: the driver says).
    pub(crate) fn of_pointer(
        driver: &'d dyn Driver,
        pointer: u64,
        ordinal: i32,
    ) -> Result<Self, DriverError> {
        let info = driver.pointer_info(pointer, false)?;
        match info.context {
            Some(context) => Self::enter(driver, context, None),
            None if ordinal >= 0 => Self::of_device(driver, ordinal),
            None => Self::of_device(driver, info.ordinal.max(0)),
        }
    }

    /// The primary context of a device.
    pub(crate) fn of_device(driver: &'d dyn Driver, ordinal: i32) -> Result<Self, DriverError> {
        let context = driver.primary_context_retain(ordinal)?;
        Self::enter(driver, context, Some(ordinal)).inspect_err(|_| {
            let _ = driver.primary_context_release(ordinal);
        })
    }

    fn enter(
        driver: &'d dyn Driver,
        context: Context,
        retained: Option<i32>,
    ) -> Result<Self, DriverError> {
        let before = driver.current_context()?;
        driver.set_current_context(Some(context))?;
        Ok(Self {
            driver,
            before,
            retained,
        })
    }
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        // What was current before still is a context; if not, there is nothing to go back to.
        let _ = self.driver.set_current_context(self.before);
        if let Some(ordinal) = self.retained {
            let _ = self.driver.primary_context_release(ordinal);
        }
    }
}
