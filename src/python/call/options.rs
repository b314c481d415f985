//! The keywords of an import, which correct or complete the producer's description.
//!
//! [`option_keywords!`] declares them once, for every function that imports an array. [`Given`] holds them unparsed,
//! [`Options`] parsed.

use std::borrow::Cow;

use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use pyo3::{Borrowed, ffi};

use crate::driver;
use crate::protocol::axes::{Axes, Source};
use crate::protocol::descriptor::Descriptor;
use crate::protocol::device::{Access, Device, DeviceType};
use crate::protocol::dtype::DType;
use crate::protocol::layout::Layout;
use crate::protocol::rule::{Field, Rule, Violation};
use crate::protocol::stream::Stream;
use crate::python::call::choice::{choice, flag, wrong_type};
use crate::python::call::{device, dtype, policy, stream};
use crate::python::cpython::fastcall::Value;
use crate::python::cpython::int;
use crate::python::cpython::int::{IntRule, repr};
use crate::python::cpython::text::as_tuple;

/// Passes the keywords of an import to another macro: name, type for the stub, default.
///
/// The most used one comes first, as keywords are searched in this order. A new keyword is a line here, its field in
/// [`Options`] and its use. [`Options::read`] does not compile without it, and `conformance/tests/test_options.py` fails by
/// its name if a function has no case for it, or docs/python.md no row.
macro_rules! option_keywords {
    ($($callback:ident)::+ { $($context:tt)* }) => {
        $($callback)::+! { { $($context)* }
            /// The device of the memory: the number of the CUDA device; or a device of CUDA or ROCm, as ``"rocm:0"`` or the
            /// (type, id) pair ``(10, 0)``. Saves a call of the driver.
            device_id: "int | DeviceLike | None" = None,
            /// The stream that writes the data, if the producer does not name it: an int or an object with
            /// ``__cuda_stream__``. None: nothing is pending. ``...``: the stream that the producer names.
            producer_stream: "StreamLike | EllipsisType | None" = ...,
            /// The element type, if the producer cannot state it. Reinterprets the bytes and never casts.
            dtype: "DTypeLike | None" = None,
            /// A new shape for contiguous memory, in elements of `dtype`. One extent may be -1: the rest.
            shape: "tuple[int, ...] | list[int] | None" = None,
            /// Overrides the producer's flag, or its lack. False asserts that consumers may write.
            read_only: "bool | None" = None,
            /// Keeps the memory of a bare dict alive; of any other object, is kept alive beside it.
            owner: "object" = None,
            /// "device" queries the driver for the device of the pointer; "bounds" also checks that the allocation
            /// holds every element. None: "device".
            check: "Literal['device', 'bounds'] | None" = None,
            /// Refuses data whose producer declares no stream, and what CAI forbids and producers send: a missing
            /// version, stream 0. False: as `policy` has it.
            strict: "bool" = False,
        }
    };
}
pub(crate) use option_keywords;

