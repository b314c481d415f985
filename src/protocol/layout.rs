//! [`Layout`]: a checked shape with strides in elements.
//!
//! CAI counts strides in bytes, DLPack in elements; a [`Layout`] always has strides, and always in
//! elements. Only the strides of a dict that DLPack cannot describe, because one is no whole number of
//! elements, stay in bytes. All arithmetic below relies on what a `Layout` guarantees:
//!
//! - every extent is 0 or more;
//! - the number of elements, and that number times the item size, fit `i64`;
//! - every stride in bytes fits `i64`, but for those that mean nothing;
//! - the distance in bytes from the first to the last byte fits `i64`.
//!
//! The stride of an axis of extent 1, and every stride of an array without elements, means nothing: no two elements
//! are that far apart. DLPack can carry any number there, and consumers that look at it see what the producer wrote.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use super::axes::{Axes, Source, Unit};
use super::cai_only::CaiOnly;
use super::device::Flags;
use super::dtype::DType;
use super::few::{INLINE_AXES, PerAxis};
use super::rule::{Rule, Violation};

mod check;
mod check_fast;

pub(super) use check::{LayoutRef, Summary, check_bytes};
pub(super) use check_fast::{check_fast, copy_fast, is_within_memory, to_elements};

/// A checked shape with one stride per axis, in elements.
///
/// ```
/// use cai_dlpack::protocol::axes::{Axes, Source};
/// use cai_dlpack::protocol::layout::Layout;
///
/// // Two rows of three 4-byte items, every second row of a larger array.
/// let axes = Axes::from_slices(Source::Cai, &[2, 3], Some(&[24, 4]))?;
/// let layout = Layout::from_byte_axes(axes, 4)?;
/// assert_eq!(layout.elem_strides(), [6, 1]);
/// assert_eq!((layout.len(), layout.elem_span()), (6, (0, 9)));
/// assert!(!layout.is_c_contiguous() && !layout.is_f_contiguous() && !layout.is_self_overlapping());
/// assert_eq!((layout.ndim(), layout.shape()), (2, &[2, 3][..]));
/// assert_eq!(layout.byte_strides(4).collect::<Vec<_>>(), [24, 4]);
/// # Ok::<(), cai_dlpack::protocol::rule::Violation>(())
/// ```
#[derive(Clone)]
pub struct Layout(Numbers);

impl fmt::Debug for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Layout")
            .field("shape", &self.shape())
            .field("elem_strides", &self.elem_strides())
            .finish()
    }
}

/// The extents, then the strides in elements; and the [`Element`], in bytes that would be padding,
/// which makes every view 8 bytes smaller. The `byte_offset` of an opaque handle needs no room of its own either: such
/// tensors are rare, and are boxed whatever their number of axes.
#[derive(Clone)]
enum Numbers {
    Inline {
        ndim: u8,
        c_contiguous: bool,
        element: Element,
        values: [i64; 2 * INLINE_AXES],
    },
    Boxed {
        ndim: u8,
        c_contiguous: bool,
        element: Element,
        byte_offset: u64,
        /// The item size, if the strides are in bytes: one of them is no whole number of items. Else `None`.
        uneven: Option<u32>,
        /// Of a dict that DLPack cannot describe. Such arrays are boxed too.
        cai_only: Option<Arc<CaiOnly>>,
        values: Box<[i64]>,
    },
}

/// The fields of [`Numbers::Boxed`] that few layouts have.
struct Rare<'a> {
    c_contiguous: &'a mut bool,
    byte_offset: &'a mut u64,
    uneven: &'a mut Option<u32>,
    cai_only: &'a mut Option<Arc<CaiOnly>>,
}

/// The element type and flags of a [`Descriptor`](super::descriptor::Descriptor). A layout stores
/// them and does not use them.
#[derive(Clone, Copy)]
pub(super) struct Element {
    pub(super) dtype: DType,
    pub(super) flags: Flags,
}

