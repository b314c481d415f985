//! [`Descriptor`]: the metadata of a `DLTensor`, checked.

use std::fmt;
use std::hash::{Hash, Hasher};
#[cfg(feature = "pyo3")]
use std::sync::Arc;

use super::address;
use super::axes::{Axes, MAX_NDIM, Source};
use super::cai_only::CaiOnly;
#[cfg(feature = "pyo3")]
use super::descr::Descr;
use super::device::{Access, Device, DeviceType, Flags};
use super::dtype::{self, DType, Kind, TypeStr};
use super::few::INLINE_AXES;
use super::layout::{self, Element, Layout};
use super::rule::{Field, Rule, Violation};

/// The fields of a `DLTensor` as they are read from memory, before any check.
///
/// [`new`](Self::new) describes an array in C order; what is otherwise is set on the result.
///
/// ```
/// use cai_dlpack::protocol::descriptor::{Descriptor, RawTensor};
/// use cai_dlpack::protocol::device::{Device, Flags};
/// use cai_dlpack::protocol::dtype::DType;
///
/// let column = RawTensor::new(0x7000_0000, Device::cuda(0), DType::F32, &[3])
///     .with_byte_offset(8)
///     .with_elem_strides(&[4])
///     .with_flags(Flags::READ_ONLY);
/// assert_eq!(Descriptor::new(&column)?.data(), 0x7000_0008);
/// # Ok::<(), cai_dlpack::protocol::rule::Violation>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct RawTensor<'a> {
    /// `data` as an address.
    pub data: u64,
    /// `byte_offset`.
    pub byte_offset: u64,
    /// `device`.
    pub device: Device,
    /// `dtype.code`.
    pub code: u8,
    /// `dtype.bits`.
    pub bits: u8,
    /// `dtype.lanes`.
    pub lanes: u16,
    /// `shape`: `ndim` extents.
    pub shape: &'a [i64],
    /// `strides`: `ndim` of them, in elements; `None` for NULL, which means C order.
    pub strides: Option<&'a [i64]>,
    /// The flags of the managed tensor; [`Flags::LEGACY`] for a tensor that has none. The one of padding is dropped, if
    /// the elements are whole bytes.
    pub flags: Flags,
}

impl<'a> RawTensor<'a> {
    /// Describes a writable array in C order whose element of index 0 lies at `data`.
    #[must_use]
    pub const fn new(data: u64, device: Device, dtype: DType, shape: &'a [i64]) -> Self {
        Self {
            data,
            byte_offset: 0,
            device,
            code: dtype.code(),
            bits: dtype.bits(),
            lanes: dtype.lanes(),
            shape,
            strides: None,
            flags: Flags::NONE,
        }
    }

    /// Sets the distance from `data` to the element of index 0.
    #[must_use]
    pub const fn with_byte_offset(self, byte_offset: u64) -> Self {
        Self {
            byte_offset,
            ..self
        }
    }

    /// Sets one stride per axis, in elements.
    #[must_use]
    pub const fn with_elem_strides(self, strides: &'a [i64]) -> Self {
        let strides = Some(strides);
        Self { strides, ..self }
    }

    /// Sets the flags of the managed tensor.
    #[must_use]
    pub const fn with_flags(self, flags: Flags) -> Self {
        Self { flags, ..self }
    }
}

