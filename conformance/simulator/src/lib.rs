//! A simulated CUDA driver: what array interchange needs of `libcuda.so.1`, on host memory.
//!
//! # The picture
//! - `entry` is the door: log, faults, panics. `exports!` in each module lists that module's
//!   calls with class, version and prototype; the function named there has the rule.
//! - `world` holds the state behind one lock; `table` gives out handles.
//! - `queue` keeps work in order, `work` is one piece of it, `schedule` decides when it
//!   runs (`worker` threads, or the thread that waits), `order` enumerates the orders.
//! - `context`, `primary`, `stream`, `event`, `capture`, `graph`, `memory`,
//!   `pool`, `attributes`, `device`: the rules of the driver, one topic each.
//! - `procaddress` finds functions by name and version; `absent` names what is not modelled.
//! - `control` is what tests steer with: `sim_*`.
//!
//! To find the rule for a call: search for its name, go to the function on the right of `=`.

#![cfg(target_os = "linux")]

mod abi;
mod control;
mod driver;
mod entry;
mod memory;
mod process;
mod run;
mod state;
#[cfg(test)]
mod stress;
mod submit;
