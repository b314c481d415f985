//! A `__cuda_array_interface__` dict as a checked value, versions 0 to 3.
//!
//! The versions differ less than their numbers say. 0 and 1 leave open what absent strides and
//! size 0 mean: what 2 says about them holds for all. 1 brought `mask`, 3 brought `stream`; both
//! are honoured wherever they are given, because producers that write them mean them. A newer
//! version is read as 3.

use super::descriptor::{self, Described, Descriptor, Device, Flags};
use super::dtype::{self, DType, Kind, TypeStr};
use super::layout::{self, Axes, Extent, Layout, Settled, Source};
use super::rule::{Field, Rule, Violation};
use super::stream::Stream;

mod descr;
pub use descr::{Descr, DescrBuilder, DescrField};

/// The version that a dict says it follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Version {
    /// The first.
    V0,
    /// With `mask`.
    V1,
    /// Says what absent strides and size 0 mean.
    V2,
    /// With `stream`.
    V3,
    /// Not published when this was written: read as 3, and the caller warns.
    Newer(i64),
}

impl Version {
    /// What a missing version counts as.
    pub const MISSING: Self = Self::V0;

    /// Checks the number.
    ///
    /// # Errors
    /// `version-range` (ValueError) for a negative number.
    #[inline]
    pub fn from_int(version: i64) -> Result<Self, Violation> {
        Ok(match version {
            0 => Self::V0,
            1 => Self::V1,
            2 => Self::V2,
            3 => Self::V3,
            4.. => Self::Newer(version),
            ..0 => return Err(refuse_version(version)),
        })
    }

    /// The number.
    #[must_use]
    pub const fn number(self) -> i64 {
        match self {
            Self::V0 => 0,
            Self::V1 => 1,
            Self::V2 => 2,
            Self::V3 => 3,
            Self::Newer(number) => number,
        }
    }
}

#[cold]
fn refuse_version(version: i64) -> Violation {
    Violation::new(Rule::VersionRange, Field::CaiVersion, version)
}

/// The entries of a dict, each checked by itself and not yet against the others.
///
/// `mask` is not among them: what to do with one is the caller's policy, and a dict whose mask is
/// to be ignored or split off is otherwise like any other.
#[derive(Debug)]
pub struct Parts {
    /// `version`.
    pub version: Version,
    /// `typestr`.
    pub typestr: TypeStr,
    /// `descr`.
    pub descr: Descr,
    /// `shape`, and `strides` in bytes where they are given.
    pub axes: Axes,
    /// `data[0]`.
    pub data: u64,
    /// `data[1]`.
    pub read_only: bool,
    /// `stream`.
    pub stream: Stream,
}

/// A CAI dict whose entries agree with each other.
///
/// `data` is the address of the element of index 0, aligned to the scalar, and 0 where there are
/// no elements; the elements lie within the address space.
#[derive(Clone, Debug)]
pub struct Interface {
    layout: Layout,
    data: u64,
    stream: Stream,
    descr: Descr,
    version: Version,
    typestr: TypeStr,
    read_only: bool,
}

impl Interface {
    /// Checks the entries against each other.
    ///
    /// # Errors
    /// `data-pointer-null`, `address-range`, `descr-size` and the rules of
    /// [`Layout::from_byte_axes`] (ValueError); `strides-multiple`, `data-alignment` (BufferError).
    #[inline]
    pub fn new(parts: Parts) -> Result<Self, Violation> {
        let Parts {
            version,
            typestr,
            descr,
            axes,
            data,
            read_only,
            stream,
        } = parts;
        descr.check_size(typestr)?;
        let layout = Layout::from_byte_axes(axes, typestr.itemsize())?;
        let data = check_data(data, &layout, typestr)?;
        Ok(Self {
            layout,
            data,
            stream,
            descr,
            version,
            typestr,
            read_only,
        })
    }

    /// The dict of a descriptor whose type has a typestr.
    #[inline]
    pub(super) fn of_descriptor(from: &Descriptor, stream: Stream) -> Self {
        Self {
            layout: from.layout().clone(),
            data: from.data(),
            stream,
            descr: Descr::None,
            version: Version::V3,
            typestr: from.dtype().native_typestr(),
            read_only: from.read_only(),
        }
    }

    /// The version.
    #[must_use]
    pub const fn version(&self) -> Version {
        self.version
    }

    /// The kind and size of the items.
    #[must_use]
    pub const fn typestr(&self) -> TypeStr {
        self.typestr
    }

