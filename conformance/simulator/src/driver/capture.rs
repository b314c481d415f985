//! Stream capture: what goes into the graph, and which calls a capture forbids.
//!
//! The rules and codes are those of the API documentation (cuStreamBeginCapture,
//! cuThreadExchangeStreamCaptureMode, and "Prohibited and unhandled operations" in the
//! programming guide). A forbidden call invalidates the captures that it conflicts with.

use std::collections::{BTreeMap, BTreeSet};

pub(crate) use crate::submit::forbid::{
    forbid_allocation, forbid_blocking_call, forbid_captured_event, forbid_context_wait,
    forbid_unsafe_call, forbid_wait,
};

use crate::abi::arguments::{GraphHandle, Out, StreamHandle};
use crate::abi::codes::{Answer, Code};
use crate::driver::context::{ThreadKey, thread_key};
use crate::driver::event::Last;
use crate::driver::graph::{Graph, Node};
use crate::driver::stream::Target;
use crate::entry::enter::{Call, exports};
use crate::state::queue::{Kind, QueueId, enqueue};
use crate::state::work::Work;
use crate::state::world::{Guard, World, lock};

exports! {
    Context 10010 cuStreamBeginCapture_v2(stream: StreamHandle, mode: u32) = begin, per_thread "_ptsz";
    Context 10000 cuStreamEndCapture(stream: StreamHandle, graph: Out<GraphHandle>) = end, per_thread "_ptsz";
    Query 10000 cuStreamIsCapturing(stream: StreamHandle, status: Out<u32>) = is_capturing, per_thread "_ptsz";
    Query 10010 cuStreamGetCaptureInfo(stream: StreamHandle, status: Out<u32>, id: Out<u64>) = info, per_thread "_ptsz";
    Query 11030 cuStreamGetCaptureInfo_v2(stream: StreamHandle, status: Out<u32>, id: Out<u64>, graph: Out<usize>, nodes: Out<usize>, count: Out<usize>) = info_v2, per_thread "_ptsz";
    Query 12030 cuStreamGetCaptureInfo_v3(stream: StreamHandle, status: Out<u32>, id: Out<u64>, graph: Out<usize>, nodes: Out<usize>, edges: Out<usize>, count: Out<usize>) = info_v3, per_thread "_ptsz";
    Context 10010 cuThreadExchangeStreamCaptureMode(mode: Out<u32>) = exchange_mode;
}

/// Names a capture for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CaptureId(pub(crate) u64);

/// CUstreamCaptureMode.
pub(crate) const GLOBAL: u32 = 0;
pub(crate) const RELAXED: u32 = 2;

/// CUstreamCaptureStatus.
const NONE: u32 = 0;
const ACTIVE: u32 = 1;
const INVALIDATED: u32 = 2;

/// A capture in progress.
pub(crate) struct Capture {
    origin: QueueId,
    pub(crate) mode: u32,
    pub(crate) thread: ThreadKey,
    pub(crate) invalid: bool,
    graph: Graph,
    /// For each stream that takes part: the nodes that its next work comes after.
    frontier: BTreeMap<QueueId, Vec<usize>>,
}

/// Where work that is enqueued on a stream goes.
pub(crate) enum Placement {
    Queue,
    Capture(CaptureId),
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

    /// Captures of a context; with `blocking_only`, those that a blocking stream takes part in.
    pub(crate) fn captures_in(&self, context_id: u64, blocking_only: bool) -> BTreeSet<CaptureId> {
        let in_context = self
            .queues
            .values()
            .filter(|queue| queue.context_id == context_id);
        let wanted = in_context.filter(|queue| !blocking_only || queue.is_blocking());
        wanted.filter_map(|queue| queue.capture).collect()
    }
}

/// Whether work on a stream runs or is captured.
pub(crate) fn placement(world: &mut World, target: &Target) -> Result<Placement, Code> {
    if let Some(id) = world.capture_of(target.queue) {
        if world.is_invalid(id) {
            return Err(Code::STREAM_CAPTURE_INVALIDATED);
        }
        return Ok(Placement::Capture(id));
    }
    world.forbid_legacy(target)?;
    Ok(Placement::Queue)
}