/// The metadata of a `DLTensor`, checked.
///
/// [`data`](Self::data) is the address of the element of index 0, with `byte_offset` added, and 0
/// if there are no elements. All elements lie within the address space. On a device with handles instead of addresses
/// ([`Device::is_opaque`]) `data` is the handle, and [`byte_offset`](Self::byte_offset) stays beside it.
///
/// ```
/// use cai_dlpack::protocol::descriptor::{Descriptor, RawTensor};
/// use cai_dlpack::protocol::device::{Access, Device, DeviceType, Flags};
/// use cai_dlpack::protocol::dtype::DType;
/// use cai_dlpack::protocol::stream::Stream;
///
/// let mut raw = RawTensor::new(0x7000_0000, Device::cuda(0), DType::F32, &[2, 3]).with_byte_offset(64);
/// let tensor = Descriptor::new(&raw)?;
/// assert_eq!((tensor.data(), tensor.dtype()), (0x7000_0040, DType::F32));
/// assert_eq!((tensor.elem_strides(), tensor.nbytes()), (&[3, 1][..], 24));
///
/// // What it says of itself.
/// assert_eq!((tensor.ndim(), tensor.shape(), tensor.len()), (2, &[2, 3][..], 6));
/// assert_eq!((tensor.itemsize(), tensor.byte_offset()), (Some(4), 0));
/// assert_eq!(tensor.byte_strides().expect("of whole bytes").collect::<Vec<_>>(), [12, 4]);
/// assert_eq!(tensor.byte_span(), Some((0x7000_0040, 0x7000_0058)));
/// assert_eq!((tensor.device(), tensor.flags()), (Device::cuda(0), Flags::NONE));
/// assert!(tensor.layout().is_c_contiguous() && tensor.cai_only().is_none() && tensor.check_dlpack().is_ok());
///
/// // The same memory otherwise.
/// let shown = tensor.clone().with_access(Access::ReadOnly).with_device(Device::new(DeviceType::CUDA_MANAGED, 0))?;
/// assert_eq!((shown.access(), shown.data()), (Access::ReadOnly, tensor.data()));
/// assert_eq!(tensor.to_interface(Stream::LegacyDefault)?.stream(), Stream::LegacyDefault);
/// assert_eq!(tensor.with_shape(DType::F32, &[6])?.elem_strides(), [1]);
///
/// raw.bits = 13;
/// let refused = Descriptor::new(&raw).unwrap_err();
/// assert_eq!(refused.rule().id(), "dtype-bits");
/// # Ok::<(), cai_dlpack::protocol::rule::Violation>(())
/// ```
#[derive(Clone)]
pub struct Descriptor {
    /// With the element type and the flags (`layout::Element`).
    layout: Layout,
    data: u64,
    device: Device,
}

/// A [`Descriptor`] that borrows its extents and strides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DescriptorRef<'a> {
    /// The extents, then the strides in elements.
    pub(crate) values: &'a [i64],
    /// The address of the element of index 0; 0 if there are no elements.
    pub(crate) data: u64,
    /// The distance from an opaque handle to the element of index 0; 0 for an address.
    pub(crate) byte_offset: u64,
    /// The device of the memory.
    pub(crate) device: Device,
    /// The element type.
    pub(crate) dtype: DType,
    /// The flags.
    pub(crate) flags: Flags,
}

impl DescriptorRef<'_> {
    /// Whether each lane is stored in a byte of its own.
    #[inline]
    pub(crate) fn is_padded(&self) -> bool {
        self.dtype.is_sub_byte() && self.flags.contains(Flags::SUBBYTE_PADDED)
    }

    /// As [`Layout::is_c_contiguous`].
    #[cfg(feature = "pyo3")]
    pub(crate) fn is_c_contiguous(&self) -> bool {
        let (shape, strides) = self.values.split_at(self.values.len() / 2);
        let mut next = Some(1_i64);
        let mut axes = shape.iter().zip(strides).rev();
        shape.contains(&0)
            || axes.all(|(extent, stride)| {
                let is_next = *extent == 1 || next == Some(*stride);
                next = next.and_then(|next| next.checked_mul(*extent));
                is_next
            })
    }
}

impl PartialEq for Descriptor {
    fn eq(&self, other: &Self) -> bool {
        let rest = |this: &Self| {
            let address = (this.data, this.byte_offset());
            (address, this.device, this.dtype(), this.flags())
        };
        self.layout == other.layout
            && rest(self) == rest(other)
            && self.cai_only() == other.cai_only()
    }
}

impl Eq for Descriptor {}

impl Hash for Descriptor {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.data, self.byte_offset(), self.device).hash(state);
        (self.dtype(), self.flags()).hash(state);
        self.layout.hash(state);
    }
}

/// Element type, shape, strides and device, in words.
impl fmt::Debug for Descriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Descriptor")
            .field("type", &format_args!("{}", self.type_name()))
            .field("shape", &self.shape())
            .field("elem_strides", &self.elem_strides())
            .field("device", &self.device())
            .field("data", &format_args!("{:#x}", self.data()))
            .field("byte_offset", &self.byte_offset())
            .field("flags", &self.flags())
            .finish()
    }
}

impl fmt::Display for Descriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.access() {
            Access::Writable => "",
            Access::ReadOnly => "read-only ",
            Access::Unknown => "perhaps read-only ",
        })?;
        write!(
            f,
            "{} of shape {:?}, strides {:?} (in elements), on {}",
            self.type_name(),
            self.shape(),
            self.elem_strides(),
            self.device(),
        )
    }
}

