//! Room 4, feature `pyo3`: Python objects in and out, usable from anyone's extension crate.
//!
//! Each extension module links its own copy of this crate, so that there may be several `CaiView`
//! classes in one process: they meet by protocol, never by `isinstance`.

mod argument;
#[cfg(all(Py_LIMITED_API, not(Py_3_12)))]
compile_error!(
    "cai-dlpack takes PyO3's stable ABI from Python 3.12 on: enable its feature `abi3-py312` or a later one, or none"
);

mod at_once;
mod borrow;
mod cai;
mod capsule;
mod class;
mod consume;
mod context;
mod copy;
mod current;
mod descr;
mod dict;
mod digits;
mod dlpack;
mod errors;
mod exchange;
mod explain;
mod export;
mod extract;
mod functions;
mod gil;
mod host;
mod integer;
mod interface;
mod join;
mod keys;
mod killed;
mod lookup;
mod mask;
mod object;
mod once;
mod options;
mod own_dtype;
mod quick;
mod reaper;
mod release;
mod stream;
mod structs;
mod vectorcall;
mod warn;

pub use class::PyCaiView;
pub use errors::driver_error;
pub use extract::{In, InOut};
pub use functions::register;
