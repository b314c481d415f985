//! Shapes and strides: read once, checked once, free of overflow from then on.
//!
//! CAI counts strides in bytes, DLPack in elements; [`Layout`] is always in elements and always has
//! strides. [`Axes`] is the untrusted input of both.
//!
//! What a `Layout` promises, and all arithmetic below relies on it:
//! every extent is 0 or more; the number of elements, and that number times the item size, fit
//! `i64`; every element stride times the item size fits `i64`; and so does the distance in bytes
//! between the first and the last byte.

use smallvec::SmallVec;

use super::dtype::DType;
use super::rule::{Field, Rule, Violation};

/// The most dimensions that are taken: NumPy's limit.
pub const MAX_NDIM: usize = 64;

/// Shape, then strides: up to four axes without an allocation.
type Values = SmallVec<[i64; 8]>;

/// Which protocol's fields a refusal names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// `__cuda_array_interface__`: strides in bytes.
    Cai,
    /// `DLTensor`: strides in elements.
    Tensor,
}

impl Source {
    const fn shape(self) -> Field {
        match self {
            Self::Cai => Field::CaiShape,
            Self::Tensor => Field::TensorShape,
        }
    }

    const fn strides(self) -> Field {
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
}

/// Extents and strides as they are read, before they are checked against each other.
///
/// All extents first, then, where strides are given, [`expect_strides`](Self::expect_strides) and
/// one stride per axis.
#[derive(Clone, Debug)]
pub struct Axes {
    values: Values,
    ndim: u8,
    source: Source,
    has_strides: bool,
}

impl Axes {
    /// No axes yet.
    #[must_use]
    #[inline]
    pub fn new(source: Source) -> Self {
        Self {
            values: SmallVec::new(),
            ndim: 0,
            source,
            has_strides: false,
        }
    }

    /// All axes at once.
    ///
    /// # Errors
    /// Those of [`push_extent`](Self::push_extent) and [`expect_strides`](Self::expect_strides).
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
        let mut values = Values::from_elem(0, rank.wrapping_mul(2));
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

    /// Finds the extent at fault.
    #[cold]
    fn refuse_shape(source: Source, shape: &[i64]) -> Violation {
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

    /// Says that `count` strides follow. Without this call, an empty list of strides for an array
    /// of one or more axes could not be told from none.
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

    /// Adds the next axis' stride.
    ///
    /// # Errors
    /// `strides-length` (ValueError) where there are more strides than axes.
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

    /// The extents.
    #[must_use]
    pub fn shape(&self) -> &[i64] {
        self.values.get(..self.ndim()).unwrap_or(&[])
    }

    /// The strides, where they are given: of [`Source::Cai`] in bytes, else in elements.
    #[must_use]
    pub fn strides(&self) -> Option<&[i64]> {
        if self.has_strides {
            self.values.get(self.ndim()..)
        } else {
            None
        }
    }

    /// The number of axes.
    #[must_use]
    pub const fn ndim(&self) -> usize {
        self.ndim as usize
    }
}

/// The unit of the strides that come in.
#[derive(Clone, Copy)]
enum Unit {
    Bytes,
    Elements,
}

/// A checked shape with one element stride per axis.
#[derive(Clone, Debug)]
pub struct Layout(Numbers);

/// Up to so many axes a layout has no allocation of its own.
pub(super) const FEW: usize = 4;

/// The extents, and after them the strides in elements; and, in bytes that would be padding, what a
/// [`Descriptor`](super::descriptor::Descriptor) knows of the elements: every view is 8 bytes smaller so.
#[derive(Clone, Debug)]
enum Numbers {
    Few {
        ndim: u8,
        c_contiguous: bool,
        element: Element,
        values: [i64; 2 * FEW],
    },
    Many {
        ndim: u8,
        c_contiguous: bool,
        element: Element,
        values: Box<[i64]>,
    },
}

/// What a layout carries for a descriptor, and never looks at.
#[derive(Clone, Copy, Debug)]
pub(super) struct Element {
    pub(super) dtype: DType,
    pub(super) flags: u8,
}

impl Element {
    /// Of a layout that is nobody's yet.
    const UNSAID: Self = Self {
        dtype: DType::U8,
        flags: 0,
    };
}

impl PartialEq for Layout {
    fn eq(&self, other: &Self) -> bool {
        self.values() == other.values() && self.ndim() == other.ndim()
    }
}

impl Eq for Layout {}

impl Layout {
    /// Checks axes whose strides are in bytes. Absent strides mean C order.
    ///
    /// The stride of an axis of extent 1, and every stride of an array without elements, means
    /// nothing: any value is taken, and replaced where it would hide that the array is contiguous
    /// or cannot be said in elements.
    ///
    /// # Errors
    /// `strides-length`, `count-overflow`, `size-overflow` and `span-overflow` (ValueError);
    /// `strides-multiple` (BufferError).
    #[inline]
    pub fn from_byte_axes(axes: Axes, itemsize: u32) -> Result<Self, Violation> {
        Self::build(axes, itemsize, Unit::Bytes)
    }

