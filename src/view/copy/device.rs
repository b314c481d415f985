//! Copies to memory of the same kind: of the device, managed, pinned.

use super::allocation::Allocation;
use super::{Whole, view_of};
use crate::driver::{self, ContextGuard, CopyPlan, Driver, copy_strided};
use crate::error::Error;
use crate::protocol::rule::{Field, Rule, Violation};
use crate::protocol::stream::{Capture, Request, Stream, SyncPolicy};
use crate::view::{CaiView, Owner, ReturnEdge};

/// Copies to memory of the same kind, on the stream that `request` names.
pub(super) fn copy(
    view: &CaiView,
    whole: &Whole,
    request: Request,
    policy: SyncPolicy,
) -> Result<CaiView, Error> {
    let (source, device) = (view.descriptor(), view.device());
    let Some(plan) = CopyPlan::new(source.shape(), &whole.byte_strides, whole.itemsize) else {
        let empty = whole.at(0, device, source)?;
        // SAFETY: there is no memory to own.
        return Ok(unsafe { view_of(empty, Stream::None, Owner::new(())) });
    };
    let driver = driver::driver()?;
    let stream = match request {
        Request::Stream(stream) if stream != Stream::None => stream,
        _ => named(view.ready()),
    };
    let guard = view.consume_with(stream, policy)?;
    let allocation = {
        let _current = ContextGuard::of_stream(driver, stream, &view.place())?;
        refuse_capture(driver, stream)?;
        let allocation = Allocation::new(driver, view)?;
        // SAFETY: the allocation has the size of every element in C order and outlives its work, since freeing it
        // waits for that; the source outlives it by the return edge or the wait.
        unsafe { copy_strided(driver, &plan, allocation.pointer(), source.data(), stream) }?;
        let is_ordered = matches!(
            guard.return_edge(),
            ReturnEdge::Event | ReturnEdge::SameStream
        );
        if !is_ordered {
            driver.stream_synchronize(stream)?;
        }
        allocation
    };
    guard.finish()?;
    let descriptor = whole.at(allocation.pointer(), device, source)?;
    // SAFETY: the copy writes to the allocation, on `stream`.
    let made = unsafe { view_of(descriptor, stream, Owner::new(allocation)) };
    if request != Request::Host {
        return Ok(made);
    }
    made.order(Request::Host, policy)?;
    Ok(made.with_ready(Stream::None))
}

/// Chooses a stream for the work of a consumer that named none.
const fn named(ready: Stream) -> Stream {
    match ready {
        Stream::None => Stream::LegacyDefault,
        named => named,
    }
}

/// Refuses a captured stream: its work runs when the graph is launched, if ever, and the copy would not be there.
fn refuse_capture(driver: &dyn Driver, stream: Stream) -> Result<(), Error> {
    match driver.capture(stream)? {
        Capture::Idle => Ok(()),
        Capture::Active | Capture::Invalidated | Capture::BlocksLegacy => {
            let found = format_args!("a copy on {stream}");
            Err(
                Violation::new(Rule::CaptureConsumer, Field::Argument("copy"), found)
                    .with_hint("copy before the capture begins")
                    .into(),
            )
        }
    }
}
