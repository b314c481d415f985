//! Carries out a plan: makes streams and the host wait, with as few driver calls as that takes.
//!
//! # What is called
//! Nothing if `protocol::stream::settled` finds nothing to do. Else, for two streams with handles:
//! `cuCtxGetCurrent`, `cuStreamGetCtx` of the ready stream, `cuCtxPushCurrent` if another
//! context is current, `cuStreamIsCapturing` of both, `cuCtxGetId`, `cuEventRecord` on a pooled
//! event (the first one of a context costs a `cuEventCreate`), `cuStreamWaitEvent`, and
//! `cuCtxPopCurrent` after a push. Two captures that are both active cost a `cuStreamGetCaptureInfo` each.
//!
//! # Contexts
//! An event must be of the context of the stream that it is recorded on, and is created in the
//! *current* context (driver API, `cuEventCreate`, `cuEventRecord`). So the ready stream's context
//! is made current first: `cuStreamGetCtx` names it for a handle. The default streams, 1 and 2,
//! exist once per context, and both protocols leave the context out. For memory of a device it is the pointer's,
//! else the device's primary context if that is active; pinned and managed memory, which every context reaches,
//! remembers the one that was current when the stream was named ([`Defaults`]). The caller's context is current
//! again afterwards, on every path.
//!
//! # Captures
//! The questions come first, and none of them invalidates a capture; only an order that the plan
//! allows touches a stream.

mod contexts;
#[cfg(test)]
mod tests;

use contexts::Contexts;

use super::context::{ContextGuard, Home};
use super::lease::Lease;
use super::pending::{ContextWait, Pending};
use super::{Context, Defaults, Driver, DriverError, MemoryKind, Place, twice};
use crate::error::Error;
use crate::protocol::rule::Violation;
use crate::protocol::stream::{
    Capture, Plan, Reason, Request, Situation, Stream, SyncPolicy, plan, plan_without_captures,
    settled,
};

/// What was done.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Done {
    /// No driver call was made.
    Nothing(Reason),
    /// One event was recorded and waited for; the host went on.
    Event(Reason),
    /// One event was recorded and waited for in this capture: an edge of its graph, which orders none of what the streams hold.
    InGraph(Reason, u64),
    /// The host waited.
    HostWait(Reason),
}

impl Done {
    /// Whether the order is an edge of a graph, and none of the streams.
    pub(crate) const fn is_in_graph(self) -> bool {
        matches!(self, Self::InGraph(..))
    }
}

/// Whether [`order`] will call the driver, or refuse: false means that there is nothing to do, no
/// driver needed, and no GIL to release. Costs a few comparisons.
#[inline]
pub(crate) fn needed(ready: Stream, request: Request, place: &Place, policy: SyncPolicy) -> bool {
    settled(&place.situation(ready, request, policy)).is_none()
}

/// Why an order is refused that no answer of a driver would change, as any on ROCm is.
pub(crate) fn refused(
    ready: Stream,
    request: Request,
    place: &Place,
    policy: SyncPolicy,
) -> Option<Violation> {
    match plan_without_captures(&place.situation(ready, request, policy)) {
        Some(Plan::Refuse(refused)) => Some(refused),
        _ => None,
    }
}

/// Orders what `request` asks for after `ready`, the stream that the data is ready on.
///
/// After `Ok`, work that is enqueued on the requested stream (or done by the host) finds the data
/// ready. After `Err` nothing waits for anything, unless the caller's context could not be made current again.
///
/// # Errors
/// A violation if no order is possible (a stream capture, another thread's per-thread stream,
/// ROCm); nothing was enqueued then. A [`DriverError`] for a call that failed.
pub(crate) fn order(
    driver: &dyn Driver,
    ready: Stream,
    request: Request,
    place: &Place,
    policy: SyncPolicy,
) -> Result<Done, Error> {
    let situation = place.situation(ready, request, policy);
    run(driver, place, situation, None, &mut host_wait)
}

/// A stream that the requested one will be joined to, and whose it is if it is a default stream.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Back {
    pub(crate) stream: Stream,
    pub(crate) whose: Defaults,
}

