//! One allocation for a copy: where it comes from, whom its end waits for, how it is freed.

use std::fmt;
use std::ops::Deref;

use super::room::Due;
use crate::driver::{
    Context, ContextGuard, ContextId, Defaults, Driver, DriverError, Event, Lease, Relaxed,
    is_primary, twice, unless_ended,
};
use crate::process::thread::Thread;
use crate::protocol::stream::{Capture, Stream};
use crate::view::{Kept, Placed};

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

    /// Marks what `stream` holds now; `None` if it is being captured, or the legacy one beside a capture: recording
    /// would break that. The context is current.
    pub(super) fn record(
        self,
        driver: &'static dyn Driver,
        stream: Stream,
    ) -> Result<Option<Lease<'static>>, DriverError> {
        match driver.capture(stream)? {
            Capture::Idle => self.record_idle(driver, stream),
            _ => Ok(None),
        }
    }

    /// Like [`record`](Self::record), of a stream that has just been asked.
    fn record_idle(
        self,
        driver: &'static dyn Driver,
        stream: Stream,
    ) -> Result<Option<Lease<'static>>, DriverError> {
        let event = Lease::recorded(driver, (self.context, self.id), stream)?;
        if driver.capture(stream)? == Capture::Idle {
            return Ok(Some(event));
        }
        event.destroy();
        Ok(None)
    }

    /// Makes it current; returns `None` if it is gone, and all work and memory with it.
    ///
    /// # Errors
    /// The driver's refusal, twice: the context may be there.
    fn enter(self, driver: &dyn Driver) -> Result<Option<ContextGuard<'_>>, DriverError> {
        let enter = || {
            let is_there = driver.context_id(self.context)? == self.id;
            let enter = || ContextGuard::above(driver, self.context);
            is_there.then(enter).transpose()
        };
        unless_ended(enter).map(Option::flatten)
    }
}

/// The stream that a copy was made for: its end comes after what the stream holds by then.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Use {
    pub(super) home: Home,
    works: Works,
}

/// Where the work is that uses a copy.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Works {
    /// On this stream, and what it is if the driver can tell. If nothing keeps it, it may have been destroyed by the end:
    /// the driver reads what was the stream then (docs/cusim.md), and only a call for the stream may name it.
    On(Stream, Option<u64>),
    /// On a default stream: of this thread, which alone can name it, or the legacy one. A thread of ours that used that
    /// might break a capture of a blocking stream, which can begin at any time.
    Default(Option<Thread>),
    /// On streams that the consumer has not named, of any device; of contexts that are no primary ones, in the memory's, and
    /// in this one, which was current as it asked.
    Anywhere(Option<Home>),
}

/// A mark that others hang on, and what keeps the stream that it was made on, if the caller's promise does not: whoever asks
/// about the event asks in the stream's context, which must not be destroyed meanwhile. The event goes before the stream.
pub(super) struct StreamMark {
    event: Lease<'static>,
    kept: Option<Kept>,
}

impl StreamMark {
    pub(super) fn new(event: Lease<'static>, kept: Option<Kept>) -> Self {
        Self { event, kept }
    }

    /// Ends the event, as [`Lease::destroy`] does, and returns what has kept its stream.
    pub(super) fn destroy(self) -> Option<Kept> {
        self.event.destroy();
        self.kept
    }
}

/// A mark of a stream that is a call's own, or is kept by what hangs on the mark.
impl From<Lease<'static>> for StreamMark {
    fn from(event: Lease<'static>) -> Self {
        Self::new(event, None)
    }
}

impl Deref for StreamMark {
    type Target = Lease<'static>;

    fn deref(&self) -> &Self::Target {
        &self.event
    }
}

/// Where a use stands.
pub(super) enum Mark {
    /// Its work so far has this mark.
    Event(Lease<'static>),
    /// Its stream cannot be marked now: it is being captured, or the driver does not tell whether its context is there.
    Later,
    /// Its stream cannot be named, or the driver refuses it.
    Unnamed,
    /// Its context is gone: nothing runs there.
    Over,
}

impl Use {
    /// Of work that may be anywhere, in the current context and in `original` among others, which was current before.
    pub(crate) fn anywhere(
        driver: &dyn Driver,
        original: Option<Context>,
    ) -> Result<Self, DriverError> {
        let home = Home::here(driver)?;
        let another = original.filter(|original| *original != home.context);
        let identified = another.map(|context| {
            let id = unless_ended(|| driver.context_id(context))?;
            Ok(id.map(|id| Home { context, id }))
        });
        let works = Works::Anywhere(identified.transpose()?.flatten());
        Ok(Self { home, works })
    }

