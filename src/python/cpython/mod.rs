//! What this crate needs of CPython beside PyO3.

pub(crate) mod compact_int;
pub(crate) mod errors;
pub(crate) mod fastcall;
pub(crate) mod getattr;
pub(crate) mod gil;
pub(crate) mod int;
pub(crate) mod names;
pub(crate) mod once;
pub(crate) mod reaper;
pub(crate) mod release;
pub(crate) mod thread_exit;
pub(crate) mod warn;
