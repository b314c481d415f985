//! Routes work on a stream to its queue, or to the graph that the stream captures.

use std::collections::BTreeSet;

use crate::abi::codes::{Code, Status};
use crate::run::enqueue::enqueue;
use crate::run::schedule;
use crate::state::graph::Node;
use crate::state::queue::{CaptureId, Kind, QueueId};
use crate::state::shared_event::Last;
use crate::state::work::Work;
use crate::state::world::{Guard, World};
use crate::submit::target::Target;

/// Returns the capture that work on a stream goes into; None if it goes on the queue and runs.
fn capture_for(world: &mut World, target: &Target) -> Result<Option<CaptureId>, Code> {
    match world.capture_of(target.queue) {
        Some(id) if world.is_invalid(id) => Err(Code::STREAM_CAPTURE_INVALIDATED),
        Some(id) => Ok(Some(id)),
        None => world.forbid_legacy(target).map(|()| None),
    }
}

/// Adds a node after the stream's frontier, which it becomes.
fn append(world: &mut World, id: CaptureId, queue: QueueId, work: Work) -> usize {
    let Some(capture) = world.captures.get_mut(&id) else {
        return 0;
    };
    let after = capture.frontier.remove(&queue).unwrap_or_default();
    let node = capture.graph.nodes.len();
    capture.graph.nodes.push(Node { work, after });
    capture.frontier.insert(queue, vec![node]);
    node
}

/// Records an event on a stream that captures: adds a node that others can wait for. None if the
/// stream does not capture.
pub(crate) fn record_event(
    world: &mut World,
    target: &Target,
) -> Result<Option<(CaptureId, usize)>, Code> {
    let capture = capture_for(world, target)?;
    Ok(capture.map(|id| (id, append(world, id, target.queue, Work::Nothing))))
}

/// Makes a stream wait for an event's last record, with and without captures on either side.
pub(crate) fn wait_event(mut world: Guard, target: &Target, awaited: Last) -> Status {
    let capture = capture_for(&mut world, target)?;
    match (capture, awaited) {
        (_, Last::Never) => Ok(()),
        (None, Last::Recorded(mark)) => {
            enqueue(world, target.queue, vec![mark], Work::Nothing).map(drop)
        }
        (None, Last::Elsewhere(awaited)) => {
            enqueue(world, target.queue, Vec::new(), Work::Await(awaited)).map(drop)
        }
        (None, Last::Captured(id, node)) => join_capture(&mut world, target, id, node),
        (Some(id), Last::Recorded(_) | Last::Elsewhere(_)) => {
            world.conflict(BTreeSet::from([id]), Code::STREAM_CAPTURE_ISOLATION)
        }
        (Some(id), Last::Captured(other, node)) if id == other => {
            if let Some(capture) = world.captures.get_mut(&id) {
                capture.frontier.entry(target.queue).or_default().push(node);
            }
            Ok(())
        }
        (Some(id), Last::Captured(other, _)) => {
            let code = if world.captures.contains_key(&other) {
                Code::STREAM_CAPTURE_MERGE
            } else {
                Code::STREAM_CAPTURE_ISOLATION
            };
            world.conflict(BTreeSet::from([id, other]), code)
        }
    }
}

/// Adds a stream that waits for a captured event to the capture. The legacy stream cannot join; an
/// event of a capture that has ended cannot be waited for: INVALID_VALUE by driver 580.159.04.
fn join_capture(world: &mut World, target: &Target, id: CaptureId, node: usize) -> Status {
    if !world.captures.contains_key(&id) {
        return Err(Code::INVALID_VALUE);
    }
    if world.is_invalid(id) {
        return Err(Code::STREAM_CAPTURE_INVALIDATED);
    }
    if target.kind == Kind::Legacy {
        return world.conflict(BTreeSet::from([id]), Code::STREAM_CAPTURE_IMPLICIT);
    }
    if let Some(queue) = world.queues.get_mut(&target.queue) {
        queue.capture = Some(id);
    }
    if let Some(capture) = world.captures.get_mut(&id) {
        capture.frontier.insert(target.queue, vec![node]);
    }
    Ok(())
}

/// Invalidates the capture of a stream that is destroyed: it cannot be completed.
pub(crate) fn stream_destroyed(world: &mut World, queue: QueueId) {
    if let Some(id) = world.capture_of(queue) {
        world.invalidate(id);
    }
}

/// Puts work on a stream's queue, or into the graph that the stream captures.
pub(crate) fn submit(mut world: Guard, target: &Target, work: Work) -> Result<Guard, Code> {
    match capture_for(&mut world, target)? {
        None => enqueue(world, target.queue, Vec::new(), work),
        Some(id) => {
            append(&mut world, id, target.queue, work);
            Ok(world)
        }
    }
}

/// Waits for all work that the stream holds now.
pub(crate) fn wait_for_tail(world: Guard, target: &Target) -> Guard {
    let tail = world.tail(target.queue);
    schedule::wait_for(world, vec![tail])
}
