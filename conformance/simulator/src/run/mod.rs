//! Running work: queues, the two schedules, worker threads, waiting.

pub(crate) mod schedule;
pub(crate) mod worker;
