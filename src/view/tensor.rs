//! Managed tensors of DLPack that keep their promises.

use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;

use dlpark::ffi::DLManagedTensorVersioned;
use dlpark::{Managed, ManagedTensorBase};

/// An owned managed tensor whose data is there: the one that [`CaiView::to_dlpack`](crate::CaiView::to_dlpack) makes
/// and [`CaiView::from_dlpack`](crate::CaiView::from_dlpack) takes.
///
/// dlpark's [`Managed`] promises that the metadata may be read and the deleter called, and nothing of the data pointer:
/// the owner of one promises the rest to [`DlpackTensor::new`]. A `DlpackTensor` reads like a `Managed`, and cannot be
/// changed.
///
/// ```
#[doc = floats!()]
/// use cai_dlpack::view::{DlpackTensor, LiveStream, Managed};
///
/// let tensor = floats().to_dlpack(LiveStream::NONE)?;
/// assert!(tensor.flags().is_empty());
/// let given: Managed<_> = tensor.into_managed(); // to a library that takes dlpark's tensors
/// // SAFETY: the tensor of above, unchanged.
/// let back = unsafe { DlpackTensor::new(given) };
/// assert_eq!(CaiView::from_dlpack(back, LiveStream::NONE)?.descriptor().shape(), [2, 3]);
///
/// let pointer = floats().to_dlpack(LiveStream::NONE)?.into_raw(); // to C code, which calls the deleter
/// // SAFETY: of above, ready, and not given to anyone else.
/// let back = unsafe { CaiView::from_dlpack_ptr(pointer, Stream::None) }?;
/// assert_eq!(back.shape(), [2, 3]);
/// # Ok::<(), cai_dlpack::Error>(())
/// ```
pub struct DlpackTensor<M: ManagedTensorBase = DLManagedTensorVersioned>(Managed<M>);

impl<M: ManagedTensorBase> DlpackTensor<M> {
    /// Promises what a tensor's metadata cannot prove.
    ///
    /// # Safety
    /// Until the deleter is called:
    /// - every element that the tensor describes is in memory that may be read from its device, and written unless its
    ///   flags say that it is read-only (a legacy tensor has none; its elements count as read-only);
    /// - host code that writes elements meanwhile does so by atomic operations, or is not Rust's
    ///   ([`View::copy_to_vec`](super::View::copy_to_vec)).
    pub unsafe fn new(managed: Managed<M>) -> Self {
        Self(managed)
    }

    /// Takes over a tensor of this library's.
    ///
    /// # Safety
    /// `tensor` is initialised, of DLPack's present major version, and given away; its deleter may be called once, on any
    /// thread; and it keeps the promise of [`new`](Self::new).
    pub(super) unsafe fn from_raw(tensor: NonNull<M>) -> Self {
        // SAFETY: initialised and given away, with metadata that stays and such a deleter (this function's contract).
        let managed = unsafe { Managed::from_raw(tensor.as_ptr()) };
        Self(managed.unwrap_or_else(|_| unreachable!("of our own version")))
    }

    /// Returns dlpark's own type, for its functions.
    #[must_use]
    pub fn into_managed(self) -> Managed<M> {
        self.0
    }

    /// Gives the tensor to C code, which calls its deleter once.
    #[must_use = "the deleter has to be called"]
    pub fn into_raw(self) -> *mut M {
        self.0.into_raw()
    }
}

impl<M: ManagedTensorBase> Deref for DlpackTensor<M> {
    type Target = Managed<M>;

    fn deref(&self) -> &Managed<M> {
        &self.0
    }
}

impl<M: ManagedTensorBase> fmt::Debug for DlpackTensor<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DlpackTensor")
            .field(&self.0.as_ptr())
            .finish()
    }
}
