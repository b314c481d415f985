//! Parts of an array, and other orders and lengths of its axes, without a copy.
//!
//! Each is a view of the same memory, with this one's owner and streams. What may be written in one may overlap another:
//! [`CaiView::split`] makes two that do not, of an array whose elements have one index each.

use std::ops::{Bound, RangeBounds};

use super::CaiView;
use super::typed::mismatch;
use crate::error::Error;
use crate::protocol::descriptor::{Descriptor, RawTensor};
use crate::protocol::device::Access;
use crate::protocol::rule::{Field, Rule, Violation};

/// The extent of an axis, and its stride in elements.
type Axis = (i64, i64);

impl CaiView {
    /// Returns the array with its axes in another order: axis `i` of the result is axis `axes[i]` of this one.
    ///
    /// # Errors
    /// `argument-value` unless `axes` names each axis once; `typestr-...` and `descr-fields` for elements that DLPack
    /// cannot describe.
    ///
    /// ```
    #[doc = floats!()]
    /// let columns = floats().permute(&[1, 0])?;
    /// assert_eq!(columns.typed::<f32>()?.copy_to_vec()?, [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
    /// # Ok::<(), cai_dlpack::Error>(())
    /// ```
    pub fn permute(&self, axes: &[usize]) -> Result<Self, Error> {
        let own = self.axes()?;
        let mut named = axes.to_vec();
        named.sort_unstable();
        if !named.into_iter().eq(0..own.len()) {
            let hint = format!("each of the {} axes is named once", own.len());
            return Err(refused("axes", format_args!("{axes:?}"), hint));
        }
        let axes = axes.iter().filter_map(|axis| own.get(*axis)).copied();
        // SAFETY: an index of the result is one of this array, in another order.
        unsafe { self.with_axes(0, axes.collect()) }
    }

    /// Returns the array with its axes reversed.
    ///
    /// # Errors
    /// Those of [`CaiView::permute`].
    ///
    /// ```
    #[doc = floats!()]
    /// assert_eq!(floats().transpose()?.descriptor().shape(), [3, 2]);
    /// # Ok::<(), cai_dlpack::Error>(())
    /// ```
    pub fn transpose(&self) -> Result<Self, Error> {
        // SAFETY: an index of the result is one of this array, reversed.
        unsafe { self.with_axes(0, self.axes()?.into_iter().rev().collect()) }
    }

    /// Returns the elements whose index in one axis lies in a range.
    ///
    /// # Errors
    /// `argument-value` for an axis or a range that the array does not have; `view-dtype` for packed
    /// elements smaller than a byte, if the range does not begin at 0; as [`CaiView::permute`].
    ///
    /// ```
    #[doc = floats!()]
    /// let part = floats().slice(1, 1..)?;
    /// assert_eq!(part.typed::<f32>()?.copy_to_vec()?, [2.0, 3.0, 5.0, 6.0]);
    /// # Ok::<(), cai_dlpack::Error>(())
    /// ```
    pub fn slice(&self, axis: usize, range: impl RangeBounds<usize>) -> Result<Self, Error> {
        let mut axes = self.axes()?;
        let (extent, stride) = one_of(&mut axes, axis)?;
        let (start, end) = within(*extent, &range)?;
        *extent = end.saturating_sub(start);
        let skipped = start.saturating_mul(*stride);
        // SAFETY: index `i` of the axis is index `start + i` of this array's, less than `end`, which the axis has.
        unsafe { self.with_axes(skipped, axes) }
    }

    /// Returns the elements of one index in an axis, which the result does not have.
    ///
    /// # Errors
    /// Those of [`CaiView::slice`].
    ///
    /// ```
    #[doc = floats!()]
    /// assert_eq!(floats().index(0, 1)?.typed::<f32>()?.copy_to_vec()?, [4.0, 5.0, 6.0]);
    /// # Ok::<(), cai_dlpack::Error>(())
    /// ```
    pub fn index(&self, axis: usize, index: usize) -> Result<Self, Error> {
        let mut axes = self.axes()?;
        let (extent, stride) = *one_of(&mut axes, axis)?;
        let (start, _) = within(extent, &(index..=index))?;
        axes.remove(axis);
        // SAFETY: with index `start`, which the axis has, an index of the result is one of this array.
        unsafe { self.with_axes(start.saturating_mul(stride), axes) }
    }