    /// Of work of which nothing is known but that it may be in `context`, which is kept, or in the current one.
    #[cfg(feature = "cudarc")]
    pub(super) fn lost(driver: &dyn Driver, context: Option<Context>) -> Result<Self, DriverError> {
        let of = |context| {
            Ok(Home {
                context,
                id: driver.context_id(context)?,
            })
        };
        Ok(Self {
            home: context.map_or_else(|| Home::here(driver), of)?,
            works: Works::Anywhere(None),
        })
    }

    /// Of `stream`, whose context is current, and which is not being captured: to ask what it is breaks a capture
    /// (docs/cusim.md).
    pub(crate) fn new(driver: &dyn Driver, stream: Stream) -> Result<Self, DriverError> {
        Self::on(driver, stream, || twice(|| driver.stream_id(stream)).ok())
    }

    /// Like [`new`](Self::new), of any stream, and a mark of what it holds now; no mark if it is being captured, or is the
    /// legacy one beside a capture.
    pub(super) fn marked(
        driver: &'static dyn Driver,
        stream: Stream,
    ) -> Result<(Self, Option<Lease<'static>>), DriverError> {
        if driver.capture(stream)? != Capture::Idle {
            return Ok((Self::on(driver, stream, || None)?, None));
        }
        let used = Self::new(driver, stream)?;
        Ok((used, used.home.record_idle(driver, stream)?))
    }

    /// `id` is asked of a stream that has a handle.
    fn on(
        driver: &dyn Driver,
        stream: Stream,
        id: impl FnOnce() -> Option<u64>,
    ) -> Result<Self, DriverError> {
        let works = match stream {
            Stream::PerThreadDefault => Works::Default(Some(Thread::current())),
            Stream::LegacyDefault => Works::Default(None),
            stream => Works::On(stream, id()),
        };
        let home = Home::here(driver)?;
        Ok(Self { home, works })
    }

    /// The stream that the end comes after, as the thread names it that made this; `None` if it comes after devices.
    pub(crate) const fn stream(&self) -> Option<Stream> {
        match self.works {
            Works::On(stream, _) => Some(stream),
            Works::Default(Some(_)) => Some(Stream::PerThreadDefault),
            Works::Default(None) => Some(Stream::LegacyDefault),
            Works::Anywhere(_) => None,
        }
    }

    /// Whether a thread of ours can mark it, if something keeps it.
    pub(super) const fn has_handle(&self) -> bool {
        matches!(self.works, Works::On(..))
    }

    /// Whether its context is the primary one of a device.
    pub(crate) fn is_in_primary(
        &self,
        driver: &dyn Driver,
        ordinal: i32,
    ) -> Result<bool, DriverError> {
        is_primary(driver, ordinal, (self.home.context, self.home.id))
    }

    /// Whether one equal to this is of the same stream: not only of one under the same handle.
    pub(super) const fn is_of_one_stream(&self) -> bool {
        match self.works {
            Works::On(_, id) => id.is_some(),
            Works::Default(_) => true,
            Works::Anywhere(_) => false,
        }
    }

    /// Marks what the stream holds now, for a call whose own stream it is, and whose context is current; `None` if it is
    /// being captured, or the legacy one beside a capture, or if the driver refuses.
    pub(super) fn mark_own(&self, driver: &'static dyn Driver) -> Option<StreamMark> {
        let mark = self.home.record(driver, self.stream()?);
        mark.ok().flatten().map(StreamMark::from)
    }

    /// Marks what the stream, which is kept, holds now; for a thread of ours.
    pub(super) fn mark(&self, driver: &'static dyn Driver) -> Mark {
        let _there = match self.home.enter(driver) {
            Ok(Some(there)) => there,
            Ok(None) => return Mark::Over,
            Err(_) => return Mark::Later,
        };
        let Works::On(stream, _) = self.works else {
            return Mark::Unnamed;
        };
        match self.home.record(driver, stream) {
            Ok(Some(event)) => Mark::Event(event),
            Ok(None) => Mark::Later,
            Err(_) => Mark::Unnamed,
        }
    }

    /// Asks without a wait whether an event of this context has been reached. One of a context that is gone has, and so has one
    /// that the driver tells nothing of, asked twice.
    ///
    /// # Errors
    /// The driver's refusal: the context may be there.
    pub(super) fn has_reached(
        &self,
        driver: &dyn Driver,
        event: Event,
    ) -> Result<bool, DriverError> {
        let there = self.home.enter(driver)?;
        Ok(there.is_none() || twice(|| driver.event_query(event)) != Ok(false))
    }

    /// The contexts of the work, by [`site`](Self::site); for work on streams that are not known every primary one in use, too.
    ///
    /// # Errors
    /// The driver's refusal: some device is not known.
    pub(super) fn sites(&self, driver: &dyn Driver) -> Result<Vec<Site>, DriverError> {
        let mut found = match self.works {
            Works::Anywhere(another) => Site::others(driver, self.home, another)?,
            _ => Vec::new(),
        };
        found.extend(self.site(driver)?);
        Ok(found)
    }