impl Element {
    /// The placeholder of a layout that belongs to no descriptor yet.
    const UNSET: Self = Self {
        dtype: DType::U8,
        flags: Flags::NONE,
    };
}

impl PartialEq for Layout {
    fn eq(&self, other: &Self) -> bool {
        self.values() == other.values()
            && self.ndim() == other.ndim()
            && self.uneven() == other.uneven()
    }
}

impl Eq for Layout {}

impl Hash for Layout {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.values().hash(state);
    }
}

impl Layout {
    /// Checks axes whose strides are in bytes. Absent strides mean C order.
    ///
    /// The stride of an axis of extent 1, and every stride of an array without elements, has no
    /// meaning: any value is accepted, and replaced if it is no number of elements.
    ///
    /// # Errors
    /// `strides-length`, `count-overflow`, `size-overflow` and `span-overflow` (ValueError);
    /// `strides-multiple` (BufferError).
    #[inline]
    pub fn from_byte_axes(axes: Axes, itemsize: u32) -> Result<Self, Violation> {
        Self::build(axes, itemsize, Unit::Bytes)
    }

    /// Like [`from_byte_axes`](Self::from_byte_axes), for a dict: also takes strides that are no whole number of items,
    /// which [`check_even`](Self::check_even) refuses for DLPack.
    pub(super) fn from_dict_axes(axes: Axes, itemsize: u32) -> Result<Self, Violation> {
        let has_uneven = |violation: &Violation| violation.rule() == Rule::StridesMultiple;
        match Self::from_byte_axes(axes.clone(), itemsize) {
            Err(violation) if has_uneven(&violation) => Self::uneven_axes(axes, itemsize),
            checked => checked,
        }
    }

    /// Checks the axes as of single bytes: a stride of any number is one of them.
    #[cold]
    fn uneven_axes(axes: Axes, itemsize: u32) -> Result<Self, Violation> {
        let source = axes.source;
        let mut layout = Self::build(axes, 1, Unit::Bytes)?;
        let item = i64::from(itemsize);
        if layout.len().cast_signed().checked_mul(item).is_none() {
            return Err(source.too_large(Rule::SizeOverflow, layout.shape()));
        }
        let (lowest, end) = layout.borrowed().elem_span();
        if end
            .checked_sub(lowest)
            .and_then(|bytes| bytes.checked_add(item))
            .is_none()
        {
            let found = format_args!(
                "{} bytes and an item of {item} from end to end",
                end.wrapping_sub(lowest)
            );
            return Err(Violation::new(Rule::SpanOverflow, source.strides(), found));
        }
        let rare = layout.rare_mut();
        *rare.c_contiguous = false;
        *rare.uneven = Some(itemsize);
        Ok(layout)
    }

    /// Checks that every stride that means something is a whole number of items, as DLPack counts.
    ///
    /// # Errors
    /// `strides-multiple` (BufferError).
    pub(super) fn check_even(&self) -> Result<(), Violation> {
        let Some(itemsize) = self.uneven() else {
            return Ok(());
        };
        let item = i64::from(itemsize);
        let axes = self.shape().iter().zip(self.strides()).enumerate().rev();
        let is_odd =
            |(extent, stride): (&i64, &i64)| *extent != 1 && stride.checked_rem(item) != Some(0);
        for (axis, (extent, stride)) in axes {
            if is_odd((extent, stride)) {
                return Err(Source::Cai.bad_stride(*stride, axis, item, Unit::Bytes));
            }
        }
        Ok(())
    }

    /// Checks axes whose strides are in elements of `itemsize` bytes, as
    /// [`from_byte_axes`](Self::from_byte_axes) does. They are kept as they are.
    ///
    /// # Errors
    /// `strides-length`, `count-overflow`, `size-overflow` and `span-overflow` (ValueError).
    ///
    /// ```
    /// use cai_dlpack::protocol::axes::{Axes, Source};
    /// use cai_dlpack::protocol::layout::Layout;
    ///
    /// let axes = Axes::from_slices(Source::Tensor, &[2, 3], Some(&[1, 2]))?;
    /// let columns = Layout::from_elem_axes(axes, 4)?;
    /// assert!(columns.ndim() == 2 && columns.is_f_contiguous());
    /// # Ok::<(), cai_dlpack::protocol::rule::Violation>(())
    /// ```
    #[inline(always)]
    pub fn from_elem_axes(axes: Axes, itemsize: u32) -> Result<Self, Violation> {
        Self::build(axes, itemsize, Unit::Elements)
    }

