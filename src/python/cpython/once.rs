//! Values that are made on first use, and stay.
//!
//! The cells of PyO3 and of the standard library have whoever comes second wait for who came first; and PyO3's
//! lets go of the GIL meanwhile, so that another thread may fork. The child has the cell as it was, without the
//! thread, and waits for ever. Here nobody waits: of several who come at once each makes a value, and one of
//! them is kept.

use std::convert::Infallible;
use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A static that is filled once.
pub(crate) struct Once<T> {
    /// Null, or a box that nobody frees.
    kept: AtomicPtr<T>,
    value: PhantomData<T>,
}

impl<T> Once<T> {
    pub(crate) const fn new() -> Self {
        Self {
            kept: AtomicPtr::new(ptr::null_mut()),
            value: PhantomData,
        }
    }

    /// The value, once there is one.
    #[inline(always)]
    pub(crate) fn get(&'static self) -> Option<&'static T> {
        // SAFETY: null, or a box of a `T` that lives for ever; `Acquire` shows its content.
        unsafe { self.kept.load(Ordering::Acquire).as_ref() }
    }

    /// Keeps a value; the one that is kept already, where there is one.
    #[cold]
    pub(crate) fn set(&'static self, value: T) -> &'static T {
        let mine = Box::into_raw(Box::new(value));
        let null = ptr::null_mut();
        match (self.kept).compare_exchange(null, mine, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: the box is leaked, and lives for ever.
            Ok(_) => unsafe { &*mine },
            Err(theirs) => {
                // SAFETY: made above, and seen by nobody.
                drop(unsafe { Box::from_raw(mine) });
                // SAFETY: not null, and as in `get`.
                unsafe { &*theirs }
            }
        }
    }

    /// The value, made where there is none yet.
    ///
    /// # Errors
    /// What `make` answers; nothing is kept then.
    #[inline]
    pub(crate) fn get_or_try<E>(
        &'static self,
        make: impl FnOnce() -> Result<T, E>,
    ) -> Result<&'static T, E> {
        match self.get() {
            Some(value) => Ok(value),
            None => Ok(self.set(make()?)),
        }
    }

    /// The value, made where there is none yet.
    #[inline]
    pub(crate) fn get_or(&'static self, make: impl FnOnce() -> T) -> &'static T {
        match self.get_or_try(|| Ok::<_, Infallible>(make())) {
            Ok(value) => value,
            Err(never) => match never {},
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::thread;

    use crate::python::Once;

    #[test]
    fn an_error_keeps_nothing_and_the_first_value_stays() {
        static ONCE: Once<String> = Once::new();
        assert_eq!(ONCE.get_or_try(|| Err(1)), Err(1));
        assert_eq!(ONCE.get(), None);
        assert_eq!(ONCE.get_or(|| "first".into()), "first");
        assert_eq!(ONCE.set("second".into()), "first");
        assert_eq!(ONCE.get_or_try(|| Err(1)).map(String::as_str), Ok("first"));
    }

    #[test]
    fn threads_that_come_at_once_get_one_value() {
        static ONCE: Once<usize> = Once::new();
        let barrier = Barrier::new(4);
        let got = thread::scope(|scope| {
            let threads = [0, 1, 2, 3].map(|mine| {
                let barrier = &barrier;
                // Nobody waits for another: all of them are inside at once.
                scope.spawn(move || {
                    ONCE.get_or(|| {
                        barrier.wait();
                        mine
                    })
                })
            });
            threads.map(|thread| std::ptr::from_ref(thread.join().expect("a value")))
        });
        assert!(got.iter().all(|each| *each == got[0]));
    }

    #[test]
    fn who_makes_a_value_may_come_back_for_it() {
        static ONCE: Once<u32> = Once::new();
        assert_eq!(*ONCE.get_or(|| *ONCE.get_or(|| 1) + 1), 1);
    }
}