    /// Returns the array without its axes of one element.
    ///
    /// # Errors
    /// `typestr-...` and `descr-fields` for elements that DLPack cannot describe.
    ///
    /// ```
    #[doc = floats!()]
    /// let column = floats().slice(1, ..1)?;
    /// assert_eq!(column.descriptor().shape(), [2, 1]);
    /// assert_eq!(column.squeeze()?.descriptor().shape(), [2]);
    /// # Ok::<(), cai_dlpack::Error>(())
    /// ```
    pub fn squeeze(&self) -> Result<Self, Error> {
        let mut axes = self.axes()?;
        axes.retain(|(extent, _)| *extent != 1);
        // SAFETY: with index 0 in the axes of one element, an index of the result is one of this array.
        unsafe { self.with_axes(0, axes) }
    }

    /// Returns the elements before an index in one axis, and those from it on. The two overlap only if elements of this array
    /// have several indices (a broadcast axis, strides that interleave).
    ///
    /// # Errors
    /// Those of [`CaiView::slice`].
    ///
    /// ```
    #[doc = floats!()]
    /// let (mut first, mut second) = floats().split(1, 2)?;
    /// let _both = (first.typed_mut::<f32>()?, second.typed_mut::<f32>()?);
    /// # Ok::<(), cai_dlpack::Error>(())
    /// ```
    pub fn split(&self, axis: usize, index: usize) -> Result<(Self, Self), Error> {
        Ok((self.slice(axis, ..index)?, self.slice(axis, index..)?))
    }

    /// Returns the array in a larger shape, in which axes of one element, and axes that come before those of this array,
    /// are repeated. Repeated elements have several indices each, so that the result is
    /// [read-only](crate::protocol::device::Access::ReadOnly) if there are any, as NumPy's `broadcast_to` is.
    ///
    /// # Errors
    /// `view-shape` if the shape does not fit; as [`CaiView::permute`].
    ///
    /// ```
    #[doc = floats!()]
    /// let row = floats().index(0, 0)?;
    /// let rows = row.broadcast(&[2, 3])?;
    /// assert_eq!(rows.typed::<f32>()?.copy_to_vec()?, [1.0, 2.0, 3.0, 1.0, 2.0, 3.0]);
    /// # Ok::<(), cai_dlpack::Error>(())
    /// ```
    pub fn broadcast(&self, shape: &[usize]) -> Result<Self, Error> {
        let (wanted, own) = (extents(shape)?, self.axes()?);
        let Some(new) = wanted.len().checked_sub(own.len()) else {
            return Err(self.no_shape(shape));
        };
        let mut axes: Vec<Axis> = wanted.iter().map(|extent| (*extent, 0)).collect();
        for ((wanted, stride), (extent, own_stride)) in axes.iter_mut().skip(new).zip(own) {
            if extent == *wanted {
                *stride = own_stride;
            } else if extent != 1 {
                return Err(self.no_shape(shape));
            }
        }
        // SAFETY: each axis is this array's, or has stride 0: then each index means index 0 of an axis with one element, or of
        // none.
        let mut view = unsafe { self.with_axes(0, axes) }?;
        if view.descriptor.len() > self.descriptor.len() {
            view.descriptor.set_access(Access::ReadOnly);
        }
        Ok(view)
    }

    /// Returns the elements of an array in C order in another shape.
    ///
    /// # Errors
    /// `view-contiguous` for an array in another order; `view-shape` for another number of elements; as
    /// [`CaiView::permute`].
    ///
    /// ```
    #[doc = floats!()]
    /// assert_eq!(floats().reshape(&[3, 2])?.descriptor().elem_strides(), [2, 1]);
    /// # Ok::<(), cai_dlpack::Error>(())
    /// ```
    pub fn reshape(&self, shape: &[usize]) -> Result<Self, Error> {
        let own = self.descriptor();
        own.check_dlpack()?;
        let wanted = extents(shape)?;
        let len = wanted
            .iter()
            .try_fold(1_i64, |len, extent| len.checked_mul(*extent));
        if wanted.contains(&0) != (own.len() == 0)
            || (own.len() != 0 && len.and_then(|len| u64::try_from(len).ok()) != Some(own.len()))
        {
            return Err(self.no_shape(shape));
        }
        if !own.layout().is_c_contiguous() {
            let wanted = format_args!("C order, the last axis fastest, is wanted");
            return Err(mismatch(Rule::ViewContiguous, own, wanted).into());
        }
        let mut next = 1_i64;
        let mut axes: Vec<Axis> = Vec::with_capacity(wanted.len());
        for extent in wanted.into_iter().rev() {
            axes.push((extent, next));
            next = next.saturating_mul(extent.max(1));
        }
        axes.reverse();
        // SAFETY: both are in C order and have as many elements, or none.
        unsafe { self.with_axes(0, axes) }
    }

