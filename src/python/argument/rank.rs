//! The extents of an argument: an array of as many as it has axes, or a slice.

/// The number of axes of an argument that takes any: the default, written out before a [`WhenInUse`](super::WhenInUse).
///
/// ```
/// use cai_dlpack::python::{ANY, In, Wait};
///
/// fn axes(a: In<f32, ANY, Wait>) -> usize {
///     a.shape().len()
/// }
/// ```
pub const ANY: usize = usize::MAX;

/// A number of axes, as it stands in the signature of a function: see [`Extents`].
///
/// ```
/// use cai_dlpack::python::{Extents, In, Rank};
/// use cai_dlpack::view::Element;
///
/// /// For arrays of any number of axes, known or not.
/// fn elements<T: Element, const N: usize>(a: &In<T, N>) -> usize
/// where
///     Rank<N>: Extents,
/// {
///     a.shape().as_ref().iter().product()
/// }
/// ```
#[derive(Debug)]
pub enum Rank<const N: usize> {}

/// What the extents of an array of so many axes are: `[usize; N]` up to 16 axes, and `&[usize]` if the signature leaves their
/// number open. It cannot be implemented for others; [`Rank`] has an example.
///
/// ```
/// use cai_dlpack::python::{ANY, Extents, In, Rank};
///
/// /// The number of rows, of which an array of any number of axes may have none.
/// fn rows<const N: usize>(a: &In<f32, N>) -> Option<usize>
/// where
///     Rank<N>: Extents,
/// {
///     a.shape().as_ref().first().copied()
/// }
/// let of_any: fn(&In<f32, ANY>) -> Option<usize> = rows;
/// # let _ = of_any;
/// ```
#[diagnostic::on_unimplemented(
    message = "there are no extents of an array of so many axes",
    note = "arguments of more than 16 axes have their extents in `view().shape()`",
    note = "for a function that is generic over the number of axes: `where cai_dlpack::python::Rank<N>: cai_dlpack::python::Extents`"
)]
pub trait Extents: sealed::Sealed {
    /// The extents, in elements.
    type Shape<'a>: AsRef<[usize]>;
    /// One stride per axis, in elements.
    type Strides<'a>: AsRef<[isize]>;

    /// Returns the extents as this type; there are as many as axes.
    #[doc(hidden)]
    fn shape(all: &[usize]) -> Self::Shape<'_>;

    /// Returns the strides as this type; there are as many as axes.
    #[doc(hidden)]
    fn strides(all: &[isize]) -> Self::Strides<'_>;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! ranks {
    ($($rank:literal)*) => {$(
        impl sealed::Sealed for Rank<$rank> {}

        impl Extents for Rank<$rank> {
            type Shape<'a> = [usize; $rank];
            type Strides<'a> = [isize; $rank];

            #[inline(always)]
            fn shape(all: &[usize]) -> [usize; $rank] {
                std::array::from_fn(|axis| all[axis])
            }

            #[inline(always)]
            fn strides(all: &[isize]) -> [isize; $rank] {
                std::array::from_fn(|axis| all[axis])
            }
        }
    )*};
}

ranks!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16);

impl sealed::Sealed for Rank<ANY> {}

impl Extents for Rank<ANY> {
    type Shape<'a> = &'a [usize];
    type Strides<'a> = &'a [isize];

    #[inline(always)]
    fn shape(all: &[usize]) -> &[usize] {
        all
    }

    #[inline(always)]
    fn strides(all: &[isize]) -> &[isize] {
        all
    }
}