    /// Checks axes whose strides are in elements of `itemsize` bytes, as
    /// [`from_byte_axes`](Self::from_byte_axes) does.
    ///
    /// # Errors
    /// `strides-length`, `count-overflow`, `size-overflow` and `span-overflow` (ValueError).
    #[inline(always)]
    pub fn from_elem_axes(axes: Axes, itemsize: u32) -> Result<Self, Violation> {
        Self::build(axes, itemsize, Unit::Elements)
    }

    fn build(mut axes: Axes, itemsize: u32, unit: Unit) -> Result<Self, Violation> {
        let rank = axes.ndim();
        if !axes.has_strides && axes.values.len() != rank.wrapping_mul(2) {
            axes.values.resize(rank.wrapping_mul(2), 0);
        }
        let (source, has_strides) = (axes.source, axes.has_strides);
        let extent = settle(&mut axes.values, rank, has_strides, itemsize, unit, source)?;
        Ok(Self::of_settled(Settled {
            values: &axes.values,
            ndim: axes.ndim,
            extent,
        }))
    }

    /// What [`settle`] has checked.
    #[inline(always)]
    pub(super) fn of_settled(settled: Settled<'_>) -> Self {
        let mut values = [0; 2 * FEW];
        if usize::from(settled.ndim) > FEW {
            return Self::of_many(settled);
        }
        for (value, from) in values.iter_mut().zip(settled.values) {
            *value = *from;
        }
        Self::of_few(values, settled.ndim, settled.extent, Element::UNSAID)
    }

    /// What [`settle_usual`] has checked, of up to [`FEW`] axes.
    #[inline(always)]
    pub(super) const fn of_few(
        values: [i64; 2 * FEW],
        ndim: u8,
        extent: Extent,
        element: Element,
    ) -> Self {
        Self(Numbers::Few {
            ndim,
            c_contiguous: extent.c_contiguous,
            element,
            values,
        })
    }

    #[inline(never)]
    fn of_many(settled: Settled<'_>) -> Self {
        Self(Numbers::Many {
            ndim: settled.ndim,
            c_contiguous: settled.extent.c_contiguous,
            element: Element::UNSAID,
            values: settled.values.into(),
        })
    }

    /// What a descriptor has put here.
    #[inline]
    pub(super) const fn element(&self) -> Element {
        match self.0 {
            Numbers::Few { element, .. } | Numbers::Many { element, .. } => element,
        }
    }

    /// Where a descriptor keeps what it knows of the elements.
    #[inline]
    pub(super) const fn element_mut(&mut self) -> &mut Element {
        match &mut self.0 {
            Numbers::Few { element, .. } | Numbers::Many { element, .. } => element,
        }
    }

    /// The extents, and after them the strides in elements.
    #[inline]
    pub(crate) fn values(&self) -> &[i64] {
        match &self.0 {
            Numbers::Few { ndim, values, .. } => {
                let both = usize::from(*ndim).wrapping_mul(2);
                values.get(..both).unwrap_or(values)
            }
            Numbers::Many { values, .. } => values,
        }
    }

    /// The extents.
    #[must_use]
    #[inline]
    pub fn shape(&self) -> &[i64] {
        self.values().get(..self.ndim()).unwrap_or(&[])
    }

    /// One stride per axis, in elements.
    #[must_use]
    #[inline]
    pub fn elem_strides(&self) -> &[i64] {
        self.values().get(self.ndim()..).unwrap_or(&[])
    }

