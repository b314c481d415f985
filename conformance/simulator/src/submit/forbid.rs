//! Calls that a capture forbids. Each refusal invalidates the captures that the call conflicts with.

use std::cell::Cell;
use std::collections::BTreeSet;

use crate::abi::arguments::EventHandle;
use crate::abi::codes::{Code, Status};
use crate::process::thread;
use crate::state::graph::{Capture, GLOBAL, RELAXED};
use crate::state::queue::{CaptureId, Kind, QueueId};
use crate::state::shared_event::Last;
use crate::state::world::World;
use crate::submit::target::Target;

thread_local! {
    static THREAD_MODE: Cell<u32> = const { Cell::new(GLOBAL) };
}

/// Sets the calling thread's mode, and returns the one before.
pub(crate) fn exchange_thread_mode(wanted: u32) -> u32 {
    THREAD_MODE
        .try_with(|own| own.replace(wanted))
        .unwrap_or(GLOBAL)
}

impl World {
    pub(crate) fn capture_of(&self, queue: QueueId) -> Option<CaptureId> {
        self.queues.get(&queue).and_then(|queue| queue.capture)
    }

    pub(crate) fn invalidate(&mut self, id: CaptureId) {
        if let Some(capture) = self.captures.get_mut(&id) {
            capture.invalid = true;
        }
    }

    pub(crate) fn is_invalid(&self, id: CaptureId) -> bool {
        self.captures.get(&id).is_none_or(|capture| capture.invalid)
    }

    /// Returns the captures of a context; with `blocking_only`, those of its blocking streams.
    pub(crate) fn captures_in(&self, context_id: u64, blocking_only: bool) -> BTreeSet<CaptureId> {
        let in_context = self
            .queues
            .values()
            .filter(|queue| queue.context_id == context_id);
        let wanted = in_context.filter(|queue| !blocking_only || queue.is_blocking());
        wanted.filter_map(|queue| queue.capture).collect()
    }

    /// Fails with `code` and invalidates the captures, unless there are none.
    pub(crate) fn conflict(&mut self, captures: BTreeSet<CaptureId>, code: Code) -> Status {
        if captures.is_empty() {
            return Ok(());
        }
        for id in captures {
            self.invalidate(id);
        }
        Err(code)
    }

    /// Forbids the legacy stream while a blocking stream of its context captures.
    pub(crate) fn forbid_legacy(&mut self, target: &Target) -> Status {
        if target.kind != Kind::Legacy {
            return Ok(());
        }
        let context_id = self.context(target.context)?.id;
        let captures = self.captures_in(context_id, true);
        self.conflict(captures, Code::STREAM_CAPTURE_IMPLICIT)
    }
}

/// Forbids what no capture can hold: on a stream that captures, and on the legacy stream beside one. A
/// synchronous copy or memset is no more than that: beside the capture of a non-blocking stream
/// driver 580.159.04 lets cuMemcpyDtoH pass, in every mode.
pub(crate) fn uncaptured(world: &mut World, target: &Target) -> Status {
    if let Some(id) = world.capture_of(target.queue) {
        if world.is_invalid(id) {
            return Err(Code::STREAM_CAPTURE_INVALIDATED);
        }
        return world.conflict(BTreeSet::from([id]), Code::STREAM_CAPTURE_UNSUPPORTED);
    }
    world.forbid_legacy(target)
}

/// Forbids to wait for a stream from the host, or to query one. Driver 580.159.04 takes both for
/// potentially unsafe calls, of streams that no capture knows too.
pub(crate) fn wait(world: &mut World, target: &Target) -> Status {
    uncaptured(world, target)?;
    unsafe_call(world)
}

/// Forbids to wait for a whole context in which a stream captures.
pub(crate) fn context_wait(world: &mut World, context_id: u64) -> Status {
    let captures = world.captures_in(context_id, false);
    world.conflict(captures, Code::STREAM_CAPTURE_UNSUPPORTED)
}

/// Forbids a "potentially unsafe" call by the thread's mode: GLOBAL during a capture that this
/// thread began in a mode other than RELAXED, or that any thread began in mode GLOBAL;
/// THREAD_LOCAL during this thread's own; RELAXED never.
pub(crate) fn unsafe_call(world: &mut World) -> Status {
    let mode = THREAD_MODE.try_with(Cell::get).unwrap_or(GLOBAL);
    let me = thread::key();
    let conflicts = |capture: &Capture| {
        let own = capture.thread == me && capture.mode != RELAXED;
        let global = capture.mode == GLOBAL && mode == GLOBAL;
        mode != RELAXED && (own || global)
    };
    let captures = world
        .captures
        .iter()
        .filter(|(_, capture)| conflicts(capture))
        .map(|(id, _)| *id)
        .collect();
    world.conflict(captures, Code::STREAM_CAPTURE_UNSUPPORTED)
}

/// Returns an event's last record, for calls that query it or wait for it from the host. An event last
/// recorded in a capture is CAPTURED_EVENT, and INVALID_VALUE once the capture has ended.
pub(crate) fn captured_event(world: &mut World, event: EventHandle) -> Result<Last, Code> {
    match world.events.get(event)?.last_record()? {
        Last::Never => Ok(Last::Never),
        last @ (Last::Recorded(_) | Last::Elsewhere(_)) => {
            unsafe_call(world)?;
            Ok(last)
        }
        Last::Captured(id, _) if !world.captures.contains_key(&id) => Err(Code::INVALID_VALUE),
        Last::Captured(id, _) => {
            world.invalidate(id);
            Err(Code::CAPTURED_EVENT)
        }
    }
}

/// Forbids stream-ordered allocation inside a capture, as memory nodes are not modelled, and beside one
/// as a potentially unsafe call.
pub(crate) fn allocation(world: &mut World, target: &Target) -> Status {
    if target.is_capturing(world) {
        return Err(Code::NOT_SUPPORTED);
    }
    unsafe_call(world)
}
