//! Converts a `__cuda_array_interface__` dict into a `DLTensor`'s metadata, and back.
//!
//! | DLPack | unit | CAI | unit |
//! |---|---|---|---|
//! | `data + byte_offset` | address | `data[0]` | address |
//! | `shape` | elements | `shape` | elements |
//! | `strides` | elements | `strides` | bytes |
//! | `dtype` | bits, lanes | `typestr` | bytes |
//! | `flags & READ_ONLY` | | `data[1]`; true if it is unknown | |
//! | `device` | | none: the driver is asked | |
//! | none | | `stream` | |

use std::sync::Arc;

use super::address;
use super::cai_only::CaiOnly;
use super::descr::refuse_struct;
use super::descriptor::{self, Descriptor, DescriptorRef};
use super::device::{Access, Device, Flags};
use super::dtype::{DType, TypeStr};
use super::interface::{CaiInterface, Descr, Version};
use super::layout::{self, Layout, LayoutRef, Summary};
use super::rule::{Field, Rule, Violation};
use super::stream::Stream;

impl Descriptor {
    /// Converts the metadata into a dict. The caller keeps the owner and the stream alive.
    ///
    /// # Errors
    /// `cai-device`, `cai-dtype`, `cai-sub-byte` and `cai-lanes` (BufferError).
    #[inline]
    pub fn to_interface(&self, stream: Stream) -> Result<CaiInterface, Violation> {
        let (typestr, descr) = match self.check_interface()? {
            Items::Typed(_) => (self.dtype().to_typestr()?, Descr::None),
            Items::CaiOnly(only) => (only.typestr, only.descr.clone()),
        };
        Ok(self.as_interface(typestr, descr, stream))
    }

    /// Checks that a dict can represent the tensor, and returns what it says of the items.
    ///
    /// # Errors
    /// `cai-device`, `cai-dtype`, `cai-sub-byte` and `cai-lanes` (BufferError).
    #[inline]
    pub(crate) fn check_interface(&self) -> Result<Items<'_>, Violation> {
        if !self.device().is_cuda_accessible() {
            return Err(self.refuse_device());
        }
        self.items()
    }

    /// Returns what an array interface says of the items.
    ///
    /// # Errors
    /// `cai-dtype`, `cai-sub-byte` and `cai-lanes` (BufferError).
    #[inline]
    pub(crate) fn items(&self) -> Result<Items<'_>, Violation> {
        match self.cai_only() {
            None => self.dtype().typestr().map(Items::Typed),
            Some(only) => Ok(Items::CaiOnly(only)),
        }
    }

    #[inline]
    fn as_interface(&self, typestr: TypeStr, descr: Descr, stream: Stream) -> CaiInterface {
        CaiInterface {
            layout: self.layout().clone(),
            data: self.data(),
            stream,
            descr,
            version: Version::V3,
            typestr,
            read_only: self.access() != Access::Writable,
        }
    }

    #[cold]
    fn refuse_device(&self) -> Violation {
        Violation::new(Rule::CaiDevice, Field::TensorDevice, self.device())
            .with_hint("pass it by DLPack, or copy it to the GPU with the producer")
    }
}

