//! [`Axes`]: the extents and strides of one array as a producer wrote them.
//!
//! The axes are untrusted: each extent is checked as it is added, and
//! [`Layout`](super::layout::Layout) checks the numbers against each other.

use super::few::{self, Pairs};
use super::rule::{Field, Rule, Violation};

/// The most axes that are accepted, which is NumPy's limit.
pub const MAX_NDIM: usize = 64;

/// The protocol whose fields a refusal names.
///
/// ```
/// use cai_dlpack::protocol::axes::{Axes, Source};
/// use cai_dlpack::protocol::layout::Layout;
///
/// // One array as each protocol writes it: strides in bytes, and in elements.
/// let dict = Axes::from_slices(Source::Cai, &[2, 3], Some(&[4, 8]))?;
/// let tensor = Axes::from_slices(Source::Tensor, &[2, 3], Some(&[1, 2]))?;
/// assert_eq!(Layout::from_byte_axes(dict, 4)?, Layout::from_elem_axes(tensor, 4)?);
/// # Ok::<(), cai_dlpack::protocol::rule::Violation>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// `__cuda_array_interface__`: strides in bytes.
    Cai,
    /// `DLTensor`: strides in elements.
    Tensor,
}

/// The unit of the strides in [`Axes`].
#[derive(Clone, Copy)]
pub(super) enum Unit {
    Bytes,
    Elements,
}

/// Extents and strides before they are checked against each other.
///
/// Add all extents first. If there are strides, call [`expect_strides`](Self::expect_strides), then
/// add one stride per axis.
///
/// ```
/// use cai_dlpack::protocol::axes::{Axes, Source};
///
/// let mut axes = Axes::new(Source::Cai);
/// axes.push_extent(2)?;
/// axes.push_extent(3)?;
/// axes.expect_strides(2)?;
/// axes.push_stride(12)?;
/// axes.push_stride(4)?;
/// assert_eq!((axes.ndim(), axes.shape(), axes.strides()), (2, &[2, 3][..], Some(&[12, 4][..])));
/// assert!(Axes::new(Source::Cai).push_extent(-1).is_err());
/// # Ok::<(), cai_dlpack::protocol::rule::Violation>(())
/// ```
#[derive(Clone, Debug)]
pub struct Axes {
    pub(super) values: Pairs,
    pub(super) ndim: u8,
    pub(super) source: Source,
    pub(super) has_strides: bool,
}

/// By source, extents and strides: where there are no strides, there may be room for them.
impl PartialEq for Axes {
    fn eq(&self, other: &Self) -> bool {
        self.source == other.source
            && self.shape() == other.shape()
            && self.strides() == other.strides()
    }
}

impl Eq for Axes {}

impl Axes {
    /// Starts with no axes.
    #[must_use]
    #[inline]
    pub fn new(source: Source) -> Self {
        Self {
            values: Pairs::new(),
            ndim: 0,
            source,
            has_strides: false,
        }
    }

    /// Takes all axes at once.
    ///
    /// # Errors
    /// Those of [`push_extent`](Self::push_extent) and [`expect_strides`](Self::expect_strides).
    ///
    /// ```
    /// use cai_dlpack::protocol::axes::{Axes, Source};
    ///
    /// let axes = Axes::from_slices(Source::Tensor, &[2, 3], Some(&[3, 1]))?;
    /// assert_eq!((axes.ndim(), axes.strides()), (2, Some(&[3, 1][..])));
    /// # Ok::<(), cai_dlpack::protocol::rule::Violation>(())
    /// ```
    #[inline(always)]
    pub fn from_slices(
        source: Source,
        shape: &[i64],
        strides: Option<&[i64]>,
    ) -> Result<Self, Violation> {
        let rank = shape.len();
        let ndim = match u8::try_from(rank) {
            Ok(ndim) if rank <= MAX_NDIM && shape.iter().all(|extent| *extent >= 0) => ndim,
            _ => return Err(Self::refuse_shape(source, shape)),
        };
        let given = strides.unwrap_or(&[]);
        if strides.is_some() && given.len() != rank {
            return Err(source.wrong_count(given.len(), rank));
        }
        let mut values = few::zeros(rank.wrapping_mul(2));
        for (value, extent) in values.iter_mut().zip(shape) {
            *value = *extent;
        }
        for (value, stride) in values.iter_mut().skip(rank).zip(given) {
            *value = *stride;
        }
        Ok(Self {
            values,
            ndim,
            source,
            has_strides: strides.is_some(),
        })
    }

