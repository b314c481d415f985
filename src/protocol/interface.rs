//! [`CaiInterface`]: a `__cuda_array_interface__` dict, versions 0 to 3, checked.
//!
//! The versions differ less than their numbers suggest. Versions 0 and 1 leave open what absent
//! strides and size 0 mean; the definition of version 2 is applied to all. Version 1 added `mask`
//! and version 3 added `stream`; both are read from a dict of any version, since producers that
//! write them mean them. A newer version is read as 3.

use super::address;
use super::axes::{Axes, Source};
use super::dtype::{Kind, TypeStr};
use super::layout::Layout;
use super::rule::{Field, Rule, Violation};
use super::stream::Stream;

pub use super::descr::{Descr, DescrBuilder, DescrField};

/// The version number of a dict.
///
/// ```
/// use cai_dlpack::protocol::interface::Version;
///
/// assert_eq!((Version::from_int(2)?, Version::V2.number()), (Version::V2, 2));
/// assert_eq!(Version::from_int(7)?, Version::Newer(7)); // is read as 3
/// assert!(Version::from_int(-1).is_err());
/// # Ok::<(), cai_dlpack::protocol::rule::Violation>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Version {
    /// Version 0.
    V0,
    /// Version 1, which added `mask`.
    V1,
    /// Version 2, which defines absent strides and size 0.
    V2,
    /// Version 3, which added `stream`.
    V3,
    /// A later version than this library implements: read as 3, and the caller warns.
    Newer(i64),
}

impl Version {
    /// The version of a dict without `version`.
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

    /// Returns the number.
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
/// `mask` is not included: the caller decides what to do with it, and a dict whose mask is ignored
/// or split off is otherwise like any other.
///
/// ```
/// use cai_dlpack::protocol::axes::{Axes, Source};
/// use cai_dlpack::protocol::dtype::TypeStr;
/// use cai_dlpack::protocol::interface::{CaiInterface, Descr, Parts, Version};
/// use cai_dlpack::protocol::stream::Stream;
///
/// let axes = Axes::from_slices(Source::Cai, &[4], None)?;
/// let parts = Parts::new(0x7000_0000, TypeStr::parse("|u1")?, axes)
///     .with_version(Version::V3)
///     .with_descr(Descr::Trivial)
///     .with_read_only(true)
///     .with_stream(Stream::PerThreadDefault);
/// assert_eq!(parts.data, 0x7000_0000);
/// assert!(CaiInterface::new(parts)?.read_only());
/// # Ok::<(), cai_dlpack::protocol::rule::Violation>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Parts {
    /// `version`.
    pub version: Version,
    /// `typestr`.
    pub typestr: TypeStr,
    /// `descr`.
    pub descr: Descr,
    /// `shape`, and `strides` in bytes if there are any.
    pub axes: Axes,
    /// `data[0]`.
    pub data: u64,
    /// `data[1]`.
    pub read_only: bool,
    /// `stream`.
    pub stream: Stream,
}

impl Parts {
    /// The entries of a dict of version 3 whose data is ready, may be written, and has no fields.
    #[must_use]
    pub const fn new(data: u64, typestr: TypeStr, axes: Axes) -> Self {
        Self {
            version: Version::V3,
            typestr,
            descr: Descr::None,
            axes,
            data,
            read_only: false,
            stream: Stream::None,
        }
    }

    /// Sets `version`.
    ///
    /// ```
    /// use cai_dlpack::protocol::axes::{Axes, Source};
    /// use cai_dlpack::protocol::dtype::TypeStr;
    /// use cai_dlpack::protocol::interface::{CaiInterface, Descr, Parts, Version};
    ///
    /// let axes = Axes::from_slices(Source::Cai, &[16], None)?;
    /// let parts = Parts::new(0x7000_0000, TypeStr::parse("|t1")?, axes)
    ///     .with_version(Version::from_int(2)?)
    ///     .with_descr(Descr::Trivial)
    ///     .with_read_only(true);
    /// let bits = CaiInterface::new(parts)?;
    /// assert!(bits.is_bits() && bits.read_only());
    /// assert_eq!((bits.descr(), bits.layout().len(), bits.nbytes()), (&Descr::Trivial, 16, 2));
    /// # Ok::<(), cai_dlpack::protocol::rule::Violation>(())
    /// ```
    #[must_use]
    pub fn with_version(self, version: Version) -> Self {
        Self { version, ..self }
    }

    /// Sets `descr`.
    #[must_use]
    pub fn with_descr(self, descr: Descr) -> Self {
        Self { descr, ..self }
    }

    /// Sets `data[1]`.
    #[must_use]
    pub fn with_read_only(self, read_only: bool) -> Self {
        Self { read_only, ..self }
    }

    /// Sets `stream`.
    #[must_use]
    pub fn with_stream(self, stream: Stream) -> Self {
        Self { stream, ..self }
    }
}