/// What an array interface says of the items.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Items<'a> {
    /// The typestr of a type of DLPack.
    Typed(&'static str),
    /// What DLPack cannot say.
    CaiOnly(&'a CaiOnly),
}

impl CaiInterface {
    /// Converts the dict into a tensor's metadata. `dtype` overrides the element type; `device` is
    /// the device of the memory, which a dict does not name.
    ///
    /// # Errors
    /// The `typestr-...` rules, `descr-fields`, `dtype-override`, `strides-multiple` and `data-alignment`
    /// (BufferError).
    #[inline]
    pub fn into_descriptor(
        self,
        dtype: Option<DType>,
        device: Device,
    ) -> Result<Descriptor, Violation> {
        let dtype = match dtype {
            None => {
                (self.dtype(device)).map_err(|refusal| descriptor::named_on(device, refusal))?
            }
            Some(to) => {
                let (from, data) = (self.typestr, self.data);
                descriptor::reinterpret_items(from, to, &self.layout, data, device)?
            }
        };
        Ok(self.into_checked(dtype, device))
    }

    /// Returns DLPack's type of the items, if it can describe them, their strides and their address on a device.
    #[inline]
    fn dtype(&self, device: Device) -> Result<DType, Violation> {
        if let Descr::Fields(fields) = &self.descr {
            return Err(self
                .descr
                .refuse_objects()
                .unwrap_or_else(|| refuse_struct(fields)));
        }
        let dtype = self.typestr.to_dtype()?;
        self.layout.check_even()?;
        descriptor::check_align(Field::CaiData, self.data, device, self.typestr.align())?;
        Ok(dtype)
    }

    /// Converts any dict: what DLPack cannot describe stays as the dict has said it
    /// ([`Descriptor::cai_only`]).
    ///
    /// ```
    /// use cai_dlpack::protocol::axes::{Axes, Source};
    /// use cai_dlpack::protocol::device::Device;
    /// use cai_dlpack::protocol::dtype::TypeStr;
    /// use cai_dlpack::protocol::interface::{CaiInterface, Parts};
    /// use cai_dlpack::protocol::stream::Stream;
    ///
    /// let axes = Axes::from_slices(Source::Cai, &[2], Some(&[7]))?;
    /// let text = Parts::new(0x7000_0001, TypeStr::parse_any_order("|S5")?, axes);
    /// let text = CaiInterface::new(text)?;
    /// let array = text.describe(Device::cuda(0))?;
    /// assert_eq!(array.check_dlpack().unwrap_err().rule().id(), "typestr-bytes");
    /// let dict = array.to_interface(Stream::None)?; // leaves as it came
    /// assert_eq!(dict.typestr().to_string(), "|S5");
    /// assert!(dict.strides_for_export().unwrap().eq([7]));
    /// # Ok::<(), cai_dlpack::protocol::rule::Violation>(())
    /// ```
    ///
    /// # Errors
    /// `typestr-object` (BufferError): references to objects of one process are no data, in a field of a struct either.
    pub fn describe(self, device: Device) -> Result<Descriptor, Violation> {
        self.describe_with(device, |refusal| refusal)
    }

    /// Like [`describe`](Self::describe); `quoted` rewords the refusal that is kept.
    pub(crate) fn describe_with(
        self,
        device: Device,
        quoted: impl FnOnce(Violation) -> Violation,
    ) -> Result<Descriptor, Violation> {
        let refusal = match self.dtype(device) {
            Ok(dtype) => return Ok(self.into_checked(dtype, device)),
            Err(refusal) => quoted(descriptor::named_on(device, refusal)),
        };
        if refusal.rule() == Rule::TypestrObject {
            return Err(refusal);
        }
        let only = CaiOnly {
            typestr: self.typestr,
            descr: self.descr,
            refusal,
        };
        let flags = Flags::NONE.with(Flags::READ_ONLY, self.read_only);
        let layout = self.layout.with_cai_only(Some(Arc::new(only)));
        Ok(Descriptor::from_checked(
            self.data,
            device,
            DType::CAI_ONLY,
            flags,
            layout,
        ))
    }

    /// Like [`into_descriptor`](Self::into_descriptor), with the type that the producer's own dtype names. NumPy
    /// and ml_dtypes store an element smaller than a byte in a byte of its own.
    ///
    /// # Errors
    /// Those of [`into_descriptor`](Self::into_descriptor).
    pub(crate) fn into_named(self, dtype: DType, device: Device) -> Result<Descriptor, Violation> {
        let is_padded = dtype.is_sub_byte() && dtype.lanes() == 1;
        if !is_padded || self.typestr != TypeStr::void(1) {
            return self.into_descriptor(Some(dtype), device);
        }
        let flags = Flags::SUBBYTE_PADDED.with_access(Access::of_flag(self.read_only));
        Ok(Descriptor::from_checked(
            self.data,
            device,
            dtype,
            flags,
            self.layout,
        ))
    }

    #[inline]
    fn into_checked(self, dtype: DType, device: Device) -> Descriptor {
        let flags = Flags::NONE.with(Flags::READ_ONLY, self.read_only);
        let layout = self.layout.with_cai_only(None);
        Descriptor::from_checked(self.data, device, dtype, flags, layout)
    }

    /// Makes the dict of one field of a description ([`field`](Self::field)).
    ///
    /// # Errors
    /// Those of [`field`](Self::field).
    pub(crate) fn of_field(whole: &Descriptor, name: &str) -> Result<Self, Violation> {
        let (typestr, descr) = match whole.cai_only() {
            Some(only) => (only.typestr, only.descr.clone()),
            None => (TypeStr::void(1), Descr::None),
        };
        let whole = whole.as_interface(typestr, descr, Stream::None);
        whole.field(name)
    }
}

/// The entries of a plain dict: an array of numbers, with neither fields nor a mask.
///
/// Combines the checks of [`CaiInterface::new`] and [`CaiInterface::into_descriptor`] in one step,
/// in place and without an allocation. The caller reports a refusal by reading the dict again in
/// full.
#[derive(Debug)]
pub(crate) struct PlainDict<'a> {
    /// `data[0]`.
    pub(crate) data: u64,
    /// `data[1]`.
    pub(crate) read_only: bool,
    /// The type of `typestr`.
    pub(crate) dtype: DType,
    /// `shape`, then `strides` in bytes, or as many numbers to write strides to.
    pub(crate) values: &'a mut [i64],
    /// The number of axes.
    pub(crate) ndim: u8,
    /// Whether there are strides; else C order.
    pub(crate) has_strides: bool,
}

