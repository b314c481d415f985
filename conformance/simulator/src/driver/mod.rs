//! The driver API's functions, a file for each topic.

pub(crate) mod absent;
pub(crate) mod capture;
pub(crate) mod context;
pub(crate) mod device;
pub(crate) mod errors;
pub(crate) mod event;
pub(crate) mod graph;
pub(crate) mod init;
pub(crate) mod ipc;
pub(crate) mod memory;
pub(crate) mod primary;
pub(crate) mod proc_address;
pub(crate) mod stream;
pub(crate) mod user_object;
