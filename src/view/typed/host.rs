//! Elements in memory that the host can read: copies of them, which are safe, and slices, which are not.

use smallvec::SmallVec;

use super::{View, ViewMut, check_c_order, check_host, mismatch};
use crate::error::Error;
use crate::protocol::descriptor::Descriptor;
use crate::protocol::rule::{Field, Rule, Violation};
use crate::protocol::stream::{Request, SyncPolicy};
use crate::view::{CaiView, Element, load};

impl<'a, T: Element> View<'a, T> {
    /// Copies the elements in C order, once the ready stream has written them: the host waits for it; and of managed
    /// memory that a device needs for itself while it works, for the device.
    ///
    /// Memory of a device is not copied here: [`CaiView::copy_to_host`] does that.
    /// While another thread or a device writes, the copy may hold old and new elements, and halves of
    /// both: the loads are atomic ones of the size of the element type's alignment, and every pattern of bits is a `T`.
    ///
    /// # Errors
    /// `view-device` for memory of a device; what [`CaiView::synchronize`] refuses;
    /// [`Error::OutOfMemory`].
    pub fn copy_to_vec(&self) -> Result<Vec<T>, Error> {
        self.await_host()?;
        let mut copied: Vec<T> = Vec::new();
        copied
            .try_reserve_exact(self.len())
            .map_err(|_| Error::OutOfMemory)?;
        // SAFETY: awaited; fresh memory, with room for all elements.
        unsafe { self.copy_to(copied.as_mut_ptr()) };
        // SAFETY: within the capacity, and every element is written: any pattern of bits is a `T`.
        unsafe { copied.set_len(self.len()) };
        Ok(copied)
    }

    /// Copies the elements in C order to a slice of as many, like [`copy_to_vec`](Self::copy_to_vec).
    ///
    /// # Errors
    /// As [`copy_to_vec`](Self::copy_to_vec); `view-shape` for a slice of another length.
    ///
    /// ```
    #[doc = floats!()]
    /// let (view, mut column) = (floats(), [0.0; 2]);
    /// view.typed::<f32>()?.index(1, 2)?.copy_to_slice(&mut column)?;
    /// assert_eq!(column, [3.0, 6.0]);
    /// # Ok::<(), cai_dlpack::Error>(())
    /// ```
    pub fn copy_to_slice(&self, into: &mut [T]) -> Result<(), Error> {
        if into.len() != self.len() {
            let len = into.len();
            let wanted = format_args!("one of {len} elements is wanted");
            let refused = mismatch(Rule::ViewShape, self.cai().descriptor(), wanted);
            return Err(self.refusal(refused.into()));
        }
        self.await_host()?;
        // SAFETY: awaited; the slice has room for all elements. It is borrowed mutably, so that it is not the array's memory.
        unsafe { self.copy_to(into.as_mut_ptr()) };
        Ok(())
    }

    /// Returns one element, like [`copy_to_vec`](Self::copy_to_vec).
    ///
    /// # Errors
    /// As [`copy_to_vec`](Self::copy_to_vec); `argument-value` for an index that the array does not have.
    ///
    /// ```
    #[doc = floats!()]
    /// let view = floats();
    /// let typed = view.typed::<f32>()?;
    /// assert_eq!(typed.get(&[1, 2])?, 6.0);
    /// assert_eq!(typed.transpose()?.get(&[2, 1])?, 6.0);
    /// assert!(typed.get(&[2, 0]).is_err() && typed.get(&[0]).is_err());
    /// # Ok::<(), cai_dlpack::Error>(())
    /// ```
    pub fn get(&self, index: &[usize]) -> Result<T, Error> {
        let offset = offset_of(self.cai().descriptor(), index)?;
        self.await_host()?;
        let (from, mut value) = (
            self.as_ptr().wrapping_offset(offset),
            <T as bytemuck::Zeroable>::zeroed(),
        );
        // SAFETY: an element of a host-readable array, which its owner keeps, and which is not written but by atomic operations
        // of this unit (the contract of `CaiView::new`); a value of the same size.
        unsafe {
            load::copy(
                from.cast(),
                (&raw mut value).cast(),
                size_of::<T>(),
                T::DTYPE.align() as usize,
            );
        }
        Ok(value)
    }

    /// Waits for the elements, if the host can read them.
    ///
    /// # Errors
    /// `view-device`; what [`CaiView::synchronize`] refuses.
    pub(crate) fn await_host(&self) -> Result<(), Error> {
        check_host(self.cai().descriptor()).map_err(|refused| self.refusal(refused.into()))?;
        wait_on_host(self.cai())
    }

    /// Copies the elements in C order.
    ///
    /// # Safety
    /// - The host can read the array, and its elements have been waited for ([`await_host`](Self::await_host)).
    /// - `to` is writable for as many elements, and not the array's memory.
    unsafe fn copy_to(&self, mut to: *mut T) {
        let (from, unit) = (self.as_ptr(), T::DTYPE.align() as usize);
        let mut take = |offset: isize, count: usize| {
            let (row, nbytes) = (from.wrapping_offset(offset), count * size_of::<T>());
            // SAFETY: elements of a host-readable array, which its owner keeps, and which are not written but by atomic
            // operations of `unit` bytes (the contract of `CaiView::new`); room for all of them (this function's).
            unsafe { load::copy(row.cast(), to.cast(), nbytes, unit) };
            to = to.wrapping_add(count);
        };
        if self.cai().descriptor().layout().is_c_contiguous() {
            take(0, self.len());
        } else {
            let came = self.cai().descriptor();
            for_each_offset(came.shape(), came.elem_strides(), |offset| take(offset, 1));
        }
    }

