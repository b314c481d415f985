//! Graphs: what a capture leaves, and launching it.
//!
//! A launched graph runs on its stream one node after the other, in an order that its
//! dependencies allow. Branches of a graph never run at the same time here.

use crate::abi::arguments::{ExecHandle, GraphHandle, NodeHandle, Out, StreamHandle};
use crate::abi::codes::{Answer, Code};
use crate::driver::context;
use crate::driver::stream::{Target, submit};
use crate::entry::enter::{Call, exports};
use crate::state::work::Work;
use crate::state::world::lock;

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

/// One node: work, and the nodes that it comes after.
#[derive(Clone)]
pub(crate) struct Node {
    pub(crate) work: Work,
    pub(crate) after: Vec<usize>,
}

/// Nodes, each listed after those that it depends on. Nodes without work only carry order and
/// are not counted.
#[derive(Clone, Default)]
pub(crate) struct Graph {
    pub(crate) nodes: Vec<Node>,
}

impl Graph {
    /// The positions of the nodes that do something.
    fn visible(&self) -> impl Iterator<Item = usize> {
        (0..self.nodes.len()).filter(|index| !self.nodes[*index].work.is_bookkeeping())
    }

    /// The nodes that do something, in an order that the dependencies allow: of those that are
    /// ready, the one captured last goes first, so that a missing dependency shows.
    fn launch_order(&self) -> Vec<Work> {
        let mut left: Vec<usize> = (0..self.nodes.len()).collect();
        let mut order = Vec::new();
        while let Some(next) = left.iter().rposition(|index| self.is_ready(*index, &left)) {
            let node = &self.nodes[left.remove(next)];
            if !node.work.is_bookkeeping() {
                order.push(node.work.clone());
            }
        }
        order
    }

    fn is_ready(&self, index: usize, left: &[usize]) -> bool {
        self.nodes[index]
            .after
            .iter()
            .all(|before| !left.contains(before))
    }
}

fn create(_: &Call, graph: Out<GraphHandle>, flags: u32) -> Answer {
    graph.check()?;
    if flags != 0 {
        return Err(Code::INVALID_VALUE);
    }
    let mut world = lock();
    let reuse = world.settings.reuse;
    graph.put(world.graphs.insert(reuse, Graph::default()))
}

fn destroy(_: &Call, graph: GraphHandle) -> Answer {
    lock()
        .graphs
        .remove(graph)
        .map(drop)
        .ok_or(Code::INVALID_VALUE)
}

/// With null `nodes`, the count; else up to `*count` handles.
fn nodes(_: &Call, graph: GraphHandle, nodes: Out<NodeHandle>, count: Out<usize>) -> Answer {
    count.check()?;
    let world = lock();
    let visible: Vec<usize> = world
        .graphs
        .get(graph)
        .ok_or(Code::INVALID_VALUE)?
        .visible()
        .collect();
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
) -> Answer {
    node.put_if_wanted(NodeHandle::NULL);
    instantiate(call, exec, graph, 0)
}

/// Later changes of the graph do not reach the executable one.
fn instantiate(_: &Call, exec: Out<ExecHandle>, graph: GraphHandle, _flags: u64) -> Answer {
    exec.check()?;
    let mut world = lock();
    context::current(&world)?;
    let copy = world.graphs.get(graph).ok_or(Code::INVALID_VALUE)?.clone();
    let reuse = world.settings.reuse;
    exec.put(world.executables.insert(reuse, copy))
}

fn destroy_exec(_: &Call, exec: ExecHandle) -> Answer {
    lock()
        .executables
        .remove(exec)
        .map(drop)
        .ok_or(Code::INVALID_VALUE)
}

fn upload(call: &Call, exec: ExecHandle, stream: StreamHandle) -> Answer {
    let mut world = lock();
    Target::resolve(&mut world, call, stream)?;
    world
        .executables
        .get(exec)
        .map(drop)
        .ok_or(Code::INVALID_VALUE)
}

/// Launching into a capture (a child graph) is not modelled.
fn launch(call: &Call, exec: ExecHandle, stream: StreamHandle) -> Answer {
    let mut world = lock();
    let target = Target::resolve(&mut world, call, stream)?;
    let order = world
        .executables
        .get(exec)
        .ok_or(Code::INVALID_VALUE)?
        .launch_order();
    if target.is_capturing(&world) {
        return Err(Code::NOT_SUPPORTED);
    }
    for work in order {
        world = submit(world, &target, Vec::new(), work)?;
    }
    Ok(())
}
