//! Tells threads apart, to a thread's very end.

use std::cell::Cell;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};

/// A thread of the process; no later one is taken for it.
///
/// Not `std::thread::current().id()`, which panics in a thread-specific destructor of C that runs after Rust's own: an owner may
/// end there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Thread(NonZeroU64);

impl Thread {
    /// The calling thread.
    #[inline]
    pub(crate) fn current() -> Self {
        thread_local! {
            // Nothing in it needs dropping, so that it can be used until the thread's very end.
            static NUMBER: Cell<Option<NonZeroU64>> = const { Cell::new(None) };
        }
        Self(NUMBER.get().unwrap_or_else(|| {
            let number = next();
            NUMBER.set(Some(number));
            number
        }))
    }

    #[cfg(feature = "pyo3")]
    pub(crate) const fn number(self) -> u64 {
        self.0.get()
    }
}

#[cold]
fn next() -> NonZeroU64 {
    static BEFORE: AtomicU64 = AtomicU64::new(0);
    let number = BEFORE.fetch_add(1, Ordering::Relaxed) + 1;
    NonZeroU64::new(number).expect("fewer threads than numbers")
}

#[cfg(test)]
mod tests {
    use super::Thread;

    #[test]
    fn each_thread_has_a_number_of_its_own() {
        let here = Thread::current();
        let others = [0; 3].map(|_| {
            std::thread::spawn(Thread::current)
                .join()
                .expect("no panic")
        });
        assert_eq!(Thread::current(), here);
        assert!(others.iter().all(|other| *other != here));
        assert!(others[0] != others[1] && others[1] != others[2]);
    }
}
