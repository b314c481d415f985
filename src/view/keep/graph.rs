//! Owners that a graph keeps: its launches use their memory, whenever they come.

use std::ffi::c_void;

use super::poll;
use crate::driver::{Driver, DriverError, twice};
use crate::protocol::stream::Stream;
use crate::view::Owner;

/// Keeps `owner` as long as the graph that `stream` is being captured into, and all that is made of it. Returns the
/// capture's number; 0, and keeps nothing, if the stream is not being captured.
///
/// `kept_by` is the number of a capture whose graph keeps it already. If the driver cannot have a graph keep anything
/// (before CUDA 11.3), the owner is kept for ever.
pub(crate) fn by_graph(
    driver: &'static dyn Driver,
    stream: Stream,
    owner: &Owner,
    kept_by: u64,
) -> Result<u64, DriverError> {
    let (capture, graph) = match twice(|| driver.capture_graph(stream)) {
        Ok(Some((capture, graph))) => (capture, Some(graph)),
        Ok(None) => return Ok(0),
        // A stream that cannot be asked for its graph, or is not there.
        Err(_) => (driver.capture_id(stream)?, None),
    };
    if capture == 0 || capture == kept_by {
        return Ok(capture);
    }
    poll::start(driver);
    let data = Box::into_raw(Box::new(owner.share()));
    if let Some(graph) = graph {
        // Neither call returns errors of earlier launches (driver API): one that is refused has done nothing.
        // SAFETY: `ended` is called once with the box, which is its own once a call is not refused, and calls no driver.
        let object = twice(|| unsafe { driver.user_object_create(data.cast(), ended) });
        // Refused, it is released by nothing: the graph has been promised the memory.
        let _ = object.and_then(|object| twice(|| driver.graph_retain(graph, object)));
    }
    Ok(capture)
}

/// Gives up what a graph has kept. It is dropped elsewhere, as its end may call the driver.
///
/// # Safety
/// `data` is an `Owner` from `Box::into_raw`, which is not used afterwards.
unsafe extern "C" fn ended(data: *mut c_void) {
    // SAFETY: a box of this type, by this function's contract.
    let owner = unsafe { Box::from_raw(data.cast::<Owner>()) };
    poll::drop_later(*owner);
}
