//! The calling thread's current context, changed for a while.
//!
//! An event must be of the context of the stream that it is recorded on, and is created in the *current* context
//! (driver API, `cuEventCreate`, `cuEventRecord`); memory is allocated there; and a thread without a current
//! context may ask nothing about streams (`CUDA_ERROR_INVALID_CONTEXT`).
//!
//! The caller's context is not named: another thread may destroy it at any time, and the driver reads what a handle
//! refers to. What is made current is pushed above it, and popped.

use std::sync::{Mutex, PoisonError};

use super::{Context, ContextId, Defaults, Driver, DriverError, Place, PointerInfo, twice};
use crate::protocol::stream::Stream;

/// The refusal of a call for a current context that the driver has not told: `CUDA_ERROR_UNKNOWN`.
pub(crate) const UNTOLD: DriverError = DriverError::new("cuCtxGetCurrent", 999);

/// `CUDA_ERROR_INVALID_CONTEXT`.
pub(super) const INVALID_CONTEXT: u32 = 201;

/// The calling thread's current context: another one is above it after [`switch`](Self::switch), until
/// [`restore`](Self::restore), or until drop if that was not called.
pub(crate) struct ContextGuard<'d> {
    pub(super) driver: &'d dyn Driver,
    /// The caller's; `None` if it was not looked at.
    original: Option<Option<Context>>,
    current: Option<Context>,
    /// Whether the current one is above the original one.
    is_pushed: bool,
    /// Whether what runs meanwhile may change it too: then the end looks.
    is_shared: bool,
    /// Keep primary contexts alive as long as the guard, which leaves them before it gives them back.
    kept: Vec<Home<'d>>,
    /// What is known already of a context that was found.
    id: Option<(Context, ContextId)>,
}

impl<'d> ContextGuard<'d> {
    /// Remembers the current context.
    pub(super) fn new(driver: &'d dyn Driver) -> Result<Self, DriverError> {
        let original = driver.current_context()?;
        Ok(Self {
            driver,
            original: Some(original),
            current: original,
            is_pushed: false,
            is_shared: false,
            kept: Vec::new(),
            id: None,
        })
    }

    /// Remembers the current context, which code of others may change before the guard is dropped.
    pub(crate) fn around(driver: &'d dyn Driver) -> Result<Self, DriverError> {
        Ok(Self::new(driver)?.with_others())
    }

    /// Makes a context current, which is alive.
    pub(crate) fn of_context(
        driver: &'d dyn Driver,
        context: Context,
    ) -> Result<Self, DriverError> {
        let mut guard = Self::new(driver)?;
        guard.switch(context)?;
        Ok(guard)
    }

    /// Makes a context current without a look at what is: then no answer of the driver is of another one.
    pub(crate) fn above(driver: &'d dyn Driver, context: Context) -> Result<Self, DriverError> {
        driver.push_current_context(context)?;
        Ok(Self {
            driver,
            original: None,
            current: Some(context),
            is_pushed: true,
            is_shared: false,
            kept: Vec::new(),
            id: None,
        })
    }

    /// Makes the context current that `stream` was created in; for a default stream the one that the place
    /// requests.
    pub(crate) fn of_stream(
        driver: &'d dyn Driver,
        stream: Stream,
        place: &Place,
    ) -> Result<Self, DriverError> {
        let mut guard = Self::new(driver)?;
        let home = match stream.is_default() {
            true => Some(Home::lasting(
                driver,
                place,
                place.requested,
                guard.current,
            )?),
            false if guard.current.is_none() => Some(Home::make(
                driver,
                place,
                Defaults::OfMemory,
                guard.current,
            )?),
            false => None,
        };
        if let Some(home) = home {
            guard.enter(home)?;
        }
        if !stream.is_default() {
            let other = || Home::make(driver, place, Defaults::OfMemory, None).map(Some);
            let context = guard.context_of(stream, other)?;
            guard.switch(context)?;
        }
        Ok(guard)
    }

