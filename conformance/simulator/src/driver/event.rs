//! Events: marks in queues, taken when the event is recorded.

use std::sync::Arc;

use crate::abi::arguments::{EventHandle, Out, StreamHandle};
use crate::abi::codes::{Code, Status};
use crate::entry::enter::{Call, exports};
use crate::run::{schedule, service};
use crate::state::objects::Event;
use crate::state::shared_event::{Last, SharedEvent};
use crate::state::work::{Stamp, Work};
use crate::state::world::lock;
use crate::submit::route::submit;
use crate::submit::target::Target;
use crate::submit::{forbid, route};

exports! {
    Create 2000 cuEventCreate(event: Out<EventHandle>, flags: u32) = create;
    Destroy 4000 cuEventDestroy_v2(event: EventHandle) = destroy;
    Enqueue 2000 cuEventRecord(event: EventHandle, stream: StreamHandle) = record, per_thread "_ptsz";
    Enqueue 11010 cuEventRecordWithFlags(event: EventHandle, stream: StreamHandle, flags: u32) = record_with_flags, per_thread "_ptsz";
    Query 2000 cuEventQuery(event: EventHandle) = query;
    Wait 2000 cuEventSynchronize(event: EventHandle) = synchronize;
    Query 2000 cuEventElapsedTime(milliseconds: Out<f32>, start: EventHandle, end: EventHandle) = elapsed;
    Query 12080 cuEventElapsedTime_v2(milliseconds: Out<f32>, start: EventHandle, end: EventHandle) = elapsed;
}

pub(crate) const DISABLE_TIMING: u32 = 2;
pub(crate) const INTERPROCESS: u32 = 4;

/// Makes an event. Flags: BLOCKING_SYNC 1, DISABLE_TIMING 2, INTERPROCESS 4 (only together with
/// DISABLE_TIMING).
fn create(_: &Call, event: Out<EventHandle>, flags: u32) -> Status {
    event.check()?;
    if flags & !7 != 0 || (flags & INTERPROCESS != 0 && flags & DISABLE_TIMING == 0) {
        return Err(Code::INVALID_VALUE);
    }
    let mut world = lock();
    let context = world.current()?;
    let reuse = world.settings.reuse;
    let shared = match flags & INTERPROCESS {
        0 => None,
        _ => Some(SharedEvent::create()?),
    };
    if let Some(shared) = &shared {
        world.share_event(shared);
    }
    let created = Event::new(context, flags, shared);
    event.put(world.events.insert(reuse, created))
}

/// Destroys an event, also before it is reached; work that waits for it still waits.
fn destroy(_: &Call, event: EventHandle) -> Status {
    let mut world = lock();
    world.current()?;
    world.events.remove(event).map(drop)
}

fn record(call: &Call, event: EventHandle, stream: StreamHandle) -> Status {
    record_with_flags(call, event, stream, 0)
}

/// Records the end of the work that the stream holds. Event and stream must belong to the same
/// context, else INVALID_HANDLE. Flags: 0, or EXTERNAL (1), which only matters in a capture.
fn record_with_flags(call: &Call, event: EventHandle, stream: StreamHandle, flags: u32) -> Status {
    if flags & !1 != 0 {
        return Err(Code::INVALID_VALUE);
    }
    let mut world = lock();
    let target = Target::resolve(&mut world, call, stream)?;
    let known = world.events.get(event)?;
    if known.context != target.context {
        return Err(Code::INVALID_HANDLE);
    }
    let shared = known.shared.as_ref().map(|shared| shared.0.clone());
    if let Some(shared) = &shared {
        shared.check()?;
    }
    let stamp = Arc::<Stamp>::default();
    let captured = route::record_event(&mut world, &target)?;
    let last = match captured {
        Some((capture, node)) => Last::Captured(capture, node),
        None => {
            let published = shared.map(|shared| shared.begin());
            let record = Work::Record(stamp.clone(), published.clone());
            world = submit(world, &target, record)?;
            let mark = world.tail(target.queue);
            if let Some(published) = published {
                published.publish(mark);
            }
            Last::Recorded(mark)
        }
    };
    if let Ok(event) = world.events.get_mut(event) {
        event.last = last;
        event.stamp = stamp;
    }
    Ok(())
}

/// Returns SUCCESS for an event that was never recorded; NOT_READY until the mark is reached.
fn query(_: &Call, event: EventHandle) -> Status {
    let mut world = lock();
    world.current()?;
    match forbid::captured_event(&mut world, event)? {
        Last::Recorded(mark) => schedule::poll(world, vec![mark]),
        Last::Elsewhere(awaited) => schedule::poll_elsewhere(world, awaited),
        Last::Never | Last::Captured(..) => Ok(()),
    }
}

fn synchronize(_: &Call, event: EventHandle) -> Status {
    let mut world = lock();
    let current = world.current()?;
    match forbid::captured_event(&mut world, event)? {
        Last::Recorded(mark) => world = schedule::wait_for(world, vec![mark]),
        Last::Elsewhere(awaited) => world = service::wait_elsewhere(world, &awaited)?,
        Last::Never | Last::Captured(..) => {}
    }
    world.context(current).map(drop)
}

/// Gives the milliseconds between two records. INVALID_HANDLE if either has no timing or was never
/// recorded; NOT_READY if either has not been reached.
fn elapsed(_: &Call, milliseconds: Out<f32>, start: EventHandle, end: EventHandle) -> Status {
    milliseconds.check()?;
    let mut world = lock();
    world.current()?;
    let mut reached_at = [0u64; 2];
    for (slot, handle) in reached_at.iter_mut().zip([start, end]) {
        let last = forbid::captured_event(&mut world, handle)?;
        let event = world.events.get(handle)?;
        // An event of several processes has no timing.
        let Last::Recorded(mark) = last else {
            return Err(Code::INVALID_HANDLE);
        };
        if event.flags & DISABLE_TIMING != 0 {
            return Err(Code::INVALID_HANDLE);
        }
        if !world.reached(mark) {
            return Err(Code::NOT_READY);
        }
        *slot = event.stamp.nanoseconds();
    }
    milliseconds.put((reached_at[1] as f64 - reached_at[0] as f64) as f32 / 1e6)
}