    /// # Errors
    /// Why DLPack cannot describe the elements: their strides may be no whole number of them.
    fn axes(&self) -> Result<Vec<Axis>, Violation> {
        let own = self.descriptor();
        own.check_dlpack()?;
        let strides = own.elem_strides().iter().copied();
        Ok(own.shape().iter().copied().zip(strides).collect())
    }

    #[cold]
    fn no_shape(&self, shape: &[usize]) -> Error {
        let wanted = format_args!("one that makes {shape:?} is wanted");
        mismatch(Rule::ViewShape, self.descriptor(), wanted).into()
    }

    /// Returns the view of these axes whose element of index 0 is `skipped` elements from this one's.
    ///
    /// # Safety
    /// - Each of its elements is one of this array.
    unsafe fn with_axes(&self, skipped: i64, axes: Vec<Axis>) -> Result<Self, Error> {
        let own = self.descriptor();
        let (shape, strides): (Vec<i64>, Vec<i64>) = axes.into_iter().unzip();
        let is_empty = shape.contains(&0);
        let distance = match own.itemsize() {
            _ if is_empty || skipped == 0 => 0,
            // Fits: the distance of two elements of a checked layout.
            Some(itemsize) => skipped.saturating_mul(i64::from(itemsize)),
            None => {
                let wanted = format_args!("elements of whole bytes are wanted");
                return Err(mismatch(Rule::ViewDtype, own, wanted).into());
            }
        };
        let mut raw = RawTensor::new(own.data(), own.device(), own.dtype(), &shape)
            .with_elem_strides(&strides)
            .with_byte_offset(own.byte_offset())
            .with_flags(own.flags());
        if own.device().is_opaque() {
            raw.byte_offset = raw.byte_offset.wrapping_add_signed(distance);
        } else {
            raw.data = raw.data.wrapping_add_signed(distance);
        }
        let descriptor = Descriptor::new(&raw)?;
        // SAFETY: this function's contract: each element is one of this array, whose memory the owner keeps.
        Ok(unsafe { self.derive(descriptor) })
    }
}

#[cold]
fn refused(argument: &'static str, found: std::fmt::Arguments<'_>, hint: String) -> Error {
    let field = Field::Argument(argument);
    Violation::new(Rule::ArgumentValue, field, found)
        .with_hint(hint)
        .into()
}

fn one_of(axes: &mut [Axis], axis: usize) -> Result<&mut Axis, Error> {
    let hint = format!("the array has {} axes", axes.len());
    let found = axes.get_mut(axis);
    found.ok_or_else(|| refused("axis", format_args!("{axis}"), hint))
}

/// Returns start and end of a range of indices, if an axis of this extent has them.
fn within(extent: i64, range: &impl RangeBounds<usize>) -> Result<(i64, i64), Error> {
    let start = match range.start_bound() {
        Bound::Included(start) => Some(*start),
        Bound::Excluded(before) => before.checked_add(1),
        Bound::Unbounded => Some(0),
    };
    let end = match range.end_bound() {
        Bound::Included(last) => last.checked_add(1),
        Bound::Excluded(end) => Some(*end),
        Bound::Unbounded => usize::try_from(extent).ok(),
    };
    let number = |index: Option<usize>| index.and_then(|index| i64::try_from(index).ok());
    match (number(start), number(end)) {
        (Some(start), Some(end)) if start <= end && end <= extent => Ok((start, end)),
        _ => {
            let found = format_args!("{:?} to {:?}", range.start_bound(), range.end_bound());
            Err(refused(
                "range",
                found,
                format!("the axis has {extent} indices"),
            ))
        }
    }
}

/// Checks that an array has as many elements as the memory that is to be seen so.
pub(crate) fn check_len(made: &Descriptor, len: usize) -> Result<(), Violation> {
    if usize::try_from(made.len()) == Ok(len) {
        return Ok(());
    }
    let shape = made.shape();
    let hint = format!("there are {len} elements");
    let found = format_args!("{shape:?}");
    Err(Violation::new(Rule::ShapeOverride, Field::Argument("shape"), found).with_hint(hint))
}

/// Returns the extents as both protocols have them.
pub(crate) fn extents(shape: &[usize]) -> Result<Vec<i64>, Violation> {
    let extent = |extent: &usize| {
        let field = Field::Argument("shape");
        i64::try_from(*extent).map_err(|_| Violation::new(Rule::ShapeRange, field, extent))
    };
    shape.iter().map(extent).collect()
}

#[cfg(test)]
mod tests;