    /// Makes the context current that a stream with a handle was created in.
    pub(crate) fn of_handle(driver: &'d dyn Driver, stream: Stream) -> Result<Self, DriverError> {
        let mut guard = Self::new(driver)?;
        if guard.current.is_none()
            && let Some(home) = Home::any(driver)?
        {
            guard.enter(home)?;
        }
        let context = guard.context_of(stream, || Home::any(driver))?;
        guard.switch(context)?;
        Ok(guard)
    }

    /// Returns the context of a stream with a handle. While one is current that is gone the driver does not tell: it is asked once
    /// more in the one that `other` finds.
    ///
    /// # Errors
    /// The driver's refusal.
    pub(super) fn context_of(
        &mut self,
        stream: Stream,
        other: impl FnOnce() -> Result<Option<Home<'d>>, DriverError>,
    ) -> Result<Context, DriverError> {
        let told = self.driver.stream_context(stream);
        let is_refused = |refused: &DriverError| refused.is_loss_of_context();
        if self.is_pushed || self.current.is_none() || !told.as_ref().is_err_and(is_refused) {
            return told;
        }
        match other() {
            Ok(Some(home)) => self.enter(home)?,
            _ => return told,
        }
        self.driver.stream_context(stream)
    }

    /// Makes the context of an allocation current, else its device's primary one.
    pub(crate) fn of_memory(driver: &'d dyn Driver, place: &Place) -> Result<Self, DriverError> {
        let mut guard = Self::new(driver)?;
        let home = Home::lasting(driver, place, Defaults::OfMemory, guard.current)?;
        guard.enter(home)?;
        Ok(guard)
    }

    /// Makes the primary context of a device current, for code of others.
    pub(crate) fn of_device(driver: &'d dyn Driver, ordinal: i32) -> Result<Self, DriverError> {
        let mut guard = Self::around(driver)?;
        guard.enter(Home::primary(driver, ordinal)?)?;
        Ok(guard)
    }

    /// Makes the first primary context current that is active, for code of others; `None` if there is none.
    pub(crate) fn of_any_device(driver: &'d dyn Driver) -> Result<Option<Self>, DriverError> {
        let Some(home) = Home::any(driver)? else {
            return Ok(None);
        };
        let mut guard = Self::around(driver)?;
        guard.enter(home)?;
        Ok(Some(guard))
    }

    /// Lets code of others run before the end.
    pub(crate) fn with_others(mut self) -> Self {
        self.is_shared = true;
        self
    }

    /// The context that was current, which becomes current again; `None` also if it was not looked at.
    pub(crate) fn original(&self) -> Option<Context> {
        self.original.flatten()
    }

    /// The context that is current now.
    pub(super) fn current(&self) -> Option<Context> {
        self.current
    }

    /// Makes another context current, which is alive.
    pub(crate) fn switch(&mut self, to: Context) -> Result<(), DriverError> {
        if self.current == Some(to) {
            return Ok(());
        }
        match (self.is_pushed, self.original == Some(Some(to))) {
            (true, true) => {
                self.driver.pop_current_context()?;
                (self.current, self.is_pushed) = (self.original(), false);
                return Ok(());
            }
            (true, false) => self.driver.set_current_context(Some(to))?,
            (false, _) => self.driver.push_current_context(to)?,
        }
        (self.current, self.is_pushed) = (Some(to), true);
        Ok(())
    }

    pub(super) fn enter(&mut self, home: Home<'d>) -> Result<(), DriverError> {
        let context = self.keep(home);
        self.switch(context)
    }

    /// Keeps a context alive as long as the guard.
    pub(super) fn keep(&mut self, home: Home<'d>) -> Context {
        let context = home.context;
        self.id = home.id.map(|id| (context, id)).or(self.id);
        if home.retained.is_some() {
            self.kept.push(home);
        }
        context
    }

    /// Tells a context from a later one with the same handle; asked once.
    pub(super) fn id_of(&self, context: Context) -> Result<ContextId, DriverError> {
        match self.id {
            Some((known, id)) if known == context => Ok(id),
            _ => self.driver.context_id(context),
        }
    }

    /// Calls `body` in the context of the guard, and makes the caller's current again.
    ///
    /// # Errors
    /// Those of `body`; the driver's refusal, twice, to make it current.
    pub(crate) fn around_call<R, E: From<DriverError>>(
        mut self,
        body: impl FnOnce() -> Result<R, E>,
    ) -> Result<R, E> {
        let done = body()?;
        twice(|| self.restore())?;
        Ok(done)
    }