    /// One stride per axis, in bytes. `itemsize` is the one that the layout was checked with.
    #[inline]
    pub fn byte_strides(
        &self,
        itemsize: u32,
    ) -> impl ExactSizeIterator<Item = i64> + DoubleEndedIterator + '_ {
        let itemsize = i64::from(itemsize);
        let strides = self.elem_strides().iter();
        strides.map(move |stride| stride.wrapping_mul(itemsize)) // fits: see the module
    }

    /// The number of axes.
    #[must_use]
    #[inline]
    pub const fn ndim(&self) -> usize {
        match self.0 {
            Numbers::Few { ndim, .. } | Numbers::Many { ndim, .. } => ndim as usize,
        }
    }

    /// The number of elements.
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

    /// Whether the elements lie one after the other with the last axis fastest. Axes of extent 1
    /// do not count, and an array without elements is contiguous.
    #[must_use]
    #[inline]
    pub const fn is_c_contiguous(&self) -> bool {
        match self.0 {
            Numbers::Few { c_contiguous, .. } | Numbers::Many { c_contiguous, .. } => c_contiguous,
        }
    }

    /// Whether the elements lie one after the other with the first axis fastest.
    #[must_use]
    pub fn is_f_contiguous(&self) -> bool {
        self.len() == 0 || follows_f_order(self.shape(), self.elem_strides())
    }

    /// The offsets in elements of the first element that is touched and of the end of the last,
    /// seen from the element that the data pointer points to: `(lowest <= 0, end)`.
    /// `(0, 0)` without elements.
    #[must_use]
    #[inline]
    pub fn elem_span(&self) -> (i64, i64) {
        if self.is_c_contiguous() {
            return (0, self.len().cast_signed());
        }
        span_of(self.shape(), self.elem_strides())
    }

    /// Whether two indices may mean the same memory.
    ///
    /// Exact for up to two axes of extent above 1 (and for every array that was sliced, transposed
    /// or broadcast out of a contiguous one). For other strides the exact answer is a hard problem
    /// of number theory, and the answer is `true`: a mutable borrow that is refused does no harm.
    #[must_use]
    pub fn is_self_overlapping(&self) -> bool {
        if self.is_c_contiguous() {
            return false;
        }
        let axes = self.shape().iter().zip(self.elem_strides());
        let mut axes: SmallVec<[(u64, u64); 4]> = axes
            .filter(|(extent, _)| **extent > 1)
            .map(|(extent, stride)| (stride.unsigned_abs(), extent.unsigned_abs()))
            .collect();
        axes.sort_unstable();
        if let [(near, few), (far, many)] = *axes
            && near > 0
        {
            // i * near == j * far needs |i| to be a multiple of far / gcd, and |j| of near / gcd.
            let common = greatest_common_divisor(near, far);
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

/// What is known of a shape and its strides beside the numbers themselves.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent {
    pub(super) len: u64,
    pub(super) c_contiguous: bool,
}

/// Where the elements of an array lie, in elements, seen from the one of index 0.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reach {
    /// From the lowest element to index 0's.
    pub(super) below: u64,
    /// From the lowest element to the end of the highest.
    pub(super) whole: u64,
}

/// A [`Layout`] whose numbers lie elsewhere.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settled<'a> {
    /// The extents, and after them the strides in elements.
    pub(super) values: &'a [i64],
    pub(super) ndim: u8,
    pub(super) extent: Extent,
}

/// [`Layout::from_byte_axes`] where the numbers lie: `ndim` extents in `values`, and after them as many
/// strides in bytes, or room for them.
pub(super) fn settle_bytes(
    values: &mut [i64],
    ndim: u8,
    has_strides: bool,
    itemsize: u32,
) -> Result<Settled<'_>, Violation> {
    let (source, rank) = (Source::Cai, usize::from(ndim));
    let shape = values.get(..rank).unwrap_or(&[]);
    if rank > MAX_NDIM || shape.iter().any(|extent| *extent < 0) {
        return Err(Axes::refuse_shape(source, shape));
    }
    let extent = settle(values, rank, has_strides, itemsize, Unit::Bytes, source)?;
    Ok(Settled {
        values,
        ndim,
        extent,
    })
}

