//! The importer's side: the view of another process's memory, and what it keeps.

use std::sync::{Mutex, PoisonError};

use super::closing::Opened;
use super::ended;
use super::handle::{Handle, check_span};
use super::holders::Hold;
use super::shared::{Kept, Role, check_capture, of_this_process};
use crate::driver::ipc::{EventHandle, MemoryHandle};
use crate::driver::{
    Context, ContextGuard, ContextId, Defaults, Driver, DriverError, Event, Place, Relaxed, twice,
};
use crate::error::Error;
use crate::protocol::device::Device;
use crate::protocol::rule::{Field, Rule, Violation};
use crate::protocol::stream::Stream;
use crate::view::{CaiView, IntoLiveStream, Owner, with_driver};

impl Handle {
    /// Opens the memory in this process: returns a view that is ready on `stream`, which waits for the event of the share.
    ///
    /// Its device is the one that this process knows under the same UUID. The mapping is closed after the last view and
    /// tensor of it is gone and the device has done its work; the exporter keeps the memory until then. In the process that
    /// shares, the view is one of the same owner. Where the producer goes on working is not known.
    ///
    /// # Errors
    /// `share-host`, `share-user`, `share-device` for a handle of elsewhere; `share-ended` after the share's end;
    /// `capture-consumer`, `capture-legacy` if the stream cannot wait; `stream-none` for [`Stream::None`], unless the data
    /// is ready anyway; `stream-device`, `stream-context`, `stream-thread` if the number of a default stream means another one
    /// here, which may wait then; the refusals of the driver and of the operating system. Nothing is left open then.
    ///
    /// # Safety
    /// - The process that shares does not end, and keeps the memory, as long as this process uses it.
    /// - That process's other users of the memory, and this one's, do not write it while others use it.
    /// - What uses it in a context that is not a primary one is kept by a guard, or is over when the last view goes.
    pub unsafe fn open<'s>(&self, stream: impl IntoLiveStream<'s>) -> Result<CaiView, Error> {
        let stream = stream.into_live_stream();
        // SAFETY: this function's contract; the stream lives, and is kept below.
        let mut view = unsafe { self.open_on(stream.number(), false) }?;
        let ready = view.ready_number();
        if ready != Stream::None {
            let placed = view.placed(ready)?;
            let kept = stream.for_memory(&view, true, |_| stream.keep_for(&view, placed))?;
            view.set_ready_kept(placed, kept);
        }
        Ok(view)
    }

    /// Like [`open`](Self::open), for a stream that the caller keeps alive.
    ///
    /// # Safety
    /// The contract of [`open`](Self::open); `stream` lives as long as a view is ready there. If the current context `is_kept`, it lives as
    /// long as the memory is mapped, and what works there may use it.
    pub(crate) unsafe fn open_on(&self, stream: Stream, is_kept: bool) -> Result<CaiView, Error> {
        match self.place.check()? {
            true => self.open_here(stream),
            // SAFETY: this function's contract.
            false => unsafe { self.open_there(stream, is_kept) },
        }
    }

    /// Returns the device of the memory, as this process knows it.
    ///
    /// # Errors
    /// `share-device`; the driver's refusal.
    #[cfg(feature = "pyo3")]
    pub(crate) fn device(&self) -> Result<Device, Error> {
        with_driver(|driver| self.ordinal(driver).map(Device::cuda))
    }

    /// Returns what a library of Python's has pickled to name the memory, if the handle is of another process.
    ///
    /// # Errors
    /// `share-host`, `share-user`; the operating system's refusal.
    #[cfg(feature = "pyo3")]
    pub(crate) fn pickled(&self) -> Result<Option<&[u8]>, Error> {
        match &self.pickled {
            Some((pickle, _)) if !self.place.check()? => Ok(Some(pickle)),
            _ => Ok(None),
        }
    }

    /// Has the exporter keep the memory until the [`Held`] has ended, and the device has done the work that it has then.
    ///
    /// # Errors
    /// `share-ended`, `share-device`; the refusals of the driver and of the operating system.
    #[cfg(feature = "pyo3")]
    pub(crate) fn hold(&self) -> Result<Held, Error> {
        with_driver(|driver| {
            let ordinal = self.ordinal(driver)?;
            let hold = Hold::take(&self.place)?;
            Ok(Held {
                _opened: Opened::new(driver, ordinal, None, hold, true)?,
            })
        })
    }

    /// Makes the view of memory that a library of Python's has mapped: `range` is where its buffer lies here, and `owner`
    /// keeps it, and the [`Held`] of this handle. The owner ends after the device has done its work.
    ///
    /// # Errors
    /// `out-of-bounds` if the array is not in the buffer; as [`open`](Self::open).
    ///
    /// # Safety
    /// As [`open_on`](Self::open_on); `owner` keeps the buffer.
    #[cfg(feature = "pyo3")]
    pub(crate) unsafe fn open_mapped(
        &self,
        stream: Stream,
        range: (u64, u64),
        owner: Owner,
    ) -> Result<CaiView, Error> {
        if self.ready.is_some() {
            check_named(stream)?;
        }
        let offset = self.pickled.as_ref().map_or(0, |(_, offset)| *offset);
        let data = range.0.wrapping_add(offset);
        let (descriptor, owner) = with_driver(|driver| {
            let ordinal = self.ordinal(driver)?;
            let descriptor = self.array.at(data, Device::cuda(ordinal))?;
            if let Some(span) = descriptor.byte_span() {
                check_span(range, span)?;
            }
            let mut import = Import::new(driver, ordinal, None)?;
            if let Some(ready) = self.ready {
                import.wait(ready, stream)?;
            }
            let opened = Opened::new(driver, ordinal, import.event, (import, owner), true)?;
            Ok::<_, Error>((descriptor, Owner::new(opened)))
        })?;
        let ready = match self.ready {
            Some(_) => stream,
            None => Stream::None,
        };
        // SAFETY: the elements lie in the buffer (`check_span`), which the owner keeps, of memory that the other process
        // keeps meanwhile (this function's contract); the host reads none of it. The caller keeps the stream.
        Ok(unsafe { CaiView::of(descriptor, ready, None, owner) })
    }

    /// Returns a view of the same owner.
    fn open_here(&self, stream: Stream) -> Result<CaiView, Error> {
        let found = of_this_process(&self.place.nonce);
        let kept = found.ok_or_else(|| ended("a handle whose block has been left"))?;
        let Kept { view, ready, .. } = &*kept;
        let Some(mark) = ready else {
            return Ok(view.ready_on(Stream::None));
        };
        check_named(stream)?;
        let place = Place {
            requested: Defaults::OfMemory,
            ..view.place()
        };
        with_driver(|driver| wait(driver, stream, &place, mark.event))?;
        Ok(view.ready_on(stream))
    }

    /// Maps the memory of another process.
    ///
    /// # Safety
    /// As [`open_on`](Self::open_on).
    pub(super) unsafe fn open_there(
        &self,
        stream: Stream,
        is_kept: bool,
    ) -> Result<CaiView, Error> {
        if self.pickled.is_some() {
            let found = "a handle of memory of a pool, which its library pickles";
            let violation = Violation::new(Rule::ShareMemory, Field::Argument("handle"), found);
            return Err(violation
                .with_hint("cai_dlpack.open opens it, in Python")
                .into());
        }
        if self.ready.is_some() {
            check_named(stream)?;
        }
        let (ordinal, import) = with_driver(|driver| {
            let ordinal = self.ordinal(driver)?;
            let hold = Hold::take(&self.place)?;
            let Some((memory, offset)) = self.memory else {
                return Ok((ordinal, None));
            };
            let mut import = Import::new(driver, ordinal, Some(hold))?;
            let data = import.map(memory)?.wrapping_add(offset);
            if let Some(span) = self.array.at(data, Device::cuda(ordinal))?.byte_span() {
                check_span(driver.sharing(span.0)?.range, span)?;
            }
            if let Some(ready) = self.ready {
                import.wait(ready, stream)?;
            }
            let opened = Opened::new(driver, ordinal, import.event, import, is_kept)?;
            Ok::<_, Error>((ordinal, Some((data, opened))))
        })?;
        let device = Device::cuda(ordinal);
        let ready = match self.ready {
            Some(_) => stream,
            None => Stream::None,
        };
        let (data, owner) = match import {
            Some((data, opened)) => (data, Owner::new(opened)),
            None => (0, Owner::new(())),
        };
        let descriptor = self.array.at(data, device)?;
        // SAFETY: the elements lie in the mapping (`check_span`), which the owner keeps, of memory that the other process
        // keeps meanwhile (this function's contract); the host reads none of it. The caller keeps the stream.
        Ok(unsafe { CaiView::of(descriptor, ready, None, owner) })
    }

    /// Finds the device by what it is.
    ///
    /// # Errors
    /// `share-device`; the driver's refusal.
    fn ordinal(&self, driver: &dyn Driver) -> Result<i32, Error> {
        for ordinal in 0..driver.device_count()? {
            if driver.device_uuid(ordinal)? == self.device {
                return Ok(ordinal);
            }
        }
        let digits = self.device.0.map(|byte| format!("{byte:02x}")).concat();
        let found = format_args!("a handle of memory on the device {digits}");
        let violation = Violation::new(Rule::ShareDevice, Field::Argument("handle"), found);
        Err(violation
            .with_hint("CUDA_VISIBLE_DEVICES names the devices that this process sees")
            .into())
    }
}