/// Like [`order`], for a requested stream that will be joined to `back` later, if it is given, as `consume()`
/// does by its return edge: then it may enter a capture that both `ready` and `back` take part in.
///
/// # Errors
/// As [`order`].
pub(crate) fn order_within(
    driver: &dyn Driver,
    ready: Stream,
    request: Request,
    back: Option<Back>,
    place: &Place,
    policy: SyncPolicy,
) -> Result<Done, Error> {
    let situation = place.situation(ready, request, policy);
    run(driver, place, situation, back, &mut host_wait)
}

/// Decides what [`order`] would do now, and does nothing of it. Without a driver, which ready data does not need, no
/// device works.
///
/// # Errors
/// A [`DriverError`] for a question that failed.
pub(crate) fn foresee(
    driver: Option<&dyn Driver>,
    ready: Stream,
    request: Request,
    place: &Place,
    policy: SyncPolicy,
) -> Result<Plan, Error> {
    let mut situation = place.situation(ready, request, policy);
    let Some(driver) = driver else {
        situation.exclusive_managed = false;
        return Ok(plan(&situation));
    };
    situation.exclusive_managed =
        situation.exclusive_managed && !driver.exclusive_devices()?.is_empty();
    if let Some(plan) = plan_without_captures(&situation) {
        return Ok(plan);
    }
    let mut caller = ContextGuard::new(driver)?;
    let found = find(&mut caller, place, situation, None);
    let restored = caller.restore();
    let plan = match found? {
        Found::Settled(reason) => Plan::Nothing(reason),
        Found::Planned(plan, _) => plan,
    };
    Ok(restored.map(|()| plan)?)
}

/// Like [`order_within`], without a wait of the host: also returns the wait that [`order_within`] would have made, begun.
///
/// # Errors
/// As [`order`].
pub(crate) fn begin(
    driver: &'static dyn Driver,
    ready: Stream,
    request: Request,
    back: Option<Back>,
    place: &Place,
    policy: SyncPolicy,
) -> Result<(Done, Option<Pending>), Error> {
    let situation = place.situation(ready, request, policy);
    let mut pending = None;
    let done = run(
        driver,
        place,
        situation,
        back,
        &mut |caller, contexts, ready| {
            pending = Some(host_wait_begun(caller, contexts, ready)?);
            Ok(())
        },
    )?;
    Ok((done, pending))
}

/// Blocks the calling thread until the work of `stream` is done, whatever the policy.
///
/// # Errors
/// As [`order`]; a stream that is being captured is refused, as waiting for it would break the
/// capture.
pub(crate) fn synchronize(driver: &dyn Driver, stream: Stream, place: &Place) -> Result<(), Error> {
    order(driver, stream, Request::Host, place, SyncPolicy::Event).map(|_| ())
}

/// How a host wait of a plan is carried out, for a stream that the data is ready on.
type HostWait<'w, 'd> =
    &'w mut dyn FnMut(&mut ContextGuard<'d>, &Contexts, Stream) -> Result<(), DriverError>;

/// Decides, asking the driver only for what the decision needs, and acts.
fn run<'d>(
    driver: &'d dyn Driver,
    place: &Place,
    mut situation: Situation,
    back: Option<Back>,
    host: HostWait<'_, 'd>,
) -> Result<Done, Error> {
    situation.exclusive_managed =
        situation.exclusive_managed && !driver.exclusive_devices()?.is_empty();
    if let Some(plan) = plan_without_captures(&situation) {
        return match plan {
            Plan::Refuse(violation) => Err(violation.into()),
            Plan::Nothing(reason) | Plan::Event { reason, .. } | Plan::HostWait { reason, .. } => {
                Ok(Done::Nothing(reason))
            }
        };
    }
    let mut caller = ContextGuard::new(driver)?;
    let done = find_and_act(&mut caller, place, situation, back, host);
    // An order that is made is not refused for this.
    let restored = twice(|| caller.restore());
    done.and_then(|done| restored.map(|()| done).map_err(Error::from))
}

