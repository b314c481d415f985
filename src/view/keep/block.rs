//! One allocation for a copy: where it comes from, whom its end waits for, how it is freed.

use std::fmt;

use crate::driver::{Context, ContextGuard, ContextId, Driver, DriverError, Lease, Place, Relaxed};
use crate::protocol::stream::{Capture, Stream};

/// What was allocated, and by which call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Memory {
    /// `cuMemAllocAsync`: of the pool of a device.
    Pool,
    /// `cuMemAlloc`.
    Device,
    /// `cuMemAllocManaged`.
    Managed,
    /// `cuMemHostAlloc`.
    Pinned,
}

/// A context, which is another one if its handle comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Home {
    context: Context,
    id: ContextId,
}

impl Home {
    /// The current context.
    pub(super) fn here(driver: &dyn Driver) -> Result<Self, DriverError> {
        let call = "cuCtxGetCurrent";
        let context = driver.current_context()?;
        let context = context.ok_or(DriverError::new(call, 201))?;
        let id = driver.context_id(context)?;
        Ok(Self { context, id })
    }

    /// Makes it current on a thread of ours; false if it is gone, and all work and memory with it.
    fn enter(self, driver: &dyn Driver) -> bool {
        driver.context_id(self.context) == Ok(self.id)
            && driver.set_current_context(Some(self.context)).is_ok()
    }
}

/// The stream that a copy was made for: its end comes after what the stream holds by then.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Use {
    home: Home,
    /// `None` if it cannot be named later: then the end comes after all work of the device.
    stream: Option<Stream>,
    /// What the stream is, if the driver can tell.
    id: Option<u64>,
}

/// Where a use stands.
pub(super) enum Mark {
    /// Its work so far has this mark.
    Event(Lease<'static>),
    /// Its stream is being captured, and cannot be marked.
    Captured,
    /// Its stream cannot be named.
    Unnamed,
    /// Its context is gone: nothing runs there.
    Over,
}

impl Use {
    /// Of `stream`, whose context is current; `None` for work that may be anywhere on the device.
    pub(crate) fn new(driver: &dyn Driver, stream: Option<Stream>) -> Result<Self, DriverError> {
        let stream = stream.filter(|stream| *stream != Stream::PerThreadDefault);
        let id = match stream {
            Some(stream @ Stream::Handle(_)) => driver.stream_id(stream).ok(),
            _ => None,
        };
        Ok(Self {
            home: Home::here(driver)?,
            stream,
            id,
        })
    }

    /// The stream that the end comes after; `None` if it comes after the device.
    pub(crate) const fn stream(&self) -> Option<Stream> {
        self.stream
    }

    /// Marks what the stream holds now; for a thread of ours, whose context changes.
    pub(super) fn mark(&self, driver: &'static dyn Driver) -> Mark {
        if !self.home.enter(driver) {
            return Mark::Over;
        }
        let Some(stream) = self.stream else {
            return Mark::Unnamed;
        };
        if self.id.is_some() && driver.stream_id(stream).ok() != self.id {
            return Mark::Unnamed;
        }
        // A stream that the driver refuses is gone.
        self.record(driver, stream).unwrap_or(Mark::Unnamed)
    }

    fn record(&self, driver: &'static dyn Driver, stream: Stream) -> Result<Mark, DriverError> {
        if driver.capture(stream)? != Capture::Idle {
            return Ok(Mark::Captured);
        }
        let event = Lease::recorded(driver, self.home.context, stream)?;
        if driver.capture(stream)? == Capture::Idle {
            return Ok(Mark::Event(event));
        }
        event.destroy();
        Ok(Mark::Captured)
    }