/// A share that this process holds: its exporter keeps the memory.
#[cfg(feature = "pyo3")]
pub(crate) struct Held {
    _opened: Opened,
}

/// # Errors
/// `stream-none`.
fn check_named(stream: Stream) -> Result<(), Violation> {
    match stream {
        Stream::None => Err(Violation::new(
            Rule::StreamNone,
            Field::Argument("stream"),
            stream,
        )),
        _ => Ok(()),
    }
}

/// Makes `stream` wait for an event.
///
/// # Errors
/// The rules of captures; the driver's refusal.
fn wait(driver: &dyn Driver, stream: Stream, place: &Place, event: Event) -> Result<(), Error> {
    ContextGuard::of_stream(driver, stream, place)?.around_call(|| {
        check_capture(driver, stream, Role::Waits)?;
        Ok(driver.event_wait(stream, event)?)
    })
}

/// The mappings of this process: one for each allocation and device, however often it is opened. It is that of the
/// device's primary context, since a process may open an exporter's memory in one context of a device only. A reset ends
/// that context and its mappings; what is opened later has the same handle of a context, and is another one's.
///
/// The handle of an allocation that has been freed may come back for another one. It does not while a mapping is there: who
/// has mapped it holds a share of the exporter's, which keeps the allocation.
static MAPPED: Mutex<Vec<Mapped>> = Mutex::new(Vec::new());

