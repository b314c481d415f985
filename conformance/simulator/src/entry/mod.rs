//! Entering a call of the driver API: the checks that all calls share, call log, faults, GIL watch.

pub(crate) mod enter;
pub(crate) mod fault;
pub(crate) mod gil;
pub(crate) mod log;
pub(crate) mod symbol;
