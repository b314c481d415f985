//! What this crate needs of CPython beside PyO3.
//!
//! **Statics that are filled on first use** are [`OnceBox`](once_cell::race::OnceBox)es here. The cells of PyO3 and
//! of the standard library have a second thread wait for the first; and PyO3's releases the GIL meanwhile, so that
//! another thread may fork. The child has the cell as it was, without the thread, and waits for ever. A `OnceBox`
//! never waits: of several threads that come at once each makes a value, and one of them is kept.

pub(crate) mod compact_int;
pub(crate) mod errors;
pub(crate) mod fastcall;
pub(crate) mod getattr;
pub(crate) mod gil;
pub(crate) mod int;
pub(crate) mod names;
pub(crate) mod reaper;
pub(crate) mod release;
pub(crate) mod thread_exit;
pub(crate) mod tuple;
pub(crate) mod warn;