fn find_and_act<'d>(
    caller: &mut ContextGuard<'d>,
    place: &Place,
    situation: Situation,
    back: Option<Back>,
    host: HostWait<'_, 'd>,
) -> Result<Done, Error> {
    let (plan, contexts) = match find(caller, place, situation, back)? {
        Found::Settled(reason) => return Ok(Done::Nothing(reason)),
        Found::Planned(plan, contexts) => (plan, contexts),
    };
    match plan {
        Plan::Nothing(reason) => Ok(Done::Nothing(reason)),
        Plan::Refuse(violation) => Err(violation.into()),
        Plan::HostWait { stream, reason } => {
            host(caller, &contexts, stream)?;
            Ok(Done::HostWait(reason))
        }
        Plan::Event {
            record,
            wait,
            reason,
        } => {
            caller.switch(contexts.ready)?;
            let id = caller.id_of(contexts.ready)?;
            let event = Lease::recorded(caller.driver, (contexts.ready, id), record)?;
            caller.switch(contexts.wait)?;
            event.wait(wait)?;
            Ok(match reason {
                Reason::SameCapture | Reason::ForkFromCapture => {
                    Done::InGraph(reason, contexts.capture)
                }
                _ => Done::Event(reason),
            })
        }
    }
}

/// What the questions to the driver have led to.
enum Found {
    /// There is nothing to do.
    Settled(Reason),
    /// The plan, and the contexts that it is carried out in.
    Planned(Plan, Contexts),
}

/// Decides, asking the driver only for what the decision needs. Only the current context changes.
#[inline]
fn find(
    caller: &mut ContextGuard<'_>,
    place: &Place,
    mut situation: Situation,
    back: Option<Back>,
) -> Result<Found, Error> {
    let wholes = exclusive(caller, place, &situation)?;
    situation.exclusive_managed = !wholes.is_empty();
    if let Some(reason) = settled(&situation) {
        return Ok(Found::Settled(reason));
    }
    let mut contexts = Contexts::find(caller, place, &situation, wholes)?;
    situation.ready_in_other_context = contexts.ready != contexts.wait;
    if let Some(reason) = settled(&situation) {
        return Ok(Found::Settled(reason));
    }
    ask_captures(caller, place, &mut contexts, &mut situation)?;
    if let Some(back) = back {
        situation.joins_back = joins_back(caller, place, &mut contexts, &situation, back)?;
    }
    Ok(Found::Planned(plan(&situation), contexts))
}

/// Whether the current context has a capture, which a wait for it as a whole would break: on a blocking stream, of which
/// the legacy one tells, or on a stream of the producer's. No call lists a context's streams, and those that notice the
/// capture of a non-blocking one break it.
fn whole_capture(
    driver: &dyn Driver,
    place: &Place,
    whole: Context,
    situation: &Situation,
) -> Result<Capture, DriverError> {
    let mut found = driver.capture(Stream::LegacyDefault)?;
    for producer in place.producers {
        let is_asked = producer == situation.ready || !matches!(producer, Stream::Handle(_));
        if found == Capture::Idle && !is_asked && driver.stream_context(producer)? == whole {
            found = driver.capture(producer)?;
        }
    }
    Ok(found)
}

/// Fills in the capture states. A default stream is asked about in its context.
fn ask_captures(
    caller: &mut ContextGuard<'_>,
    place: &Place,
    contexts: &mut Contexts,
    situation: &mut Situation,
) -> Result<(), DriverError> {
    let driver = caller.driver;
    caller.switch(match situation.ready.is_default() {
        true => contexts.ready,
        false => contexts.wait,
    })?;
    if situation.ready != Stream::None {
        situation.ready_capture = driver.capture(situation.ready)?;
    }
    let Request::Stream(requested) = situation.request else {
        for whole in &contexts.wholes {
            caller.switch(*whole)?;
            situation.requested_capture = whole_capture(driver, place, *whole, situation)?;
            if situation.requested_capture != Capture::Idle {
                break;
            }
        }
        return Ok(());
    };
    if requested.is_default() {
        caller.switch(contexts.wait)?;
    }
    situation.requested_capture = driver.capture(requested)?;
    if (situation.ready_capture, situation.requested_capture) == (Capture::Active, Capture::Active)
    {
        if situation.ready.is_default() {
            caller.switch(contexts.ready)?;
        }
        contexts.capture = driver.capture_id(situation.ready)?;
        if requested.is_default() {
            caller.switch(contexts.wait)?;
        }
        let requested = driver.capture_id(requested)?;
        situation.same_capture = requested != 0 && requested == contexts.capture;
    }
    Ok(())
}

