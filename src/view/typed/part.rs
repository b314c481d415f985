//! Parts of typed views: slices, halves, other orders and lengths of the axes, without a copy.
//!
//! The index arithmetic is that of [`CaiView`]'s parts (`view/part.rs`). Type, alignment, bounds and writability of an array
//! are those of its parts, so that nothing is checked again.

use std::marker::PhantomData;
use std::ops::RangeBounds;
use std::sync::Arc;

use super::array::{Array, ArrayMut};
use super::{View, ViewMut};
use crate::error::Error;
use crate::view::{CaiView, Element};

impl<'a, T: Element> View<'a, T> {
    /// Of a part of this array.
    fn part(&self, part: CaiView) -> Self {
        Self {
            array: Array::Part(Box::new(part)),
            name: self.name,
            elements: PhantomData,
        }
    }
}

impl<'a, T: Element> ViewMut<'a, T> {
    /// Of a part of this array.
    fn part(self, part: CaiView) -> Self {
        Self {
            array: ArrayMut::Part(Box::new(part), self.array.into_whole()),
            name: self.name,
            elements: PhantomData,
        }
    }
}

/// The parts of both kinds of view; `$array` is the start of an example.
macro_rules! parts {
    ($self:ident, [$($receiver:tt)+], $array:literal) => {
        /// Returns the array with its axes in another order; see [`CaiView::permute`].
        ///
        /// # Errors
        /// Those of [`CaiView::permute`].
        ///
        /// ```
        #[doc = floats!()]
        #[doc = $array]
        /// assert_eq!(array.permute(&[1, 0])?.copy_to_vec()?, [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
        /// # Ok::<(), cai_dlpack::Error>(())
        /// ```
        pub fn permute($($receiver)+, axes: &[usize]) -> Result<Self, Error> {
            let part = $self.cai().permute(axes)?;
            Ok($self.part(part))
        }

        /// Returns the array with its axes reversed.
        ///
        /// # Errors
        /// Those of [`CaiView::transpose`].
        ///
        /// ```
        #[doc = floats!()]
        #[doc = $array]
        /// assert_eq!(array.transpose()?.shape(), [3, 2]);
        /// # Ok::<(), cai_dlpack::Error>(())
        /// ```
        pub fn transpose($($receiver)+) -> Result<Self, Error> {
            let part = $self.cai().transpose()?;
            Ok($self.part(part))
        }

        /// Returns the elements whose index in one axis lies in a range.
        ///
        /// # Errors
        /// Those of [`CaiView::slice`].
        ///
        /// ```
        #[doc = floats!()]
        #[doc = $array]
        /// assert_eq!(array.slice(1, 1..)?.copy_to_vec()?, [2.0, 3.0, 5.0, 6.0]);
        /// # Ok::<(), cai_dlpack::Error>(())
        /// ```
        pub fn slice($($receiver)+, axis: usize, range: impl RangeBounds<usize>) -> Result<Self, Error> {
            let part = $self.cai().slice(axis, range)?;
            Ok($self.part(part))
        }

        /// Returns the elements of one index in an axis, which the result does not have.
        ///
        /// # Errors
        /// Those of [`CaiView::index`].
        ///
        /// ```
        #[doc = floats!()]
        #[doc = $array]
        /// assert_eq!(array.index(0, 1)?.copy_to_vec()?, [4.0, 5.0, 6.0]);
        /// # Ok::<(), cai_dlpack::Error>(())
        /// ```
        pub fn index($($receiver)+, axis: usize, index: usize) -> Result<Self, Error> {
            let part = $self.cai().index(axis, index)?;
            Ok($self.part(part))
        }

        /// Returns the array without its axes of one element.
        ///
        /// # Errors
        /// Those of [`CaiView::squeeze`].
        ///
        /// ```
        #[doc = floats!()]
        #[doc = $array]
        /// assert_eq!(array.slice(1, ..1)?.squeeze()?.shape(), [2]);
        /// # Ok::<(), cai_dlpack::Error>(())
        /// ```
        pub fn squeeze($($receiver)+) -> Result<Self, Error> {
            let part = $self.cai().squeeze()?;
            Ok($self.part(part))
        }

        /// Returns the elements of an array in C order in another shape.
        ///
        /// # Errors
        /// Those of [`CaiView::reshape`].
        ///
        /// ```
        #[doc = floats!()]
        #[doc = $array]
        /// assert_eq!(array.reshape(&[3, 2])?.elem_strides(), [2, 1]);
        /// # Ok::<(), cai_dlpack::Error>(())
        /// ```
        pub fn reshape($($receiver)+, shape: &[usize]) -> Result<Self, Error> {
            let part = $self.cai().reshape(shape)?;
            Ok($self.part(part))
        }
    };
}

