//! Graphs: made by captures, instantiated, launched.
//!
//! A launched graph runs on its stream one node after the other, in an order that its
//! dependencies allow. Branches of a graph never run at the same time here.

use crate::abi::arguments::{ExecHandle, GraphHandle, NodeHandle, Out, StreamHandle};
use crate::abi::codes::{Code, Status};
use crate::entry::enter::{Call, exports};
use crate::state::graph::Graph;
use crate::state::world::lock;
use crate::submit::route::submit;
use crate::submit::target::Target;

exports! {
    Create 10000 cuGraphCreate(graph: Out<GraphHandle>, flags: u32) = create;
    Destroy 10000 cuGraphDestroy(graph: GraphHandle) = destroy;
    Query 10000 cuGraphGetNodes(graph: GraphHandle, nodes: Out<NodeHandle>, count: Out<usize>) = nodes;
    Create 11000 cuGraphInstantiate_v2(exec: Out<ExecHandle>, graph: GraphHandle, node: Out<NodeHandle>, log: Out<u8>, capacity: usize) = instantiate_v2;
    Create 11040 cuGraphInstantiateWithFlags(exec: Out<ExecHandle>, graph: GraphHandle, flags: u64) = instantiate;
    Destroy 10000 cuGraphExecDestroy(exec: ExecHandle) = destroy_exec;
    Enqueue 11010 cuGraphUpload(exec: ExecHandle, stream: StreamHandle) = upload, per_thread "_ptsz";
    Enqueue 10000 cuGraphLaunch(exec: ExecHandle, stream: StreamHandle) = launch, per_thread "_ptsz";
}

fn create(_: &Call, graph: Out<GraphHandle>, flags: u32) -> Status {
    graph.check()?;
    if flags != 0 {
        return Err(Code::INVALID_VALUE);
    }
    let mut world = lock();
    let reuse = world.settings.reuse;
    graph.put(world.graphs.insert(reuse, Graph::default()))
}

fn destroy(_: &Call, graph: GraphHandle) -> Status {
    // The destructors of its user objects may not find the state locked.
    let gone = lock().graphs.remove(graph)?;
    drop(gone);
    Ok(())
}

/// Gives the count if `nodes` is null, else up to `*count` handles.
fn nodes(_: &Call, graph: GraphHandle, nodes: Out<NodeHandle>, count: Out<usize>) -> Status {
    count.check()?;
    let world = lock();
    let visible: Vec<usize> = world.graphs.get(graph)?.visible().collect();
    if nodes.is_null() {
        return count.put(visible.len());
    }
    let room = count.get()?;
    for (slot, index) in visible.iter().take(room).enumerate() {
        nodes.put_at(slot, NodeHandle(graph.0 + 1 + index));
    }
    count.put(visible.len().min(room))
}

fn instantiate_v2(
    call: &Call,
    exec: Out<ExecHandle>,
    graph: GraphHandle,
    node: Out<NodeHandle>,
    _log: Out<u8>,
    _capacity: usize,
) -> Status {
    node.put_if_wanted(NodeHandle::NULL);
    instantiate(call, exec, graph, 0)
}

/// Copies the graph: later changes of it do not reach the executable one.
fn instantiate(_: &Call, exec: Out<ExecHandle>, graph: GraphHandle, _flags: u64) -> Status {
    exec.check()?;
    let mut world = lock();
    world.current()?;
    let copy = world.graphs.get(graph)?.clone();
    let reuse = world.settings.reuse;
    exec.put(world.executables.insert(reuse, copy))
}

fn destroy_exec(_: &Call, exec: ExecHandle) -> Status {
    let gone = lock().executables.remove(exec)?;
    drop(gone);
    Ok(())
}

fn upload(call: &Call, exec: ExecHandle, stream: StreamHandle) -> Status {
    let mut world = lock();
    Target::resolve(&mut world, call, stream)?;
    world.executables.get(exec).map(drop)
}

/// Submits the graph's work in order. A launch into a capture (a child graph) is not modelled.
fn launch(call: &Call, exec: ExecHandle, stream: StreamHandle) -> Status {
    let mut world = lock();
    let target = Target::resolve(&mut world, call, stream)?;
    let order = world.executables.get(exec)?.launch_order();
    if target.is_capturing(&world) {
        return Err(Code::NOT_SUPPORTED);
    }
    for work in order {
        world = submit(world, &target, work)?;
    }
    Ok(())
}
