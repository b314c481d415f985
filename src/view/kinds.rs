//! The payloads of Rust: a boxed value, and a managed tensor that was taken over.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;

use super::block::{Abi, owner_in};
use super::payload::{self, EndsOn, Kind, RawOwner, Vtable};
use super::stats;

impl RawOwner {
    /// Takes charge of a managed tensor, another library's or one of this library's that came back.
    ///
    /// # Safety
    /// - `tensor` is initialised, owned by the caller, and not used by the caller afterwards.
    /// - Its deleter, if there is one, may be called once on any thread (DLPack's rule for deleters).
    pub(crate) unsafe fn managed<M: Abi>(tensor: NonNull<M>) -> Self {
        Self::new(tensor.cast(), Foreign::<M>::vtable())
    }
}

/// A `Box<T>` that was made by [`Owner::new`](super::Owner::new).
pub(crate) struct Boxed<T>(std::marker::PhantomData<T>);

impl<T: Send + 'static> Kind for Boxed<T> {
    const ENDS_ON: EndsOn = EndsOn::AnyThread;

    fn vtable() -> &'static Vtable {
        const { &Vtable::of::<Self>() }
    }

    unsafe fn end(payload: NonNull<()>) {
        stats::RELEASED.add();
        // SAFETY: `Owner::new` leaked this box of a `T`, and a payload ends once.
        let value = unsafe { Box::from_raw(payload.cast::<T>().as_ptr()) };
        contain(|| drop(value));
    }
}

/// Drops a value after the owners that wait on this thread to end.
pub(super) fn drop_in_order<T: Send + 'static>(value: T) {
    if !payload::ends_wait() {
        return drop(value);
    }
    let payload = NonNull::from(Box::leak(Box::new(value))).cast();
    let raw = RawOwner::again(payload, Uncounted::<T>::vtable());
    // SAFETY: fresh, and released once.
    unsafe { raw.release() };
}

/// A `Box<T>` that was made by [`drop_in_order`], and not counted.
struct Uncounted<T>(std::marker::PhantomData<T>);

impl<T: Send + 'static> Kind for Uncounted<T> {
    const ENDS_ON: EndsOn = EndsOn::AnyThread;

    // Without owners that wait, it would have been dropped in a forked child, too.
    const SURVIVES_FORK: bool = true;

    fn vtable() -> &'static Vtable {
        const { &Vtable::of::<Self>() }
    }

    unsafe fn end(payload: NonNull<()>) {
        // SAFETY: `drop_in_order` leaked this box of a `T`, and a payload ends once.
        let value = unsafe { Box::from_raw(payload.cast::<T>().as_ptr()) };
        contain(|| drop(value));
    }
}

/// Catches and counts a panic: a deleter's caller is C. What was thrown may panic in its turn as it is
/// dropped, and so on; after eight of them the last one is leaked.
fn contain(run: impl FnOnce()) {
    let mut thrown = catch_unwind(AssertUnwindSafe(run)).err();
    for _ in 0..8 {
        let Some(panic) = thrown else { return };
        stats::PANICS.add();
        thrown = catch_unwind(AssertUnwindSafe(|| drop(panic))).err();
    }
    std::mem::forget(thrown);
}

/// A managed tensor, another library's or one of this library's that came back, whose deleter may be called on any thread
/// (DLPack's rule).
pub(crate) struct Foreign<M>(std::marker::PhantomData<M>);

impl<M: Abi> Kind for Foreign<M> {
    const ENDS_ON: EndsOn = EndsOn::AnyThread;

    fn vtable() -> &'static Vtable {
        const { &Vtable::of::<Self>() }
    }

    unsafe fn end(payload: NonNull<()>) {
        stats::RELEASED.add();
        // SAFETY: initialised and ours; `drop_raw` calls its deleter once, or nothing if it is NULL.
        unsafe { M::drop_raw(payload.cast::<M>().as_ptr()) };
    }

    unsafe fn kept_in(payload: NonNull<()>) -> Option<RawOwner> {
        // SAFETY: a tensor that `RawOwner::managed` took over, which lives (this function's contract).
        unsafe { owner_in(payload.cast::<M>()) }
    }
}

#[cfg(test)]
mod tests;