    /// Blocks until the device has done the work that it has.
    pub(super) fn settle(&self, driver: &dyn Driver) {
        if !self.home.enter(driver) {
            return;
        }
        if let Ok(pointer) = driver.alloc(1) {
            // SAFETY: just allocated, and used by nothing.
            let _ = unsafe { driver.free(pointer) };
        } else if let Ok(pointer) = driver.alloc_pinned(1) {
            // SAFETY: just allocated, and used by nothing.
            let _ = unsafe { driver.free_pinned(pointer) };
        }
    }
}

/// One allocation, which [`free`](Self::free) gives back; dropped, it leaks.
pub(crate) struct Block {
    pub(super) driver: &'static dyn Driver,
    pub(super) memory: Memory,
    pub(super) nbytes: u64,
    /// The context that it was allocated in.
    pub(super) home: Home,
    pub(super) used: Use,
    ordinal: i32,
    pointer: u64,
}

impl Block {
    /// Allocates from the pool of the stream's device, which is the current one, for work on `stream`.
    ///
    /// # Errors
    /// The driver's refusal; [unsupported](DriverError::is_unsupported) if the device has no pools.
    pub(crate) fn pooled(
        driver: &'static dyn Driver,
        nbytes: u64,
        ordinal: i32,
        stream: Stream,
        used: Use,
    ) -> Result<Self, DriverError> {
        let _relaxed = Relaxed::new(driver)?;
        let pointer = driver.alloc_async(nbytes, stream)?;
        Ok(Self {
            driver,
            memory: Memory::Pool,
            nbytes,
            home: used.home,
            used,
            ordinal,
            pointer,
        })
    }

    /// Allocates in the current context.
    ///
    /// # Errors
    /// The driver's refusal.
    pub(crate) fn new(
        driver: &'static dyn Driver,
        memory: Memory,
        nbytes: u64,
        ordinal: i32,
        used: Use,
    ) -> Result<Self, DriverError> {
        let home = Home::here(driver)?;
        let _relaxed = Relaxed::new(driver)?;
        let pointer = match memory {
            Memory::Managed => driver.alloc_managed(nbytes),
            Memory::Pinned => driver.alloc_pinned(nbytes),
            Memory::Device | Memory::Pool => driver.alloc(nbytes),
        }?;
        Ok(Self {
            driver,
            memory,
            nbytes,
            home,
            used,
            ordinal,
            pointer,
        })
    }

    pub(crate) fn pointer(&self) -> u64 {
        self.pointer
    }

    /// Whether the call that frees it waits for all work that may use it: that of its own device.
    pub(super) fn free_waits_for_its_use(&self) -> bool {
        self.memory != Memory::Pool && self.home == self.used.home
    }

    /// Whether the memory is there although its context is gone: that of a pool is, as long as the device is in use.
    fn outlives_its_context(&self) -> bool {
        self.memory == Memory::Pool && self.driver.primary_context_active(self.ordinal) == Ok(true)
    }

    /// Gives the memory back; on a thread of ours, whose context changes. Only memory of a pool is freed without a
    /// wait for its device.
    ///
    /// # Safety
    /// No work that uses the memory is pending: on its own device, for what is no memory of a pool, the call itself
    /// sees to that.
    pub(super) unsafe fn free(self) {
        let (driver, memory, pointer) = (self.driver, self.memory, self.pointer);
        let _elsewhere = if self.home.enter(driver) {
            None
        } else if self.outlives_its_context() {
            ContextGuard::of_memory(driver, &Place::cuda(self.ordinal, pointer)).ok()
        } else {
            return;
        };
        // A driver that is ending has freed it already; anything else leaks the memory.
        let _ = if memory == Memory::Pinned {
            // SAFETY: `alloc_pinned` returned it to `new`; freed once, as `self` is taken; nothing uses it later, as the
            // consumer's deleter has run, and no work is pending by this function's contract.
            unsafe { driver.free_pinned(pointer) }
        } else {
            // SAFETY: `alloc`, `alloc_async` or `alloc_managed` returned it to `new` or `pooled`; freed once, as `self`
            // is taken; nothing uses it later, as the consumer's deleter has run, and no work is pending by this
            // function's contract.
            unsafe { driver.free(pointer) }
        };
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Block")
            .field("memory", &self.memory)
            .field("nbytes", &self.nbytes)
            .field("pointer", &self.pointer)
            .field("used", &self.used)
            .finish_non_exhaustive()
    }
}
