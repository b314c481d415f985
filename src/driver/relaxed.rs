//! The calling thread's capture mode, changed for a while.

use super::{Driver, DriverError, twice};

/// `CU_STREAM_CAPTURE_MODE_RELAXED`, for [`Driver::exchange_capture_mode`].
const RELAXED: u32 = 2;

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

/// The capture mode of a thread of this library's: RELAXED, once the driver has accepted that. What the thread calls then breaks
/// no capture elsewhere.
#[derive(Default)]
pub(crate) struct OwnThread {
    is_relaxed: bool,
}

impl OwnThread {
    /// Changes the mode, unless that is done. For before each round of calls: a refusal is one of a moment.
    pub(crate) fn relax(&mut self, driver: &dyn Driver) {
        self.is_relaxed =
            self.is_relaxed || twice(|| driver.exchange_capture_mode(RELAXED)).is_ok();
    }
}

impl Drop for Relaxed<'_> {
    fn drop(&mut self) {
        // The driver has returned this mode, and takes it.
        let _ = twice(|| self.driver.exchange_capture_mode(self.before));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::script::Script;

    /// A refusal is one of a moment: the next round tries again, until the driver has accepted the mode.
    #[test]
    fn a_thread_is_relaxed_once_the_driver_accepts_that() {
        let (driver, mut own) = (Script::new(), OwnThread::default());
        let call = "cuThreadExchangeStreamCaptureMode";
        driver.fault(call, 0, 999).fault(call, 0, 999);
        for tried in [2, 3, 3] {
            own.relax(&driver);
            assert_eq!(driver.count(call), tried);
        }
    }
}