    fn build(mut axes: Axes, itemsize: u32, unit: Unit) -> Result<Self, Violation> {
        let (rank, both) = (axes.ndim(), axes.ndim().wrapping_mul(2));
        if !axes.has_strides && axes.values.len() != both {
            axes.values.resize(both, 0);
        }
        let (source, has_strides) = (axes.source, axes.has_strides);
        let values = &mut axes.values;
        let summary = check::check(values, rank, has_strides, itemsize, unit, source)?;
        Ok(Self::from_ref(LayoutRef {
            values: &axes.values,
            ndim: axes.ndim,
            summary,
        }))
    }

    /// Copies a checked layout.
    #[inline(always)]
    pub(super) fn from_ref(from: LayoutRef<'_>) -> Self {
        let mut values = [0; 2 * INLINE_AXES];
        if usize::from(from.ndim) > INLINE_AXES {
            return Self::boxed(from);
        }
        for (value, from) in values.iter_mut().zip(from.values) {
            *value = *from;
        }
        Self::inline(values, from.ndim, from.summary, Element::UNSET)
    }

    /// Stores numbers that [`copy_fast`] has checked.
    #[inline(always)]
    pub(super) const fn inline(
        values: [i64; 2 * INLINE_AXES],
        ndim: u8,
        summary: Summary,
        element: Element,
    ) -> Self {
        Self(Numbers::Inline {
            ndim,
            c_contiguous: summary.c_contiguous,
            element,
            values,
        })
    }

    #[inline(never)]
    fn boxed(from: LayoutRef<'_>) -> Self {
        Self(Numbers::Boxed {
            ndim: from.ndim,
            c_contiguous: from.summary.c_contiguous,
            element: Element::UNSET,
            byte_offset: 0,
            uneven: None,
            cai_only: None,
            values: from.values.into(),
        })
    }

