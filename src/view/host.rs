//! Memory of the host that a view takes over from safe Rust.

use std::sync::Arc;

use super::part::{check_len, extents};
use super::{CaiView, Element, Owner};
use crate::protocol::descriptor::{Descriptor, RawTensor};
use crate::protocol::device::{Access, Device};
use crate::protocol::rule::Violation;
use crate::protocol::stream::Stream;

impl CaiView {
    /// Makes a view of numbers of the host, in C order, writable; of a `Vec`, a `Box<[T]>` or an array. They are moved, not
    /// copied, and dropped with the last view and tensor of them.
    ///
    /// # Errors
    /// `shape-override` if the extents do not make up the length; the rules of shapes.
    ///
    /// ```
    /// use cai_dlpack::CaiView;
    ///
    /// let view = CaiView::from_vec(vec![1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0], [2, 3])?;
    /// assert_eq!(view.typed::<f32>()?.index(0, 1)?.copy_to_vec()?, [4.0, 5.0, 6.0]);
    /// assert!(CaiView::from_vec([1_u8, 2], [3]).is_err());
    /// # Ok::<(), cai_dlpack::Error>(())
    /// ```
    pub fn from_vec<T: Element + Send>(
        values: impl Into<Vec<T>>,
        shape: impl AsRef<[usize]>,
    ) -> Result<Self, Violation> {
        let mut values = values.into();
        let data = values.as_mut_ptr().expose_provenance();
        let descriptor = describe::<T>(data, values.len(), shape.as_ref())?;
        // SAFETY: the elements lie in the vector, which the owner keeps and does not touch; no other code has it.
        Ok(unsafe { Self::of_host(descriptor, Owner::new(values)) })
    }

    /// Makes a view of numbers of the host that other code reads, too: in C order and read-only. It holds a count of the
    /// `Arc`, as each view and tensor of them does.
    ///
    /// # Errors
    /// As [`CaiView::from_vec`].
    ///
    /// ```
    /// use std::sync::Arc;
    /// use cai_dlpack::CaiView;
    ///
    /// let values: Arc<[i64]> = Arc::from([1, 2, 3, 4]);
    /// let mut view = CaiView::from_arc(Arc::clone(&values), [2, 2])?;
    /// assert_eq!(view.typed::<i64>()?.copy_to_vec()?, *values);
    /// assert!(view.typed_mut::<i64>().is_err());
    /// # Ok::<(), cai_dlpack::Error>(())
    /// ```
    pub fn from_arc<T: Element + Send + Sync>(
        values: Arc<[T]>,
        shape: impl AsRef<[usize]>,
    ) -> Result<Self, Violation> {
        // Of the `Arc` itself, and not of a `&[T]`: by the older model of aliasing that one forbids the atomic loads of `load`.
        let data = Arc::as_ptr(&values).cast::<T>().expose_provenance();
        let descriptor = describe::<T>(data, values.len(), shape.as_ref())?;
        let descriptor = descriptor.with_access(Access::ReadOnly);
        // SAFETY: the elements lie in the slice, of which the owner keeps a count; it has no `UnsafeCell` (`Pod`), so that
        // nothing writes to it while there are two counts, or through the one of the owner, which is read-only.
        Ok(unsafe { Self::of_host(descriptor, Owner::new(values)) })
    }

    /// Makes a view of memory of the host on which no stream works.
    ///
    /// # Safety
    /// As [`CaiView::new`].
    pub(crate) unsafe fn of_host(descriptor: Descriptor, owner: Owner) -> Self {
        // SAFETY: this function's contract; there is no stream.
        unsafe { Self::of(descriptor, Stream::None, Some(Stream::None), owner) }
    }
}

fn describe<T: Element>(data: usize, len: usize, shape: &[usize]) -> Result<Descriptor, Violation> {
    let shape = extents(shape)?;
    let raw = RawTensor::new(data as u64, Device::HOST, T::DTYPE, &shape);
    let descriptor = Descriptor::new(&raw)?;
    check_len(&descriptor, len)?;
    Ok(descriptor)
}

#[cfg(test)]
mod tests;
