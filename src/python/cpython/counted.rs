//! Calls that PyO3 counts as its own, also while the interpreter ends.

use pyo3::prelude::*;

/// Runs `body` on this thread, which is attached, as a call that PyO3 counts: it gives up at once what is dropped inside.
///
/// While the interpreter ends, PyO3 counts no call ([`Python::attach`] panics): finalisers run then, and may call every
/// function. `body` runs all the same, and what is dropped inside ends with the process.
#[cold]
pub(crate) fn counted<R>(_py: Python<'_>, body: impl FnOnce() -> R) -> R {
    let mut body = Some(body);
    let mut found = None;
    Python::try_attach(|_| found = body.take().map(|body| body()));
    match (found, body) {
        (Some(found), _) => found,
        (None, Some(body)) => body(),
        (None, None) => unreachable!("the body has run, and its result is kept"),
    }
}