    /// The context of the work, to be waited for; `None` if its context is gone, and all work with it.
    ///
    /// # Errors
    /// The driver's refusal: the device is not known.
    pub(super) fn site(&self, driver: &dyn Driver) -> Result<Option<Site>, DriverError> {
        Site::of(driver, self.home)
    }
}

/// A context that is to be waited for.
pub(super) struct Site {
    pub(super) ordinal: i32,
    /// A context there; `None` for the primary one.
    home: Option<Home>,
}

impl Site {
    /// The current context.
    pub(super) fn here(driver: &dyn Driver) -> Result<Self, DriverError> {
        let home = Some(Home::here(driver)?);
        let ordinal = driver.current_device()?;
        Ok(Self { ordinal, home })
    }

    /// Blocks until the context has done the work that it has; returns false if it may not have, since the driver refuses
    /// to wait.
    pub(super) fn settle(&self, driver: &dyn Driver) -> bool {
        self.wait(driver).is_ok()
    }

    /// Like [`settle`](Self::settle).
    ///
    /// # Errors
    /// The driver's refusal to wait.
    pub(super) fn wait(&self, driver: &dyn Driver) -> Result<(), DriverError> {
        let _there = match self.home {
            Some(home) => match home.enter(driver)? {
                Some(there) => there,
                None => return Ok(()),
            },
            None => match ContextGuard::of_device(driver, self.ordinal) {
                Ok(there) => there,
                Err(_) if driver.primary_context_active(self.ordinal) == Ok(false) => return Ok(()),
                Err(refused) => return Err(refused),
            },
        };
        // The byte is missed by a thread for which memory is short: it waits for that, too.
        let due = Due::new(self.ordinal);
        match unless_ended(|| driver.alloc(1)) {
            // SAFETY: just allocated, and used by nothing.
            Ok(Some(pointer)) => return unsafe { driver.free(pointer) },
            // Nothing runs there any more, and nothing can be asked.
            Ok(None) => return Ok(()),
            Err(_) => {}
        }
        due.cancel();
        let pointer = driver.alloc_pinned(1)?;
        // SAFETY: just allocated, and used by nothing.
        unsafe { driver.free_pinned(pointer) }
    }

    /// Whether a use is over once this has been waited for.
    pub(super) fn is_of(&self, used: Use) -> bool {
        self.home == Some(used.home) && !matches!(used.works, Works::Anywhere(_))
    }

    /// A context; `None` if it is gone.
    fn of(driver: &dyn Driver, home: Home) -> Result<Option<Self>, DriverError> {
        let Some(_there) = home.enter(driver)? else {
            return Ok(None);
        };
        Ok(Some(Self {
            ordinal: driver.current_device()?,
            home: Some(home),
        }))
    }

    /// The primary contexts in use but this one, and `another`, which is not this one. No call tells of other contexts.
    ///
    /// # Errors
    /// The driver's refusal: some device is not known.
    fn others(
        driver: &dyn Driver,
        but: Home,
        another: Option<Home>,
    ) -> Result<Vec<Self>, DriverError> {
        let mut found = Vec::new();
        if let Some(home) = another
            && let Some(site) = Self::of(driver, home)?
            && !is_primary(driver, site.ordinal, (home.context, home.id))?
        {
            found.push(site);
        }
        for ordinal in 0..driver.device_count()? {
            let is_in_use = driver.primary_context_active(ordinal)?;
            if is_in_use && !is_primary(driver, ordinal, (but.context, but.id))? {
                found.push(Self {
                    ordinal,
                    home: None,
                });
            }
        }
        Ok(found)
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
    /// The device that the memory is taken from.
    pub(super) ordinal: i32,
    /// What keeps the stream that it is for, if that is not its consumer's promise, and the contexts that it ends with.
    pub(crate) stream: Option<Kept>,
    /// Whether that keeps the stream itself.
    pub(crate) is_stream_kept: bool,
    /// Whether earlier work of the stream that it is for may still use it.
    pub(crate) is_in_use: bool,
    pointer: u64,
}

impl Block {
    /// Like [`allocate_pooled`](super::allocate_pooled), of new memory.
    pub(super) fn pooled(
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
            stream: None,
            is_stream_kept: false,
            is_in_use: false,
            pointer,
        })
    }