/// Whether `back` is in the capture of the ready stream; asked only if the requested stream is to enter that.
fn joins_back(
    caller: &mut ContextGuard<'_>,
    place: &Place,
    contexts: &mut Contexts,
    situation: &Situation,
    back: Back,
) -> Result<bool, DriverError> {
    let (driver, states) = (
        caller.driver,
        (situation.ready_capture, situation.requested_capture),
    );
    if states != (Capture::Active, Capture::Idle) {
        return Ok(false);
    }
    if situation.ready.is_default() {
        caller.switch(contexts.ready)?;
    }
    contexts.capture = driver.capture_id(situation.ready)?;
    let is_one = !back.stream.is_default() || back.whose == place.ready;
    if back.stream == situation.ready && is_one {
        return Ok(true);
    }
    if back.stream.is_default() {
        let home = Home::find(driver, place, back.whose, caller.current())?;
        caller.enter(home)?;
    }
    let is_captured = driver.capture(back.stream)? == Capture::Active;
    let is_one = |capture| capture != 0 && capture == contexts.capture;
    Ok(is_captured && is_one(driver.capture_id(back.stream)?))
}

/// Waits for the ready stream, and if the host needs devices for itself for whole contexts of theirs, which contain
/// the stream unless that is of another context.
fn host_wait(
    caller: &mut ContextGuard<'_>,
    contexts: &Contexts,
    ready: Stream,
) -> Result<(), DriverError> {
    if !contexts.wholes.contains(&contexts.ready) {
        if ready.is_default() {
            // The questions about captures have left the consumer's context current.
            caller.switch(contexts.ready)?;
        }
        caller.driver.stream_synchronize(ready)?;
    }
    for whole in &contexts.wholes {
        caller.switch(*whole)?;
        caller.driver.context_synchronize()?;
    }
    Ok(())
}

/// Begins what [`host_wait`] does: marks the ready stream by an event, and has a thread wait for each context.
fn host_wait_begun(
    caller: &mut ContextGuard<'static>,
    contexts: &Contexts,
    ready: Stream,
) -> Result<Pending, DriverError> {
    let driver = caller.driver;
    let event = match ready {
        Stream::None => None,
        ready => {
            caller.switch(contexts.ready)?;
            let id = caller.id_of(contexts.ready)?;
            Some(Lease::recorded(driver, (contexts.ready, id), ready)?)
        }
    };
    let begin = |whole: &Context| ContextWait::begin(driver, *whole);
    let wholes = contexts.wholes.iter().map(begin).collect();
    Ok(Pending::new(driver, event, wholes))
}

/// Finds the contexts that the host has to wait for as a whole before it touches the array: of managed memory, under
/// whatever name it came, those of every device that wants such memory to itself. None of a device that nothing uses.
///
/// Whose the memory is does not matter: while a kernel runs on such a device, the host must touch no managed memory, used
/// by the kernel or not (CUDA C++ Programming Guide, "GPU Exclusive Access To Managed Memory").
fn exclusive(
    caller: &mut ContextGuard<'_>,
    place: &Place,
    situation: &Situation,
) -> Result<Vec<Context>, DriverError> {
    let mut found = Vec::new();
    if !situation.exclusive_managed {
        return Ok(found);
    }
    let driver = caller.driver;
    let info = driver.pointer_info(place.pointer, false)?;
    if info.kind != MemoryKind::Managed {
        return Ok(found);
    }
    for ordinal in driver.exclusive_devices()? {
        let homes = Home::of_device(driver, &info, ordinal, caller.current())?;
        found.extend(homes.into_iter().map(|home| caller.keep(home)));
    }
    Ok(found)
}
