//! Makes one stream wait for many.

use super::context::{ContextGuard, Home};
#[cfg(feature = "pyo3")]
use super::order::foresee;
use super::order::{Done, order};
use super::{Defaults, Driver, Place};
use crate::error::Error;
use crate::process::thread::Thread;
use crate::protocol::rule::{Field, Rule, Violation};
#[cfg(feature = "pyo3")]
use crate::protocol::stream::Plan;
use crate::protocol::stream::{Platform, Request, Stream, SyncPolicy};

/// What is to be joined: the distinct streams to wait for, and where the arrays are.
#[derive(Debug, Default)]
pub(crate) struct Joined {
    waits: Vec<(Stream, Place)>,
    arrays: Vec<Place>,
    has_bare: bool,
}

impl Joined {
    /// Adds the ready stream of an array. None needs no wait, but memory of a device says whose a default stream is.
    pub(crate) fn array(&mut self, ready: Stream, place: Place) {
        if ready != Stream::None {
            self.add(ready, place);
        } else if place.platform != Platform::Cuda || place.pointer == 0 {
            return;
        }
        if is_rocm(&place) {
            return;
        }
        let is_same = |other: &Place| means_same(place.requested, &place, other.requested, other);
        if !self.arrays.last().is_some_and(is_same) {
            self.arrays.push(place);
        }
    }

    /// Adds a stream that no array comes with; a default stream is that of `whose` context.
    pub(crate) fn stream(&mut self, stream: Stream, whose: Defaults) {
        self.has_bare = true;
        // As of an array that is ready there: the same stream is then found to be one.
        let thread = (stream == Stream::PerThreadDefault).then(Thread::current);
        let place = Place {
            ready: whose,
            thread,
            ..Place::of_current()
        };
        self.add(stream, place);
    }

    /// Adds a stream unless it is there: 300 arrays of two streams are two waits.
    fn add(&mut self, stream: Stream, place: Place) {
        let is_same =
            |(other, there): &(Stream, Place)| is_same_queue(stream, &place, *other, there);
        if !self.waits.iter().any(is_same) {
            self.waits.push((stream, place));
        }
    }

    /// Why `on` cannot wait for all, whatever a driver would answer: a stream of ROCm is not waited for here, and is the same as
    /// `on` only if all streams are that one.
    pub(crate) fn refused(&self, on: Stream) -> Option<Violation> {
        let (ready, place) = self.waits.iter().find(|(_, place)| is_rocm(place))?;
        let others = "the items have other streams beside it";
        match super::refused(*ready, Request::Stream(on), place, SyncPolicy::Event) {
            None if self.waits.len() > 1 => {
                let refused = Violation::new(Rule::RocmOrder, Field::Argument("on"), on);
                Some(refused.with_hint(others))
            }
            refused => refused,
        }
    }

    /// Whether [`join`] will call the driver, or refuse.
    pub(crate) fn needs_driver(&self, on: Stream) -> bool {
        let has_waits = !self.waits.is_empty();
        has_waits && (self.has_meanings(on) || self.waits.iter().any(|wait| is_needed(wait, on)))
    }

    /// Whether `on` could mean several streams.
    fn has_meanings(&self, on: Stream) -> bool {
        on.is_default() && self.arrays.len() + usize::from(self.has_bare) > 1
    }
}

fn is_needed((ready, place): &(Stream, Place), on: Stream) -> bool {
    super::needed(*ready, Request::Stream(on), place, SyncPolicy::Event)
}

fn is_rocm(place: &Place) -> bool {
    place.platform == Platform::Rocm
}

/// Whether no array comes with a stream.
fn is_bare((_, place): &(Stream, Place)) -> bool {
    place.ready == Defaults::OfCurrent
}

/// Whether two ready streams are one queue, as far as is known without the driver: a handle identifies it alone among
/// those of one platform, a default stream is one per context, and per thread.
fn is_same_queue(stream: Stream, place: &Place, other: Stream, there: &Place) -> bool {
    if is_rocm(place) != is_rocm(there) {
        return false;
    }
    let is_one_context = || means_same(place.ready, place, there.ready, there);
    stream == other && (!stream.is_default() || is_one_context() && place.thread == there.thread)
}

/// Whether these default streams are known to be of one context. A device may have several contexts, of which the
/// driver names that of an allocation.
fn means_same(whose: Defaults, place: &Place, other: Defaults, there: &Place) -> bool {
    let is_one_device = place.ordinal == there.ordinal && place.ordinal >= 0;
    match (whose, other) {
        // A device of ROCm has no contexts.
        _ if is_rocm(place) => is_one_device,
        (Defaults::Untold, _) => false,
        (Defaults::OfMemory, Defaults::OfMemory) => is_one_device && place.pointer == there.pointer,
        (Defaults::OfPrimary, Defaults::OfPrimary) => is_one_device,
        (one, other) => one == other,
    }
}

