//! Controls: what tests see and steer, as `sim_*` functions beside the driver's own.

mod calls;
mod settings;
mod work;