    /// Allocates in the current context, which is `home`.
    ///
    /// # Errors
    /// The driver's refusal.
    pub(super) fn new(
        driver: &'static dyn Driver,
        memory: Memory,
        nbytes: u64,
        used: Use,
        home: Home,
    ) -> Result<Self, DriverError> {
        let ordinal = driver.current_device()?;
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
            stream: None,
            is_stream_kept: false,
            is_in_use: false,
            pointer,
        })
    }

    pub(crate) fn pointer(&self) -> u64 {
        self.pointer
    }

    /// Whether it is for this stream; a default one is known by its context, and a per-thread one by its thread.
    pub(crate) fn is_for(&self, named: Placed) -> bool {
        match self.used.works {
            Works::On(stream, _) => stream == named.stream,
            Works::Default(thread) => {
                let is_one = named.stream.is_default() && thread == named.thread;
                is_one && named.whose == Defaults::Of(self.used.home.context)
            }
            Works::Anywhere(_) => false,
        }
    }

    /// Whether it is of the pool of a device.
    pub(crate) fn is_pooled(&self) -> bool {
        self.memory == Memory::Pool
    }

    /// Whether what uses it next is known to be on its device: a pool's is allocated for streams of that alone, and for no
    /// stream in the memory's context.
    pub(crate) fn is_at_home(&self) -> bool {
        self.is_pooled() || self.used.stream().is_none()
    }

    /// The contexts whose work may use it, but its own if the call that frees it waits for that.
    ///
    /// # Errors
    /// The driver's refusal: some device is not known.
    pub(super) fn sites_of_use(&self) -> Result<Vec<Site>, DriverError> {
        let (driver, used) = (self.driver, self.used.home);
        match self.used.works {
            Works::Anywhere(another) => Site::others(driver, self.home, another),
            // The wait comes first, so that the memory can be taken until it is over.
            Works::Default(_) => Ok(self.used.site(driver)?.into_iter().collect()),
            _ if self.memory != Memory::Pool && self.home == used => Ok(Vec::new()),
            _ => Ok(self.used.site(driver)?.into_iter().collect()),
        }
    }

    /// Makes a context current in which the memory can be freed although its own is gone: that of a pool is there as long
    /// as the device's primary context has not been reset. If that was its own it has been, whether it is in use again or not.
    fn elsewhere(&self) -> Option<ContextGuard<'static>> {
        if self.memory != Memory::Pool {
            return None;
        }
        let was_active = self.driver.primary_context_active(self.ordinal) == Ok(true);
        let there = twice(|| ContextGuard::of_device(self.driver, self.ordinal)).ok()?;
        let primary = twice(|| Home::here(self.driver)).ok()?;
        // A driver without numbers for contexts (before CUDA 12) may give the new one the handle of its own.
        let is_another = primary.id != self.home.id || !was_active;
        let is_reset = primary.context == self.home.context && is_another;
        (!is_reset).then_some(there)
    }

    /// Gives the memory back. Only memory of a pool is freed without a wait for its context. Returns it if the driver does not tell whether its context is there.
    ///
    /// # Safety
    /// No work that uses the memory is pending: in its own context, for what is no memory of a pool, the call itself
    /// sees to that.
    pub(super) unsafe fn free(self) -> Option<Self> {
        match self.home.enter(self.driver) {
            Err(_) => return Some(self),
            Ok(Some(_there)) => {
                // SAFETY: no work is pending but what the call waits for, by this function's contract; `self` is taken,
                // and the call below is made only if this one has freed nothing.
                let freed = unsafe { self.give_back() };
                // Another thread may have destroyed the context meanwhile.
                if !freed.is_err_and(|error| error.is_loss_of_context()) {
                    return None;
                }
            }
            Ok(None) => {}
        }
        if let Some(_there) = self.elsewhere() {
            // SAFETY: no work is pending, by this function's contract, as memory of a pool has no call that waits; it is
            // still there: no call has been made, or one that had no context to free it in.
            let _ = unsafe { self.give_back() };
        }
        None
    }

    /// Calls what frees the memory, in the current context. If the driver refuses it the memory is lost, unless
    /// [the context was gone](DriverError::is_loss_of_context); a driver that is ending has freed it already.
    ///
    /// # Safety
    /// As for [`free`](Self::free). It has not been freed, and is not used later.
    unsafe fn give_back(&self) -> Result<(), DriverError> {
        if self.memory == Memory::Pinned {
            // SAFETY: `alloc_pinned` returned it to `new`; it has not been freed, nothing uses it later, and no work is
            // pending, by this function's contract.
            unsafe { self.driver.free_pinned(self.pointer) }
        } else {
            // SAFETY: `alloc`, `alloc_async` or `alloc_managed` returned it to `new` or `pooled`; it has not been freed,
            // nothing uses it later, and no work is pending but what the call waits for, by this function's contract.
            unsafe { self.driver.free(self.pointer) }
        }
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

#[cfg(test)]
mod tests;
