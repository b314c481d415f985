//! Captures in progress, and the graphs that they leave.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::abi::arguments::{GraphHandle, HostFunction};
use crate::abi::codes::Code;
use crate::process::host_function;
use crate::process::thread::ThreadKey;
use crate::state::queue::QueueId;
use crate::state::work::Work;

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
    pub(crate) objects: Vec<Arc<UserObject>>,
}

/// Calls its function when the last reference is gone.
pub(crate) struct UserObject {
    destroy: HostFunction,
    data: usize,
}

impl UserObject {
    pub(crate) fn new(destroy: HostFunction, data: usize) -> Arc<UserObject> {
        Arc::new(UserObject { destroy, data })
    }
}

impl Drop for UserObject {
    fn drop(&mut self) {
        if host_function::enter() {
            (self.destroy)(self.data);
            host_function::leave();
        }
    }
}

impl Graph {
    /// Returns the positions of the nodes that have work.
    pub(crate) fn visible(&self) -> impl Iterator<Item = usize> {
        (0..self.nodes.len()).filter(|index| !self.nodes[*index].work.is_bookkeeping())
    }

    /// Returns the work in an order that the dependencies allow: of the nodes that are ready, the
    /// one captured last goes first, so that a missing dependency shows.
    pub(crate) fn launch_order(&self) -> Vec<Work> {
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

/// CUstreamCaptureMode.
pub(crate) const GLOBAL: u32 = 0;
pub(crate) const RELAXED: u32 = 2;

/// A capture in progress.
pub(crate) struct Capture {
    pub(crate) origin: QueueId,
    pub(crate) mode: u32,
    pub(crate) thread: ThreadKey,
    pub(crate) invalid: bool,
    /// The handle that the graph has, and keeps: until the end it holds user objects only.
    pub(crate) handle: GraphHandle,
    pub(crate) graph: Graph,
    /// The nodes that the next work comes after, for each stream that takes part.
    pub(crate) frontier: BTreeMap<QueueId, Vec<usize>>,
}

impl Capture {
    /// Returns the graph if the capture is valid and every node leads to the origin's frontier.
    pub(crate) fn finish(&self) -> Result<Graph, Code> {
        if self.invalid {
            return Err(Code::STREAM_CAPTURE_INVALIDATED);
        }
        let mut open = self.frontier.get(&self.origin).cloned().unwrap_or_default();
        let mut joined = BTreeSet::new();
        while let Some(node) = open.pop() {
            if joined.insert(node) {
                open.extend(&self.graph.nodes[node].after);
            }
        }
        let is_joined =
            |(index, node): (usize, &Node)| node.work.is_bookkeeping() || joined.contains(&index);
        if self.graph.nodes.iter().enumerate().all(is_joined) {
            Ok(self.graph.clone())
        } else {
            Err(Code::STREAM_CAPTURE_UNJOINED)
        }
    }
}
