//! Stream capture: begin, end, status, and the mode of a thread. The rules are in `submit`.

use std::collections::{BTreeMap, BTreeSet};

use crate::abi::arguments::{GraphHandle, Out, StreamHandle};
use crate::abi::codes::{Code, Status};
use crate::entry::enter::{Call, exports};
use crate::process::thread;
use crate::state::graph::{Capture, Graph, RELAXED};
use crate::state::queue::{CaptureId, Kind};
use crate::state::world::lock;
use crate::submit::forbid;
use crate::submit::target::Target;

exports! {
    Context 10010 cuStreamBeginCapture_v2(stream: StreamHandle, mode: u32) = begin, per_thread "_ptsz";
    Context 10000 cuStreamEndCapture(stream: StreamHandle, graph: Out<GraphHandle>) = end, per_thread "_ptsz";
    Query 10000 cuStreamIsCapturing(stream: StreamHandle, status: Out<u32>) = is_capturing, per_thread "_ptsz";
    Query 10010 cuStreamGetCaptureInfo(stream: StreamHandle, status: Out<u32>, id: Out<u64>) = info, per_thread "_ptsz";
    Query 11030 cuStreamGetCaptureInfo_v2(stream: StreamHandle, status: Out<u32>, id: Out<u64>, graph: Out<GraphHandle>, nodes: Out<usize>, count: Out<usize>) = info_v2, per_thread "_ptsz";
    Query 12030 cuStreamGetCaptureInfo_v3(stream: StreamHandle, status: Out<u32>, id: Out<u64>, graph: Out<GraphHandle>, nodes: Out<usize>, edges: Out<usize>, count: Out<usize>) = info_v3, per_thread "_ptsz";
    Context 10010 cuThreadExchangeStreamCaptureMode(mode: Out<u32>) = exchange_mode;
}

/// CUstreamCaptureStatus.
const NONE: u32 = 0;
const ACTIVE: u32 = 1;
const INVALIDATED: u32 = 2;

/// Begins a capture; refuses the legacy stream, and a stream that captures already.
fn begin(call: &Call, stream: StreamHandle, mode: u32) -> Status {
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
    let reuse = world.settings.reuse;
    let handle = world.graphs.insert(reuse, Graph::default());
    let capture = Capture {
        origin: target.queue,
        mode,
        thread: thread::key(),
        invalid: false,
        handle,
        graph: Graph::default(),
        frontier: BTreeMap::from([(target.queue, Vec::new())]),
    };
    world.captures.insert(id, capture);
    if let Some(queue) = world.queues.get_mut(&target.queue) {
        queue.capture = Some(id);
    }
    Ok(())
}

/// Ends a capture, only on the stream that began it, and (unless RELAXED) on the thread that did.
/// An invalid or unjoined capture ends here too, with an error and a null graph.
fn end(call: &Call, stream: StreamHandle, graph: Out<GraphHandle>) -> Status {
    graph.check()?;
    let mut world = lock();
    let target = Target::resolve(&mut world, call, stream)?;
    let id = world.capture_of(target.queue).ok_or(Code::ILLEGAL_STATE)?;
    let capture = world.captures.get(&id).ok_or(Code::ILLEGAL_STATE)?;
    if capture.origin != target.queue {
        return world.conflict(BTreeSet::from([id]), Code::STREAM_CAPTURE_UNMATCHED);
    }
    if capture.mode != RELAXED && capture.thread != thread::key() {
        return world.conflict(BTreeSet::from([id]), Code::STREAM_CAPTURE_WRONG_THREAD);
    }
    let (result, handle) = (capture.finish(), capture.handle);
    world.captures.remove(&id);
    for queue in world
        .queues
        .values_mut()
        .filter(|queue| queue.capture == Some(id))
    {
        queue.capture = None;
    }
    graph.put(GraphHandle::NULL)?;
    let started = world.graphs.remove(handle)?;
    match result {
        Ok(finished) => {
            let objects = started.objects;
            world.graphs.restore(
                handle,
                Graph {
                    objects,
                    ..finished
                },
            );
            graph.put(handle)
        }
        Err(code) => {
            // The destructors may not find the state locked.
            drop(world);
            drop(started);
            Err(code)
        }
    }
}

/// Returns IMPLICIT for the legacy stream beside a blocking stream that captures, without harm to
/// the capture.
fn is_capturing(call: &Call, stream: StreamHandle, status: Out<u32>) -> Status {
    info(call, stream, status, Out::NULL)
}

fn info(call: &Call, stream: StreamHandle, status: Out<u32>, id: Out<u64>) -> Status {
    info_of(call, stream, status, id, Out::NULL)
}

fn info_of(
    call: &Call,
    stream: StreamHandle,
    status: Out<u32>,
    id: Out<u64>,
    graph: Out<GraphHandle>,
) -> Status {
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
            if let Some(capture) = world.captures.get(&capture) {
                graph.put_if_wanted(capture.handle);
            }
            status.put(if world.is_invalid(capture) {
                INVALIDATED
            } else {
                ACTIVE
            })
        }
    }
}

/// Gives the graph, to be given user objects; null and 0 for its nodes, which are not shown while the capture goes on.
fn info_v2(
    call: &Call,
    stream: StreamHandle,
    status: Out<u32>,
    id: Out<u64>,
    graph: Out<GraphHandle>,
    nodes: Out<usize>,
    count: Out<usize>,
) -> Status {
    graph.put_if_wanted(GraphHandle::NULL);
    info_of(call, stream, status, id, graph)?;
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
    graph: Out<GraphHandle>,
    nodes: Out<usize>,
    edges: Out<usize>,
    count: Out<usize>,
) -> Status {
    edges.put_if_wanted(0);
    info_v2(call, stream, status, id, graph, nodes, count)
}

/// Sets the calling thread's mode, and gives the one before.
fn exchange_mode(_: &Call, mode: Out<u32>) -> Status {
    let wanted = mode.get()?;
    if wanted > RELAXED {
        return Err(Code::INVALID_VALUE);
    }
    mode.put(forbid::exchange_thread_mode(wanted))
}