macro_rules! declare_given {
    ({} $($(#[doc = $doc:literal])* $keyword:ident: $kind:literal = $default:tt,)*) => {
        /// The keywords of a call, unparsed.
        #[derive(Clone, Copy, Default)]
        pub(crate) struct Given<'a, 'py> {
            $($(#[doc = $doc])* pub(crate) $keyword: Value<'a, 'py>,)*
            /// The bits of the given ones.
            pub(crate) which: u32,
        }

        impl Given<'_, '_> {
            /// The names, in the order of their declaration.
            const NAMES: &'static [&'static str] = &[$(stringify!($keyword)),*];
        }
    };
}
option_keywords!(declare_given {});

impl Given<'_, '_> {
    /// The bit of the device_id.
    const DEVICE_ID: u32 = {
        let mut at = 0;
        while !matches!(Self::NAMES[at].as_bytes(), b"device_id") {
            at += 1;
        }
        1 << at
    };

    /// The number of keywords, which follow a function's own.
    pub(crate) const COUNT: usize = Self::NAMES.len();

    /// Whether no keyword is given.
    #[inline(always)]
    fn is_empty(&self) -> bool {
        self.which == 0
    }

    /// Returns the device_id, if no other keyword is given; `None` if one is, or if the device_id is no int of 0 or
    /// more.
    #[inline(always)]
    #[expect(
        clippy::option_option,
        reason = "nothing else given, and whether the device_id is"
    )]
    pub(crate) fn sole_device_id(&self) -> Option<Option<i32>> {
        match self.device_id {
            _ if self.which & !Self::DEVICE_ID != 0 => None,
            None => Some(None),
            Some(value) => small_device_id(value).map(Some),
        }
    }
}

/// Declares a function of [`signature!`](crate::python::cpython::fastcall::signature) that takes the keywords
/// of an import after its own.
macro_rules! with_options {
    ($($declaration:tt)*) => {
        $crate::python::call::options::option_keywords!(crate::python::call::options::declare_with_options { $($declaration)* });
    };
}
pub(crate) use with_options;

macro_rules! declare_with_options {
    (
        {
            $(#[doc = $doc:literal])*
            $type:ident = $function:ident [$($positional:tt)*] ($($own:tt)*) -> $returns:literal
        }
        $($(#[doc = $keyword_doc:literal])* $keyword:ident: $kind:literal = $default:tt,)*
    ) => {
        $crate::python::cpython::fastcall::signature! {
            $(#[doc = $doc])*
            $type = $function [$($positional)*] (
                $($own)*
                $($(#[doc = $keyword_doc])* $keyword: $kind = $default,)*
            ) -> $returns
        }

        impl $type {
            /// Returns the keywords of an import among the arguments.
            #[inline(always)]
            fn given<'a, 'py>(
                arguments: &<Self as $crate::python::cpython::fastcall::ReadArguments>::Arguments<'a, 'py>,
            ) -> $crate::python::call::options::Given<'a, 'py> {
                use $crate::python::call::options::Given;
                const OWN: usize =
                    <$type as $crate::python::cpython::fastcall::Signature>::KEYWORDS.len() - Given::COUNT;
                Given {
                    $($keyword: arguments.$keyword,)*
                    which: arguments.which >> OWN,
                }
            }
        }
    };
}
pub(crate) use declare_with_options;

/// The extent of the driver's query about the data pointer.
#[derive(Clone, Copy, Default, PartialEq)]
pub(crate) enum Check {
    /// The device, unless the caller gives it.
    #[default]
    Device,
    /// The device, and whether every element lies in its allocation.
    Bounds,
    /// `Bounds` if there is a driver, else `Device`: for arguments of Rust functions.
    BoundsIfKnown,
}

/// The options of an import, parsed.
#[derive(Clone, Default)]
pub(crate) struct Options<'a, 'py> {
    /// The stream that writes the data; [`Stream::None`] if nothing is pending.
    pub(crate) producer: Option<Stream>,
    pub(crate) dtype: Option<DType>,
    pub(crate) shape: Option<Vec<i64>>,
    pub(crate) read_only: Option<bool>,
    pub(crate) owner: Value<'a, 'py>,
    pub(crate) device: Option<Device>,
    pub(crate) check: Check,
    pub(crate) strict: bool,
    /// The object of the producer's stream, which is kept alive.
    pub(crate) producer_object: Value<'a, 'py>,
}

impl Options<'static, 'static> {
    /// Options without keywords.
    pub(crate) const NONE: &'static Self = &Self::only(Check::Device);

    /// Options for an argument of a Rust function.
    pub(crate) const IN_BOUNDS: &'static Self = &Self::only(Check::BoundsIfKnown);

    const fn only(check: Check) -> Self {
        Self {
            producer: None,
            dtype: None,
            shape: None,
            read_only: None,
            owner: None,
            device: None,
            check,
            strict: false,
            producer_object: None,
        }
    }
}

impl<'a, 'py> Options<'a, 'py> {
    /// Parses the keywords; `None` if none is given: the caller then uses [`NONE`](Options::NONE), and most calls write
    /// no struct.
    ///
    /// # Errors
    /// `TypeError` or `ValueError`, naming the argument.
    #[inline(always)]
    pub(crate) fn read(given: Given<'a, 'py>) -> PyResult<Option<Self>> {
        if given.is_empty() {
            return Ok(None);
        }
        Self::parse(given).map(Some)
    }

    #[deny(unused_variables, reason = "a keyword that is declared and not parsed")]
    #[inline(always)]
    fn parse(given: Given<'a, 'py>) -> PyResult<Self> {
        let Given {
            producer_stream,
            dtype,
            shape,
            read_only,
            owner,
            device_id,
            check,
            strict,
            which: _,
        } = given;
        // `...` is the same as no argument.
        let producer_stream = producer_stream.filter(|value| !is_ellipsis(value));
        Ok(Self {
            producer: producer_stream.map(producer).transpose()?,
            dtype: dtype.map(|value| dtype::dtype(&value)).transpose()?,
            shape: shape.map(|value| self::shape(&value)).transpose()?,
            read_only: flag(read_only, "read_only")?,
            owner,
            device: device_id.map(self::memory_device).transpose()?,
            check: check.map_or(Ok(Check::Device), |value| choice(&value, "check", &CHECKS))?,
            strict: flag(strict, "strict")?.unwrap_or(false),
            producer_object: producer_stream.filter(|value| !value.is_none()),
        })
    }

    /// Whether no option changes a view that came by DLPack, which tells its device and keeps its owner.
    ///
    /// Names every option, so that a new one does not compile until it is decided here.
    #[inline(always)]
    pub(crate) fn keeps_view(&self) -> bool {
        let Self {
            producer,
            dtype: _,
            shape: _,
            read_only,
            owner,
            device,
            check,
            strict: _,
            producer_object: _,
        } = self;
        self.keeps_elements()
            && producer.is_none()
            && read_only.is_none()
            && owner.is_none()
            && device.is_none()
            && *check == Check::Device
    }

    /// Whether this import, or every one of the current block, is strict.
    ///
    /// # Errors
    /// Those of [`policy::is_strict`].
    pub(crate) fn is_strict(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.strict || policy::is_strict(py)?)
    }

    /// Describes the same bytes by the caller's type, shape and flag.
    ///
    /// # Errors
    /// The rules of `dtype=` and `shape=`.
    pub(crate) fn described(&self, descriptor: Descriptor) -> Result<Descriptor, Violation> {
        let descriptor = match (&self.shape, self.dtype) {
            (None, None) => descriptor,
            (None, Some(dtype)) => descriptor.with_dtype(dtype)?,
            (Some(shape), dtype) => {
                let dtype = dtype.unwrap_or(descriptor.dtype());
                reshaped(descriptor, dtype, shape)?
            }
        };
        Ok(match self.read_only {
            None => descriptor,
            Some(read_only) => descriptor.with_access(Access::of_flag(read_only)),
        })
    }

    /// Compares the device of an array, or the one that is announced, with the caller's.
    ///
    /// # Errors
    /// `pointer-device`.
    pub(crate) fn check_device(&self, device: Device) -> Result<(), Violation> {
        let Some(named) = self.device else {
            return Ok(());
        };
        let is_named = match (named.device_type, device.device_type) {
            (DeviceType::CUDA, DeviceType::CUDA) => device.id == named.id,
            // The number says which GPU, and other memory than a GPU's is told by the array.
            (DeviceType::CUDA, device_type) => {
                !matches!(device_type, DeviceType::ROCM | DeviceType::ROCM_HOST)
            }
            _ => device == named,
        };
        match is_named {
            true => Ok(()),
            false => Err(is_elsewhere(named, device)),
        }
    }

    /// Whether an option changes how a tensor is described.
    #[inline(always)]
    pub(crate) fn redescribes(&self) -> bool {
        !self.keeps_elements() || self.read_only.is_some()
    }

    /// Whether the elements are described by the producer alone.
    #[inline(always)]
    pub(crate) fn keeps_elements(&self) -> bool {
        self.dtype.is_none() && self.shape.is_none()
    }
}

#[cold]
fn is_elsewhere(named: Device, device: Device) -> Violation {
    let (field, found) = (Field::Argument("device_id"), named.to_dlpack());
    Violation::new(Rule::PointerDevice, field, format_args!("{found:?}"))
        .with_hint(format!("the array is on {:?}", device.to_dlpack()))
}

/// Compares the address: PyO3 would defer the drop of a new reference (`fastcall`).
#[inline(always)]
fn is_ellipsis(value: &Bound<'_, PyAny>) -> bool {
    // SAFETY: returns the address of a static.
    value.as_ptr() == unsafe { ffi::Py_Ellipsis() }
}

fn producer(value: Borrowed<'_, '_, PyAny>) -> PyResult<Stream> {
    match value.is_none() {
        true => Ok(Stream::None),
        false => stream::named(&value, Field::Argument("producer_stream")),
    }
}

/// Reads the id of a CUDA device, of 0 or more.
///
/// # Errors
/// `argument-type`, `device_id-range`.
#[inline]
pub(crate) fn device_id(value: Borrowed<'_, '_, PyAny>) -> PyResult<i32> {
    if let Some(device_id) = small_device_id(value) {
        return Ok(device_id);
    }
    let field = Field::Argument("device_id");
    let device_id: i32 =
        IntRule::new(field, Rule::ArgumentType, Rule::DeviceIdRange).read(&value)?;
    if device_id < 0 {
        return Err(Violation::new(Rule::DeviceIdRange, field, device_id).into());
    }
    Ok(device_id)
}

/// Reads the device of memory: the number of a CUDA device, or a pair, which names the platform too.
///
/// # Errors
/// `argument-type`, `device_id-range`; the rules of pairs; `rocm-device` for a number in a process that works with ROCm;
/// `argument-value` for a device that no interface is of.
#[inline]
pub(crate) fn memory_device(value: Borrowed<'_, '_, PyAny>) -> PyResult<Device> {
    match small_device_id(value) {
        Some(id) => Ok(Device::cuda(id)),
        None => other_device(value),
    }
}

#[cold]
fn other_device(value: Borrowed<'_, '_, PyAny>) -> PyResult<Device> {
    let field = Field::Argument("device_id");
    let named = match value.is_instance_of::<PyTuple>() {
        true => Some(device::pair(value, field)?),
        false => device::named(&value, field)?,
    };
    let Some(device) = named else {
        if !int::has_index(&value) {
            return Err(wrong_type(&value, "device_id", device::OF_MEMORY).into());
        }
        let id = device_id(value)?;
        let found = format_args!("{id}, where ROCm is loaded and CUDA is not");
        return match driver::is_rocm() {
            true => Err(Violation::new(Rule::RocmDevice, field, found).into()),
            false => Ok(Device::cuda(id)),
        };
    };
    match device.device_type {
        DeviceType::CUDA | DeviceType::ROCM => Ok(device),
        _ => Err(Violation::new(Rule::ArgumentValue, field, repr(&value))
            .with_hint(format!("must be {}", device::OF_MEMORY))
            .into()),
    }
}

/// `None` also where the number alone does not tell the platform.
#[inline(always)]
fn small_device_id(value: Borrowed<'_, '_, PyAny>) -> Option<i32> {
    let device_id = i32::try_from(int::read_fast(value)?).ok()?;
    (device_id >= 0 && !driver::is_rocm()).then_some(device_id)
}

const CHECKS: [(&str, Check); 2] = [("device", Check::Device), ("bounds", Check::Bounds)];

/// Reads a shape, of which one extent may be -1: the rest ([`filled`]).
fn shape(value: &Bound<'_, PyAny>) -> PyResult<Vec<i64>> {
    let field = Field::Argument("shape");
    let rule = IntRule::new(field, Rule::ArgumentType, Rule::ShapeRange);
    // Of a list a copy is read: an item's `__index__` may change the list.
    let tuple = match (value.cast::<PyTuple>(), value.cast::<PyList>()) {
        (Ok(tuple), _) => tuple.clone(),
        (_, Ok(list)) => list.to_tuple(),
        _ => return Err(wrong_type(value, "shape", "a tuple or a list of ints").into()),
    };
    let extents = tuple.iter().map(|extent| rule.read(&extent));
    let shape: Vec<i64> = extents.collect::<PyResult<_>>()?;
    // Refuses, before a producer is called, an extent that no array can have.
    let mut known = shape.clone();
    if let Some(rest) = known.iter_mut().find(|extent| **extent == REST) {
        *rest = 1;
    }
    let axes = Axes::from_slices(Source::Tensor, &known, None);
    axes.and_then(|axes| Layout::from_elem_axes(axes, 1))
        .map_err(|violation| violation.in_field(field))?;
    Ok(shape)
}

/// The extent that stands for the rest.
const REST: i64 = -1;

/// Describes the same bytes by the caller's shape.
///
/// # Errors
/// The rules of `shape=`.
pub(crate) fn reshaped(
    descriptor: Descriptor,
    dtype: DType,
    shape: &[i64],
) -> Result<Descriptor, Violation> {
    let shape = filled(shape, &descriptor, dtype)?;
    descriptor.with_shape(dtype, &shape)
}

/// Puts the rest in its place: as many elements of `dtype` as the data has bytes for.
///
/// # Errors
/// `shape-override` if that is no whole number, or any number would do.
fn filled<'a>(
    shape: &'a [i64],
    descriptor: &Descriptor,
    dtype: DType,
) -> Result<Cow<'a, [i64]>, Violation> {
    let Some(at) = shape.iter().position(|extent| *extent == REST) else {
        return Ok(Cow::Borrowed(shape));
    };
    if dtype.is_cai_only() {
        // Refused, whatever the shape is.
        return Ok(Cow::Borrowed(shape));
    }
    let count = match dtype.itemsize() {
        _ if dtype == descriptor.dtype() => Some(descriptor.len()),
        Some(itemsize) => descriptor.nbytes().checked_div(itemsize.into()),
        None => (descriptor.nbytes().checked_mul(8))
            .and_then(|bits| bits.checked_div(dtype.bits().into())),
    };
    let others = shape.iter().enumerate().filter(|(axis, _)| *axis != at);
    let others: Option<u64> = others
        .map(|(_, extent)| u64::try_from(*extent).ok())
        .try_fold(1_u64, |product, extent| product.checked_mul(extent?));
    let rest = match (count, others) {
        (Some(count), Some(others)) if others > 0 && count % others == 0 => {
            i64::try_from(count / others).ok()
        }
        _ => None,
    };
    let mut filled = shape.to_vec();
    match (filled.get_mut(at), rest) {
        (Some(extent), Some(rest)) => *extent = rest,
        _ => {
            let found = as_tuple(shape.iter());
            let field = Field::Argument("shape");
            let hint = format!(
                "no extent in place of -1 gives the {} bytes",
                descriptor.nbytes()
            );
            return Err(Violation::new(Rule::ShapeOverride, field, found).with_hint(hint));
        }
    }
    Ok(Cow::Owned(filled))
}
