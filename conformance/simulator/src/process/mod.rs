//! Facts about this process that hold whatever the simulated state is.

pub(crate) mod doorbell;
pub(crate) mod host_function;
pub(crate) mod life;
pub(crate) mod peer;
pub(crate) mod python;
pub(crate) mod shared;
pub(crate) mod thread;
pub(crate) mod token;
