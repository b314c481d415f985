//! A view that is written field by field in the memory where it is to stand.
//!
//! A view is large enough for each hand-over by value to be a call of `memcpy`. So an import writes the
//! description and the owner of a managed tensor where they are to stay ([`Uninit::import`], or
//! [`Uninit::describe`] if the tensor must be read before it is taken), and the streams
//! once the producer has said which ones ([`Unordered::finish`]). The types hold which fields are written.

use std::mem::{ManuallyDrop, MaybeUninit};

use super::{Abi, CaiView, Imported, Owner, Streams};
use crate::protocol::descriptor::Descriptor;
use crate::protocol::rule::Violation;

/// Memory for a view, of which nothing is written.
pub(crate) struct Uninit<'a>(&'a mut MaybeUninit<CaiView>);

/// Memory for a view whose streams are not written yet. Dropped, it drops the other fields.
pub(crate) struct Unordered<'a>(&'a mut MaybeUninit<CaiView>);

impl<'a> Uninit<'a> {
    #[inline(always)]
    pub(crate) fn new(place: &'a mut MaybeUninit<CaiView>) -> Self {
        Self(place)
    }

    /// Writes the description of a managed tensor, and its owner.
    ///
    /// # Errors
    /// The rule of DLPack that the tensor breaks: its deleter has been called.
    #[inline(always)]
    pub(crate) fn import<M: Abi>(self, tensor: Imported<M>) -> Result<Unordered<'a>, Violation> {
        let place = self.0.as_mut_ptr();
        // SAFETY: inside the memory for a view; nothing is read.
        let descriptor = unsafe { &raw mut (*place).descriptor };
        // SAFETY: aligned, ours during `'a`, and without demands on what stands there.
        tensor.describe(unsafe { &mut *descriptor.cast::<MaybeUninit<Descriptor>>() })?;
        // SAFETY: inside the memory for a view; nothing is read.
        let owner = unsafe { &raw mut (*place).owner };
        // SAFETY: aligned and ours; nothing stands there that would have to be dropped.
        unsafe { owner.write(tensor.into_owner()) };
        Ok(Unordered(self.0))
    }

    /// Writes the description of a managed tensor that has been read, and its owner.
    #[inline(always)]
    pub(crate) fn describe(self, descriptor: Descriptor, owner: Owner) -> Unordered<'a> {
        let place = self.0.as_mut_ptr();
        // SAFETY: inside the memory for a view; nothing is read.
        let field = unsafe { &raw mut (*place).descriptor };
        // SAFETY: aligned and ours; nothing stands there that would have to be dropped.
        unsafe { field.write(descriptor) };
        // SAFETY: inside the memory for a view; nothing is read.
        let field = unsafe { &raw mut (*place).owner };
        // SAFETY: aligned and ours; nothing stands there that would have to be dropped.
        unsafe { field.write(owner) };
        Unordered(self.0)
    }
}

impl<'a> Unordered<'a> {
    #[inline(always)]
    pub(crate) fn descriptor(&self) -> &Descriptor {
        // SAFETY: inside the memory for a view; nothing is read.
        let descriptor = unsafe { &raw const (*self.0.as_ptr()).descriptor };
        // SAFETY: aligned; `Uninit` has written it, and it is ours to share as long as `self` is borrowed.
        unsafe { &*descriptor }
    }

    /// Writes the streams: the view is whole.
    ///
    /// # Safety
    /// As [`CaiView::new`], for both streams.
    #[inline(always)]
    pub(crate) unsafe fn finish(self, streams: Streams) -> &'a mut CaiView {
        let mut this = ManuallyDrop::new(self);
        let place = this.0.as_mut_ptr();
        // SAFETY: inside the memory for a view; nothing is read.
        let field = unsafe { &raw mut (*place).streams };
        // SAFETY: aligned and ours; nothing stands there that would have to be dropped.
        unsafe { field.write(streams) };
        // SAFETY: `Uninit` has written the other two fields, and this function the third; ours during `'a`, as
        // `ManuallyDrop` never uses its own reference again.
        unsafe { &mut *place }
    }
}

impl Drop for Unordered<'_> {
    #[cold]
    fn drop(&mut self) {
        let place = self.0.as_mut_ptr();
        // SAFETY: inside the memory for a view; nothing is read.
        let descriptor: *mut Descriptor = unsafe { &raw mut (*place).descriptor };
        // SAFETY: aligned; `Uninit` has written it, and it is dropped once.
        unsafe { descriptor.drop_in_place() };
        // SAFETY: inside the memory for a view; nothing is read.
        let owner: *mut Owner = unsafe { &raw mut (*place).owner };
        // SAFETY: aligned; `Uninit` has written it, and it is dropped once.
        unsafe { owner.drop_in_place() };
    }
}