impl Descriptor {
    /// Borrows the extents and strides.
    #[inline]
    #[must_use]
    pub(crate) fn borrowed(&self) -> DescriptorRef<'_> {
        DescriptorRef {
            values: self.layout.values(),
            data: self.data,
            byte_offset: self.byte_offset(),
            device: self.device,
            dtype: self.dtype(),
            flags: self.flags(),
        }
    }

    /// Checks `DLTensor.ndim`, before it is used as the length of `shape` and `strides`.
    ///
    /// # Errors
    /// `ndim-negative`, `ndim-limit` (ValueError).
    #[inline]
    pub(crate) fn check_ndim(ndim: i32) -> Result<usize, Violation> {
        match usize::try_from(ndim) {
            Ok(ndim) if ndim <= MAX_NDIM => Ok(ndim),
            _ => Err(refuse_ndim(ndim)),
        }
    }

    /// Checks a tensor.
    ///
    /// # Errors
    /// The rules of the fields of `DLTensor`: `dtype-...`, `device-unknown` (BufferError) and
    /// `device-id`, `shape-extent`, `count-overflow`, `size-overflow`, `span-overflow`,
    /// `data-pointer-null`, `byte-offset`, `address-range` (ValueError); `data-alignment` in memory of CUDA (BufferError).
    #[inline(always)]
    pub fn new(raw: &RawTensor<'_>) -> Result<Self, Violation> {
        match Self::check_fast(raw) {
            Some(tensor) => Ok(tensor),
            None => Self::check(raw),
        }
    }

    /// The most axes that [`check_fast`](Self::check_fast) accepts.
    #[expect(clippy::cast_possible_truncation, reason = "a small constant")]
    pub(crate) const INLINE_AXES: u32 = INLINE_AXES as u32;

    /// Like [`check`](Self::check), in one pass over a tensor of up to 4 axes that has elements and no
    /// number near a limit; `None` for any other, and for a malformed one.
    #[inline(always)]
    pub(crate) fn check_fast(raw: &RawTensor<'_>) -> Option<Self> {
        let dtype = DType::from_dlpack_fast(raw.code, raw.bits, raw.lanes)?;
        let is_negative = (raw.byte_offset.cast_signed() | i64::from(raw.device.id)) < 0;
        if raw.device.is_opaque() || dtype.is_sub_byte() || is_negative {
            return None;
        }
        let itemsize = dtype.itemsize()?;
        let ndim = u8::try_from(raw.shape.len()).ok()?;
        let mut values = [0; 2 * INLINE_AXES];
        let (summary, reach) = layout::copy_fast(&mut values, raw.shape, raw.strides)?;
        let data = raw.data.checked_add(raw.byte_offset)?;
        // The item size is the alignment, but for complex numbers and lanes: of these `check` decides.
        let misaligned = data & u64::from(itemsize.wrapping_sub(1));
        if raw.data == 0 || misaligned != 0 || !layout::is_within_memory(data, reach, itemsize) {
            return None;
        }
        let element = Element {
            dtype,
            // As `meaningful`, for whole bytes.
            flags: raw.flags.with(Flags::SUBBYTE_PADDED, false),
        };
        Some(Self {
            layout: Layout::inline(values, ndim, summary, element),
            data,
            device: raw.device,
        })
    }

    /// Checks any tensor, field by field.
    #[inline(never)]
    pub(crate) fn check(raw: &RawTensor<'_>) -> Result<Self, Violation> {
        let device = raw.device.check_in(Field::TensorDevice)?;
        let dtype = DType::from_dlpack(raw.code, raw.bits, raw.lanes)?;
        let axes = Axes::from_slices(Source::Tensor, raw.shape, raw.strides)?;
        let layout = Layout::from_elem_axes(axes, rounded_itemsize(dtype))?;
        let offset = i64::try_from(raw.byte_offset).ok();
        let (data, byte_offset) = if raw.data == 0 || layout.len() == 0 {
            (0, 0)
        } else if device.is_opaque() && offset.is_some() {
            // No sum: what a handle and an offset make is the device's affair.
            (raw.data, raw.byte_offset)
        } else {
            match offset.and_then(|offset| raw.data.checked_add_signed(offset)) {
                Some(data) => (data, 0),
                None => return Err(refuse_offset(raw.data, raw.byte_offset)),
            }
        };
        let layout = layout.with_byte_offset(byte_offset);
        let made = Self::from_layout(data, device, dtype, raw.flags, layout)?;
        made.check_align(Field::TensorData, dtype)?;
        Ok(made)
    }

    /// Combines parts that are checked one by one. `data` is the address of the element of index 0, or an opaque handle
    /// to it, and becomes 0 if there are no elements.
    ///
    /// # Errors
    /// `data-pointer-null`, `address-range` (ValueError); `dtype-code` for the placeholder of items that DLPack cannot
    /// describe, `strides-multiple` for the layout of a dict whose strides are no whole number of elements (BufferError).
    /// What DLPack cannot describe is described by
    /// [`CaiInterface::describe`](super::interface::CaiInterface::describe) alone.
    ///
    /// ```
    /// use cai_dlpack::protocol::axes::{Axes, Source};
    /// use cai_dlpack::protocol::descriptor::Descriptor;
    /// use cai_dlpack::protocol::device::{Device, Flags};
    /// use cai_dlpack::protocol::dtype::DType;
    /// use cai_dlpack::protocol::layout::Layout;
    ///
    /// let layout = Layout::from_elem_axes(Axes::from_slices(Source::Tensor, &[3], None)?, 4)?;
    /// let array = Descriptor::from_layout(0x7000_0000, Device::cuda(0), DType::F32, Flags::NONE, layout)?;
    /// assert_eq!(array.nbytes(), 12);
    /// # Ok::<(), cai_dlpack::protocol::rule::Violation>(())
    /// ```
    pub fn from_layout(
        data: u64,
        device: Device,
        dtype: DType,
        flags: Flags,
        layout: Layout,
    ) -> Result<Self, Violation> {
        let field = Field::TensorData;
        if dtype.is_cai_only() {
            return Err(dtype.undescribed());
        }
        layout.check_even()?;
        let (flags, layout) = (meaningful(dtype, flags), layout.with_cai_only(None));
        let data = if device.is_opaque() {
            address::check_null(field, data, layout.borrowed())?
        } else {
            let bits = stored_bits(dtype, flags);
            address::check(field, data, layout.borrowed(), bits, 1)?
        };
        Ok(Self::from_checked(data, device, dtype, flags, layout))
    }

    /// Combines parts that are checked against each other.
    #[inline(always)]
    pub(super) const fn from_checked(
        data: u64,
        device: Device,
        dtype: DType,
        flags: Flags,
        mut layout: Layout,
    ) -> Self {
        *layout.element_mut() = Element { dtype, flags };
        Self {
            layout,
            data,
            device,
        }
    }

    /// Returns the address of the element of index 0, or an opaque handle; 0 if there are no elements.
    #[must_use]
    #[inline]
    pub const fn data(&self) -> u64 {
        self.data
    }

    /// Returns the distance in bytes from an opaque handle to the element of index 0; 0 if [`data`](Self::data) is an
    /// address.
    #[must_use]
    #[inline]
    pub const fn byte_offset(&self) -> u64 {
        self.layout.byte_offset()
    }

    /// Returns the device of the memory.
    #[must_use]
    #[inline]
    pub const fn device(&self) -> Device {
        self.device
    }

    /// Returns the element type; a placeholder that equals none if [`cai_only`](Self::cai_only) has it.
    #[must_use]
    #[inline]
    pub const fn dtype(&self) -> DType {
        self.layout.element().dtype
    }

    /// Returns the items of an array that came by CAI and that DLPack cannot describe; `None` for any other array. Every
    /// export by DLPack, and every typed access, refuses it by [`CaiOnly::refusal`].
    #[must_use]
    #[inline]
    pub fn cai_only(&self) -> Option<&CaiOnly> {
        match self.dtype().is_cai_only() {
            false => None,
            true => self.layout.cai_only().map(|only| &**only),
        }
    }

    /// Checks that DLPack can describe the array.
    ///
    /// # Errors
    /// [`CaiOnly::refusal`].
    #[inline(always)]
    pub fn check_dlpack(&self) -> Result<(), Violation> {
        match self.dtype().is_cai_only() {
            false => Ok(()),
            true => Err(self.refuse_dlpack()),
        }
    }

    #[cold]
    fn refuse_dlpack(&self) -> Violation {
        match self.cai_only() {
            Some(only) => named_on(self.device, only.refusal().clone()),
            None => self.dtype().undescribed(),
        }
    }

    /// Returns the same items as raw bytes, if they are records.
    #[cfg(feature = "pyo3")]
    pub(crate) fn without_fields(&self) -> Option<Self> {
        let only = self.cai_only()?;
        let Descr::Fields(_) = only.descr() else {
            return None;
        };
        let bytes = CaiOnly {
            descr: Descr::None,
            ..only.clone()
        };
        let mut made = self.clone();
        made.layout = made.layout.with_cai_only(Some(Arc::new(bytes)));
        Some(made)
    }

    /// Returns the name of the element type, for messages.
    pub(crate) fn type_name(&self) -> String {
        match self.cai_only() {
            Some(only) => only.to_string(),
            None => self.dtype().to_string(),
        }
    }

    /// Returns the bytes of one element, of which a padded one takes one for each lane; `None` if that is no whole
    /// number.
    #[must_use]
    #[inline]
    pub fn itemsize(&self) -> Option<u32> {
        match self.dtype().itemsize() {
            Some(itemsize) if !self.dtype().is_sub_byte() => Some(itemsize),
            _ => self.stored_itemsize(),
        }
    }

    /// The bytes of an element that is smaller than one, or that DLPack cannot describe.
    fn stored_itemsize(&self) -> Option<u32> {
        let dtype = self.dtype();
        match self.cai_only() {
            Some(only) => Some(only.typestr().itemsize()),
            None if self.is_padded() => Some(u32::from(dtype.lanes())),
            None => dtype.itemsize(),
        }
    }

    /// Returns the flags.
    #[must_use]
    #[inline]
    pub const fn flags(&self) -> Flags {
        self.layout.element().flags
    }

    /// Whether the data may be written.
    #[must_use]
    #[inline]
    pub const fn access(&self) -> Access {
        self.flags().access()
    }

    /// Returns shape and strides.
    #[must_use]
    #[inline]
    pub const fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Returns the extents, in elements.
    #[must_use]
    #[inline]
    pub fn shape(&self) -> &[i64] {
        self.layout.shape()
    }

    /// Returns one stride per axis, in elements; none at all if a stride is no whole number of elements, which only CAI
    /// can say.
    #[must_use]
    #[inline]
    pub fn elem_strides(&self) -> &[i64] {
        self.layout.elem_strides()
    }

    /// Returns one stride per axis, in bytes; `None` if an element is no whole number of bytes.
    #[inline]
    pub fn byte_strides(
        &self,
    ) -> Option<impl ExactSizeIterator<Item = i64> + DoubleEndedIterator + '_> {
        Some(self.layout.byte_strides(self.itemsize()?))
    }

    /// Returns the number of axes.
    #[must_use]
    #[inline]
    pub const fn ndim(&self) -> usize {
        self.layout.ndim()
    }

    /// Returns the number of elements.
    #[must_use]
    #[inline]
    #[expect(
        clippy::len_without_is_empty,
        reason = "a tensor of no elements is nothing special"
    )]
    pub fn len(&self) -> u64 {
        self.layout.len()
    }

    /// Returns the bytes of all elements, without gaps; packed elements are rounded up together.
    #[must_use]
    #[inline]
    pub fn nbytes(&self) -> u64 {
        address::nbytes(self.layout.len(), self.stored_bits())
    }

    /// Returns the first byte of the lowest element and the end of the highest one: `(start, end)`;
    /// `None` without elements, and for an opaque handle.
    #[must_use]
    #[inline]
    pub fn byte_span(&self) -> Option<(u64, u64)> {
        if self.device.is_opaque() {
            return None;
        }
        if let Some(only) = self.cai_only() {
            return address::items_span(self.data, &self.layout, only.typestr());
        }
        address::byte_span(self.data, self.layout.borrowed(), self.stored_bits())
    }

    /// Returns the same array at another address of the same memory.
    ///
    /// # Errors
    /// `data-pointer-null`, `address-range` (ValueError).
    pub(crate) fn at(&self, data: u64, device: Device) -> Result<Self, Violation> {
        let layout = self.layout.clone();
        match self.cai_only() {
            None => Self::from_layout(data, device, self.dtype(), self.flags(), layout),
            Some(only) => {
                let data = address::check_items(data, &layout, only.typestr())?;
                Ok(Self::from_checked(
                    data,
                    device,
                    self.dtype(),
                    self.flags(),
                    layout,
                ))
            }
        }
    }

    /// Replaces the device: pinned and managed memory belongs to the host and to the GPU.
    ///
    /// # Errors
    /// `device-unknown` (BufferError), `device-id` (ValueError); and if what was a
    /// [handle](Device::is_opaque) becomes an address, or the other way, the rules of [`new`](Self::new).
    ///
    /// ```
    /// use cai_dlpack::protocol::descriptor::{Descriptor, RawTensor};
    /// use cai_dlpack::protocol::device::{Device, DeviceType};
    /// use cai_dlpack::protocol::dtype::DType;
    ///
    /// let managed = Device::new(DeviceType::CUDA_MANAGED, 0);
    /// let tensor = Descriptor::new(&RawTensor::new(0x7000_0000, managed, DType::F32, &[6]))?;
    /// assert_eq!(tensor.clone().with_device(Device::HOST)?.device(), Device::HOST);
    /// assert!(tensor.with_device(Device::cuda(-1)).is_err());
    /// # Ok::<(), cai_dlpack::protocol::rule::Violation>(())
    /// ```
    pub fn with_device(mut self, device: Device) -> Result<Self, Violation> {
        let device = device.check_in(Field::TensorDevice)?;
        if device.is_opaque() != self.device.is_opaque() {
            self.check_dlpack()?;
            let raw = RawTensor::new(self.data, device, self.dtype(), self.shape())
                .with_byte_offset(self.byte_offset())
                .with_elem_strides(self.elem_strides())
                .with_flags(self.flags());
            return Self::new(&raw);
        }
        self.set_device(device);
        Ok(self)
    }

    /// Like [`with_device`](Self::with_device), in place.
    pub(crate) fn set_device(&mut self, device: Device) {
        self.device = device;
    }

    /// Replaces the access, by the caller's own assertion.
    #[must_use]
    pub fn with_access(mut self, access: Access) -> Self {
        self.set_access(access);
        self
    }

    /// Remembers what the memory is: [`Flags::MANAGED`], [`Flags::OF_DEVICE`].
    pub(crate) fn set_memory(&mut self, kind: Flags) {
        self.layout.element_mut().flags = self.flags().with(kind, true);
    }

    /// Like [`with_access`](Self::with_access), in place.
    pub(crate) fn set_access(&mut self, access: Access) {
        self.layout.element_mut().flags = self.flags().with_access(access);
    }

    /// Reinterprets the bytes as elements of another type of the same size. An element that is padded
    /// to a byte is a `uint8`.
    ///
    /// # Errors
    /// `dtype-override`: see [`dtype::reinterpret`]; `data-alignment` if the new type needs an
    /// alignment that the data lacks (BufferError).
    ///
    /// ```
    /// use cai_dlpack::protocol::descriptor::{Descriptor, RawTensor};
    /// use cai_dlpack::protocol::device::{Access, Device, DeviceType, Flags};
    /// use cai_dlpack::protocol::dtype::DType;
    /// use cai_dlpack::protocol::stream::Stream;
    ///
    /// let raw = RawTensor::new(0x7000_0000, Device::cuda(0), DType::U16, &[2, 3]).with_flags(Flags::READ_ONLY);
    /// let numbers = Descriptor::new(&raw)?;
    /// assert_eq!((numbers.ndim(), numbers.itemsize(), numbers.access()), (2, Some(2), Access::ReadOnly));
    /// assert_eq!((numbers.flags(), numbers.byte_offset()), (Flags::READ_ONLY, 0));
    /// assert_eq!(numbers.byte_span(), Some((0x7000_0000, 0x7000_000c)));
    /// assert!(numbers.layout().is_c_contiguous() && numbers.cai_only().is_none());
    ///
    /// let halves = numbers.with_dtype(DType::BF16)?.with_access(Access::Writable);
    /// assert_eq!(halves.to_interface(Stream::None).unwrap_err().rule().id(), "cai-dtype");
    /// let pinned = halves.with_device(Device::new(DeviceType::CUDA_HOST, 0))?;
    /// assert!(pinned.check_dlpack().is_ok());
    ///
    /// let bytes = Descriptor::new(&RawTensor::new(0x7000_0000, Device::cuda(0), DType::U8, &[8]))?;
    /// assert_eq!(bytes.with_shape(DType::F32, &[2, 1])?.shape(), [2, 1]);
    /// # Ok::<(), cai_dlpack::protocol::rule::Violation>(())
    /// ```
    pub fn with_dtype(mut self, dtype: DType) -> Result<Self, Violation> {
        if dtype == self.dtype() {
            return Ok(self);
        }
        if let Some(only) = self.cai_only() {
            let (from, device) = (only.typestr(), self.device);
            let dtype = reinterpret_items(from, dtype, &self.layout, self.data, device)?;
            let (flags, layout) = (self.flags(), self.layout.with_cai_only(None));
            return Ok(Self::from_checked(
                self.data,
                self.device,
                dtype,
                flags,
                layout,
            ));
        }
        self.check_target(dtype)?;
        self.check_align(Field::TensorData, dtype)?;
        let flags = self.flags().with(Flags::SUBBYTE_PADDED, false);
        *self.layout.element_mut() = Element { dtype, flags };
        Ok(self)
    }

    /// Checks that one element may be presented as one of `dtype`.
    fn check_target(&self, dtype: DType) -> Result<(), Violation> {
        let own = self.dtype();
        match own.lanes() {
            1 if self.is_padded() && dtype == DType::U8 => Ok(()),
            2.. if self.is_padded() => {
                let refusal = Violation::new(Rule::DtypeOverride, Field::Argument("dtype"), dtype);
                Err(refusal.with_hint(format!("each lane of the data, {own}, is padded to a byte")))
            }
            _ => dtype::reinterpret(own, dtype).map(drop),
        }
    }

    /// Returns the unsigned int that `dtype=` presents the bits of an element as.
    #[cfg(feature = "pyo3")]
    pub(crate) fn raw_dtype(&self) -> Option<DType> {
        let ints = [DType::U8, DType::U16, DType::U32, DType::U64];
        let mut ints = ints.into_iter();
        ints.find(|int| self.cai_only().is_none() && self.check_target(*int).is_ok())
    }

    /// Whether each lane is stored in a byte of its own.
    fn is_padded(&self) -> bool {
        self.dtype().is_sub_byte() && self.flags().contains(Flags::SUBBYTE_PADDED)
    }

    /// Reinterprets the bytes as elements of `dtype` in C order, for `shape=`. Bytes become elements of any
    /// type, packed ones too, and packed elements become bytes (`uint8`).
    ///
    /// # Errors
    /// `shape-override`, `data-alignment` and `dtype-override` (BufferError); the rules of shapes.
    pub fn with_shape(self, dtype: DType, shape: &[i64]) -> Result<Self, Violation> {
        let field = Field::Argument("shape");
        let refuse = |why: fmt::Arguments<'_>| {
            Violation::new(Rule::ShapeOverride, field, Tuple(shape)).with_hint(why.to_string())
        };
        if let Some(only) = self.cai_only() {
            if dtype == self.dtype() {
                return Err(self.refuse_dlpack());
            }
            let is_raw = only.typestr().kind() == Kind::Void && !only.descr().has_objects();
            if !is_raw || dtype.itemsize() == Some(only.typestr().itemsize()) {
                return self.with_dtype(dtype)?.with_shape(dtype, shape);
            }
            if self.layout.is_c_contiguous() {
                return self.as_bytes(only)?.with_shape(dtype, shape);
            }
        }
        if !self.layout.is_c_contiguous() {
            return Err(refuse(format_args!("the data is not contiguous")));
        }
        if dtype != self.dtype() {
            let (own, is_padded) = (self.dtype(), self.is_padded());
            let has_bytes = own.itemsize() == Some(1) || own.is_sub_byte() && dtype == DType::U8;
            if is_padded || !has_bytes {
                self.check_target(dtype)?;
            }
        }
        let axes = Axes::from_slices(Source::Tensor, shape, None).map_err(|v| v.in_field(field))?;
        let layout =
            Layout::from_elem_axes(axes, rounded_itemsize(dtype)).map_err(|v| v.in_field(field))?;
        let nbytes = self.nbytes();
        let layout = layout.with_byte_offset(self.byte_offset());
        let flags = match dtype == self.dtype() {
            true => self.flags(),
            false => self.flags().with(Flags::SUBBYTE_PADDED, false),
        };
        let made = Self::from_checked(self.data, self.device, dtype, flags, layout);
        if made.nbytes() != nbytes {
            return Err(refuse(format_args!(
                "as {dtype} it takes {} bytes, and the data has {nbytes}",
                made.nbytes()
            )));
        }
        made.check_align(Field::TensorData, dtype)?;
        Ok(made)
    }

    /// Describes contiguous items as the bytes that they are made of.
    fn as_bytes(&self, items: &CaiOnly) -> Result<Self, Violation> {
        let size = i64::from(items.typestr().itemsize());
        let nbytes = self.len().cast_signed().saturating_mul(size);
        let axes = Axes::from_slices(Source::Tensor, &[nbytes], None)?;
        let layout = Layout::from_elem_axes(axes, 1)?;
        let (data, device, flags) = (self.data, self.device, self.flags());
        Ok(Self::from_checked(data, device, DType::U8, flags, layout))
    }

    /// Checks that an address suits a type ([`check_align`]).
    fn check_align(&self, field: Field, dtype: DType) -> Result<(), Violation> {
        check_align(field, self.data, self.device, dtype.align())
    }

    fn stored_bits(&self) -> u64 {
        match self.cai_only() {
            Some(only) => only.typestr().bits(),
            None => stored_bits(self.dtype(), self.flags()),
        }
    }
}

