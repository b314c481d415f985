//! [`DeviceType`], [`Device`], [`Access`] and [`Flags`]: where a tensor's memory is, and what may be done with it.

use std::fmt;

use super::rule::{Field, Rule, Violation};

/// The kind of a device: an integer that DLPack's header names.
///
/// Any integer has a value of this type, as newer headers name more of them: [`Device::check`] refuses those that this
/// library has no name for.
///
/// Source: `DLDeviceType` in [dlpack.h](https://github.com/dmlc/dlpack/blob/v1.3/include/dlpack/dlpack.h).
///
/// ```
/// use cai_dlpack::protocol::device::DeviceType;
///
/// let managed = DeviceType::from_dlpack(13);
/// assert_eq!((managed, managed.to_dlpack()), (DeviceType::CUDA_MANAGED, 13));
/// assert_eq!(format!("{managed} {managed:?}"), "cuda_managed CUDA_MANAGED");
///
/// let newer = DeviceType::from_dlpack(99);
/// assert_eq!((newer.name(), newer.to_string()), (None, "99".to_owned()));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct DeviceType(i32);

/// A DLPack device: a device type and a device number.
///
/// ```
/// use cai_dlpack::protocol::device::{Device, DeviceType};
///
/// let device = Device::check(DeviceType::CUDA_MANAGED, 1)?;
/// assert!(device.is_cuda_accessible() && device.is_host_readable());
/// assert_eq!((device.to_dlpack(), device.to_string()), ((13, 1), "cuda_managed:1".to_owned()));
/// assert_eq!(Device::cuda(1), Device::new(DeviceType::CUDA, 1));
/// assert!(Device::check(DeviceType::CUDA, -1).is_err());
/// # Ok::<(), cai_dlpack::protocol::rule::Violation>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Device {
    /// `DLDevice.device_type`.
    pub device_type: DeviceType,
    /// `DLDevice.device_id`.
    pub id: i32,
}

macro_rules! device_types {
    ($($name:ident $number:literal $text:literal;)*) => {
        impl DeviceType {
            $(#[doc = concat!("`", $text, "`, ", $number, ".")] pub const $name: Self = Self($number);)*

            /// Returns the name; `None` if this library knows none.
            #[must_use]
            #[inline]
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($number => Some($text),)*
                    _ => None,
                }
            }

            /// The last number that DLPack has.
            const LAST: i32 = {
                let mut last = 0;
                $(last = if $number > last { $number } else { last };)*
                last
            };
        }

        impl fmt::Debug for DeviceType {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.0 {
                    $($number => f.write_str(stringify!($name)),)*
                    number => write!(f, "DeviceType({number})"),
                }
            }
        }
    };
}

device_types! {
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
    // Merged into DLPack's header after 1.3 (dmlc/dlpack #188, #189).
    TPU 19 "tpu";
    TPU_HOST 20 "tpu_host";
    ASCEND 21 "ascend";
}

/// Prints the name; the number if there is none.
impl fmt::Display for DeviceType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.pad(name),
            None => self.0.fmt(f),
        }
    }
}

impl DeviceType {
    /// Reads `DLDeviceType`.
    #[must_use]
    #[inline]
    pub const fn from_dlpack(number: i32) -> Self {
        Self(number)
    }

    /// Returns `DLDeviceType`.
    #[must_use]
    #[inline]
    pub const fn to_dlpack(self) -> i32 {
        self.0
    }
}

impl Device {
    /// The CPU.
    pub const HOST: Self = Self::new(DeviceType::CPU, 0);

    /// Returns the device of a type and a number, neither of them checked.
    #[must_use]
    #[inline]
    pub const fn new(device_type: DeviceType, id: i32) -> Self {
        Self { device_type, id }
    }

    /// Returns the device for memory of the CUDA device `ordinal`.
    #[must_use]
    pub const fn cuda(ordinal: i32) -> Self {
        Self::new(DeviceType::CUDA, ordinal)
    }

    /// Returns the device type and number as integers, which `__dlpack_device__` returns as well.
    #[must_use]
    #[inline]
    pub const fn to_dlpack(self) -> (i32, i32) {
        (self.device_type.to_dlpack(), self.id)
    }

    /// Checks the return value of `__dlpack_device__`.
    ///
    /// # Errors
    /// `device-unknown` (BufferError), `device-id` (ValueError).
    #[inline]
    pub fn check(device_type: DeviceType, id: i32) -> Result<Self, Violation> {
        Self::new(device_type, id).check_in(Field::DlpackDevice)
    }

    /// Like [`check`](Self::check), for a device found in `field`.
    ///
    /// # Errors
    /// `device-unknown` (BufferError), `device-id` (ValueError).
    #[inline]
    pub(crate) fn check_in(self, field: Field) -> Result<Self, Violation> {
        let rule = if self.device_type.name().is_none() {
            Rule::DeviceUnknown
        } else if self.id < 0 {
            Rule::DeviceId
        } else {
            return Ok(self);
        };
        Err(self.refuse(rule, field))
    }