/// Brings the strides into elements, and fills them in where they are absent. The strides, or room for
/// them, stand behind `rank` extents.
fn settle(
    values: &mut [i64],
    rank: usize,
    has_strides: bool,
    itemsize: u32,
    unit: Unit,
    source: Source,
) -> Result<Extent, Violation> {
    let given = values.len().saturating_sub(rank);
    let (shape, strides) = match values.split_at_mut_checked(rank) {
        Some(halves) if given == rank => halves,
        _ => return Err(source.wrong_count(given, rank)),
    };
    let (len, c_contiguous) = if !has_strides || shape.contains(&0) {
        (fill_c_order(shape, strides, itemsize, source)?, true)
    } else {
        check_strides(shape, strides, itemsize, unit, source)?
    };
    Ok(Extent {
        len: len.unsigned_abs(),
        c_contiguous,
    })
}

/// Writes C order's strides and answers the number of elements.
fn fill_c_order(
    shape: &[i64],
    strides: &mut [i64],
    itemsize: u32,
    source: Source,
) -> Result<i64, Violation> {
    let mut step: i64 = 1; // counts an extent of 0 as 1
    let mut len: i64 = 1;
    let mut overflow = false;
    for (extent, stride) in shape.iter().zip(strides.iter_mut()).rev() {
        *stride = step;
        len = len.wrapping_mul(*extent);
        let (next, lost) = step.overflowing_mul((*extent).max(1));
        step = next;
        overflow |= lost;
    }
    if !overflow && step.checked_mul(i64::from(itemsize)).is_some() {
        return Ok(len);
    }
    if shape.contains(&0) {
        // (0, 2**40, 2**40) is a legal shape; its strides mean nothing.
        strides.fill(0);
        return Ok(0);
    }
    let rule = if overflow {
        Rule::CountOverflow
    } else {
        Rule::SizeOverflow
    };
    Err(source.too_large(rule, shape))
}

/// [`settle`] in one pass for what is usual: an array with elements whose strides are multiples of an item,
/// and no number of which comes near a limit. It is told of each axis, the last one first.
///
/// Every number that is made goes into `all`. While `all` has no more than 32 bits no product of two of them
/// loses any, so that the first one that is too large is seen there, whatever becomes of those after it.
struct Pass {
    /// What the stride would be in C order.
    step: u64,
    all: u64,
    reach: Reach,
    /// The smallest extent. The stride of one may be replaced by contiguous order's.
    least: u64,
    /// What of the strides is not C order's.
    apart: u64,
    /// What of the strides is no multiple of the item size.
    rest: i64,
}

impl Pass {
    const START: Self = Self {
        step: 1,
        all: 0,
        reach: Reach { below: 0, whole: 1 },
        least: u64::MAX,
        apart: 0,
        rest: 0,
    };

    /// An axis with a stride in items of `1 << shift` bytes, or in elements (0).
    #[inline(always)]
    fn strided(&mut self, extent: i64, stride: i64, shift: u32) {
        let (elements, extent) = (stride.wrapping_shr(shift), extent.cast_unsigned());
        self.rest |= stride & 1_i64.wrapping_shl(shift).wrapping_sub(1);
        self.least = self.least.min(extent);
        self.apart |= elements.cast_unsigned() ^ self.step;
        let size = elements.unsigned_abs();
        let far = size.wrapping_mul(extent.wrapping_sub(1));
        if elements < 0 {
            self.reach.below = self.reach.below.wrapping_add(far);
        }
        self.reach.whole = self.reach.whole.wrapping_add(far);
        self.step = self.step.wrapping_mul(extent);
        self.all |= extent | size | self.reach.whole | self.step; // `far` is no larger than `whole`
    }

    /// An axis in C order; its stride.
    #[inline(always)]
    fn in_order(&mut self, extent: i64) -> i64 {
        let stride = self.step.cast_signed();
        self.step = self.step.wrapping_mul(extent.cast_unsigned());
        self.reach.whole = self.step;
        self.all |= extent.cast_unsigned() | self.step;
        stride
    }

    /// `None` for what is not usual.
    #[inline(always)]
    fn end(self) -> Option<(Extent, Reach)> {
        let c_contiguous = self.apart == 0;
        let hides_order = self.least == 1 && !c_contiguous;
        if self.step == 0 || self.all >> 32 != 0 || self.rest != 0 || hides_order {
            return None;
        }
        let extent = Extent {
            len: self.step,
            c_contiguous,
        };
        Some((extent, self.reach))
    }
}

