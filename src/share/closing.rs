//! The end of an opened share: after the work that uses the memory, on a thread of this library's.

use crate::driver::{ContextGuard, Driver, DriverError, Event};
use crate::view::Owner;
use crate::view::keep::{self, Use};

/// What views of another process's memory keep: its drop has the mapping closed once the share's event has been reached, and the
/// devices in use have done the work that they have. It neither waits nor calls the driver.
pub(super) struct Opened {
    import: Option<Owner>,
    end: keep::AfterDevices,
}

impl Opened {
    /// `ready` is the share's event, which `import` keeps. The current context is waited for, too, if it `is_kept`: safe code
    /// may let go of it, and may use the memory there by what keeps it until that is done alone.
    ///
    /// # Errors
    /// The driver's refusal.
    pub(super) fn new(
        driver: &'static dyn Driver,
        ordinal: i32,
        ready: Option<Event>,
        import: impl Send + 'static,
        is_kept: bool,
    ) -> Result<Self, DriverError> {
        let used = {
            let there = ContextGuard::of_device(driver, ordinal)?;
            Use::anywhere(driver, there.original().filter(|_| is_kept))?
        };
        Ok(Self {
            import: Some(Owner::new(import)),
            end: keep::AfterDevices::new(driver, ordinal, used, ready),
        })
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if let Some(import) = self.import.take() {
            self.end.drop_later(import);
        }
    }
}
