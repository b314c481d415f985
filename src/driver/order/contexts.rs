//! The contexts of an order, and how they are found.

use crate::driver::context::{ContextGuard, Home, INVALID_CONTEXT};
use crate::driver::{Context, Defaults, DriverError, Place};
use crate::protocol::stream::{Request, Situation, Stream};

/// The contexts that an order is carried out in.
pub(super) struct Contexts {
    /// Of the ready stream: the event is made and recorded there.
    pub(super) ready: Context,
    /// Of the requested stream if that is a default stream; else the ready stream's, since a
    /// handle brings its own.
    pub(super) wait: Context,
    /// In which no work may run while the host touches the array.
    pub(super) wholes: Vec<Context>,
    /// The capture of the ready stream, if the requested one is in it, or may enter it; else 0, or a number that says nothing.
    pub(super) capture: u64,
}

impl Contexts {
    /// Finds the contexts. A thread without one has the place's from here on: the driver returns
    /// `CUDA_ERROR_INVALID_CONTEXT` to questions about streams there.
    pub(super) fn find(
        caller: &mut ContextGuard<'_>,
        place: &Place,
        situation: &Situation,
        wholes: Vec<Context>,
    ) -> Result<Self, DriverError> {
        let (driver, current) = (caller.driver, caller.current());
        let requested = match situation.request {
            Request::Stream(requested) => requested,
            Request::Host | Request::NoSync => Stream::None,
        };
        let mut find = |is_wanted: bool, whose| match is_wanted {
            false => Ok(None),
            true => Home::find(driver, place, whose, current).map(|home| Some(caller.keep(home))),
        };
        let of_ready = find(situation.ready.is_default(), place.ready)?;
        let is_one = of_ready.is_some() && place.ready == place.requested;
        let of_wait = find(requested.is_default() && !is_one, place.requested)?;
        if current.is_none() {
            // Any context serves; if there is none, the driver's answer about the stream is the one to report.
            let whole = wholes.first().copied();
            let here = match of_ready.or(of_wait).or(whole) {
                None => find(true, Defaults::OfMemory).or_else(|error| match error.code() {
                    Some(INVALID_CONTEXT) => Ok(None),
                    _ => Err(error),
                })?,
                found => found,
            };
            here.map_or(Ok(()), |here| caller.switch(here))?;
        }
        let ready = match (of_ready, wholes.first()) {
            (Some(ready), _) => ready,
            (None, Some(whole)) if situation.ready == Stream::None => *whole,
            _ => caller.context_of(situation.ready, || {
                Home::make(driver, place, Defaults::OfMemory, None).map(Some)
            })?,
        };
        Ok(Contexts {
            ready,
            wait: of_wait.unwrap_or(ready),
            wholes,
            capture: 0,
        })
    }
}
