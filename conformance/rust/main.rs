//! The Rust face from outside: what an author of a crate can reach, and nothing more.

mod arrays;
#[cfg(feature = "cudarc")]
mod copies;
#[cfg(feature = "cudarc")]
mod copies_of_all;
#[cfg(feature = "cudarc")]
mod cudarc_cached;
#[cfg(feature = "cudarc")]
mod cudarc_captures;
#[cfg(feature = "cudarc")]
mod cudarc_contexts;
#[cfg(feature = "cudarc")]
mod cudarc_edges;
#[cfg(feature = "cudarc")]
mod cudarc_graph;
#[cfg(feature = "cudarc")]
mod cudarc_guard;
#[cfg(feature = "cudarc")]
mod cudarc_live;
#[cfg(feature = "cudarc")]
mod cudarc_once;
#[cfg(feature = "cudarc")]
mod cudarc_orders;
#[cfg(all(feature = "cudarc", feature = "ipc", target_os = "linux"))]
mod cudarc_processes;
#[cfg(feature = "cudarc")]
mod cudarc_random_captures;
#[cfg(feature = "cudarc")]
mod cudarc_random_slices;
#[cfg(feature = "cudarc")]
mod cudarc_random_uses;
#[cfg(feature = "cudarc")]
mod cudarc_readers;
#[cfg(feature = "cudarc")]
mod cudarc_refusals;
#[cfg(feature = "cudarc")]
mod cudarc_slices;
#[cfg(all(feature = "cudarc", unix))]
mod cudarc_thread_ends;
#[cfg(feature = "cudarc")]
mod cudarc_twice;
#[cfg(feature = "cudarc")]
mod cudarc_uses;
mod fields;
mod guide;
#[cfg(feature = "cudarc")]
mod hardware;
mod neighbours;
mod parts;
mod shown;
#[cfg(feature = "cudarc")]
mod simulator;
mod typed;
mod uncompilable;