    /// Makes the caller's context current again. Only here can that fail visibly; what is refused once is tried again
    /// by drop.
    pub(crate) fn restore(&mut self) -> Result<(), DriverError> {
        if self.is_shared {
            let found = self.driver.current_context()?;
            if found != self.current {
                return self.restore_from_others(found);
            }
        }
        if self.is_pushed {
            self.driver.pop_current_context()?;
        }
        self.note_restored();
        Ok(())
    }

    /// Notes that nothing is left to do; returns what was above the caller's context.
    fn note_restored(&mut self) -> Option<Context> {
        let pushed = self.current.filter(|_| self.is_pushed);
        (self.current, self.is_pushed, self.is_shared) = (self.original(), false, false);
        pushed
    }

    /// Takes away what others have left: it is `found` in the place of what was current. The caller's own is named only if they
    /// have popped or replaced it. Each call is made twice if it is refused, as the whole cannot be.
    #[cold]
    fn restore_from_others(&mut self, mut found: Option<Context>) -> Result<(), DriverError> {
        let driver = self.driver;
        let pushed = self.note_restored();
        let Some(original) = self.original else {
            // What is the caller's cannot be told from what others have left.
            return Ok(());
        };
        // They have popped what was pushed, as the end of a context does.
        while found != original && found.is_some() {
            let is_pushed = found == pushed;
            twice(|| driver.pop_current_context())?;
            if is_pushed {
                return Ok(());
            }
            found = twice(|| driver.current_context())?;
            if pushed.is_none() && original.is_some() {
                // It stood above the caller's, or in its place.
                break;
            }
        }
        match original {
            Some(lost) if found != original => twice(|| driver.push_current_context(lost)),
            _ => Ok(()),
        }
    }

    /// Leaves the current context in the place of the caller's.
    ///
    /// # Errors
    /// The driver's refusal, twice: the caller's is current.
    #[cfg(feature = "cudarc")]
    pub(crate) fn stay(mut self) -> Result<(), DriverError> {
        let current = self.current;
        if self.is_pushed {
            twice(|| self.restore())?;
            twice(|| self.driver.set_current_context(current))?;
        }
        Ok(())
    }
}

impl Drop for ContextGuard<'_> {
    fn drop(&mut self) {
        // A context that has died meanwhile cannot be made current again; then there is none.
        if twice(|| self.restore()).is_err() && self.is_pushed {
            // The driver does not tell what is current, which is what was pushed unless others have taken that away.
            let _ = self.driver.pop_current_context();
        }
    }
}

/// Whether a context is the primary one of a device. The driver is asked once for each: it tells a primary context to
/// who retains it.
pub(crate) fn is_primary(
    driver: &dyn Driver,
    ordinal: i32,
    (context, id): (Context, ContextId),
) -> Result<bool, DriverError> {
    if driver.primaries().get(ordinal) == Some((context, id)) {
        return Ok(true);
    }
    if !driver.primary_context_active(ordinal)? {
        return Ok(false);
    }
    let primary = driver.primary_context_retain(ordinal)?;
    driver.primary_context_release(ordinal)?;
    if primary == context {
        driver.primaries().put(ordinal, context, id);
    }
    Ok(primary == context)
}

/// A context, held while it is used.
pub(super) struct Home<'d> {
    pub(super) context: Context,
    ordinal: i32,
    id: Option<ContextId>,
    /// Whose primary context was retained here.
    retained: Option<&'d dyn Driver>,
}

/// The primary contexts that were met, by their devices: a thread whose current context is one of them needs no retain
/// to use it. The identity tells one from its successor (`cuCtxGetId`; drivers before CUDA 12.0 have the handle alone).
#[derive(Debug, Default)]
pub(crate) struct Primaries(Mutex<Vec<(i32, Context, ContextId)>>);

impl Primaries {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    fn get(&self, ordinal: i32) -> Option<(Context, ContextId)> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = known.iter().find(|(device, ..)| *device == ordinal);
        found.map(|(_, context, id)| (*context, *id))
    }

    fn put(&self, ordinal: i32, context: Context, id: ContextId) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|(device, ..)| *device != ordinal);
        known.push((ordinal, context, id));
    }
}

