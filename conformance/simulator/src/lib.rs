//! A simulated CUDA driver: the part of `libcuda.so.1` that array interchange needs, on host memory.
//!
//! # The rooms
//! Each uses those above it only.
//! - `abi`: the C types of the API, and its result codes.
//! - `process`: cuInit and fork, the thread's contexts, host functions, Python.
//! - `memory`: pages, ranges, and the jobs that copy, fill and compute.
//! - `state`: records of all objects, in one `World` behind one lock.
//! - `run`: queues, the two schedules, workers.
//! - `entry`: the checks that all calls share; call log, faults, GIL watch; `exports!`.
//! - `submit`: stream arguments, and the rules of stream capture.
//! - `driver`: the functions of the API, a file for each topic. `exports!` lists them with class,
//!   version and prototype; the function named there has the rule.
//! - `control`: the functions that tests steer with, `sim_*`.
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
