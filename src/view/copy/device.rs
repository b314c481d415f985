//! Copies to memory of the same kind: of the device, managed, pinned.

use crate::driver;
use crate::driver::{CopyPlan, Driver, copy_strided};
use crate::error::Error;
use crate::protocol::rule::{Field, Rule, Violation};
use crate::protocol::stream::{Capture, Request, Stream, SyncPolicy};
use crate::python::copy::block::Block;
use crate::python::copy::{Whole, view_of};
use crate::python::current::Current;
use crate::view::{CaiView, Owner, ReturnEdge};

/// Copies to memory of the same kind, on the stream of whoever asked.
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
        return unsafe { view_of(empty, Stream::None, Owner::new(())) };
    };
    let driver = driver::driver()?;
    let stream = match request {
        Request::Stream(stream) if stream != Stream::None => stream,
        _ => named(view.ready()),
    };
    let loan = view.consume_with(stream, policy)?;
    let block = {
        let _current = Current::of_stream(driver, stream, source)?;
        refuse_capture(driver, stream)?;
        let block = Block::new(driver, source)?;
        // SAFETY: the block has room for every element in C order and outlives its work, since freeing it
        // waits for that; the source outlives it by the return edge or the wait.
        unsafe { copy_strided(driver, &plan, block.pointer(), source.data(), stream) }?;
        let is_ordered = matches!(
            loan.return_edge(),
            ReturnEdge::Event | ReturnEdge::SameStream
        );
        if !is_ordered {
            driver.stream_synchronize(stream)?;
        }
        block
    };
    loan.finish()?;
    let descriptor = whole.at(block.pointer(), device, source)?;
    // SAFETY: the block is what the copy writes, on `stream`.
    let made = unsafe { view_of(descriptor, stream, Owner::new(block)) }?;
    if request != Request::Host {
        return Ok(made);
    }
    made.order(Request::Host, policy)?;
    Ok(made.with_ready(Stream::None))
}

/// A stream for work where the consumer named none.
const fn named(ready: Stream) -> Stream {
    match ready {
        Stream::None => Stream::LegacyDefault,
        named => named,
    }
}

/// What a capture records is run when its graph is launched, if ever: the copy would not be there.
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
