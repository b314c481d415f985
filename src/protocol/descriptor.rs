//! A `DLTensor`'s metadata as a checked value, and the two ways between it and [`Interface`].
//!
//! | DLPack | unit | CAI | unit |
//! |---|---|---|---|
//! | `data + byte_offset` | address | `data[0]` | address |
//! | `shape` | elements | `shape` | elements |
//! | `strides` | elements | `strides` | bytes |
//! | `dtype` | bits, lanes | `typestr` | bytes |
//! | `flags & READ_ONLY` | | `data[1]` | |
//! | `device` | | none: asked of the driver | |
//! | none | | `stream` | |

use std::fmt;

use super::dtype::{self, DType};
use super::interface::Interface;
use super::layout::{self, Axes, Element, FEW, Layout, MAX_NDIM, Source};
use super::rule::{Field, Rule, Violation};
use super::stream::Stream;

/// A device of DLPack: a type and a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Device {
    /// `DLDeviceType`.
    pub device_type: i32,
    /// `DLDevice.device_id`.
    pub id: i32,
}

macro_rules! devices {
    ($($name:ident $number:literal $text:literal;)*) => {
        impl Device {
            $(#[doc = concat!("`", $text, "`.")] pub const $name: i32 = $number;)*

            /// The name of the type, without the number.
            #[must_use]
            pub const fn type_name(self) -> &'static str {
                match self.device_type {
                    $($number => $text,)*
                    _ => "unknown",
                }
            }

            const fn is_known(device_type: i32) -> bool {
                matches!(device_type, $($number)|*)
            }
        }
    };
}

devices! {
    CPU 1 "cpu";
    CUDA 2 "cuda";
    CUDA_HOST 3 "cuda_host";
    OPENCL 4 "opencl";
    VULKAN 7 "vulkan";
    METAL 8 "metal";
    VPI 9 "vpi";
    ROCM 10 "rocm";
    ROCM_HOST 11 "rocm_host";
    EXT_DEV 12 "ext_dev";
    CUDA_MANAGED 13 "cuda_managed";
    ONE_API 14 "oneapi";
    WEBGPU 15 "webgpu";
    HEXAGON 16 "hexagon";
    MAIA 17 "maia";
    TRN 18 "trn";
}

impl Device {
    /// The CPU.
    pub const HOST: Self = Self {
        device_type: Self::CPU,
        id: 0,
    };

    /// Device memory of the CUDA device `ordinal`.
    #[must_use]
    pub const fn cuda(ordinal: i32) -> Self {
        Self {
            device_type: Self::CUDA,
            id: ordinal,
        }
    }

    /// Checks what `__dlpack_device__` answered.
    ///
    /// # Errors
    /// `device-unknown` (BufferError), `device-id` (ValueError).
    #[inline]
    pub fn check(device_type: i32, id: i32) -> Result<Self, Violation> {
        Self::check_in(Field::DlpackDevice, device_type, id)
    }

    /// [`check`](Self::check), with the field that the numbers come from.
    ///
    /// # Errors
    /// `device-unknown` (BufferError), `device-id` (ValueError).
    #[inline]
    pub(crate) fn check_in(field: Field, device_type: i32, id: i32) -> Result<Self, Violation> {
        let rule = if !Self::is_known(device_type) {
            Rule::DeviceUnknown
        } else if id < 0 {
            Rule::DeviceId
        } else {
            return Ok(Self { device_type, id });
        };
        Err(refuse_device(rule, field, device_type, id))
    }

    /// Whether CUDA devices can read the memory: device, pinned and managed memory.
    #[must_use]
    #[inline]
    pub const fn is_cuda_accessible(self) -> bool {
        matches!(
            self.device_type,
            Self::CUDA | Self::CUDA_HOST | Self::CUDA_MANAGED
        )
    }

    /// Whether the host can read the memory without a copy.
    #[must_use]
    #[inline]
    pub const fn is_host_readable(self) -> bool {
        matches!(
            self.device_type,
            Self::CPU | Self::CUDA_HOST | Self::CUDA_MANAGED | Self::ROCM_HOST
        )
    }
}

#[cold]
fn refuse_device(rule: Rule, field: Field, device_type: i32, id: i32) -> Violation {
    Violation::new(rule, field, format_args!("({device_type}, {id})"))
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.type_name(), self.id)
    }
}

