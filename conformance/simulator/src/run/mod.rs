//! Running work: queues, the two schedules, worker threads, waiting.

pub(crate) mod context;
pub(crate) mod elsewhere;
pub(crate) mod enqueue;
pub(crate) mod head;
pub(crate) mod queue;
pub(crate) mod schedule;
pub(crate) mod service;
pub(crate) mod worker;