impl<'d> Home<'d> {
    /// Finds the context whose default streams are meant. A primary context is not brought to life for this: if
    /// nothing uses it, no work can be pending on its default streams, and the question has no answer.
    ///
    /// # Errors
    /// The driver's; its own "invalid context" for a primary context that is not active.
    pub(super) fn find(
        driver: &'d dyn Driver,
        place: &Place,
        whose: Defaults,
        current: Option<Context>,
    ) -> Result<Self, DriverError> {
        Self::of(driver, place, whose, current, |ordinal| {
            Self::active(driver, place, ordinal)
        })
    }

    /// Finds the contexts of a device in which work may use managed memory that `info` describes: the allocation's, if it
    /// is of that device, and the primary one, if that is active. The driver lists no others.
    pub(super) fn of_device(
        driver: &'d dyn Driver,
        info: &PointerInfo,
        ordinal: i32,
        current: Option<Context>,
    ) -> Result<Vec<Self>, DriverError> {
        let allocated = info.context.filter(|_| info.ordinal == ordinal);
        for known in [allocated, current] {
            if let Some(primary) = Self::current_primary(driver, ordinal, known)? {
                let other = allocated.filter(|other| *other != primary.context);
                let other = other.map(|context| Self::unretained(context, ordinal));
                return Ok(other.into_iter().chain([primary]).collect());
            }
        }
        let mut found = Vec::new();
        if driver.primary_context_active(ordinal)? {
            found.push(Self::primary(driver, ordinal)?.identified(driver)?);
        }
        let is_new = |context: &Context| found.iter().all(|home: &Self| home.context != *context);
        if let Some(context) = allocated.filter(is_new) {
            found.push(Self::unretained(context, ordinal));
        }
        Ok(found)
    }

    /// Retains the primary context of a device, if it is active.
    fn active(driver: &'d dyn Driver, place: &Place, ordinal: i32) -> Result<Self, DriverError> {
        let found = match ordinal {
            0.. if driver.primary_context_active(ordinal)? => {
                Self::primary(driver, ordinal)?.identified(driver).map(Some)
            }
            // A bare stream on a thread without a context: the first device in use, as the CUDA runtime has it.
            ..0 if place.pointer == 0 => Self::any(driver),
            _ => Ok(None),
        };
        let call = "cuDevicePrimaryCtxGetState";
        found?.ok_or(DriverError::new(call, INVALID_CONTEXT))
    }

    /// Takes a context that this value does not retain.
    const fn unretained(context: Context, ordinal: i32) -> Self {
        Self {
            context,
            ordinal,
            id: None,
            retained: None,
        }
    }

    /// As [`find`](Self::find); a primary context may be brought to life, to ask about a stream there.
    pub(super) fn make(
        driver: &'d dyn Driver,
        place: &Place,
        whose: Defaults,
        current: Option<Context>,
    ) -> Result<Self, DriverError> {
        Self::of(driver, place, whose, current, |ordinal| {
            Self::primary(driver, ordinal.max(0))
        })
    }

    /// Finds the context for memory and work that outlast this value: a primary context that is brought to life stays for good,
    /// as with the CUDA runtime, since its end would end them.
    fn lasting(
        driver: &'d dyn Driver,
        place: &Place,
        whose: Defaults,
        current: Option<Context>,
    ) -> Result<Self, DriverError> {
        Self::of(driver, place, whose, current, |ordinal| {
            let ordinal = ordinal.max(0);
            if driver.primary_context_active(ordinal)? {
                return Self::primary(driver, ordinal);
            }
            let context = driver.primary_context_retain(ordinal)?;
            Ok(Self::unretained(context, ordinal))
        })
    }

