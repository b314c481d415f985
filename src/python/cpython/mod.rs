//! CPython's functions that PyO3 does not wrap, or wraps at a cost.
//!
//! **Statics that are filled on first use** are [`OnceBox`](once_cell::race::OnceBox)es. In the cells of PyO3 and of
//! the standard library a second thread waits for the first; PyO3's releases the GIL meanwhile, so that another thread
//! may fork. In the child the cell is half filled and the filling thread is gone: it waits for ever. A `OnceBox` never
//! waits: of several threads each makes a value, and one value is kept.

pub(crate) mod collector;
pub(crate) mod compact_int;
pub(crate) mod context_var;
pub(crate) mod counted;
pub(crate) mod errors;
pub(crate) mod fastcall;
pub(crate) mod getattr;
pub(crate) mod getter;
pub(crate) mod gil;
pub(crate) mod int;
mod interrupt;
pub(crate) mod list;
pub(crate) mod names;
pub(crate) mod new;
pub(crate) mod numpy_int;
pub(crate) mod own_module;
pub(crate) mod panic;
pub(crate) mod reaper;
pub(crate) mod recursion;
pub(crate) mod release;
pub(crate) mod source;
pub(crate) mod text;
pub(crate) mod thread_exit;
pub(crate) mod tracing;
pub(crate) mod tuple;
pub(crate) mod version;
pub(crate) mod warn;
