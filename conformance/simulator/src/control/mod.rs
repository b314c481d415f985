//! Controls: what tests see and steer, as `sim_*` functions beside the driver's own.

pub(crate) mod api;
pub(crate) mod fault;
pub(crate) mod gil;
pub(crate) mod log;
pub(crate) mod settings;
pub(crate) mod work;