/// `DLManagedTensorVersioned.flags`. Bits that DLPack 1.3 does not define are dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Flags(u8);

impl Flags {
    /// No flag.
    pub const NONE: Self = Self(0);
    /// The data must not be written.
    pub const READ_ONLY: Self = Self(1);
    /// The data is a copy that the consumer alone owns.
    pub const IS_COPIED: Self = Self(2);
    /// Elements smaller than a byte take a byte each.
    pub const SUBBYTE_PADDED: Self = Self(4);

    /// The flags that are known among `bits`.
    #[must_use]
    #[inline]
    pub const fn from_bits(bits: u64) -> Self {
        Self((bits & 7) as u8)
    }

    /// The flags as DLPack's integer.
    #[must_use]
    #[inline]
    pub const fn bits(self) -> u64 {
        self.0 as u64
    }

    /// Whether every flag of `other` is set.
    #[must_use]
    #[inline]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether the data must not be written.
    #[must_use]
    #[inline]
    pub const fn read_only(self) -> bool {
        self.contains(Self::READ_ONLY)
    }

    /// These flags with `other` set or cleared.
    #[must_use]
    #[inline]
    pub const fn with(self, other: Self, set: bool) -> Self {
        if set {
            Self(self.0 | other.0)
        } else {
            Self(self.0 & !other.0)
        }
    }
}

/// The fields of a `DLTensor` as they are read from memory, before any check.
#[derive(Clone, Copy, Debug)]
pub struct RawTensor<'a> {
    /// `data` as an address.
    pub data: u64,
    /// `byte_offset`.
    pub byte_offset: u64,
    /// `device.device_type`.
    pub device_type: i32,
    /// `device.device_id`.
    pub device_id: i32,
    /// `dtype.code`.
    pub code: u8,
    /// `dtype.bits`.
    pub bits: u8,
    /// `dtype.lanes`.
    pub lanes: u16,
    /// `shape`, `ndim` extents.
    pub shape: &'a [i64],
    /// `strides`, `ndim` of them in elements; `None` for NULL, which means C order.
    pub strides: Option<&'a [i64]>,
    /// The managed tensor's flags; 0 for a legacy tensor.
    pub flags: u64,
}

/// What a `DLTensor` says, checked.
///
/// `data` is the address of the element of index 0 (`byte_offset` is in it), and 0 where there are
/// no elements; the elements lie within the address space.
#[derive(Clone, Debug)]
pub struct Descriptor {
    /// With type and flags (`layout::Element`).
    layout: Layout,
    data: u64,
    device: Device,
}

/// A [`Descriptor`] whose extents and strides lie elsewhere.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Described<'a> {
    /// The extents, and after them the strides in elements.
    pub(crate) values: &'a [i64],
    /// The address of the element of index 0; 0 where there are no elements.
    pub(crate) data: u64,
    /// Where the memory is.
    pub(crate) device: Device,
    /// The element type.
    pub(crate) dtype: DType,
    /// The flags.
    pub(crate) flags: Flags,
}

impl PartialEq for Descriptor {
    fn eq(&self, other: &Self) -> bool {
        let rest = |this: &Self| (this.data, this.device, this.dtype(), this.flags());
        self.layout == other.layout && rest(self) == rest(other)
    }
}

impl Eq for Descriptor {}