/// Drops the flag of padding for elements of whole bytes, of which it states nothing: every export of an array has the
/// same flags then, whichever consumers refuse or drop that one.
#[inline]
fn meaningful(dtype: DType, flags: Flags) -> Flags {
    match dtype.is_sub_byte() {
        true => flags,
        false => flags.with(Flags::SUBBYTE_PADDED, false),
    }
}

/// Checks that an address suits a scalar of this alignment, in memory of CUDA. On the host an element may have any
/// address, as NumPy's may; the alignment of an opaque handle is the device's affair.
///
/// # Errors
/// `data-alignment` (BufferError).
#[inline]
pub(super) fn check_align(
    field: Field,
    data: u64,
    device: Device,
    align: u32,
) -> Result<(), Violation> {
    match device.is_cuda_accessible() {
        true => address::check_align(field, data, align),
        false => Ok(()),
    }
}

/// Checks that the items of a dict may be presented as `to`, on a device.
///
/// # Errors
/// Those of [`dtype::reinterpret_typestr`]; `strides-multiple` and `data-alignment` (BufferError).
pub(super) fn reinterpret_items(
    from: TypeStr,
    to: DType,
    layout: &Layout,
    data: u64,
    device: Device,
) -> Result<DType, Violation> {
    let reinterpreted = || {
        let dtype = dtype::reinterpret_typestr(from, to)?;
        layout.check_even()?;
        // Without items `data` is 0, which is aligned.
        check_align(Field::CaiData, data, device, dtype.align())?;
        Ok(dtype)
    };
    reinterpreted().map_err(|refusal| named_on(device, refusal))
}