    /// Finds the extent to refuse.
    #[cold]
    pub(super) fn refuse_shape(source: Source, shape: &[i64]) -> Violation {
        let mut axes = Self::new(source);
        for extent in shape {
            if let Err(violation) = axes.push_extent(*extent) {
                return violation;
            }
        }
        axes.refuse_extent(-1)
    }

    /// Adds an axis.
    ///
    /// # Errors
    /// `shape-extent` for a negative extent, `ndim-limit` for the 65th axis (ValueError).
    #[inline]
    pub fn push_extent(&mut self, extent: i64) -> Result<(), Violation> {
        debug_assert!(!self.has_strides, "extents come before strides");
        let axis = self.ndim;
        if extent < 0 || usize::from(axis) >= MAX_NDIM {
            return Err(self.refuse_extent(extent));
        }
        self.values.push(extent);
        self.ndim = axis.wrapping_add(1); // at most MAX_NDIM
        Ok(())
    }

    #[cold]
    fn refuse_extent(&self, extent: i64) -> Violation {
        if usize::from(self.ndim) >= MAX_NDIM {
            return Violation::new(Rule::NdimLimit, self.source.ndim(), "more than 64 axes");
        }
        let found = format_args!("{extent} on axis {}", self.ndim);
        Violation::new(Rule::ShapeExtent, self.source.shape(), found)
    }

    /// Announces `count` strides. Without the announcement, an empty list of strides could not be
    /// told from absent strides.
    ///
    /// # Errors
    /// `strides-length` (ValueError) unless `count` is the number of axes.
    #[inline]
    pub fn expect_strides(&mut self, count: usize) -> Result<(), Violation> {
        if count != usize::from(self.ndim) {
            return Err(self.source.wrong_count(count, self.ndim()));
        }
        self.has_strides = true;
        Ok(())
    }

    /// Adds the stride of the next axis.
    ///
    /// # Errors
    /// `strides-length` (ValueError) if there are more strides than axes.
    #[inline]
    pub fn push_stride(&mut self, stride: i64) -> Result<(), Violation> {
        let ndim = usize::from(self.ndim);
        self.has_strides = true;
        if self.values.len() >= ndim.wrapping_mul(2) {
            return Err(self.source.wrong_count(ndim.wrapping_add(1), ndim));
        }
        self.values.push(stride);
        Ok(())
    }

    /// Returns the extents.
    #[must_use]
    pub fn shape(&self) -> &[i64] {
        self.values.get(..self.ndim()).unwrap_or(&[])
    }

    /// Returns the strides, if there are any: in bytes for [`Source::Cai`], else in elements.
    #[must_use]
    pub fn strides(&self) -> Option<&[i64]> {
        if self.has_strides {
            self.values.get(self.ndim()..)
        } else {
            None
        }
    }

    /// Returns the number of axes.
    #[must_use]
    pub const fn ndim(&self) -> usize {
        self.ndim as usize
    }
}

impl Source {
    const fn shape(self) -> Field {
        match self {
            Self::Cai => Field::CaiShape,
            Self::Tensor => Field::TensorShape,
        }
    }

    pub(super) const fn strides(self) -> Field {
        match self {
            Self::Cai => Field::CaiStrides,
            Self::Tensor => Field::TensorStrides,
        }
    }

    const fn ndim(self) -> Field {
        match self {
            Self::Cai => Field::CaiShape,
            Self::Tensor => Field::TensorNdim,
        }
    }

    #[cold]
    pub(super) fn wrong_count(self, given: usize, rank: usize) -> Violation {
        let found = format_args!("{given} strides for {rank} axes");
        Violation::new(Rule::StridesLength, self.strides(), found)
    }

    #[cold]
    pub(super) fn too_large(self, rule: Rule, shape: &[i64]) -> Violation {
        Violation::new(rule, self.shape(), format_args!("{shape:?}"))
    }

    #[cold]
    pub(super) fn bad_span(self, stride: i64, axis: usize) -> Violation {
        let found = format_args!("{stride} on axis {axis}");
        Violation::new(Rule::SpanOverflow, self.strides(), found)
    }

    #[cold]
    pub(super) fn bad_stride(
        self,
        stride: i64,
        axis: usize,
        itemsize: i64,
        unit: Unit,
    ) -> Violation {
        match unit {
            Unit::Elements => self.bad_span(stride, axis),
            Unit::Bytes => Violation::new(
                Rule::StridesMultiple,
                self.strides(),
                format_args!("{stride} on axis {axis}, where an item has {itemsize} bytes"),
            )
            .with_hint("make a contiguous copy with the producer"),
        }
    }
}