    #[cold]
    fn refuse(self, rule: Rule, field: Field) -> Violation {
        let refused = Violation::new(rule, field, format_args!("{:?}", self.to_dlpack()));
        match self.device_type.0 > DeviceType::LAST {
            true => refused.with_hint(newer("device types", DeviceType::LAST)),
            false => refused,
        }
    }

    /// Whether CUDA devices can read the memory: device, pinned and managed memory.
    #[must_use]
    #[inline]
    pub const fn is_cuda_accessible(self) -> bool {
        matches!(
            self.device_type,
            DeviceType::CUDA | DeviceType::CUDA_HOST | DeviceType::CUDA_MANAGED
        )
    }

    /// Whether `DLTensor.data` may be a handle, such as OpenCL's `cl_mem`, and not an address: then nothing can be
    /// computed from it, and `byte_offset` is kept beside it. True for all device types that are not known to use
    /// addresses.
    ///
    /// ```
    /// use cai_dlpack::protocol::device::{Device, DeviceType};
    ///
    /// let vulkan = Device::check(DeviceType::VULKAN, 0)?;
    /// assert!(vulkan.is_opaque() && !Device::cuda(0).is_opaque());
    /// # Ok::<(), cai_dlpack::protocol::rule::Violation>(())
    /// ```
    #[must_use]
    #[inline]
    pub const fn is_opaque(self) -> bool {
        !matches!(
            self.device_type,
            DeviceType::CPU
                | DeviceType::CUDA
                | DeviceType::CUDA_HOST
                | DeviceType::ROCM
                | DeviceType::ROCM_HOST
                | DeviceType::CUDA_MANAGED
                | DeviceType::ONE_API
        )
    }

    /// Whether the host can read the memory without a copy.
    #[must_use]
    #[inline]
    pub const fn is_host_readable(self) -> bool {
        matches!(
            self.device_type,
            DeviceType::CPU
                | DeviceType::CUDA_HOST
                | DeviceType::CUDA_MANAGED
                | DeviceType::ROCM_HOST
        )
    }

    /// Returns the device of an export to a consumer that asks for `wanted`; `None` if memory of this device gets there
    /// neither as it is nor by a copy. Managed memory keeps its own id.
    #[cfg(feature = "pyo3")]
    pub(crate) fn exported_on(self, wanted: Self) -> Option<Self> {
        let is_managed = |device: Self| device.device_type == DeviceType::CUDA_MANAGED;
        if wanted == self || (is_managed(wanted) && is_managed(self)) {
            return Some(self);
        }
        let gets_there = match wanted.device_type {
            DeviceType::CUDA => wanted.id >= 0 && self.gets_to_cuda(),
            _ => {
                wanted == Self::HOST
                    && (self.is_host_readable() || self.device_type == DeviceType::CUDA)
            }
        };
        gets_there.then_some(wanted)
    }

    /// Whether memory of this device can be copied to a CUDA device.
    pub(crate) const fn gets_to_cuda(self) -> bool {
        matches!(
            self.device_type,
            DeviceType::CPU | DeviceType::CUDA | DeviceType::CUDA_HOST | DeviceType::CUDA_MANAGED
        )
    }
}

/// Says that a number may be of a newer header than the one that this library is written by.
pub(in crate::protocol) fn newer(what: &str, last: i32) -> String {
    format!("it may be newer than DLPack 1.3: this library knows the {what} up to {last}")
}

/// Prints type and number, such as `cuda:1`, in the width that is asked for.
impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}:{}", self.device_type, self.id))
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({self})")
    }
}

/// Whether the elements of an array may be written.
///
/// The CUDA Array Interface and `DLManagedTensorVersioned` state it. The legacy layout of DLPack and a bare `DLTensor`
/// cannot: their silence is a state of its own, and neither of the others is made of it.
///
/// ```
/// use cai_dlpack::protocol::device::{Access, Flags};
///
/// // A dict and a versioned tensor state it; a legacy tensor has no flag for it.
/// assert_eq!(Access::of_flag(true), Access::ReadOnly);
/// assert_eq!(Flags::LEGACY.access(), Access::Unknown);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// The elements may be written.
    Writable,
    /// The elements must not be written.
    ReadOnly,
    /// The producer could not state it. A consumer that can be told is told not to write.
    Unknown,
}

impl Access {
    /// Returns the access that a flag states.
    #[must_use]
    #[inline]
    pub const fn of_flag(read_only: bool) -> Self {
        if read_only {
            Self::ReadOnly
        } else {
            Self::Writable
        }
    }

    /// Combines two statements about one array: read-only if either is, else writable if either is.
    ///
    /// ```
    /// use cai_dlpack::protocol::device::Access;
    ///
    /// assert_eq!(Access::Writable.merge(Access::ReadOnly), Access::ReadOnly);
    /// assert_eq!(Access::Unknown.merge(Access::Writable), Access::Writable);
    /// ```
    #[must_use]
    pub const fn merge(self, other: Self) -> Self {
        match (self, other) {
            (Self::ReadOnly, _) | (_, Self::ReadOnly) => Self::ReadOnly,
            (Self::Writable, _) | (_, Self::Writable) => Self::Writable,
            (Self::Unknown, Self::Unknown) => Self::Unknown,
        }
    }
}