/// Names the key of the array interface that memory of a device has.
#[cold]
pub(crate) fn named_on(device: Device, refusal: Violation) -> Violation {
    refusal.in_interface_of(device.device_type == DeviceType::CPU)
}

/// The bytes of one element that a layout is checked with: rounded up, and a byte per lane for
/// types that may be padded.
#[inline]
fn rounded_itemsize(dtype: DType) -> u32 {
    if dtype.is_sub_byte() {
        u32::from(dtype.lanes())
    } else {
        dtype.element_bits().div_ceil(8)
    }
}

/// The bits that one element takes in memory: packed, or a byte per lane if the flags say so.
#[inline]
fn stored_bits(dtype: DType, flags: Flags) -> u64 {
    if dtype.is_sub_byte() && flags.contains(Flags::SUBBYTE_PADDED) {
        u64::from(dtype.lanes()) << 3
    } else {
        u64::from(dtype.element_bits())
    }
}

#[cold]
fn refuse_offset(data: u64, byte_offset: u64) -> Violation {
    let found = format_args!("{byte_offset:#x} (data is {data:#x})");
    Violation::new(Rule::ByteOffset, Field::TensorByteOffset, found)
}

#[cold]
fn refuse_ndim(ndim: i32) -> Violation {
    let rule = if ndim < 0 {
        Rule::NdimNegative
    } else {
        Rule::NdimLimit
    };
    Violation::new(rule, Field::TensorNdim, ndim)
}

/// Formats numbers as a tuple of Python.
struct Tuple<'a>(&'a [i64]);

impl fmt::Display for Tuple<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [only] = self.0 {
            return write!(f, "({only},)");
        }
        let numbers: Vec<_> = self.0.iter().map(ToString::to_string).collect();
        write!(f, "({})", numbers.join(", "))
    }
}

#[cfg(test)]
mod fast_tests;
#[cfg(test)]
mod tests;