/// Parts, without a copy.
impl<'a, T: Element> View<'a, T> {
    parts!(
        self,
        [&self],
        "let view = floats();\nlet array = view.typed::<f32>()?;"
    );

    /// Returns the elements before an index in one axis, and those from it on.
    ///
    /// # Errors
    /// Those of [`CaiView::split`].
    ///
    /// ```
    #[doc = floats!()]
    /// let view = floats();
    /// let (first, rest) = view.typed::<f32>()?.split(1, 1)?;
    /// assert_eq!((first.copy_to_vec()?, rest.shape()), (vec![1.0, 4.0], &[2, 2][..]));
    /// # Ok::<(), cai_dlpack::Error>(())
    /// ```
    pub fn split(&self, axis: usize, index: usize) -> Result<(Self, Self), Error> {
        let (first, second) = self.cai().split(axis, index)?;
        Ok((self.part(first), self.part(second)))
    }

    /// Returns the array in a larger shape, in which elements are repeated; see [`CaiView::broadcast`].
    ///
    /// # Errors
    /// Those of [`CaiView::broadcast`].
    ///
    /// ```
    #[doc = floats!()]
    /// let view = floats();
    /// let row = view.typed::<f32>()?.index(0, 0)?;
    /// assert_eq!(row.broadcast(&[2, 3])?.copy_to_vec()?, [1.0, 2.0, 3.0, 1.0, 2.0, 3.0]);
    /// # Ok::<(), cai_dlpack::Error>(())
    /// ```
    pub fn broadcast(&self, shape: &[usize]) -> Result<Self, Error> {
        Ok(self.part(self.cai().broadcast(shape)?))
    }
}

/// Parts, without a copy. Each takes the view; [`reborrow`](Self::reborrow) it first to keep it. None repeats elements.
///
/// The next use of the whole array waits for the streams on which parts were written.
impl<'a, T: Element> ViewMut<'a, T> {
    parts!(
        self,
        [self],
        "let mut view = floats();\nlet array = view.typed_mut::<f32>()?;"
    );

    /// Returns the elements before an index in one axis, and those from it on: two views that may be written at once, on
    /// two streams or by two threads.
    ///
    /// # Errors
    /// Those of [`CaiView::split`].
    ///
    /// ```
    #[doc = floats!()]
    /// let mut view = floats();
    /// let (mut top, mut bottom) = view.typed_mut::<f32>()?.split(0, 1)?;
    /// // SAFETY: the vector is there, nothing else reads or writes it, and the halves share no element.
    /// unsafe { top.host_slice_mut()?.copy_from_slice(bottom.host_slice_mut()?) };
    /// assert_eq!(view.typed::<f32>()?.copy_to_vec()?, [4.0, 5.0, 6.0, 4.0, 5.0, 6.0]);
    /// # Ok::<(), cai_dlpack::Error>(())
    /// ```
    pub fn split(self, axis: usize, index: usize) -> Result<(Self, Self), Error> {
        let (first, second) = self.cai().split(axis, index)?;
        let name = self.name;
        let whole = self.array.into_whole();
        let half = |part, whole| Self {
            array: ArrayMut::Part(Box::new(part), whole),
            name,
            elements: PhantomData,
        };
        Ok((half(first, Arc::clone(&whole)), half(second, whole)))
    }
}

#[cfg(test)]
mod tests;