    /// Returns the elements as a slice, once the ready stream has written them: the host waits for it.
    ///
    /// # Errors
    /// `view-device` for memory of a device, `view-contiguous`; what [`CaiView::synchronize`] refuses.
    ///
    /// # Safety
    /// Until the slice is gone:
    /// - the memory is there, as the producer described it (its bounds are known for CUDA's memory only);
    /// - nothing writes to it: no other thread, no code in Python that holds the same array, no other
    ///   view of overlapping memory, and no work on any stream of any device;
    /// - of managed memory without concurrent access, no work that uses *any* managed memory runs.
    ///
    /// ```
    #[doc = floats!()]
    /// let view = floats();
    /// // SAFETY: the vector is there, and nothing else reads or writes it.
    /// assert_eq!(unsafe { view.typed::<f32>()?.host_slice() }?[4], 5.0);
    /// # Ok::<(), cai_dlpack::Error>(())
    /// ```
    pub unsafe fn host_slice(&self) -> Result<&'a [T], Error> {
        check_c_order(self.cai().descriptor()).map_err(|refused| self.refusal(refused.into()))?;
        self.await_host()?;
        // SAFETY: aligned and not NULL (`check_element`, `pointer_of`); contiguous; that the elements
        // are there and do not change is the caller's promise. `'a` keeps the owner.
        Ok(unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len()) })
    }
}

impl<T: Element> ViewMut<'_, T> {
    /// Like [`View::copy_to_vec`].
    ///
    /// # Errors
    /// As [`View::copy_to_vec`].
    pub fn copy_to_vec(&self) -> Result<Vec<T>, Error> {
        self.as_view().copy_to_vec()
    }

    /// Returns the elements as a mutable slice, once the ready stream has written them: the host waits for it.
    ///
    /// # Errors
    /// As [`View::host_slice`].
    ///
    /// # Safety
    /// The list of [`View::host_slice`], and nothing *reads* the memory either until the slice is gone.
    pub unsafe fn host_slice_mut(&mut self) -> Result<&mut [T], Error> {
        check_host(self.cai().descriptor())
            .and_then(|()| check_c_order(self.cai().descriptor()))
            .map_err(|refused| self.refusal(refused.into()))?;
        wait_on_host(self.cai())?;
        // SAFETY: as in `host_slice`; writable and exclusive (`check_writable`, the caller).
        Ok(unsafe { std::slice::from_raw_parts_mut(self.as_mut_ptr(), self.len()) })
    }
}

/// Data that is ready may still be managed memory, which on some devices the host must not touch while any
/// work runs: a fault there is no value.
fn wait_on_host(cai: &CaiView) -> Result<(), Error> {
    let (request, policy) = (Request::Host, SyncPolicy::Event);
    match cai.needs_order(request, policy) {
        true => cai.order(request, policy),
        false => Ok(()),
    }
}

/// Returns the offset in elements of the element of an index.
fn offset_of(of: &Descriptor, index: &[usize]) -> Result<isize, Violation> {
    let axes = of.shape().iter().zip(of.elem_strides());
    let mut offset = 0_i64;
    let mut fits = index.len() == of.ndim();
    for (index, (extent, stride)) in index.iter().zip(axes) {
        let index = i64::try_from(*index).unwrap_or(i64::MAX);
        fits &= index < *extent;
        // Stays within the layout's span, whose size in bytes fits `i64`, if it is used.
        offset = offset.wrapping_add(index.wrapping_mul(*stride));
    }
    if fits {
        return Ok(offset as isize);
    }
    let hint = format!("the array has the shape {:?}", of.shape());
    let field = Field::Argument("index");
    Err(Violation::new(Rule::ArgumentValue, field, format_args!("{index:?}")).with_hint(hint))
}

/// Calls `visit` with the offset in elements of each element, in C order.
fn for_each_offset(shape: &[i64], elem_strides: &[i64], mut visit: impl FnMut(isize)) {
    if shape.contains(&0) {
        return;
    }
    let mut index: SmallVec<[i64; 4]> = SmallVec::from_elem(0, shape.len());
    let mut offset = 0_i64;
    loop {
        visit(offset as isize);
        let mut axis = shape.len();
        // The offsets stay within the layout's span, whose size in bytes fits `i64`.
        loop {
            if axis == 0 {
                return;
            }
            axis -= 1;
            index[axis] += 1;
            offset = offset.wrapping_add(elem_strides[axis]);
            if index[axis] < shape[axis] {
                break;
            }
            offset = offset.wrapping_sub(elem_strides[axis].wrapping_mul(shape[axis]));
            index[axis] = 0;
        }
    }
}

#[cfg(test)]
mod tests;
