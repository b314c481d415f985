//! Keeps owners until a stream is done with their memory.
//!
//! If the producer's stream waits for ours (the return edge), what the producer does with the memory when
//! the owner goes comes after our work. If the producer's stream is unknown, nothing orders the two: the view may
//! be dropped, and the memory freed or used anew, while a copy that safe code has enqueued still reads it. Nor is
//! memory that the host can write used anew in the order of any stream.
//! So the owner is kept until an event shows that the stream has got there ([`crate::view::keep`]), which is
//! recorded after the end of a capture that it would break. That is for the work that runs by itself; what the capture
//! holds runs with its graph, which keeps the owner for its launches.

use std::sync::Arc;

use cudarc::driver::CudaStream;

use super::in_context::{context_of, keep_for_ever, within};
use super::stream::plain_number;
use crate::driver::{self, Driver, DriverError, twice};
use crate::error::Error;
use crate::protocol::device::Device;
use crate::protocol::stream::Stream;
use crate::view::keep::{self, Before, Begun};
use crate::view::{Keeper, Owner, detach};

/// Drops a share of `owner` when what `stream` holds now is done. The host waits only if no event can be made, and keeps
/// the owner for ever if it cannot.
///
/// The work of a stream that is being captured comes later, when the graph is launched, which keeps the owner itself
/// ([`by_graph`]): this is for what was enqueued before the capture.
pub(super) fn until_done(owner: &Owner, device: Device, stream: &Arc<CudaStream>, begun: Begun) {
    // A refusal has kept the owner for ever, and so needs no answer.
    let _ = on_its_own(owner, stream, |driver, number| {
        let (context, kept) = (context_of(stream.context()), Some(stream.keep()));
        Ok(keep::by_stream_of(
            driver,
            context,
            (number, kept),
            owner,
            device,
            begun,
        ))
    });
}

/// Waits for `stream`, beside captures of others too; returns whether its work is over. If a capture forbids the host to wait,
/// or the driver refuses it, a share of `owner` is dropped when what the stream holds now is done.
///
/// # Errors
/// The driver's refusal.
pub(super) fn wait_or_keep(
    owner: &Owner,
    device: Device,
    stream: &Arc<CudaStream>,
    begun: Begun,
) -> Result<bool, DriverError> {
    on_its_own(owner, stream, |driver, number| {
        let told = match keep::has_waited(driver, number) {
            Ok(true) => return Ok(true),
            told => told,
        };
        let (context, kept) = (context_of(stream.context()), Some(stream.keep()));
        let stream = (number, kept);
        match keep::by_stream_of(driver, context, stream, owner, device, begun) {
            true => Ok(true),
            false => told,
        }
    })
}

/// Finds what still reads the owner's memory on other streams, and does not come back to the producer's; returns whether
/// anything does. What `before` has ends where any code may run.
pub(super) fn before_writer(
    before: &mut Before,
    owner: &Owner,
    stream: &CudaStream,
    number: Stream,
) -> Result<bool, Error> {
    // Not in a forked child, where another thread of the parent's may have had the lock.
    driver::driver()?;
    if !keep::are_there(owner) {
        return Ok(false);
    }
    let find = |driver: Result<_, _>| before.find(driver?, number, owner);
    detach(|| within(Arc::clone(stream.context()), find))?;
    Ok(true)
}

/// Makes `stream` wait for what [`before_writer`] has found.
pub(super) fn wait_for(
    before: &Before,
    owner: &Owner,
    stream: &CudaStream,
    number: Stream,
) -> Result<(), Error> {
    let wait = |driver: Result<_, _>| before.wait(driver?, number, owner);
    detach(|| within(Arc::clone(stream.context()), wait))
}

/// Whether what [`before_writer`] has found is done by now; false if the driver does not tell.
pub(super) fn is_over(before: &Before, stream: &CudaStream) -> bool {
    let ask = |driver: Result<&'static dyn Driver, _>| before.is_over(driver?);
    detach(|| within(Arc::clone(stream.context()), ask)).unwrap_or(false)
}

/// Whether `stream` is still in the capture in which a guard began; not if the driver does not tell.
pub(super) fn is_in(stream: &CudaStream, capture: u64) -> bool {
    let ask = |driver: &dyn Driver| driver.capture_id(plain_number(stream));
    let ask = |driver: Result<&'static dyn Driver, _>| twice(|| ask(driver?));
    detach(|| within(Arc::clone(stream.context()), ask)) == Ok(capture)
}

/// Hands `body` the number of `stream`, a guard's, whose context is current then; `body` returns whether its work is over, as it is
/// if the context is gone.
///
/// # Errors
/// Those of `body`; the driver's refusal to make the context current. Then a share of `owner` stays for ever.
fn on_its_own(
    owner: &Owner,
    stream: &CudaStream,
    body: impl FnOnce(&'static dyn Driver, Stream) -> Result<bool, DriverError>,
) -> Result<bool, DriverError> {
    within(Arc::clone(stream.context()), |driver| match driver {
        Ok(driver) => body(driver, plain_number(stream)),
        Err(error) if error.is_end_of_context() => Ok(true),
        Err(refused) => {
            keep_for_ever(owner, stream.context());
            Err(refused)
        }
    })
}

/// Has the graph that `stream` is being captured into keep `owner`; see [`keep::by_graph`]. If the driver does not tell of a
/// graph, a share of `owner` stays for ever.
pub(super) fn by_graph(stream: &CudaStream, number: Stream, owner: &Owner, kept_by: u64) -> u64 {
    let ask = |driver| keep::by_graph(driver, number, owner, kept_by);
    detach(|| {
        // A default stream is the current context's, and a thread without one is not answered.
        if let (Stream::Handle(_), Ok(driver)) = (number, driver::driver())
            && let Ok(kept) = ask(driver)
        {
            return kept;
        }
        match within(Arc::clone(stream.context()), |driver| driver.and_then(ask)) {
            Ok(kept) => kept,
            Err(error) if error.is_end_of_context() => 0,
            Err(_) => {
                keep_for_ever(owner, stream.context());
                0
            }
        }
    })
}
