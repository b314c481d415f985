//! Lists of a few numbers: without an allocation, if there is smallvec, which comes with the feature `view`.

/// Arrays of up to 4 axes are stored inline, without an allocation.
pub(super) const INLINE_AXES: usize = 4;

#[cfg(feature = "view")]
mod inline {
    use smallvec::SmallVec;

    use super::INLINE_AXES;

    pub(crate) type Axes<T> = SmallVec<[T; INLINE_AXES]>;
    pub(crate) type Pairs = SmallVec<[i64; 2 * INLINE_AXES]>;

    #[inline(always)]
    pub(crate) fn zeros(len: usize) -> Pairs {
        Pairs::from_elem(0, len)
    }
}

#[cfg(not(feature = "view"))]
mod inline {
    pub(crate) type Axes<T> = Vec<T>;
    pub(crate) type Pairs = Vec<i64>;

    pub(crate) fn zeros(len: usize) -> Pairs {
        vec![0; len]
    }
}

/// One number, or what `T` is, for each axis.
pub(crate) use inline::Axes as PerAxis;
/// The extents, then the strides.
pub(crate) use inline::Pairs;
/// Makes [`Pairs`] of this length.
pub(crate) use inline::zeros;
