//! Entering a call of the driver API: log, faults, GIL watch, and the checks that all calls share.

pub(crate) mod enter;
pub(crate) mod fault;
pub(crate) mod gil;
pub(crate) mod log;