struct Mapped {
    home: Option<ContextId>,
    named: MemoryHandle,
    pointer: u64,
    count: usize,
}

/// One opened share of another process's: what has to be closed, on a thread that may wait. The lock is given up last.
struct Import {
    driver: &'static dyn Driver,
    ordinal: i32,
    /// The primary context, and which one it was; not known if the driver has refused to tell.
    context: Context,
    home: Option<ContextId>,
    event: Option<Event>,
    mapping: Option<MemoryHandle>,
    _hold: Option<Hold>,
}

impl Import {
    /// Retains the primary context of the device.
    ///
    /// # Errors
    /// The driver's refusal.
    fn new(
        driver: &'static dyn Driver,
        ordinal: i32,
        hold: Option<Hold>,
    ) -> Result<Self, DriverError> {
        let mut import = Self {
            driver,
            ordinal,
            context: driver.primary_context_retain(ordinal)?,
            home: None,
            event: None,
            mapping: None,
            _hold: hold,
        };
        import.home = Some(driver.context_id(import.context)?);
        Ok(import)
    }

    /// Maps an allocation; returns its address here.
    ///
    /// # Errors
    /// The driver's refusal.
    fn map(&mut self, named: MemoryHandle) -> Result<u64, DriverError> {
        let _there = ContextGuard::of_device(self.driver, self.ordinal)?;
        let _relaxed = Relaxed::new(self.driver)?;
        // Held across the call, so that none opens what another one closes.
        let mut mapped = MAPPED.lock().unwrap_or_else(PoisonError::into_inner);
        let is_it = |each: &&mut Mapped| (each.home, each.named) == (self.home, named);
        let pointer = match mapped.iter_mut().find(is_it) {
            Some(known) => {
                known.count += 1;
                known.pointer
            }
            None => {
                let pointer = self.driver.memory_open(named)?;
                mapped.push(Mapped {
                    home: self.home,
                    named,
                    pointer,
                    count: 1,
                });
                pointer
            }
        };
        self.mapping = Some(named);
        Ok(pointer)
    }

    /// Makes `stream` wait for the share's event.
    ///
    /// # Errors
    /// The rules of captures; the driver's refusal.
    fn wait(&mut self, named: EventHandle, stream: Stream) -> Result<(), Error> {
        let _there = ContextGuard::of_device(self.driver, self.ordinal)?;
        let event = self.driver.event_open(named)?;
        self.event = Some(event);
        let place = Place {
            requested: Defaults::OfPrimary,
            ..Place::cuda(self.ordinal, 0)
        };
        wait(self.driver, stream, &place, event)
    }

    /// Closes the mapping if this was its last user; if its context is not there any more, there is none.
    fn unmap(&self, named: MemoryHandle, is_there: bool) {
        let mut mapped = MAPPED.lock().unwrap_or_else(PoisonError::into_inner);
        let is_it = |each: &Mapped| (each.home, each.named) == (self.home, named);
        let Some(at) = mapped.iter().position(is_it) else {
            return;
        };
        mapped[at].count -= 1;
        if mapped[at].count > 0 {
            return;
        }
        let pointer = mapped.swap_remove(at).pointer;
        if is_there {
            // SAFETY: opened by `map`, once, and closed here, once: the last of its users is ending, after the devices have
            // done their work (`Opened`), or before it has had any. A refusal leaves the mapping.
            let _ = unsafe { self.driver.memory_close(pointer) };
        }
    }
}

impl Drop for Import {
    /// On a thread that may wait and that does not hold the GIL.
    fn drop(&mut self) {
        let now = twice(|| self.driver.context_id(self.context)).ok();
        // A reset has ended the events, the mappings and the counts of the context: what has those numbers now is others'.
        let is_reset = now.is_some() && self.home.is_some() && now != self.home;
        let there = twice(|| ContextGuard::of_device(self.driver, self.ordinal));
        let _relaxed = twice(|| Relaxed::new(self.driver));
        let is_there = there.is_ok() && !is_reset;
        if let Some(event) = self.event.take()
            && is_there
        {
            // A failure leaves one event too many.
            let _ = self.driver.event_destroy(event);
        }
        if let Some(named) = self.mapping.take() {
            self.unmap(named, is_there);
        }
        drop(there);
        if !is_reset {
            // The count of `new`. A failure leaves one too many.
            let _ = self.driver.primary_context_release(self.ordinal);
        }
    }
}
