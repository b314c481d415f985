//! Arrays of ndarray as views, and views of host memory as its arrays.
//!
//! | | of ndarray | a view |
//! |---|---|---|
//! | [`CaiView::from_ndarray`] | `Array<T, D>`, taken over | writable |
//! | [`CaiView::from_shared_ndarray`] | `ArcArray<T, D>`, shared | read-only |
//! | [`View::host_array`] | `ArrayViewD<'_, T>` | of host memory, in any order |
//! | [`ViewMut::host_array_mut`] | `ArrayViewMutD<'_, T>` | the same |

use ndarray::{
    ArcArray, Array, ArrayBase, ArrayViewD, ArrayViewMutD, Axis, Dimension, IxDyn, RawArrayView,
    RawArrayViewMut, RawData, ShapeBuilder,
};

use crate::error::Error;
use crate::protocol::descriptor::{Descriptor, RawTensor};
use crate::protocol::device::{Access, Device};
use crate::protocol::rule::{Field, Rule, Violation};
use crate::view::{CaiView, Element, Owner, View, ViewMut, extents};

impl CaiView {
    /// Makes a view of an array of ndarray's, in any order of its axes, writable. The array is moved, not copied, and dropped
    /// with the last view and tensor of it.
    ///
    /// # Errors
    /// The rules of shapes and strides.
    ///
    /// ```
    /// use cai_dlpack::CaiView;
    ///
    /// let array = ndarray::array![[1.0_f32, 2.0, 3.0], [4.0, 5.0, 6.0]];
    /// let view = CaiView::from_ndarray(array.reversed_axes())?;
    /// assert_eq!(view.descriptor().shape(), [3, 2]);
    /// assert_eq!(view.typed::<f32>()?.copy_to_vec()?, [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
    /// # Ok::<(), cai_dlpack::Error>(())
    /// ```
    pub fn from_ndarray<T: Element + Send, D: Dimension + 'static>(
        mut array: Array<T, D>,
    ) -> Result<Self, Violation> {
        let descriptor = describe(array.as_mut_ptr(), &array, Access::Writable)?;
        // SAFETY: the elements lie in the array, which the owner keeps and does not touch; no other code has it.
        Ok(unsafe { Self::of_host(descriptor, Owner::new(array)) })
    }

    /// Makes a view of an array of ndarray's that other code reads, too: read-only. It holds a count of the array, as each
    /// view and tensor of it does: a holder that writes gets a copy, as always with an `ArcArray`.
    ///
    /// # Errors
    /// As [`CaiView::from_ndarray`].
    ///
    /// ```
    /// use cai_dlpack::CaiView;
    ///
    /// let mut array = ndarray::arr1(&[1_i64, 2, 3]).into_shared();
    /// let view = CaiView::from_shared_ndarray(array.clone())?;
    /// array[0] = 7; // a copy
    /// assert_eq!(view.typed::<i64>()?.copy_to_vec()?, [1, 2, 3]);
    /// # Ok::<(), cai_dlpack::Error>(())
    /// ```
    pub fn from_shared_ndarray<T: Element + Send + Sync, D: Dimension + 'static>(
        array: ArcArray<T, D>,
    ) -> Result<Self, Violation> {
        let descriptor = describe(array.as_ptr(), &array, Access::ReadOnly)?;
        // SAFETY: the elements lie in the array, of which the owner keeps a count: a write to another one copies it.
        Ok(unsafe { Self::of_host(descriptor, Owner::new(array)) })
    }
}

/// Describes an array whose element of index 0 is at `start`.
fn describe<T: Element, S: RawData<Elem = T>, D: Dimension>(
    start: *const T,
    array: &ArrayBase<S, D>,
    access: Access,
) -> Result<Descriptor, Violation> {
    let shape = extents(array.shape())?;
    let strides: Vec<i64> = array.strides().iter().map(|s| *s as i64).collect();
    let data = start.expose_provenance() as u64;
    let raw = RawTensor::new(data, Device::HOST, T::DTYPE, &shape).with_elem_strides(&strides);
    Ok(Descriptor::new(&raw)?.with_access(access))
}

impl<'a, T: Element> View<'a, T> {
    /// Returns the elements as an array of ndarray's, once the ready stream has written them: the host waits for it. The
    /// strides may be any.
    ///
    /// # Errors
    /// `view-device` for memory of a device; `size-overflow` for an array without elements whose other extents ndarray
    /// cannot multiply; what [`CaiView::synchronize`] refuses.
    ///
    /// # Safety
    /// The list of [`View::host_slice`], until the array is gone.
    ///
    /// ```
    /// use cai_dlpack::CaiView;
    ///
    /// let view = CaiView::from_vec([1.0_f32, 2.0, 3.0, 4.0], [2, 2])?;
    /// let columns = view.typed::<f32>()?.transpose()?;
    /// // SAFETY: the numbers are there, and nothing writes to them.
    /// let columns = unsafe { columns.host_array() }?;
    /// assert_eq!(columns, ndarray::array![[1.0, 3.0], [2.0, 4.0]].into_dyn());
    /// # Ok::<(), cai_dlpack::Error>(())
    /// ```
    pub unsafe fn host_array(&self) -> Result<ArrayViewD<'a, T>, Error> {
        self.await_host()?;
        let layout = Layout::of(self.cai().descriptor())?;
        let start = layout.lowest(self.as_ptr());
        // SAFETY: aligned and not NULL (`check_element`, `pointer_of`); the strides are not negative, and reach the elements
        // from the lowest one on, within an `isize` (`Layout::of`); that they are there is the caller's promise.
        let raw = unsafe { RawArrayView::from_shape_ptr(layout.shape, start) };
        // SAFETY: the elements are there and do not change, by the caller's promise. `'a` keeps the owner.
        let mut array = unsafe { raw.deref_into_view() };
        layout
            .backwards
            .into_iter()
            .for_each(|axis| array.invert_axis(axis));
        Ok(array)
    }
}