/// `DLManagedTensorVersioned.flags`, and whether there are any. Bits that DLPack 1.3 does not define are dropped.
///
/// ```
/// use cai_dlpack::protocol::device::{Access, Flags};
///
/// let flags = Flags::from_bits(0b1001);
/// assert!(flags == Flags::READ_ONLY && !flags.contains(Flags::IS_COPIED));
/// assert_eq!(flags.with(Flags::IS_COPIED, true).bits(), 0b11);
///
/// assert_eq!((flags.access(), Flags::LEGACY.access()), (Access::ReadOnly, Access::Unknown));
/// assert_eq!(Flags::LEGACY.bits(), Flags::READ_ONLY.bits());
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Flags(u8);

/// Lists the flags by name.
impl fmt::Debug for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let access = match self.access() {
            Access::Writable => "",
            Access::ReadOnly => "READ_ONLY",
            Access::Unknown => "LEGACY",
        };
        let others = [
            (Self::IS_COPIED, "IS_COPIED"),
            (Self::SUBBYTE_PADDED, "SUBBYTE_PADDED"),
            (Self::MANAGED, "MANAGED"),
            (Self::OF_DEVICE, "OF_DEVICE"),
        ];
        let others = others.iter().filter(|(flag, _)| self.contains(*flag));
        let names = std::iter::once(access).chain(others.map(|(_, name)| *name));
        let names: Vec<_> = names.filter(|name| !name.is_empty()).collect();
        match names.is_empty() {
            true => f.write_str("Flags(NONE)"),
            false => write!(f, "Flags({})", names.join(" | ")),
        }
    }
}

impl Flags {
    /// No flag.
    pub const NONE: Self = Self(0);
    /// The data must not be written.
    pub const READ_ONLY: Self = Self(1);
    /// The data is a copy that the consumer alone owns.
    pub const IS_COPIED: Self = Self(2);
    /// Each element smaller than a byte is stored in a byte of its own.
    pub const SUBBYTE_PADDED: Self = Self(4);
    /// The flags of a tensor that has none: [`Access::Unknown`]. Where there are flags, they state [`READ_ONLY`].
    ///
    /// [`READ_ONLY`]: Self::READ_ONLY
    pub const LEGACY: Self = Self(Self::READ_ONLY.0 | Self::UNSTATED);

    /// The memory is managed, whatever the device says; none of DLPack's.
    pub(crate) const MANAGED: Self = Self(16);
    /// The memory is the device's own, by the driver's word; none of DLPack's.
    pub(crate) const OF_DEVICE: Self = Self(32);

    /// The bit, none of DLPack's, that marks `READ_ONLY` as a precaution; never set without it.
    const UNSTATED: u8 = 8;

    /// The bits that DLPack 1.3 defines.
    const DEFINED: u8 = 7;

    /// Keeps the flags among `bits` that DLPack 1.3 defines.
    #[must_use]
    #[inline]
    pub const fn from_bits(bits: u64) -> Self {
        Self((bits & 7) as u8)
    }

    /// Returns the flags as DLPack's integer; `READ_ONLY` is set unless the data is known to be writable.
    #[must_use]
    #[inline]
    pub const fn bits(self) -> u64 {
        (self.0 & Self::DEFINED) as u64
    }

    /// Whether every flag of `other` is set.
    #[must_use]
    #[inline]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether the data may be written.
    #[must_use]
    #[inline]
    pub const fn access(self) -> Access {
        match self.0 & Self::LEGACY.0 {
            0 => Access::Writable,
            1 => Access::ReadOnly,
            _ => Access::Unknown,
        }
    }

    /// Returns these flags with another access.
    ///
    /// ```
    /// use cai_dlpack::protocol::device::{Access, Flags};
    ///
    /// let flags = Flags::IS_COPIED.with_access(Access::of_flag(true));
    /// assert!(flags.contains(Flags::READ_ONLY) && flags.contains(Flags::IS_COPIED));
    /// ```
    #[must_use]
    #[inline]
    pub const fn with_access(self, access: Access) -> Self {
        let bits = match access {
            Access::Writable => 0,
            Access::ReadOnly => Self::READ_ONLY.0,
            Access::Unknown => Self::LEGACY.0,
        };
        Self(self.0 & !Self::LEGACY.0 | bits)
    }

    /// Returns these flags with `other` set or cleared. Either states the access, if `other` has `READ_ONLY`.
    #[must_use]
    #[inline]
    pub const fn with(self, other: Self, set: bool) -> Self {
        let unstated = if other.contains(Self::READ_ONLY) {
            Self::UNSTATED
        } else {
            0
        };
        if set {
            Self(self.0 & !unstated | other.0)
        } else {
            Self(self.0 & !(unstated | other.0))
        }
    }
}

#[cfg(test)]
mod tests;