    fn of(
        driver: &'d dyn Driver,
        place: &Place,
        whose: Defaults,
        current: Option<Context>,
        primary: impl FnOnce(i32) -> Result<Self, DriverError>,
    ) -> Result<Self, DriverError> {
        let mut ordinal = place.ordinal;
        let context = match (whose, current) {
            (Defaults::Untold, _) => return Err(UNTOLD),
            (Defaults::Of(context), _) | (Defaults::OfCurrent, Some(context)) => Some(context),
            (Defaults::OfPrimary, _) => None,
            _ if place.pointer == 0 => None,
            _ => {
                let info = driver.pointer_info(place.pointer, false)?;
                if ordinal < 0 {
                    ordinal = info.ordinal;
                }
                // Memory that every device reaches may be named as another one's than it was allocated for.
                info.context.filter(|_| info.ordinal == ordinal)
            }
        };
        match context {
            None => match Self::current_primary(driver, ordinal, current)? {
                Some(home) => Ok(home),
                None => primary(ordinal),
            },
            Some(context) => Ok(Self::unretained(context, ordinal)),
        }
    }

    /// Returns the current context if it is the device's primary one, as met before.
    fn current_primary(
        driver: &'d dyn Driver,
        ordinal: i32,
        current: Option<Context>,
    ) -> Result<Option<Self>, DriverError> {
        let known = driver.primaries().get(ordinal);
        let Some((context, id)) = known.filter(|(context, _)| current == Some(*context)) else {
            return Ok(None);
        };
        let is_same = driver.context_id(context)? == id;
        Ok(is_same.then_some(Self {
            context,
            ordinal,
            id: Some(id),
            retained: None,
        }))
    }

    /// Remembers a primary context, for threads on which it is current.
    fn identified(mut self, driver: &dyn Driver) -> Result<Self, DriverError> {
        let id = driver.context_id(self.context)?;
        driver.primaries().put(self.ordinal, self.context, id);
        self.id = Some(id);
        Ok(self)
    }

    /// Retains the primary context of a device.
    fn primary(driver: &'d dyn Driver, ordinal: i32) -> Result<Self, DriverError> {
        Ok(Self {
            context: driver.primary_context_retain(ordinal)?,
            ordinal,
            id: None,
            retained: Some(driver),
        })
    }

    /// Retains the first primary context that is active: to ask about a stream, any context serves.
    fn any(driver: &'d dyn Driver) -> Result<Option<Self>, DriverError> {
        for ordinal in 0..driver.device_count()? {
            if driver.primary_context_active(ordinal)? {
                return Self::primary(driver, ordinal).map(Some);
            }
        }
        Ok(None)
    }
}

impl Drop for Home<'_> {
    /// Gives a retained primary context back.
    fn drop(&mut self) {
        if let Some(driver) = self.retained {
            // A failure leaves one count too many; the order itself is made, or its error matters more.
            let _ = driver.primary_context_release(self.ordinal);
        }
    }
}

/// A primary context, which is there as long as this.
pub(crate) struct KeptPrimary(Home<'static>);

impl KeptPrimary {
    /// Retains that of a device; `None` if it is not active.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn of_device(
        driver: &'static dyn Driver,
        ordinal: i32,
    ) -> Result<Option<Self>, DriverError> {
        match driver.primary_context_active(ordinal)? {
            true => Ok(Some(Self(Home::primary(driver, ordinal)?))),
            false => Ok(None),
        }
    }

    /// Retains a context; `None` if it is not the primary one of its device.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn of_context(
        driver: &'static dyn Driver,
        context: Context,
    ) -> Result<Option<Self>, DriverError> {
        ContextGuard::of_context(driver, context)?.around_call(|| Self::of_current(driver))
    }

    /// Retains the current context; `None` if it is not the primary one of its device.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn of_current(driver: &'static dyn Driver) -> Result<Option<Self>, DriverError> {
        let kept = Self::of_device(driver, driver.current_device()?)?;
        let current = driver.current_context()?;
        Ok(kept.filter(|kept| current == Some(kept.0.context)))
    }
}

/// Finds the context whose default streams are meant. What is current stays.
///
/// # Errors
/// The driver's; its own "invalid context" for a primary context that is not active.
#[cold]
pub(crate) fn context_meant(
    driver: &dyn Driver,
    place: &Place,
    whose: Defaults,
) -> Result<Context, DriverError> {
    let caller = ContextGuard::new(driver)?;
    Ok(Home::find(driver, place, whose, caller.current())?.context)
}

#[cfg(test)]
mod tests;