/// Adds a node after the stream's frontier, which it becomes.
pub(crate) fn append(world: &mut World, id: CaptureId, queue: QueueId, work: Work) -> usize {
    let Some(capture) = world.captures.get_mut(&id) else {
        return 0;
    };
    let after = capture.frontier.remove(&queue).unwrap_or_default();
    let node = capture.graph.nodes.len();
    capture.graph.nodes.push(Node { work, after });
    capture.frontier.insert(queue, vec![node]);
    node
}

/// A record on a stream that captures: a node that others can wait for. None if it does not.
pub(crate) fn record_event(
    world: &mut World,
    target: &Target,
) -> Result<Option<(CaptureId, usize)>, Code> {
    match placement(world, target)? {
        Placement::Queue => Ok(None),
        Placement::Capture(id) => Ok(Some((id, append(world, id, target.queue, Work::Nothing)))),
    }
}

/// cuStreamWaitEvent, with and without captures on either side.
pub(crate) fn wait_event(mut world: Guard, target: &Target, awaited: Last) -> Answer {
    let placed = placement(&mut world, target)?;
    match (placed, awaited) {
        (_, Last::Never) => Ok(()),
        (Placement::Queue, Last::Recorded(mark)) => {
            enqueue(world, target.queue, vec![mark], Work::Nothing).map(drop)
        }
        (Placement::Queue, Last::Captured(id, node)) => join_capture(&mut world, target, id, node),
        (Placement::Capture(id), Last::Recorded(_)) => {
            world.conflict(BTreeSet::from([id]), Code::STREAM_CAPTURE_ISOLATION)
        }
        (Placement::Capture(id), Last::Captured(other, node)) if id == other => {
            if let Some(capture) = world.captures.get_mut(&id) {
                capture.frontier.entry(target.queue).or_default().push(node);
            }
            Ok(())
        }
        (Placement::Capture(id), Last::Captured(other, _)) => {
            let code = if world.captures.contains_key(&other) {
                Code::STREAM_CAPTURE_MERGE
            } else {
                Code::STREAM_CAPTURE_ISOLATION
            };
            world.conflict(BTreeSet::from([id, other]), code)
        }
    }
}