    /// The canonical typestr of a type that DLPack has too (which is all that
    /// [`Descriptor::to_interface`] makes); for the others an empty string.
    #[must_use]
    #[inline]
    pub const fn typestr_str(&self) -> &'static str {
        self.typestr.canonical()
    }

    /// The fields of a struct.
    #[must_use]
    pub const fn descr(&self) -> &Descr {
        &self.descr
    }

    /// Shape and strides, in items.
    #[must_use]
    pub const fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The extents.
    #[must_use]
    #[inline]
    pub fn shape(&self) -> &[i64] {
        self.layout.shape()
    }

    /// The strides that an exported dict carries, in bytes: `None` in C order and without elements,
    /// because consumers take explicit strides for the slow case, or reject them.
    #[inline]
    pub fn strides_for_export(
        &self,
    ) -> Option<impl ExactSizeIterator<Item = i64> + DoubleEndedIterator + '_> {
        if self.layout.is_c_contiguous() {
            None
        } else {
            Some(self.layout.byte_strides(self.typestr.itemsize()))
        }
    }

    /// The address of the element of index 0; 0 where there are no elements.
    #[must_use]
    #[inline]
    pub const fn data(&self) -> u64 {
        self.data
    }

    /// Whether the data must not be written.
    #[must_use]
    #[inline]
    pub const fn read_only(&self) -> bool {
        self.read_only
    }

    /// What the data is ready on.
    #[must_use]
    #[inline]
    pub const fn stream(&self) -> Stream {
        self.stream
    }

    /// The bytes of all items, gaps not counted.
    #[must_use]
    pub fn nbytes(&self) -> u64 {
        nbytes(&self.layout, self.typestr)
    }

    /// The first byte that belongs to an item and the end of the last; `None` without items.
    #[must_use]
    #[inline]
    pub fn byte_span(&self) -> Option<(u64, u64)> {
        if self.layout.len() == 0 {
            return None;
        }
        layout_span(self.data, &self.layout, self.typestr)
    }

    /// What DLPack says of it. `dtype` is the `dtype=` override, `device` where the memory is
    /// (which a dict does not say).
    ///
    /// # Errors
    /// The `typestr-...` rules, `descr-fields`, `dtype-override` and `data-alignment`
    /// (BufferError).
    #[inline]
    pub fn into_descriptor(
        self,
        dtype: Option<DType>,
        device: Device,
    ) -> Result<Descriptor, Violation> {
        let dtype = match dtype {
            None => self.own_dtype()?,
            Some(dtype) => self.reinterpreted(dtype)?,
        };
        let flags = Flags::NONE.with(Flags::READ_ONLY, self.read_only);
        Ok(Descriptor::of_interface(
            self.data,
            device,
            dtype,
            flags,
            self.layout,
        ))
    }

    #[inline]
    fn own_dtype(&self) -> Result<DType, Violation> {
        if let Descr::Fields(fields) = &self.descr {
            return Err(descr::refuse_struct(fields));
        }
        self.typestr.to_dtype()
    }

    fn reinterpreted(&self, dtype: DType) -> Result<DType, Violation> {
        let dtype = dtype::reinterpret_typestr(self.typestr, dtype)?;
        check_align(self.data, dtype.align())?; // 0, without items, is aligned
        Ok(dtype)
    }

    /// One field of a structured array, with the strides of the whole. A field that is an array
    /// itself adds its axes.
    ///
    /// # Errors
    /// `field-unknown` and the rules of shapes (ValueError); `field-none`, `field-stride`,
    /// `typestr-byte-order` and `data-alignment` (BufferError).
    pub fn field(&self, name: &str) -> Result<Self, Violation> {
        let field = self.descr.find(name)?;
        let typestr = field.typestr();
        if typestr.is_swapped() {
            let found = format_args!("'{typestr}' of field '{name}'");
            return Err(Violation::new(
                Rule::TypestrByteOrder,
                Field::CaiDescr,
                found,
            ));
        }
        let mut axes = Axes::new(Source::Cai);
        let shape = self.shape().iter().chain(field.shape());
        for extent in shape {
            axes.push_extent(*extent)?;
        }
        axes.expect_strides(axes.ndim())?;
        for stride in self.layout.byte_strides(self.typestr.itemsize()) {
            axes.push_stride(stride)?;
        }
        for stride in field.byte_strides() {
            axes.push_stride(stride)?;
        }
        let layout = Layout::from_byte_axes(axes, typestr.itemsize()).map_err(|violation| {
            if violation.rule() == Rule::StridesMultiple {
                let found = format_args!("{} for field '{name}'", violation.found());
                Violation::new(Rule::FieldStride, Field::CaiDescr, found)
            } else {
                violation
            }
        })?;
        // Fits: the field lies within the item, and the items within the address space.
        let data = self.data.saturating_add(u64::from(field.offset()));
        Ok(Self {
            data: check_data(data, &layout, typestr)?,
            layout,
            descr: field.descr(),
            typestr,
            ..*self
        })
    }

    /// Puts another `descr` in the place of one that says nothing; it has been checked against the typestr.
    pub(crate) fn set_descr(&mut self, descr: Descr) {
        self.descr = descr;
    }

    /// The dict of a view of a struct.
    pub(crate) fn of_struct(from: &Descriptor, descr: Descr) -> Self {
        let itemsize = from.dtype().itemsize().unwrap_or(1);
        Self {
            layout: from.layout().clone(),
            data: from.data(),
            stream: Stream::None,
            descr,
            version: Version::V3,
            typestr: TypeStr::void(itemsize).unwrap_or(from.dtype().native_typestr()),
            read_only: from.read_only(),
        }
    }

    /// Describes a struct as a whole, on a device that a dict does not name, and its fields. Neither protocol can
    /// carry it; [`CaiView::field`](crate::CaiView::field) takes one field out of its view.
    ///
    /// # Errors
    /// `descr-fields` for items too large to be counted.
    pub fn into_struct(self, device: Device) -> Result<(Descriptor, Descr), Violation> {
        let Some(dtype) = DType::structure(self.typestr.itemsize()) else {
            let itemsize = self.typestr.itemsize();
            let found = format_args!("items of {itemsize} bytes");
            return Err(Violation::new(Rule::DescrFields, Field::CaiDescr, found)
                .with_hint("fields are found in items of up to 65535 bytes"));
        };
        let flags = Flags::NONE.with(Flags::READ_ONLY, self.read_only);
        let descriptor = Descriptor::of_interface(self.data, device, dtype, flags, self.layout);
        Ok((descriptor, self.descr))
    }

    /// Whether the items are bits: of masks, where `shape` counts bits.
    #[must_use]
    pub const fn is_bits(&self) -> bool {
        matches!(self.typestr.kind(), Kind::Bit)
    }
}