impl Descriptor {
    /// The same, without its numbers.
    #[inline]
    #[must_use]
    pub(crate) fn described(&self) -> Described<'_> {
        Described {
            values: self.layout.values(),
            data: self.data,
            device: self.device,
            dtype: self.dtype(),
            flags: self.flags(),
        }
    }

    /// Checks `DLTensor.ndim`, before it is taken for the length of two arrays.
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
    /// The rules of `DLTensor`'s fields: `dtype-...`, `device-unknown` (BufferError) and
    /// `device-id`, `shape-extent`, `count-overflow`, `size-overflow`, `span-overflow`,
    /// `data-pointer-null`, `byte-offset`, `address-range` (ValueError).
    #[inline(always)]
    pub fn new(raw: &RawTensor<'_>) -> Result<Self, Violation> {
        match Self::usual(raw) {
            Some(usual) => Ok(usual),
            None => Self::careful(raw),
        }
    }

    /// Up to so many axes are usual.
    pub(crate) const FEW_AXES: u32 = 4;

    /// The same for what is usual, in one pass; `None` for the rest, and for whatever is wrong.
    #[inline(always)]
    pub(crate) fn usual(raw: &RawTensor<'_>) -> Option<Self> {
        let dtype = DType::known(raw.code, raw.bits, raw.lanes)?;
        let is_negative = (raw.byte_offset.cast_signed() | i64::from(raw.device_id)) < 0;
        if !Device::is_known(raw.device_type) || dtype.is_sub_byte() || is_negative {
            return None;
        }
        let itemsize = dtype.itemsize()?;
        let ndim = u8::try_from(raw.shape.len()).ok()?;
        let mut values = [0; 2 * FEW];
        let (extent, reach) = layout::take_usual(&mut values, raw.shape, raw.strides)?;
        let data = raw.data.checked_add(raw.byte_offset)?;
        if raw.data == 0 || !layout::is_within_memory(data, reach, itemsize) {
            return None;
        }
        let element = Element {
            dtype,
            flags: Flags::from_bits(raw.flags).0,
        };
        Some(Self {
            layout: Layout::of_few(values, ndim, extent, element),
            data,
            device: Device {
                device_type: raw.device_type,
                id: raw.device_id,
            },
        })
    }

    /// The same for anything.
    #[inline(never)]
    pub(crate) fn careful(raw: &RawTensor<'_>) -> Result<Self, Violation> {
        let device = Device::check_in(Field::TensorDevice, raw.device_type, raw.device_id)?;
        let dtype = DType::from_dlpack(raw.code, raw.bits, raw.lanes)?;
        let axes = Axes::from_slices(Source::Tensor, raw.shape, raw.strides)?;
        let layout = Layout::from_elem_axes(axes, rounded_itemsize(dtype))?;
        let flags = Flags::from_bits(raw.flags);
        let data = match offset_data(raw.data, raw.byte_offset) {
            _ if raw.data == 0 || layout.len() == 0 => 0,
            Some(data) => data,
            None => return Err(refuse_offset(raw.data, raw.byte_offset)),
        };
        Self::from_layout(data, device, dtype, flags, layout)
    }

    /// A descriptor of parts that are checked one by one. `data` is the address of the element of
    /// index 0, and is taken as 0 where there are no elements.
    ///
    /// # Errors
    /// `data-pointer-null`, `address-range` (ValueError).
    pub fn from_layout(
        data: u64,
        device: Device,
        dtype: DType,
        flags: Flags,
        layout: Layout,
    ) -> Result<Self, Violation> {
        let data = check_data(data, &layout, stored_bits(dtype, flags))?;
        Ok(Self::of_interface(data, device, dtype, flags, layout))
    }

    /// Of parts that an [`Interface`] has checked together.
    #[inline(always)]
    pub(super) const fn of_interface(
        data: u64,
        device: Device,
        dtype: DType,
        flags: Flags,
        mut layout: Layout,
    ) -> Self {
        *layout.element_mut() = Element {
            dtype,
            flags: flags.0,
        };
        Self {
            layout,
            data,
            device,
        }
    }

    /// The address of the element of index 0; 0 where there are no elements.
    #[must_use]
    #[inline]
    pub const fn data(&self) -> u64 {
        self.data
    }

    /// Where the memory is.
    #[must_use]
    #[inline]
    pub const fn device(&self) -> Device {
        self.device
    }

    /// The element type.
    #[must_use]
    #[inline]
    pub const fn dtype(&self) -> DType {
        self.layout.element().dtype
    }

    /// The flags.
    #[must_use]
    #[inline]
    pub const fn flags(&self) -> Flags {
        Flags(self.layout.element().flags)
    }

    /// Whether the data must not be written.
    #[must_use]
    #[inline]
    pub const fn read_only(&self) -> bool {
        self.flags().read_only()
    }

    /// Shape and strides.
    #[must_use]
    #[inline]
    pub const fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The extents, in elements.
    #[must_use]
    #[inline]
    pub fn shape(&self) -> &[i64] {
        self.layout.shape()
    }

    /// One stride per axis, in elements.
    #[must_use]
    #[inline]
    pub fn elem_strides(&self) -> &[i64] {
        self.layout.elem_strides()
    }

    /// One stride per axis, in bytes; `None` for types whose elements are no whole bytes.
    #[inline]
    pub fn byte_strides(
        &self,
    ) -> Option<impl ExactSizeIterator<Item = i64> + DoubleEndedIterator + '_> {
        let itemsize = self.dtype().itemsize()?;
        Some(self.layout.byte_strides(itemsize))
    }

    /// The number of axes.
    #[must_use]
    #[inline]
    pub const fn ndim(&self) -> usize {
        self.layout.ndim()
    }

    /// The number of elements.
    #[must_use]
    #[inline]
    #[expect(
        clippy::len_without_is_empty,
        reason = "a tensor of no elements is nothing special"
    )]
    pub fn len(&self) -> u64 {
        self.layout.len()
    }

    /// The bytes of all elements, gaps not counted; packed elements are rounded up together.
    #[must_use]
    #[inline]
    pub fn nbytes(&self) -> u64 {
        bytes_of(self.layout.len(), self.stored_bits())
    }

    /// The first byte that belongs to an element and the end of the last: `(start, end)`.
    /// `None` without elements.
    #[must_use]
    #[inline]
    pub fn byte_span(&self) -> Option<(u64, u64)> {
        if self.layout.len() == 0 {
            return None;
        }
        end_points(self.data, &self.layout, self.stored_bits())
    }

    /// The same data said to be elsewhere: for pinned and managed memory, which has two names.
    #[must_use]
    pub fn with_device(mut self, device: Device) -> Self {
        self.set_device(device);
        self
    }

    /// [`with_device`](Self::with_device), in place.
    pub(crate) fn set_device(&mut self, device: Device) {
        self.device = device;
    }

    /// The same data with the read-only flag set or cleared.
    #[must_use]
    pub fn with_read_only(mut self, read_only: bool) -> Self {
        self.layout.element_mut().flags = self.flags().with(Flags::READ_ONLY, read_only).0;
        self
    }

    /// The same bytes as elements of another type of the same size.
    ///
    /// # Errors
    /// `dtype-override`: see [`dtype::reinterpret`]; `data-alignment` where the bytes had none (BufferError).
    pub fn with_dtype(mut self, dtype: DType) -> Result<Self, Violation> {
        let dtype = dtype::reinterpret(self.dtype(), dtype)?;
        if self.data.checked_rem(u64::from(dtype.align())) != Some(0) && dtype != self.dtype() {
            return Err(misaligned(Field::TensorData, self.data, dtype.align()));
        }
        self.layout.element_mut().dtype = dtype;
        Ok(self)
    }

    /// The same bytes as elements of `dtype` in C order: what `shape=` asks for.
    ///
    /// # Errors
    /// `shape-override`, `data-alignment` and `dtype-override` (BufferError); the rules of shapes.
    pub fn with_shape(self, dtype: DType, shape: &[i64]) -> Result<Self, Violation> {
        let field = Field::Argument("shape");
        let refuse = |why: fmt::Arguments<'_>| {
            Violation::new(Rule::ShapeOverride, field, format_args!("{shape:?}"))
                .with_hint(why.to_string())
        };
        if !self.layout.is_c_contiguous() {
            return Err(refuse(format_args!("the data is not contiguous")));
        }
        if dtype != self.dtype() {
            dtype::check_carried(dtype)?;
            if self.dtype().itemsize() != Some(1) {
                dtype::reinterpret(self.dtype(), dtype)?;
            }
        }
        let axes = Axes::from_slices(Source::Tensor, shape, None).map_err(|v| v.in_field(field))?;
        let layout =
            Layout::from_elem_axes(axes, rounded_itemsize(dtype)).map_err(|v| v.in_field(field))?;
        let nbytes = self.nbytes();
        let made = Self::of_interface(self.data, self.device, dtype, self.flags(), layout);
        if made.nbytes() != nbytes {
            return Err(refuse(format_args!(
                "as {dtype} it takes {} bytes, and the data has {nbytes}",
                made.nbytes()
            )));
        }
        if made.data.checked_rem(u64::from(dtype.align())) != Some(0) {
            return Err(misaligned(field, made.data, dtype.align()));
        }
        Ok(made)
    }

    /// The dict that says the same. The owner, the stream's life and the driver's opinion are the
    /// caller's.
    ///
    /// # Errors
    /// `cai-device`, `cai-dtype`, `cai-sub-byte` and `cai-lanes` (BufferError).
    #[inline]
    pub fn to_interface(&self, stream: Stream) -> Result<Interface, Violation> {
        self.check_interface()?;
        Ok(Interface::of_descriptor(self, stream))
    }

    /// Whether [`to_interface`](Self::to_interface) has a dict that says the same: its typestr.
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub(crate) fn check_interface(&self) -> Result<&'static str, Violation> {
        if !self.device.is_cuda_accessible() {
            return Err(self.refuse_cai_device());
        }
        self.dtype().typestr()
    }

    fn stored_bits(&self) -> u32 {
        stored_bits(self.dtype(), self.flags())
    }

    #[cold]
    fn refuse_cai_device(&self) -> Violation {
        Violation::new(Rule::CaiDevice, Field::TensorDevice, self.device)
            .with_hint("pass it by DLPack, or copy it to the GPU with the producer")
    }
}

