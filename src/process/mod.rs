//! What one process shares: forks and signals.

pub(crate) mod fork;
pub(crate) mod signals;