/// The entries of the usual dict: an array of numbers, with neither fields nor a mask.
///
/// [`Parts`], [`Interface`] and [`Descriptor`] in one step, by the same checks and where the numbers lie:
/// for those who convert in an inner loop, and who ask the long way why where this refuses.
#[derive(Debug)]
pub(crate) struct Plain<'a> {
    /// `data[0]`.
    pub(crate) data: u64,
    /// `data[1]`.
    pub(crate) read_only: bool,
    /// The type that `typestr` stands for.
    pub(crate) dtype: DType,
    /// `shape`, and after it `strides` in bytes, or as many numbers to write strides to.
    pub(crate) values: &'a mut [i64],
    /// Number of axes.
    pub(crate) ndim: u8,
    /// Whether there are strides; else C order.
    pub(crate) has_strides: bool,
}

/// A [`Plain`] dict whose entries agree with each other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Checked<'a> {
    settled: Settled<'a>,
    data: u64,
    dtype: DType,
    flags: Flags,
}

impl<'a> Plain<'a> {
    /// The type of a canonical typestr; `None` for what the long way must read.
    #[must_use]
    #[inline(always)]
    pub(crate) fn dtype(typestr: &str) -> Option<DType> {
        DType::of_canonical(typestr.as_bytes())
    }

    /// Checks the entries against each other.
    ///
    /// # Errors
    /// Those of [`Axes`], [`Interface::new`] and [`Interface::into_descriptor`].
    #[inline(always)]
    pub(crate) fn check(mut self) -> Result<Checked<'a>, Violation> {
        match self.check_usual() {
            Some(extent) => Ok(Checked {
                data: self.data,
                dtype: self.dtype,
                flags: Flags::NONE.with(Flags::READ_ONLY, self.read_only),
                settled: Settled {
                    values: self.values,
                    ndim: self.ndim,
                    extent,
                },
            }),
            None => self.check_carefully(),
        }
    }

    /// The usual entries in one pass; `None`, with the strides as they came, for the rest and for whatever
    /// is wrong.
    #[inline(always)]
    fn check_usual(&mut self) -> Option<Extent> {
        let rank = usize::from(self.ndim);
        let bits = u32::from(self.dtype.bits());
        let misaligned = u64::from(self.dtype.align().wrapping_sub(1)) & self.data;
        let is_usual = self.dtype.lanes() == 1 && bits.is_power_of_two() && bits >= 8;
        if !is_usual || self.data == 0 || misaligned != 0 {
            return None;
        }
        let (itemsize, shift) = (bits >> 3, bits.trailing_zeros().wrapping_sub(3));
        let (extent, reach) = layout::settle_usual(self.values, rank, self.has_strides, shift)?;
        if !layout::is_within_memory(self.data, reach, itemsize) {
            return None;
        }
        if self.has_strides {
            layout::in_elements(self.values, rank, shift);
        }
        Some(extent)
    }

    #[inline(never)]
    fn check_carefully(self) -> Result<Checked<'a>, Violation> {
        let dtype = self.dtype;
        let itemsize = dtype.itemsize().unwrap_or(1); // none of the types with a typestr is packed
        let settled = layout::settle_bytes(self.values, self.ndim, self.has_strides, itemsize)?;
        let (shape, strides) = settled
            .values
            .split_at_checked(usize::from(self.ndim))
            .unwrap_or_default();
        let data = if settled.extent.len == 0 {
            0
        } else if self.data == 0 {
            return Err(descriptor::null_data(Field::CaiData, shape));
        } else {
            check_align(self.data, dtype.align())?;
            let span = || layout::span_of(shape, strides);
            match byte_span(self.data, settled.extent, span, itemsize) {
                Some(_) => self.data,
                None => return Err(descriptor::leaves_memory(Field::CaiData, self.data)),
            }
        };
        Ok(Checked {
            settled,
            data,
            dtype,
            flags: Flags::NONE.with(Flags::READ_ONLY, self.read_only),
        })
    }
}