/// A [`PlainDict`] whose entries are checked against each other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InterfaceRef<'a> {
    layout: LayoutRef<'a>,
    data: u64,
    dtype: DType,
    flags: Flags,
}

impl<'a> PlainDict<'a> {
    /// Returns the type of a canonical typestr; `None` for any other text.
    #[must_use]
    #[inline(always)]
    pub(crate) fn dtype(typestr: &[u8]) -> Option<DType> {
        DType::from_typestr_fast(typestr)
    }

    /// Checks the entries against each other.
    ///
    /// # Errors
    /// Those of [`Axes`](super::axes::Axes), [`CaiInterface::new`] and
    /// [`CaiInterface::into_descriptor`].
    #[inline(always)]
    pub(crate) fn checked(mut self) -> Result<InterfaceRef<'a>, Violation> {
        match self.check_fast() {
            Some(summary) => Ok(InterfaceRef {
                data: self.data,
                dtype: self.dtype,
                flags: Flags::NONE.with(Flags::READ_ONLY, self.read_only),
                layout: LayoutRef {
                    values: self.values,
                    ndim: self.ndim,
                    summary,
                },
            }),
            None => self.check(),
        }
    }

    /// Checks an array that has elements and no number near a limit, in one pass. `None`, with the
    /// strides unchanged, for any other, and for a malformed one.
    #[inline(always)]
    fn check_fast(&mut self) -> Option<Summary> {
        let rank = usize::from(self.ndim);
        let bits = u32::from(self.dtype.bits());
        let misaligned = u64::from(self.dtype.align().wrapping_sub(1)) & self.data;
        let is_plain = self.dtype.lanes() == 1 && bits.is_power_of_two() && bits >= 8;
        if !is_plain || self.data == 0 || misaligned != 0 {
            return None;
        }
        let (itemsize, shift) = (bits >> 3, bits.trailing_zeros().wrapping_sub(3));
        let (summary, reach) = layout::check_fast(self.values, rank, self.has_strides, shift)?;
        if !layout::is_within_memory(self.data, reach, itemsize) {
            return None;
        }
        if self.has_strides {
            layout::to_elements(self.values, rank, shift);
        }
        Some(summary)
    }

    #[inline(never)]
    fn check(self) -> Result<InterfaceRef<'a>, Violation> {
        let dtype = self.dtype;
        let itemsize = dtype.itemsize().unwrap_or(1); // no type with a typestr is packed
        let layout = layout::check_bytes(self.values, self.ndim, self.has_strides, itemsize)?;
        let (bits, align) = (u64::from(itemsize) << 3, dtype.align());
        Ok(InterfaceRef {
            data: address::check(Field::CaiData, self.data, layout, bits, align)?,
            layout,
            dtype,
            flags: Flags::NONE.with(Flags::READ_ONLY, self.read_only),
        })
    }
}

impl<'a> InterfaceRef<'a> {
    /// Converts the dict into a tensor's metadata, on a device that a dict does not name.
    #[inline(always)]
    #[must_use]
    pub(crate) fn descriptor(&self, device: Device) -> Descriptor {
        let layout = Layout::from_ref(self.layout);
        Descriptor::from_checked(self.data, device, self.dtype, self.flags, layout)
    }

    /// Like [`descriptor`](Self::descriptor), borrowing the extents and strides.
    #[inline]
    #[must_use]
    pub(crate) fn borrowed(&self, device: Device) -> DescriptorRef<'a> {
        DescriptorRef {
            values: self.layout.values,
            data: self.data,
            byte_offset: 0,
            device,
            dtype: self.dtype,
            flags: self.flags,
        }
    }
}

#[cfg(test)]
mod fast_tests;
#[cfg(test)]
mod tests;