/// A stream that waits for a captured event takes part in the capture from there on. The legacy
/// stream cannot; an event of a capture that has ended stands for nothing any more.
fn join_capture(world: &mut World, target: &Target, id: CaptureId, node: usize) -> Answer {
    if !world.captures.contains_key(&id) {
        return Err(Code::CAPTURED_EVENT);
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

/// A stream that takes part was destroyed: the capture cannot be completed.
pub(crate) fn stream_destroyed(world: &mut World, queue: QueueId) {
    if let Some(id) = world.capture_of(queue) {
        world.invalidate(id);
    }
}

/// Not the legacy stream; not a stream that captures already.
fn begin(call: &Call, stream: StreamHandle, mode: u32) -> Answer {
    if mode > RELAXED {
        return Err(Code::INVALID_VALUE);
    }
    let mut world = lock();
    let target = Target::resolve(&mut world, call, stream)?;
    if target.kind == Kind::Legacy {
        return Err(Code::STREAM_CAPTURE_UNSUPPORTED);
    }
    if world.capture_of(target.queue).is_some() {
        return Err(Code::ILLEGAL_STATE);
    }
    let id = CaptureId(world.fresh_number());
    let capture = Capture {
        origin: target.queue,
        mode,
        thread: thread_key(),
        invalid: false,
        graph: Graph::default(),
        frontier: BTreeMap::from([(target.queue, Vec::new())]),
    };
    world.captures.insert(id, capture);
    if let Some(queue) = world.queues.get_mut(&target.queue) {
        queue.capture = Some(id);
    }
    Ok(())
}

/// Only on the stream that began it, and (unless RELAXED) on the thread that did. An invalid or
/// unjoined capture ends here too, with an error and a null graph.
fn end(call: &Call, stream: StreamHandle, graph: Out<GraphHandle>) -> Answer {
    graph.check()?;
    let mut world = lock();
    let target = Target::resolve(&mut world, call, stream)?;
    let id = world.capture_of(target.queue).ok_or(Code::ILLEGAL_STATE)?;
    let capture = world.captures.get(&id).ok_or(Code::ILLEGAL_STATE)?;
    if capture.origin != target.queue {
        return world.conflict(BTreeSet::from([id]), Code::STREAM_CAPTURE_UNMATCHED);
    }
    if capture.mode != RELAXED && capture.thread != thread_key() {
        return world.conflict(BTreeSet::from([id]), Code::STREAM_CAPTURE_WRONG_THREAD);
    }
    let result = finished(capture);
    world.captures.remove(&id);
    for queue in world
        .queues
        .values_mut()
        .filter(|queue| queue.capture == Some(id))
    {
        queue.capture = None;
    }
    graph.put(GraphHandle::NULL)?;
    let reuse = world.settings.reuse;
    let finished = world.graphs.insert(reuse, result?);
    graph.put(finished)
}

/// The graph, if the capture is valid and every node leads to the origin's frontier.
fn finished(capture: &Capture) -> Result<Graph, Code> {
    if capture.invalid {
        return Err(Code::STREAM_CAPTURE_INVALIDATED);
    }
    let mut open = capture
        .frontier
        .get(&capture.origin)
        .cloned()
        .unwrap_or_default();
    let mut joined = BTreeSet::new();
    while let Some(node) = open.pop() {
        if joined.insert(node) {
            open.extend(&capture.graph.nodes[node].after);
        }
    }
    let is_joined =
        |(index, node): (usize, &Node)| node.work.is_bookkeeping() || joined.contains(&index);
    if capture.graph.nodes.iter().enumerate().all(is_joined) {
        Ok(capture.graph.clone())
    } else {
        Err(Code::STREAM_CAPTURE_UNJOINED)
    }
}

/// For the legacy stream beside a blocking stream that captures: IMPLICIT, without harm to the
/// capture.
fn is_capturing(call: &Call, stream: StreamHandle, status: Out<u32>) -> Answer {
    info(call, stream, status, Out::NULL)
}

fn info(call: &Call, stream: StreamHandle, status: Out<u32>, id: Out<u64>) -> Answer {
    status.check()?;
    let mut world = lock();
    let target = Target::resolve(&mut world, call, stream)?;
    let context_id = world.context(target.context)?.id;
    if target.kind == Kind::Legacy && !world.captures_in(context_id, true).is_empty() {
        return Err(Code::STREAM_CAPTURE_IMPLICIT);
    }
    match world.capture_of(target.queue) {
        None => status.put(NONE),
        Some(capture) => {
            id.put_if_wanted(capture.0);
            status.put(if world.is_invalid(capture) {
                INVALIDATED
            } else {
                ACTIVE
            })
        }
    }
}

/// The graph and its nodes are not shown while the capture goes on: null and 0.
fn info_v2(
    call: &Call,
    stream: StreamHandle,
    status: Out<u32>,
    id: Out<u64>,
    graph: Out<usize>,
    nodes: Out<usize>,
    count: Out<usize>,
) -> Answer {
    info(call, stream, status, id)?;
    graph.put_if_wanted(0);
    nodes.put_if_wanted(0);
    count.put_if_wanted(0);
    Ok(())
}

#[expect(clippy::too_many_arguments, reason = "the prototype is CUDA's")]
fn info_v3(
    call: &Call,
    stream: StreamHandle,
    status: Out<u32>,
    id: Out<u64>,
    graph: Out<usize>,
    nodes: Out<usize>,
    edges: Out<usize>,
    count: Out<usize>,
) -> Answer {
    edges.put_if_wanted(0);
    info_v2(call, stream, status, id, graph, nodes, count)
}

/// Sets the calling thread's mode and answers the one before.
fn exchange_mode(_: &Call, mode: Out<u32>) -> Answer {
    let wanted = mode.get()?;
    if wanted > RELAXED {
        return Err(Code::INVALID_VALUE);
    }
    mode.put(crate::submit::forbid::exchange_thread_mode(wanted))
}
