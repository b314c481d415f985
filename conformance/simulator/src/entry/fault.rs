//! Fault injection: the n-th call of a function returns a code and does nothing else.

use std::sync::{Mutex, PoisonError};

use crate::abi::codes::{Code, Status};
use crate::entry::symbol::is_variant;
use crate::process::thread::{self, ThreadKey};
use crate::state::world::lock;

/// The threads whose calls a fault counts and fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    Any,
    This,
    Other,
}

struct Fault {
    /// Without suffix: `cuEventCreate` also stands for its later variants.
    name: String,
    /// Calls still to let through.
    left: u64,
    code: Code,
    by: By,
    /// The thread that `This` and `Other` are about.
    injected_by: ThreadKey,
}

impl Fault {
    fn is_about(&self, symbol: &str) -> bool {
        let is_here = || self.injected_by == thread::key();
        let by = match self.by {
            By::Any => true,
            By::This => is_here(),
            By::Other => !is_here(),
        };
        by && is_variant(symbol, &self.name)
    }
}

static FAULTS: Mutex<Vec<Fault>> = Mutex::new(Vec::new());

fn with<R>(f: impl FnOnce(&mut Vec<Fault>) -> R) -> R {
    f(&mut FAULTS.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Makes the `nth` call from now (1: the next one) by those threads return `code`.
pub(crate) fn inject(name: &str, nth: u64, code: Code, by: By) {
    with(|faults| {
        faults.push(Fault {
            name: name.to_owned(),
            left: nth.max(1),
            code,
            by,
            injected_by: thread::key(),
        })
    });
}

pub(crate) fn clear() {
    with(Vec::clear);
}

/// Counts the faults that have not happened yet.
pub(crate) fn pending() -> usize {
    with(|faults| faults.len())
}

/// Fails with the injected code if this is the call. A sticky code stays with the context.
pub(crate) fn check(symbol: &str) -> Status {
    match due(symbol) {
        None => Ok(()),
        Some(code) => {
            if let (true, Some(handle)) = (code.is_sticky(), thread::current_context()) {
                lock().poison(handle, code);
            }
            Err(code)
        }
    }
}

fn due(symbol: &str) -> Option<Code> {
    with(|faults| {
        let mut due = None;
        for fault in faults.iter_mut().filter(|fault| fault.is_about(symbol)) {
            fault.left -= 1;
            if fault.left == 0 && due.is_none() {
                due = Some(fault.code);
            }
        }
        faults.retain(|fault| fault.left > 0);
        due
    })
}

#[cfg(test)]
mod tests {
    use super::{By, due, inject, pending};
    use crate::abi::codes::Code;

    #[test]
    fn the_nth_call_fails_and_no_other() {
        inject("cuTestOnly", 2, Code::OUT_OF_MEMORY, By::Any);
        assert_eq!(due("cuTestOnlyAsync"), None);
        assert_eq!(due("cuTestOnly_v2"), None);
        assert_eq!(due("cuTestOnly"), Some(Code::OUT_OF_MEMORY));
        assert_eq!((due("cuTestOnly"), pending()), (None, 0));
        the_calls_of_some_threads();
    }

    /// The list of faults is the process's: no second test beside the first.
    fn the_calls_of_some_threads() {
        let elsewhere = || std::thread::spawn(|| due("cuTestOnly")).join().unwrap();
        inject("cuTestOnly", 1, Code::OUT_OF_MEMORY, By::This);
        assert_eq!(elsewhere(), None);
        assert_eq!(due("cuTestOnly"), Some(Code::OUT_OF_MEMORY));
        inject("cuTestOnly", 1, Code::OUT_OF_MEMORY, By::Other);
        assert_eq!(due("cuTestOnly"), None);
        assert_eq!(elsewhere(), Some(Code::OUT_OF_MEMORY));
    }
}
