//! The calling thread's capture mode, changed for a while.

use super::{Driver, DriverError, twice};

/// `CU_STREAM_CAPTURE_MODE_RELAXED`, for [`Driver::exchange_capture_mode`].
pub(crate) const RELAXED: u32 = 2;

/// Lets this thread allocate, free, create and wait beside captures that go on elsewhere, until it is dropped.
pub(crate) struct Relaxed<'d> {
    driver: &'d dyn Driver,
    before: u32,
}

impl<'d> Relaxed<'d> {
    /// # Errors
    /// The driver's refusal.
    pub(crate) fn new(driver: &'d dyn Driver) -> Result<Self, DriverError> {
        let before = driver.exchange_capture_mode(RELAXED)?;
        Ok(Self { driver, before })
    }
}

impl Drop for Relaxed<'_> {
    fn drop(&mut self) {
        // The driver has returned this mode, and takes it.
        let _ = twice(|| self.driver.exchange_capture_mode(self.before));
    }
}