/// One [`Pass`] over numbers where they lie: the strides, or room for them, stand behind `rank` extents.
/// Those that are given stay in bytes, of items of `1 << shift`.
#[inline(always)]
pub(super) fn settle_usual(
    values: &mut [i64],
    rank: usize,
    has_strides: bool,
    shift: u32,
) -> Option<(Extent, Reach)> {
    let (shape, strides) = values.split_at_mut_checked(rank)?;
    if strides.len() != rank {
        return None;
    }
    let mut pass = Pass::START;
    for (extent, stride) in shape.iter().zip(strides).rev() {
        if has_strides {
            pass.strided(*extent, *stride, shift);
        } else {
            *stride = pass.in_order(*extent);
        }
    }
    pass.end()
}

/// One [`Pass`] over numbers that lie elsewhere, with strides in elements: they are put into `values`.
#[inline(always)]
pub(super) fn take_usual(
    values: &mut [i64; 2 * FEW],
    shape: &[i64],
    strides: Option<&[i64]>,
) -> Option<(Extent, Reach)> {
    match shape.len() {
        0 => take::<0>(values, shape, strides),
        1 => take::<1>(values, shape, strides),
        2 => take::<2>(values, shape, strides),
        3 => take::<3>(values, shape, strides),
        FEW => take::<FEW>(values, shape, strides),
        _ => None,
    }
}

/// [`take_usual`] of so many axes: a loop of a known length is no loop.
#[inline(always)]
fn take<const N: usize>(
    values: &mut [i64; 2 * FEW],
    shape: &[i64],
    strides: Option<&[i64]>,
) -> Option<(Extent, Reach)> {
    let shape: &[i64; N] = shape.try_into().ok()?;
    let (extents, rest) = values.split_first_chunk_mut::<N>()?;
    let places = rest.first_chunk_mut::<N>()?;
    *extents = *shape;
    let mut pass = Pass::START;
    if let Some(strides) = strides {
        *places = *<&[i64; N]>::try_from(strides).ok()?;
        if let Some(found) = in_c_order(shape, places) {
            return Some(found);
        }
        for (extent, stride) in shape.iter().zip(&*places).rev() {
            pass.strided(*extent, *stride, 0);
        }
    } else {
        for (extent, place) in shape.iter().zip(places).rev() {
            *place = pass.in_order(*extent);
        }
    }
    pass.end()
}

/// The same [`Pass`] where the strides say C order, as most do: then there is less to keep account of.
#[inline(always)]
fn in_c_order<const N: usize>(shape: &[i64; N], strides: &[i64; N]) -> Option<(Extent, Reach)> {
    let mut pass = Pass::START;
    for (extent, stride) in shape.iter().zip(strides).rev() {
        pass.apart |= stride.cast_unsigned() ^ pass.step;
        pass.in_order(*extent);
    }
    if pass.apart == 0 { pass.end() } else { None }
}

/// Brings the strides behind `rank` extents into elements of `1 << shift` bytes.
#[inline(always)]
pub(super) fn in_elements(values: &mut [i64], rank: usize, shift: u32) {
    for stride in values.iter_mut().skip(rank) {
        *stride = stride.wrapping_shr(shift);
    }
}

/// Whether elements of `itemsize` bytes, the first of them at `data`, lie within the address space.
/// `reach` is [`settle_usual`]'s: products with an item size (below 2^21) fit.
#[inline(always)]
pub(super) fn is_within_memory(data: u64, reach: Reach, itemsize: u32) -> bool {
    let itemsize = u64::from(itemsize);
    let above = reach.whole.wrapping_sub(reach.below).wrapping_mul(itemsize);
    data >= reach.below.wrapping_mul(itemsize) && data.checked_add(above).is_some()
}