/// The bytes that the layout of a type is checked with: whole elements, rounded up; a byte per
/// lane for types that may be padded.
#[inline]
fn rounded_itemsize(dtype: DType) -> u32 {
    if dtype.is_sub_byte() {
        u32::from(dtype.lanes())
    } else {
        dtype.element_bits().div_ceil(8)
    }
}

/// The bits that one element takes: packed, or a byte per lane where the flags say so.
#[inline]
fn stored_bits(dtype: DType, flags: Flags) -> u32 {
    if dtype.is_sub_byte() && flags.contains(Flags::SUBBYTE_PADDED) {
        u32::from(dtype.lanes()).wrapping_mul(8) // below 2**19
    } else {
        dtype.element_bits()
    }
}

/// The bytes of `elements` elements, rounded up.
#[inline]
fn bytes_of(elements: u64, stored_bits: u32) -> u64 {
    if stored_bits & 7 == 0 {
        // Fits: the layout was checked with this size.
        return elements.saturating_mul(u64::from(stored_bits >> 3));
    }
    let bits = u128::from(elements).saturating_mul(u128::from(stored_bits));
    u64::try_from(bits.div_ceil(8)).unwrap_or(u64::MAX)
}

/// The first byte and the end of the last, of a tensor with elements. `None` where they leave the
/// address space.
#[inline(always)]
fn end_points(data: u64, layout: &Layout, stored_bits: u32) -> Option<(u64, u64)> {
    let (lowest, end) = layout.elem_span();
    let start = data.checked_sub(bytes_of(lowest.unsigned_abs(), stored_bits))?;
    let end = data.checked_add(bytes_of(end.unsigned_abs(), stored_bits))?;
    Some((start, end))
}