impl<'a> Checked<'a> {
    /// What DLPack says of it, on a device that a dict does not name.
    #[inline(always)]
    #[must_use]
    pub(crate) fn descriptor(&self, device: Device) -> Descriptor {
        let layout = Layout::of_settled(self.settled);
        Descriptor::of_interface(self.data, device, self.dtype, self.flags, layout)
    }

    /// [`descriptor`](Self::descriptor), without its numbers.
    #[inline]
    #[must_use]
    pub(crate) fn described(&self, device: Device) -> Described<'a> {
        Described {
            values: self.settled.values,
            data: self.data,
            device,
            dtype: self.dtype,
            flags: self.flags,
        }
    }
}

/// The pointer against shape, strides and item size. Answers it, and 0 without items.
#[inline]
fn check_data(data: u64, layout: &Layout, typestr: TypeStr) -> Result<u64, Violation> {
    if layout.len() == 0 {
        return Ok(0);
    }
    if data == 0 {
        return Err(descriptor::null_data(Field::CaiData, layout.shape()));
    }
    check_align(data, typestr.align())?;
    match layout_span(data, layout, typestr) {
        Some(_) => Ok(data),
        None => Err(descriptor::leaves_memory(Field::CaiData, data)),
    }
}

/// The pointer against the scalar's alignment, a power of two.
#[inline]
fn check_align(data: u64, align: u32) -> Result<(), Violation> {
    if data & u64::from(align.wrapping_sub(1)) == 0 {
        Ok(())
    } else {
        Err(descriptor::misaligned(Field::CaiData, data, align))
    }
}

/// The bytes of all items, gaps not counted.
#[inline]
fn nbytes(layout: &Layout, typestr: TypeStr) -> u64 {
    if typestr.kind() == Kind::Bit {
        let bits = u128::from(layout.len()).saturating_mul(u128::from(typestr.bits()));
        return u64::try_from(bits.div_ceil(8)).unwrap_or(u64::MAX);
    }
    // Fits: the layout was checked with this item size.
    layout.len().saturating_mul(u64::from(typestr.itemsize()))
}

/// [`byte_span`] of a layout.
#[inline]
fn layout_span(data: u64, layout: &Layout, typestr: TypeStr) -> Option<(u64, u64)> {
    let extent = Extent {
        len: layout.len(),
        c_contiguous: layout.is_c_contiguous(),
    };
    if typestr.kind() == Kind::Bit && extent.c_contiguous {
        return Some((data, data.checked_add(nbytes(layout, typestr))?));
    }
    byte_span(data, extent, || layout.elem_span(), typestr.itemsize())
}

/// The first byte and the end of the last, of an array with items. `None` where they leave the
/// address space.
#[inline(always)]
fn byte_span(
    data: u64,
    extent: Extent,
    elem_span: impl FnOnce() -> (i64, i64),
    itemsize: u32,
) -> Option<(u64, u64)> {
    if extent.c_contiguous {
        // Fits: the layout was checked with this item size.
        let nbytes = extent.len.saturating_mul(u64::from(itemsize));
        return Some((data, data.checked_add(nbytes)?));
    }
    let itemsize = i64::from(itemsize);
    let (lowest, end) = elem_span();
    let start = data.checked_add_signed(lowest.checked_mul(itemsize)?)?;
    let end = data.checked_add_signed(end.checked_mul(itemsize)?)?;
    Some((start, end))
}

#[cfg(test)]
mod plain_tests;
#[cfg(test)]
mod tests;