/// [`settle`] for strides that are given, of an array with elements.
fn check_strides(
    shape: &[i64],
    strides: &mut [i64],
    itemsize: u32,
    unit: Unit,
    source: Source,
) -> Result<(i64, bool), Violation> {
    let itemsize = i64::from(itemsize);
    let mut step: i64 = 1; // what the stride would be in C order
    let mut reach: i64 = 1; // elements from the lowest to the end of the highest
    let mut c_contiguous = true;
    for (axis, (extent, stride)) in shape.iter().zip(strides.iter_mut()).enumerate().rev() {
        let found = *stride;
        let elements = match unit {
            Unit::Bytes => divide_exactly(found, itemsize),
            Unit::Elements => found.checked_mul(itemsize).map(|_| found),
        };
        if *extent == 1 {
            *stride = elements.unwrap_or(step);
            continue;
        }
        let Some(elements) = elements else {
            return Err(source.bad_stride(found, axis, itemsize, unit));
        };
        *stride = elements;
        c_contiguous &= elements == step;
        let next = step.checked_mul(*extent);
        let far = elements
            .checked_abs()
            .and_then(|s| s.checked_mul(extent.wrapping_sub(1)));
        let Some(next) = next else {
            return Err(source.too_large(Rule::CountOverflow, shape));
        };
        step = next;
        let Some(sum) = far.and_then(|far| reach.checked_add(far)) else {
            return Err(source.bad_span(found, axis));
        };
        reach = sum;
    }
    if step.checked_mul(itemsize).is_none() {
        return Err(source.too_large(Rule::SizeOverflow, shape));
    }
    if reach.checked_mul(itemsize).is_none() {
        return Err(Violation::new(
            Rule::SpanOverflow,
            source.strides(),
            format_args!("{reach} elements of {itemsize} bytes from end to end"),
        ));
    }
    settle_single_axes(shape, strides, c_contiguous);
    Ok((step, c_contiguous))
}

/// Gives axes of extent 1 the strides that contiguous order would give them, so that consumers
/// that compare strides exactly see that the array is contiguous.
fn settle_single_axes(shape: &[i64], strides: &mut [i64], c_contiguous: bool) {
    let axes = shape.iter().zip(strides.iter_mut());
    if c_contiguous {
        settle_in_order(axes.rev());
    } else if follows_f_order(shape, strides) {
        settle_in_order(shape.iter().zip(strides.iter_mut()));
    }
}

/// Writes the strides of axes of extent 1, fastest axis first.
fn settle_in_order<'a>(axes: impl Iterator<Item = (&'a i64, &'a mut i64)>) {
    let mut step: i64 = 1;
    for (extent, stride) in axes {
        if *extent == 1 {
            *stride = step;
        }
        step = step.wrapping_mul(*extent); // fits: the number of elements does
    }
}

/// Whether the strides are those of Fortran order where they mean anything.
fn follows_f_order(shape: &[i64], strides: &[i64]) -> bool {
    let mut step: i64 = 1;
    for (extent, stride) in shape.iter().zip(strides) {
        if *extent != 1 && *stride != step {
            return false;
        }
        step = step.wrapping_mul(*extent); // fits: the number of elements does
    }
    true
}

/// `stride / itemsize` where nothing is left over. Item sizes are nearly always powers of two.
#[inline]
fn divide_exactly(stride: i64, itemsize: i64) -> Option<i64> {
    let mask = itemsize.wrapping_sub(1);
    if itemsize & mask == 0 && itemsize > 0 {
        return (stride & mask == 0).then(|| stride.wrapping_shr(itemsize.trailing_zeros()));
    }
    match stride.checked_rem(itemsize) {
        Some(0) => stride.checked_div(itemsize),
        _ => None,
    }
}

/// [`Layout::elem_span`] of an array with elements.
#[inline]
pub(super) fn span_of(shape: &[i64], strides: &[i64]) -> (i64, i64) {
    let axes = shape.iter().zip(strides);
    axes.fold((0, 1), |(lowest, end): (i64, i64), (extent, stride)| {
        let reach = extent.wrapping_sub(1).wrapping_mul(*stride); // fits: see the module
        (
            lowest.wrapping_add(reach.min(0)),
            end.wrapping_add(reach.max(0)),
        )
    })
}

fn greatest_common_divisor(mut a: u64, mut b: u64) -> u64 {
    while let Some(rest) = a.checked_rem(b) {
        (a, b) = (b, rest);
    }
    a
}

impl Source {
    #[cold]
    fn wrong_count(self, given: usize, rank: usize) -> Violation {
        let found = format_args!("{given} strides for {rank} axes");
        Violation::new(Rule::StridesLength, self.strides(), found)
    }

    #[cold]
    fn too_large(self, rule: Rule, shape: &[i64]) -> Violation {
        Violation::new(rule, self.shape(), format_args!("{shape:?}"))
    }

    #[cold]
    fn bad_span(self, stride: i64, axis: usize) -> Violation {
        let found = format_args!("{stride} on axis {axis}");
        Violation::new(Rule::SpanOverflow, self.strides(), found)
    }

    #[cold]
    fn bad_stride(self, stride: i64, axis: usize, itemsize: i64, unit: Unit) -> Violation {
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

#[cfg(test)]
mod tests;
