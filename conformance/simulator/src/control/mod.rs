//! Controls for tests: the `sim_*` functions, exported beside the driver's own.

mod calls;
mod settings;
mod work;
