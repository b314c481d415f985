//! The state of the driver: records, the tables that hold them, and the one lock around them all.

pub(crate) mod graph;
pub(crate) mod objects;
pub(crate) mod order;
pub(crate) mod queue;
pub(crate) mod settings;
pub(crate) mod shared_event;
pub(crate) mod table;
pub(crate) mod visible;
pub(crate) mod work;
pub(crate) mod world;