/// The pointer against shape, strides and size. Answers it, and 0 without elements.
#[inline(always)]
fn check_data(data: u64, layout: &Layout, stored_bits: u32) -> Result<u64, Violation> {
    if layout.len() == 0 {
        return Ok(0);
    }
    if data == 0 {
        return Err(null_data(Field::TensorData, layout.shape()));
    }
    match end_points(data, layout, stored_bits) {
        Some(_) => Ok(data),
        None => Err(leaves_memory(Field::TensorData, data)),
    }
}

/// `data + byte_offset`, or `None` where that is no address.
#[inline]
fn offset_data(data: u64, byte_offset: u64) -> Option<u64> {
    let offset = i64::try_from(byte_offset).ok()?;
    data.checked_add_signed(offset)
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

#[cold]
pub(super) fn null_data(field: Field, shape: &[i64]) -> Violation {
    let found = format_args!("0 with shape {shape:?}");
    Violation::new(Rule::DataPointerNull, field, found)
}

#[cold]
pub(super) fn leaves_memory(field: Field, data: u64) -> Violation {
    Violation::new(Rule::AddressRange, field, format_args!("{data:#x}"))
}

#[cold]
pub(super) fn misaligned(field: Field, data: u64, align: u32) -> Violation {
    let found = format_args!("{data:#x}, to be aligned to {align} bytes");
    Violation::new(Rule::DataAlignment, field, found)
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod usual_tests;