/// A `__cuda_array_interface__` dict whose entries are checked against each other.
///
/// [`data`](Self::data) is the address of the element of index 0, and 0 if there are no elements. All elements lie
/// within the address space. Items that DLPack cannot describe are accepted: both ends of the interface can say them,
/// and [`into_descriptor`](Self::into_descriptor) refuses them.
///
/// ```
/// use cai_dlpack::protocol::axes::{Axes, Source};
/// use cai_dlpack::protocol::device::Device;
/// use cai_dlpack::protocol::dtype::TypeStr;
/// use cai_dlpack::protocol::interface::{CaiInterface, Descr, Parts, Version};
/// use cai_dlpack::protocol::stream::Stream;
///
/// # let native = if cfg!(target_endian = "little") { "<f4" } else { ">f4" };
/// let axes = Axes::from_slices(Source::Cai, &[2, 3], None)?;
/// let parts = Parts::new(0x7000_0000, TypeStr::parse(native)?, axes); // "<f4"
/// let dict = CaiInterface::new(parts.with_stream(Stream::LegacyDefault))?;
/// assert_eq!((dict.shape(), dict.data(), dict.nbytes()), (&[2, 3][..], 0x7000_0000, 24));
/// assert_eq!((dict.version(), dict.stream(), dict.read_only()), (Version::V3, Stream::LegacyDefault, false));
/// assert!(dict.layout().is_c_contiguous() && dict.strides_for_export().is_none());
/// assert_eq!((dict.descr(), dict.is_bits()), (&Descr::None, false));
/// assert_eq!(dict.byte_span(), Some((0x7000_0000, 0x7000_0018)));
///
/// // A dict has no device: the caller or the driver supplies it.
/// let tensor = dict.into_descriptor(None, Device::cuda(0))?;
/// assert_eq!(tensor.elem_strides(), [3, 1]);
///
/// // And back.
/// assert_eq!(tensor.to_interface(Stream::None)?.typestr().as_str(), Some(native));
/// # Ok::<(), cai_dlpack::protocol::rule::Violation>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaiInterface {
    pub(super) layout: Layout,
    pub(super) data: u64,
    pub(super) stream: Stream,
    pub(super) descr: Descr,
    pub(super) version: Version,
    pub(super) typestr: TypeStr,
    pub(super) read_only: bool,
}

impl CaiInterface {
    /// Checks the entries against each other.
    ///
    /// # Errors
    /// `data-pointer-null`, `address-range`, `descr-size` and those rules of [`Layout::from_byte_axes`] that are
    /// ValueErrors.
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
        let layout = Layout::from_dict_axes(axes, typestr.itemsize())?;
        Ok(Self {
            data: address::check_items(data, &layout, typestr)?,
            layout,
            stream,
            descr,
            version,
            typestr,
            read_only,
        })
    }

    /// Returns the version.
    #[must_use]
    pub const fn version(&self) -> Version {
        self.version
    }

    /// Returns the kind and size of the items.
    #[must_use]
    pub const fn typestr(&self) -> TypeStr {
        self.typestr
    }

    /// Returns the fields of a struct.
    #[must_use]
    pub const fn descr(&self) -> &Descr {
        &self.descr
    }

    /// Returns shape and strides, in items.
    #[must_use]
    pub const fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Returns the extents.
    #[must_use]
    #[inline]
    pub fn shape(&self) -> &[i64] {
        self.layout.shape()
    }

    /// Returns the strides for an exported dict, in bytes. `None` in C order and without elements,
    /// because some consumers treat explicit strides as the slow case, or reject them.
    #[inline]
    pub fn strides_for_export(
        &self,
    ) -> Option<impl ExactSizeIterator<Item = i64> + DoubleEndedIterator + '_> {
        let strides = self.layout.interface_strides(self.typestr.itemsize())?;
        Some(strides.into_iter())
    }

    /// Returns the address of the element of index 0; 0 if there are no elements.
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

    /// Returns the stream that the data is ready on.
    #[must_use]
    #[inline]
    pub const fn stream(&self) -> Stream {
        self.stream
    }

    /// Returns the bytes of all items, without gaps.
    #[must_use]
    pub fn nbytes(&self) -> u64 {
        address::nbytes(self.layout.len(), self.typestr.bits())
    }

    /// Returns the first byte of the lowest item and the end of the highest one; `None` without items.
    #[must_use]
    #[inline]
    pub fn byte_span(&self) -> Option<(u64, u64)> {
        address::items_span(self.data, &self.layout, self.typestr)
    }

    /// Returns one field of a structured array, with the strides of the whole array. A field that is
    /// an array itself adds its axes.
    ///
    /// # Errors
    /// `field-unknown` and the rules of shapes (ValueError); `field-none` (BufferError).
    ///
    /// ```
    /// use cai_dlpack::protocol::axes::{Axes, Source};
    /// use cai_dlpack::protocol::dtype::TypeStr;
    /// use cai_dlpack::protocol::interface::{CaiInterface, DescrBuilder, Parts};
    ///
    /// let (typestr, mut fields) = (TypeStr::parse("|V8")?, DescrBuilder::new());
    /// fields.push("x", "|u1", &[4])?;
    /// fields.push("y", "|u1", &[4])?;
    /// let axes = Axes::from_slices(Source::Cai, &[2], None)?;
    /// let parts = Parts::new(0x7000_0000, typestr, axes).with_descr(fields.finish(typestr)?);
    /// let y = CaiInterface::new(parts)?.field("y")?;
    /// assert_eq!((y.shape(), y.byte_span()), (&[2, 4][..], Some((0x7000_0004, 0x7000_0010))));
    /// # Ok::<(), cai_dlpack::protocol::rule::Violation>(())
    /// ```
    pub fn field(&self, name: &str) -> Result<Self, Violation> {
        let field = self.descr.find(name)?;
        let typestr = field.typestr();
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
        let layout = Layout::from_dict_axes(axes, typestr.itemsize())?;
        // Fits: the field lies within the item, and the items within the address space.
        let data = self.data.saturating_add(u64::from(field.offset()));
        Ok(Self {
            data: address::check_items(data, &layout, typestr)?,
            layout,
            descr: field.descr(),
            typestr,
            ..*self
        })
    }

    /// Replaces `descr` by one that has been checked against the typestr.
    pub(crate) fn set_descr(&mut self, descr: Descr) {
        self.descr = descr;
    }

    /// Whether the items are bits, as in some masks: `shape` then counts bits.
    #[must_use]
    pub const fn is_bits(&self) -> bool {
        matches!(self.typestr.kind(), Kind::Bit)
    }
}

#[cfg(test)]
mod tests;