    /// Boxes the numbers, and returns the fields that only boxed ones have.
    fn rare_mut(&mut self) -> Rare<'_> {
        if let Numbers::Inline { element, .. } = self.0 {
            let mut boxed = Self::boxed(self.borrowed());
            *boxed.element_mut() = element;
            *self = boxed;
        }
        match &mut self.0 {
            Numbers::Inline { .. } => unreachable!("boxed above"),
            Numbers::Boxed {
                c_contiguous,
                byte_offset,
                uneven,
                cai_only,
                ..
            } => Rare {
                c_contiguous,
                byte_offset,
                uneven,
                cai_only,
            },
        }
    }

    /// Returns the item size, if the strides are in bytes.
    #[inline]
    fn uneven(&self) -> Option<u32> {
        match self.0 {
            Numbers::Inline { .. } => None,
            Numbers::Boxed { uneven, .. } => uneven,
        }
    }

    /// Returns what only a dict can say of the items.
    #[inline]
    pub(super) fn cai_only(&self) -> Option<&Arc<CaiOnly>> {
        match &self.0 {
            Numbers::Inline { .. } => None,
            Numbers::Boxed { cai_only, .. } => cai_only.as_ref(),
        }
    }

    /// Stores what only a dict can say of the items, or removes it.
    pub(super) fn with_cai_only(mut self, only: Option<Arc<CaiOnly>>) -> Self {
        if only.is_some() || self.cai_only().is_some() {
            *self.rare_mut().cai_only = only;
        }
        self
    }

    /// Borrows the extents and strides.
    #[inline]
    pub(super) fn borrowed(&self) -> LayoutRef<'_> {
        let ndim = match self.0 {
            Numbers::Inline { ndim, .. } | Numbers::Boxed { ndim, .. } => ndim,
        };
        LayoutRef {
            values: self.values(),
            ndim,
            summary: Summary {
                len: self.len(),
                c_contiguous: self.is_c_contiguous(),
            },
        }
    }

    /// Returns the element type and flags of the descriptor.
    #[inline]
    pub(super) const fn element(&self) -> Element {
        match self.0 {
            Numbers::Inline { element, .. } | Numbers::Boxed { element, .. } => element,
        }
    }

    /// Returns the place of the descriptor's element type and flags.
    #[inline]
    pub(super) const fn element_mut(&mut self) -> &mut Element {
        match &mut self.0 {
            Numbers::Inline { element, .. } | Numbers::Boxed { element, .. } => element,
        }
    }

    /// Returns the `byte_offset` of an opaque handle; 0 for an address.
    #[inline]
    pub(super) const fn byte_offset(&self) -> u64 {
        match self.0 {
            Numbers::Inline { .. } => 0,
            Numbers::Boxed { byte_offset, .. } => byte_offset,
        }
    }

    /// Stores the `byte_offset` of an opaque handle.
    pub(super) fn with_byte_offset(self, byte_offset: u64) -> Self {
        if byte_offset == 0 {
            return self;
        }
        let mut boxed = self;
        *boxed.rare_mut().byte_offset = byte_offset;
        boxed
    }

    /// Returns the extents, then the strides in elements.
    #[inline]
    pub(crate) fn values(&self) -> &[i64] {
        match &self.0 {
            Numbers::Inline { ndim, values, .. } => {
                let both = usize::from(*ndim).wrapping_mul(2);
                values.get(..both).unwrap_or(values)
            }
            Numbers::Boxed { values, .. } => values,
        }
    }

    /// Returns the extents.
    #[must_use]
    #[inline]
    pub fn shape(&self) -> &[i64] {
        self.values().get(..self.ndim()).unwrap_or(&[])
    }

    /// Returns one stride per axis, in elements; none at all if a stride is no whole number of elements, which only CAI
    /// can say.
    #[must_use]
    #[inline]
    pub fn elem_strides(&self) -> &[i64] {
        match self.uneven() {
            None => self.strides(),
            Some(_) => &[],
        }
    }

    /// Returns one stride per axis, in elements, or in bytes if they are uneven.
    #[inline]
    fn strides(&self) -> &[i64] {
        self.values().get(self.ndim()..).unwrap_or(&[])
    }

    /// Whether an axis runs backwards.
    pub(crate) fn has_negative_strides(&self) -> bool {
        self.strides().iter().any(|stride| *stride < 0)
    }

    /// Returns one stride per axis, in bytes. `itemsize` must be the one that the layout was checked
    /// with. A stride that means nothing and does not fit is 0.
    #[inline]
    pub fn byte_strides(
        &self,
        itemsize: u32,
    ) -> impl ExactSizeIterator<Item = i64> + DoubleEndedIterator + '_ {
        let itemsize = match self.uneven() {
            None => i64::from(itemsize),
            Some(_) => 1,
        };
        let strides = self.strides().iter();
        strides.map(move |stride| stride.checked_mul(itemsize).unwrap_or(0))
    }

    /// Returns the strides for the array interface, in bytes; `None` in C order and without elements, because some
    /// consumers treat explicit strides as the slow case, or reject them. Strides that mean nothing are those of Fortran
    /// order where the array is in this order, since some consumers compare strides exactly.
    pub(crate) fn interface_strides(&self, itemsize: u32) -> Option<PerAxis<i64>> {
        if self.is_c_contiguous() {
            return None;
        }
        let mut strides: PerAxis<i64> = self.byte_strides(itemsize).collect();
        if self.follows_f_order() {
            check::straighten_f_order(self.shape(), &mut strides, i64::from(itemsize));
        }
        Some(strides)
    }

    /// Returns the number of axes.
    #[must_use]
    #[inline]
    pub const fn ndim(&self) -> usize {
        match self.0 {
            Numbers::Inline { ndim, .. } | Numbers::Boxed { ndim, .. } => ndim as usize,
        }
    }

    /// Returns the number of elements.
    #[must_use]
    #[inline]
    #[expect(
        clippy::len_without_is_empty,
        reason = "a layout of no elements is nothing special"
    )]
    pub fn len(&self) -> u64 {
        let count = |len: u64, extent: &i64| len.wrapping_mul(extent.unsigned_abs()); // fits
        self.shape().iter().fold(1, count)
    }

    /// Whether the elements are adjacent, the last axis fastest. Axes of extent 1 are ignored, and
    /// an array without elements is contiguous.
    #[must_use]
    #[inline]
    pub const fn is_c_contiguous(&self) -> bool {
        match self.0 {
            Numbers::Inline { c_contiguous, .. } | Numbers::Boxed { c_contiguous, .. } => {
                c_contiguous
            }
        }
    }

    /// Whether the elements are adjacent, the first axis fastest; otherwise like
    /// [`is_c_contiguous`](Self::is_c_contiguous).
    #[must_use]
    pub fn is_f_contiguous(&self) -> bool {
        self.len() == 0 || self.follows_f_order()
    }

    fn follows_f_order(&self) -> bool {
        self.uneven().is_none() && check::follows_f_order(self.shape(), self.strides())
    }

    /// Returns the offsets, in elements, of the lowest element and of the end of the highest one from
    /// the element of index 0: `(lowest <= 0, end)`; `(0, 0)` without elements. Of no meaning if
    /// [`elem_strides`](Self::elem_strides) has none.
    #[must_use]
    #[inline]
    pub fn elem_span(&self) -> (i64, i64) {
        self.borrowed().elem_span()
    }

    /// Returns the offsets, in bytes, of the lowest item and of the end of the highest one from the item of index 0, if
    /// the strides are in bytes.
    #[inline]
    pub(super) fn uneven_reach(&self) -> Option<(i64, i64)> {
        let item = i64::from(self.uneven()?);
        let (lowest, end) = self.borrowed().elem_span();
        Some((lowest, end.wrapping_sub(1).wrapping_add(item))) // fits: see `uneven_axes`
    }

    /// Whether two indices may address the same memory.
    ///
    /// Exact for up to two axes of extent above 1, and for every array that was sliced, transposed
    /// or broadcast out of a contiguous one. For other strides an exact test is a hard problem of
    /// number theory, and this returns `true`: refusing a mutable borrow does no harm.
    #[must_use]
    pub fn is_self_overlapping(&self) -> bool {
        if self.is_c_contiguous() {
            return false;
        }
        if self.uneven().is_some() {
            return true; // not looked into: no typed view has such strides
        }
        let axes = self.shape().iter().zip(self.elem_strides());
        let mut axes: PerAxis<(u64, u64)> = axes
            .filter(|(extent, _)| **extent > 1)
            .map(|(extent, stride)| (stride.unsigned_abs(), extent.unsigned_abs()))
            .collect();
        axes.sort_unstable();
        if let [(near, few), (far, many)] = *axes
            && near > 0
        {
            // i * near == j * far needs |i| to be a multiple of far / gcd, and |j| of near / gcd.
            let common = gcd(near, far);
            return few > far.checked_div(common).unwrap_or(0)
                && many > near.checked_div(common).unwrap_or(0);
        }
        let mut reach: u64 = 0;
        for (stride, extent) in axes {
            if stride <= reach {
                return true;
            }
            reach = extent
                .saturating_sub(1)
                .saturating_mul(stride)
                .saturating_add(reach);
        }
        false
    }
}

/// Returns the greatest common divisor; that of 0 and `b` is `b`.
pub(crate) fn gcd(mut a: u64, mut b: u64) -> u64 {
    while let Some(rest) = a.checked_rem(b) {
        (a, b) = (b, rest);
    }
    a
}

#[cfg(test)]
mod tests;