/// Makes `on` wait for every one of the streams, by one event for each; the number of events. `on` itself costs
/// nothing. If `on` is a default stream, it is that of the arrays' context, and without arrays that of the current one;
/// among the streams, one that comes with no array is always the current context's. The driver is asked for the context
/// of each array whose default stream has to be told from another one's of the same number.
///
/// # Errors
/// `stream-context` if `on` would be another stream for each of two arrays; then nothing waits. As [`order`], at the
/// first stream that cannot be waited for; `on` may by then wait for those before it, which delays work and breaks
/// nothing.
pub(crate) fn join(driver: &dyn Driver, joined: &Joined, on: Stream) -> Result<usize, Error> {
    let (mut homes, mut events) = (Vec::new(), 0);
    for (ready, place) in ordered(driver, joined, on, &mut homes)? {
        let request = Request::Stream(on);
        let done = order(driver, ready, request, &place, SyncPolicy::Event)?;
        events += usize::from(matches!(done, Done::Event(_) | Done::InGraph(..)));
    }
    Ok(events)
}

/// Decides whether [`join`] would be refused now, and makes nothing wait.
///
/// # Errors
/// Those of [`join`].
#[cfg(feature = "pyo3")]
pub(crate) fn check_join(driver: &dyn Driver, joined: &Joined, on: Stream) -> Result<(), Error> {
    let mut homes = Vec::new();
    for (ready, place) in ordered(driver, joined, on, &mut homes)? {
        let request = Request::Stream(on);
        if let Plan::Refuse(refused) =
            foresee(Some(driver), ready, request, &place, SyncPolicy::Event)?
        {
            return Err(refused.into());
        }
    }
    Ok(())
}

/// Finds what `on`, which is one stream for all arrays, has to wait for; `homes` keeps the contexts.
fn ordered<'d>(
    driver: &'d dyn Driver,
    joined: &Joined,
    on: Stream,
    homes: &mut Vec<Home<'d>>,
) -> Result<Vec<(Stream, Place)>, Error> {
    let meant = match joined.has_meanings(on) {
        true => meaning(driver, joined, on)?,
        false => None,
    };
    let meaning = meant.as_ref().map(|home| Defaults::Of(home.context));
    homes.extend(meant);
    let mut found = distinct(driver, joined, on, meaning, homes)?;
    for (_, place) in &mut found {
        place.requested = meaning.unwrap_or(place.requested);
    }
    Ok(found)
}

/// Finds the distinct streams that `on` has to wait for, which is of the context `meant`; `homes` keeps their contexts.
fn distinct<'d>(
    driver: &'d dyn Driver,
    joined: &Joined,
    on: Stream,
    meant: Option<Defaults>,
    homes: &mut Vec<Home<'d>>,
) -> Result<Vec<(Stream, Place)>, Error> {
    // A bare stream under the number of `on` may be another context's.
    let may_differ = |wait: &(Stream, Place)| meant.is_some() && is_bare(wait) && wait.0 == on;
    let needed = joined.waits.iter();
    let needed = needed.filter(|wait| may_differ(wait) || is_needed(wait, on));
    let needed: Vec<_> = needed.copied().collect();
    let may_be_one = |(stream, place): &(Stream, Place)| {
        let namesakes = needed.iter().filter(|(other, there)| {
            stream.is_default() && other == stream && there.thread == place.thread
        });
        namesakes.count() > 1
    };
    if !needed.iter().any(may_be_one) {
        return Ok(needed);
    }
    let caller = ContextGuard::new(driver)?;
    let mut found = Joined::default();
    for wait in &needed {
        let (ready, mut place) = *wait;
        if may_be_one(wait) && !matches!(place.ready, Defaults::Of(_)) {
            let home = Home::find(driver, &place, place.ready, caller.current())?;
            place.ready = Defaults::Of(home.context);
            homes.push(home);
        }
        found.add(ready, place);
    }
    Ok(found.waits)
}

/// Finds the one context whose default stream `on` is; `None` if no array says.
fn meaning<'d>(
    driver: &'d dyn Driver,
    joined: &Joined,
    on: Stream,
) -> Result<Option<Home<'d>>, Error> {
    let caller = ContextGuard::new(driver)?;
    let mut meant: Option<Home<'d>> = None;
    for place in &joined.arrays {
        let home = Home::find(driver, place, place.requested, caller.current())?;
        if meant
            .as_ref()
            .is_some_and(|other| other.context != home.context)
        {
            let violation = Violation::new(Rule::StreamContext, Field::Argument("on"), on);
            let hint = "the arrays are of several contexts: join them on a stream with a handle";
            return Err(violation.with_hint(hint).into());
        }
        meant.get_or_insert(home);
    }
    Ok(meant)
}

#[cfg(test)]
mod tests;