impl<T: Element> ViewMut<'_, T> {
    /// Returns the elements as a mutable array of ndarray's; see [`View::host_array`].
    ///
    /// # Errors
    /// As [`View::host_array`].
    ///
    /// # Safety
    /// The list of [`View::host_slice`], and nothing *reads* the memory either until the array is gone.
    ///
    /// ```
    /// use cai_dlpack::CaiView;
    ///
    /// let mut view = CaiView::from_vec([1.0_f32, 2.0, 3.0, 4.0], [2, 2])?;
    /// let mut column = view.typed_mut::<f32>()?.index(1, 0)?;
    /// // SAFETY: the numbers are there, and nothing else reads or writes them.
    /// unsafe { column.host_array_mut() }?.fill(0.0);
    /// assert_eq!(view.typed::<f32>()?.copy_to_vec()?, [0.0, 2.0, 0.0, 4.0]);
    /// # Ok::<(), cai_dlpack::Error>(())
    /// ```
    pub unsafe fn host_array_mut(&mut self) -> Result<ArrayViewMutD<'_, T>, Error> {
        self.as_view().await_host()?;
        let layout = Layout::of(self.cai().descriptor())?;
        let start = layout.lowest(self.as_mut_ptr().cast_const()).cast_mut();
        // SAFETY: aligned and not NULL (`check_element`, `pointer_of`); the strides are not negative, and reach the elements,
        // each by one index (`check_writable`), from the lowest one on, within an `isize` (`Layout::of`); that they are there is
        // the caller's promise.
        let raw = unsafe { RawArrayViewMut::from_shape_ptr(layout.shape, start) };
        // SAFETY: the elements are there, and nothing else reads or writes them, by the caller's promise and `&mut self`.
        let mut array = unsafe { raw.deref_into_view_mut() };
        layout
            .backwards
            .into_iter()
            .for_each(|axis| array.invert_axis(axis));
        Ok(array)
    }
}

/// A layout as ndarray takes it: with no negative stride, and the axes that are to be turned round.
struct Layout {
    shape: ndarray::StrideShape<IxDyn>,
    backwards: Vec<Axis>,
    /// Where the lowest element is, in elements from the one of index 0.
    lowest: isize,
}

impl Layout {
    /// # Errors
    /// `size-overflow` if an array of the extents but for 0 would be larger than `isize::MAX` bytes, which ndarray forbids
    /// also for arrays without elements.
    fn of(described: &Descriptor) -> Result<Self, Violation> {
        let shape: Vec<usize> = described
            .shape()
            .iter()
            .map(|extent| *extent as usize)
            .collect();
        let itemsize = described.itemsize().map_or(1, i64::from);
        let span = (described.shape().iter())
            .filter(|extent| **extent != 0)
            .try_fold(itemsize, |span, extent| span.checked_mul(*extent));
        if span.and_then(|span| isize::try_from(span).ok()).is_none() {
            let found = format_args!("{:?}", described.shape());
            return Err(
                Violation::new(Rule::SizeOverflow, Field::TensorShape, found)
                    .with_hint("ndarray multiplies the extents but for 0"),
            );
        }
        let (mut strides, mut backwards, mut lowest) = (Vec::new(), Vec::new(), 0);
        let is_empty = shape.contains(&0);
        for (axis, (extent, stride)) in shape.iter().zip(described.elem_strides()).enumerate() {
            // The stride of an axis with one index is used by nothing, and may be any number.
            let is_walked = !is_empty && *extent > 1;
            if is_walked && *stride < 0 {
                backwards.push(Axis(axis));
                // Within the layout's span, whose size in bytes fits `i64`.
                lowest += (*extent as i64 - 1) * stride;
            }
            strides.push(if is_walked {
                stride.unsigned_abs() as usize
            } else {
                1
            });
        }
        Ok(Self {
            shape: IxDyn(&shape).strides(IxDyn(&strides)),
            backwards,
            lowest: lowest as isize,
        })
    }

    fn lowest<T>(&self, start: *const T) -> *const T {
        start.wrapping_offset(self.lowest)
    }
}

#[cfg(test)]
mod tests;
