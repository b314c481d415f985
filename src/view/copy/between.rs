//! Copies whose stream and source are of two devices.
//!
//! Work of a device reaches the memory of another one's pool only if that was granted (`cuMemPoolSetAccess`); what names the
//! contexts of both ends (`cuMemcpyPeerAsync`) needs no grant. So a source is read by work of its own device, between two
//! events, and what goes to another device goes by that call.

use super::allocation::Allocation;
use super::device::Copy;
use crate::driver::{
    ContextGuard, Defaults, DriverError, Place, PrivateStream, copy_strided, order,
};
use crate::error::Error;
use crate::protocol::device::DeviceType;
use crate::protocol::rule::Field;
use crate::protocol::stream::{Request, Stream, SyncPolicy};
use crate::view::keep::{self, Use};

impl Copy<'_> {
    /// Enqueues the copy to the memory at `to`, of the device of `stream`, which is not the source's: elements that are not
    /// in C order are packed on their own device first.
    ///
    /// # Safety
    /// - The memory at `to` has every element's bytes, and stays until the work of `stream` is done, as the source's does.
    pub(super) unsafe fn enqueue_between(&self, to: u64, stream: Stream) -> Result<(), Error> {
        let (driver, place) = (self.driver, self.view.place());
        let context = |place: &Place| {
            let mut there = ContextGuard::of_memory(driver, place)?;
            let context = driver.current_context()?;
            there.restore().map(|()| context)
        };
        let (Some(there), Some(here)) = (
            context(&Place::cuda(self.place.ordinal, to))?,
            context(&place)?,
        ) else {
            return Err(DriverError::new("cuCtxGetCurrent", 201).into());
        };
        let mut from = self.view.descriptor().data();
        let mut packed;
        if !self.plan.is_one_row() {
            packed = self.allocate_beside(&place, stream)?;
            // SAFETY: the allocation has the size of every element in C order, and its end comes after what the stream
            // holds; the source outlives it by this function's contract.
            unsafe { self.enqueue_at_source(&mut packed, stream) }?;
            from = packed.pointer();
        }
        // SAFETY: both ends have every element in C order, and stay until the stream is done with them.
        unsafe { driver.copy_peer_async((to, there), (from, here), self.nbytes(), stream) }?;
        Ok(())
    }

    /// Allocates memory of the source's device for its elements in C order, for work on `stream`.
    fn allocate_beside(&self, place: &Place, stream: Stream) -> Result<Allocation, Error> {
        let memory = (self.view.device(), self.nbytes());
        let used = Use::new(self.driver, stream)?;
        let field = Field::Argument("copy");
        Allocation::new(self.driver, memory, place, used, None, field)
    }

    /// Enqueues the copy of every element, in C order, to memory that the source's device reaches, for `stream`, whose
    /// context is current.
    ///
    /// # Safety
    /// - The memory has every element's bytes, and stays until the work of `stream` is done, as the source's does.
    pub(super) unsafe fn enqueue_packed(
        &self,
        to: &mut Allocation,
        stream: Stream,
    ) -> Result<(), Error> {
        let device = self.view.device();
        // Managed memory every device reaches.
        let is_at_home = to.is_at_home() || device.device_type != DeviceType::CUDA;
        if !is_at_home && self.driver.current_device()? != device.id {
            // SAFETY: this function's contract.
            return unsafe { self.enqueue_at_source(to, stream) };
        }
        // SAFETY: this function's contract, for every element that the plan describes.
        unsafe { self.copy_plan(to.pointer(), stream) }?;
        Ok(())
    }

    /// Enqueues the copy of [`enqueue_packed`](Self::enqueue_packed) on a stream of the source's device: it waits for what
    /// `stream` holds, and `stream` waits for it. After a failure the source is kept until that stream is done, and `to` ends then.
    ///
    /// # Safety
    /// Those of [`enqueue_packed`](Self::enqueue_packed).
    unsafe fn enqueue_at_source(&self, to: &mut Allocation, stream: Stream) -> Result<(), Error> {
        let driver = self.driver;
        let whose = match driver.current_context()? {
            Some(context) => Defaults::Of(context),
            None => return Err(DriverError::new("cuCtxGetCurrent", 201).into()),
        };
        let place = Place {
            ready: whose,
            requested: whose,
            ..Place::cuda(self.view.device().id, self.view.descriptor().data())
        };
        let mut there = ContextGuard::of_memory(driver, &place)?;
        let private = PrivateStream::for_pending_work(driver)?;
        let own = private.stream();
        let after = |ready, then| {
            let then = Request::Stream(then);
            order(driver, ready, then, &place, SyncPolicy::Event).map(drop)
        };
        after(stream, own)?;
        // SAFETY: this function's contract, as `stream` is done after `own` (the order below); if that order is refused, both ends
        // are kept until `own` is done.
        let copied = unsafe { self.copy_plan(to.pointer(), own) }.map_err(Error::from);
        let joined = copied.and_then(|()| {
            after(own, stream)?;
            Ok(there.restore()?)
        });
        if joined.is_err() {
            // The host does not wait: `own` may be behind what `stream` is to do once this thread has gone on.
            keep::by_stream(
                driver,
                own,
                self.view.owner(),
                self.view.device(),
                keep::Begun::OnStream,
            );
            to.end_after(driver, own, self.view.keep_owner());
        }
        joined
    }

    /// Enqueues the calls of the plan.
    ///
    /// # Safety
    /// - The memory at `to` has every element's bytes, and stays until they are done, as the source's does.
    unsafe fn copy_plan(&self, to: u64, stream: Stream) -> Result<(), DriverError> {
        let from = self.view.descriptor().data();
        // SAFETY: this function's contract; a fresh allocation overlaps nothing, and what was taken over is written in the
        // order of the stream that may still use it.
        unsafe { copy_strided(self.driver, &self.plan, to, from, stream) }
    }
}
