//! Notes the names of the driver's calls that a thread makes, for the trace of a conversion.

use std::cell::RefCell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How many [`Noting`]s the process has. With none, a call costs one load more.
static NOTING: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// The calls of this thread since its outermost [`Noting`] began; `None` if there is none.
    static CALLS: RefCell<Option<Vec<&'static str>>> = const { RefCell::new(None) };
}

/// Notes a call that this thread is about to make.
#[inline]
pub(super) fn note(call: &'static str) {
    if NOTING.load(Ordering::Relaxed) != 0 {
        note_here(call);
    }
}

#[cold]
fn note_here(call: &'static str) {
    // A thread at its end notes nothing.
    let _ = CALLS.try_with(|calls| {
        if let Some(calls) = calls.borrow_mut().as_mut() {
            calls.push(call);
        }
    });
}

/// Notes the calls of this thread until it is dropped. Those inside of another one belong to both.
#[derive(Debug)]
pub(crate) struct Noting {
    first: usize,
    is_outermost: bool,
}

impl Noting {
    pub(crate) fn begin() -> Self {
        NOTING.fetch_add(1, Ordering::Relaxed);
        CALLS.with_borrow_mut(|calls| Self {
            is_outermost: calls.is_none(),
            first: calls.get_or_insert_default().len(),
        })
    }

    /// Returns the calls so far, in their order.
    pub(crate) fn calls(&self) -> Vec<&'static str> {
        CALLS.with_borrow(|calls| {
            let calls = calls.as_deref().unwrap_or_default();
            calls.get(self.first..).unwrap_or_default().to_vec()
        })
    }
}

impl Drop for Noting {
    fn drop(&mut self) {
        NOTING.fetch_sub(1, Ordering::Relaxed);
        if self.is_outermost {
            CALLS.set(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{CALLS, Noting, note};

    #[test]
    fn calls_belong_to_each_noting_that_is_open() {
        note("before");
        let outer = Noting::begin();
        note("one");
        let inner = Noting::begin();
        note("two");
        assert_eq!(inner.calls(), ["two"]);
        drop(inner);
        note("three");
        std::thread::spawn(|| note("of another thread"))
            .join()
            .unwrap();
        assert_eq!(outer.calls(), ["one", "two", "three"]);
        drop(outer);
        note("after");
        assert!(CALLS.with_borrow(Option::is_none));
    }
}
