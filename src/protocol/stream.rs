//! Streams as both protocols write them, and the decision which stream waits for which.
//!
//! # The integers
//!
//! | integer | CAI `stream` | `__dlpack__(stream=)`, CUDA | ROCm | CPU |
//! |---|---|---|---|---|
//! | `None` | no wait is needed | the legacy default stream | the default stream | the only legal value |
//! | -1 | refused | no synchronisation | no synchronisation | refused |
//! | 0 | refused; taken as 1 unless strict | refused | the default stream | refused |
//! | 1 | legacy default | legacy default | refused | refused |
//! | 2 | per-thread default | per-thread default | refused | refused |
//! | > 2 | `cudaStream_t` | `cudaStream_t` | `hipStream_t` | refused |
//!
//! Sources: CUDA Array Interface v3, "Synchronization"; the array API standard,
//! `array.__dlpack__`, parameter `stream`.
//!
//! The two protocols disagree about `None`: in CAI it means that there is nothing to wait for, which
//! DLPack writes -1; in DLPack it means that the consumer will use the legacy default stream, which
//! CAI writes 1. So both integers are parsed here and passed on as enums: [`Stream`] is the stream
//! that data is ready on, [`Request`] is what a consumer requests, and [`Request::NoSync`] exists only
//! as a request.
//!
//! # The decision
//!
//! [`plan()`] is a pure function from a [`Situation`] to a [`Plan`]. The driver layer gathers the
//! facts and carries out the plan (`driver::order`); `explain` and the tests read it.
//! `settled` is the part of the decision that needs no fact from the driver, so that the most
//! frequent conversions (same stream, nothing to wait for) cost a comparison and no call.

use std::fmt;
use std::num::NonZeroU64;

use super::device::{Device, DeviceType};
use super::rule::{Field, Rule, Violation};

mod plan;
#[cfg(test)]
mod tests;

#[cfg(feature = "cudarc")]
pub(crate) use plan::refuse_wait;
pub use plan::{Capture, Plan, Reason, Situation, SyncPolicy, plan};
pub(crate) use plan::{NAME_THE_STREAM, plan_without_captures, settled};

/// The number of CUDA's legacy default stream in both protocols (`CU_STREAM_LEGACY`).
const LEGACY: u64 = 1;
/// The number of the calling thread's default stream in both protocols (`CU_STREAM_PER_THREAD`).
const PER_THREAD: u64 = 2;

/// The stream that data is ready on, and that a consumer must wait for, as a number: it keeps nothing alive
/// ([`LiveStream`](crate::view::LiveStream) does).
///
/// "No synchronisation" is not a stream but a [`Request`].
///
/// ```
/// use cai_dlpack::protocol::stream::Stream;
///
/// assert_eq!(Stream::None.to_cai(), None);
/// assert_eq!(Stream::LegacyDefault.to_cai(), Some(1)); // never 0
/// assert_eq!(Stream::PerThreadDefault.raw(), 2);
/// assert!(Stream::PerThreadDefault.is_default());
/// ```
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum Stream {
    /// No stream: the data is ready now, for any stream and for the host.
    None,
    /// The legacy default stream of a context (1).
    LegacyDefault,
    /// The per-thread default stream (2). It is a different stream on each thread, so it must be
    /// stored together with its thread.
    PerThreadDefault,
    /// A `cudaStream_t` (or `hipStream_t`): [`Stream::from_raw`].
    Handle(StreamHandle),
}

/// The handle of a stream; never 0, 1 or 2.
///
/// ```
/// use cai_dlpack::protocol::stream::{Stream, StreamHandle};
///
/// fn handle(stream: Stream) -> Option<StreamHandle> {
///     match stream {
///         Stream::Handle(handle) => Some(handle),
///         _ => None,
///     }
/// }
/// assert!(handle(Stream::from_raw(0x5a30)).is_some() && handle(Stream::LegacyDefault).is_none());
/// ```
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct StreamHandle(NonZeroU64);

impl Stream {
    /// Parses the `stream` value of a CAI dict. A missing key and `None` are [`Stream::None`]; the
    /// caller handles them.
    ///
    /// 0 is disallowed by CAI v3, "as it would be ambiguous between None and the default stream";
    /// Numba's own `default_stream()` exports it, so it is the legacy default stream unless
    /// `strict` (the caller warns).
    ///
    /// # Errors
    /// `stream-range` for a negative value and one of 2^64 or more, `stream-zero` for 0 if `strict`
    /// (ValueError).
    ///
    /// ```
    /// use cai_dlpack::protocol::stream::Stream;
    ///
    /// assert_eq!(Stream::from_cai(2, true)?, Stream::PerThreadDefault);
    /// assert_eq!(Stream::from_cai(0, true).unwrap_err().rule().id(), "stream-zero");
    /// # Ok::<(), cai_dlpack::protocol::rule::Violation>(())
    /// ```
    #[inline]
    pub fn from_cai(value: i128, strict: bool) -> Result<Stream, Violation> {
        match u64::try_from(value) {
            Ok(0) if strict => Err(cai_zero()),
            Ok(handle) => Ok(Stream::from_raw(handle)),
            Err(_) => Err(cai_range(value)),
        }
    }

    /// Returns the `stream` value for a CAI dict: an integer of 1 or more, or `None` for Python's
    /// `None`; never 0.
    #[inline]
    pub const fn to_cai(self) -> Option<u64> {
        match self {
            Stream::None => None,
            named => Some(named.raw()),
        }
    }

    /// Returns the stream of a `CUstream` or `cudaStream_t` as data; 0 and 1 are the legacy default stream, 2 is the
    /// per-thread one.
    ///
    /// Nothing passes it to the driver without a promise that the stream is alive:
    /// [`LiveStream::new`](crate::view::LiveStream::new), [`CaiView::new`](crate::CaiView::new).
    ///
    /// ```
    /// use cai_dlpack::protocol::stream::Stream;
    ///
    /// assert_eq!(Stream::from_raw(0), Stream::LegacyDefault);
    /// assert_eq!(Stream::from_raw(0x5a30).raw(), 0x5a30);
    /// ```
    #[inline]
    #[must_use]
    pub const fn from_raw(handle: u64) -> Stream {
        match NonZeroU64::new(handle) {
            None => Stream::LegacyDefault,
            Some(handle) => match handle.get() {
                LEGACY => Stream::LegacyDefault,
                PER_THREAD => Stream::PerThreadDefault,
                _ => Stream::Handle(StreamHandle(handle)),
            },
        }
    }

    /// Returns the `CUstream` for the driver; 0 for [`Stream::None`], which must not be passed to the
    /// driver.
    #[inline]
    pub const fn raw(self) -> u64 {
        match self {
            Stream::None => 0,
            Stream::LegacyDefault => LEGACY,
            Stream::PerThreadDefault => PER_THREAD,
            Stream::Handle(handle) => handle.0.get(),
        }
    }

    /// Returns the `stream=` argument of `__dlpack__` that makes the data ready on this stream: -1
    /// (no synchronisation) for [`Stream::None`], else [`raw`](Self::raw). Never Python's `None`,
    /// which DLPack reads as the legacy default stream.
    #[inline]
    pub(crate) const fn to_dlpack_arg(self) -> i128 {
        match self {
            Stream::None => -1,
            named => named.raw() as i128,
        }
    }

    /// Like [`to_dlpack_arg`](Self::to_dlpack_arg), on `platform`: ROCm's default stream is 0.
    #[inline]
    pub(crate) const fn to_dlpack_arg_on(self, platform: Platform) -> i128 {
        match (self, platform) {
            (Stream::LegacyDefault, Platform::Rocm) => 0,
            (stream, _) => stream.to_dlpack_arg(),
        }
    }

    /// Whether this is one of the two default streams, which are relative to a context.
    #[inline]
    pub const fn is_default(self) -> bool {
        matches!(self, Stream::LegacyDefault | Stream::PerThreadDefault)
    }
}

impl fmt::Display for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stream::None => f.write_str("no stream"),
            Stream::LegacyDefault => f.write_str("the legacy default stream (1)"),
            Stream::PerThreadDefault => f.write_str("the per-thread default stream (2)"),
            Stream::Handle(handle) => write!(f, "stream {:#x}", handle.0),
        }
    }
}

/// The platform whose rules the `stream` argument of `__dlpack__` follows.
///
/// ```
/// use cai_dlpack::protocol::stream::{Platform, Request, Stream};
///
/// // None has no stream to name, and on the CPU it is all that there is.
/// assert_eq!(Request::from_dlpack(None, Platform::Host)?, Request::Host);
/// assert_eq!(Request::from_dlpack(None, Platform::Cuda)?, Request::Stream(Stream::LegacyDefault));
/// # Ok::<(), cai_dlpack::protocol::rule::Violation>(())
/// ```
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Platform {
    /// CUDA device memory (DLPack device type 2).
    Cuda,
    /// CUDA memory that the host reads as well: pinned (3) and managed (13). DLPack does not define
    /// its streams; consumers either name a stream (Warp, CuPy), or name none and read on the host
    /// (NumPy), so an integer is a CUDA stream and `None` is the host.
    HostReadable,
    /// ROCm, device and pinned (10, 11). Its streams are parsed and compared; ordering would need a
    /// HIP driver, which this library does not load.
    Rocm,
    /// The CPU (1), and anything exported with `dl_device=(1, 0)`.
    Host,
}

impl Platform {
    /// Returns the platform of a device; `None` if DLPack defines no streams for it.
    ///
    /// ```
    /// use cai_dlpack::protocol::device::{Device, DeviceType};
    /// use cai_dlpack::protocol::stream::Platform;
    ///
    /// assert_eq!(Platform::of(Device::cuda(1)), Some(Platform::Cuda));
    /// assert_eq!(Platform::of(Device::check(DeviceType::VULKAN, 0)?), None);
    /// # Ok::<(), cai_dlpack::protocol::rule::Violation>(())
    /// ```
    #[inline]
    #[must_use]
    pub const fn of(device: Device) -> Option<Platform> {
        match device.device_type {
            DeviceType::CPU => Some(Platform::Host),
            DeviceType::CUDA => Some(Platform::Cuda),
            DeviceType::CUDA_HOST | DeviceType::CUDA_MANAGED => Some(Platform::HostReadable),
            DeviceType::ROCM | DeviceType::ROCM_HOST => Some(Platform::Rocm),
            _ => None,
        }
    }
}

/// The synchronisation that a consumer requests.
///
/// ```
/// use cai_dlpack::protocol::stream::{Request, Stream};
///
/// assert_eq!(Request::from(Stream::None), Request::NoSync);
/// assert_eq!(Request::Host.to_string(), "the host");
/// ```
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum Request {
    /// None: the consumer orders the work itself (DLPack's -1).
    NoSync,
    /// The consumer's stream, which must wait until the data is ready.
    Stream(Stream),
    /// The host: block the calling thread until the data is ready, since the host reads it or the
    /// consumer's streams cannot be named.
    Host,
}

impl Request {
    /// Parses the `stream` argument of `__dlpack__`; `None` is Python's `None`, or an omitted
    /// argument.
    ///
    /// # Errors
    /// `stream-cpu`, `stream-rocm`, `stream-zero`, `stream-range` (ValueError): see the table of the
    /// [module](self).
    ///
    /// ```
    /// use cai_dlpack::protocol::stream::{Platform, Request, Stream};
    ///
    /// assert_eq!(Request::from_dlpack(Some(-1), Platform::Cuda)?, Request::NoSync);
    /// assert_eq!(Request::from_dlpack(Some(1), Platform::Cuda)?, Request::from(Stream::LegacyDefault));
    /// assert!(Request::from_dlpack(Some(0), Platform::Cuda).is_err());
    /// # Ok::<(), cai_dlpack::protocol::rule::Violation>(())
    /// ```
    #[inline]
    pub fn from_dlpack(value: Option<i128>, platform: Platform) -> Result<Request, Violation> {
        match (value, platform) {
            (None, Platform::Host | Platform::HostReadable) => Ok(Request::Host),
            (None, _) => Ok(Request::Stream(Stream::LegacyDefault)),
            (Some(value), Platform::Host) => Err(dlpack_stream(Rule::StreamCpu, value)),
            (Some(-1), _) => Ok(Request::NoSync),
            (Some(0), Platform::Rocm) => Ok(Request::Stream(Stream::LegacyDefault)),
            (Some(0), _) => Err(dlpack_stream(Rule::StreamZero, 0)),
            (Some(value @ 1..=2), Platform::Rocm) => Err(dlpack_stream(Rule::StreamRocm, value)),
            (Some(value), _) => match u64::try_from(value) {
                Ok(handle) => Ok(Request::Stream(Stream::from_raw(handle))),
                Err(_) => Err(dlpack_stream(Rule::StreamRange, value)),
            },
        }
    }

    /// Returns the `stream` argument of `__dlpack__` that makes this request; the inner `None` is Python's. The outer one means
    /// that the platform has no such argument: the CPU has no streams, ROCm no default stream per thread, and a producer
    /// on a device cannot be asked to wait for the host.
    ///
    /// It is [`from_dlpack`](Self::from_dlpack) the other way round: where there is an argument, that reads it as this request.
    /// (A request of [`Stream::None`] is read as [`Request::NoSync`], which it is.)
    ///
    /// ```
    /// use cai_dlpack::protocol::stream::{Platform, Request, Stream};
    ///
    /// let default = Request::from(Stream::LegacyDefault);
    /// assert_eq!(default.to_dlpack(Platform::Cuda), Some(Some(1)));
    /// assert_eq!(default.to_dlpack(Platform::Rocm), Some(Some(0)));
    /// assert_eq!(default.to_dlpack(Platform::Host), None);
    /// assert_eq!(Request::Host.to_dlpack(Platform::Host), Some(None));
    /// ```
    #[must_use]
    pub const fn to_dlpack(self, platform: Platform) -> Option<Option<i128>> {
        match (self, platform) {
            (Request::Host, Platform::Host | Platform::HostReadable) => Some(None),
            (Request::Host, _) | (_, Platform::Host) => None,
            (Request::NoSync, _) => Some(Some(-1)),
            (Request::Stream(Stream::PerThreadDefault), Platform::Rocm) => None,
            (Request::Stream(stream), _) => Some(Some(stream.to_dlpack_arg_on(platform))),
        }
    }

    /// Whether a consumer with this request may have to wait for `ready`. If not, no driver call is
    /// made and the GIL is kept.
    ///
    /// Two per-thread default streams count as different, since their threads are not known here; two default
    /// streams of one number as the same, and ready data as ready for the host, which holds for memory of a device.
    /// [`settled`] is exact.
    #[inline]
    pub(crate) fn needs_order(self, ready: Stream) -> bool {
        match (self, ready) {
            (Request::NoSync | Request::Stream(Stream::None), _) | (_, Stream::None) => false,
            (Request::Host, _) => true,
            (Request::Stream(Stream::PerThreadDefault), Stream::PerThreadDefault) => true,
            (Request::Stream(requested), ready) => requested != ready,
        }
    }
}

impl From<Stream> for Request {
    /// Makes the request of a consumer that works on `stream`; [`Stream::None`] requests nothing.
    #[inline]
    fn from(stream: Stream) -> Request {
        match stream {
            Stream::None => Request::NoSync,
            named => Request::Stream(named),
        }
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Request::NoSync => f.write_str("no synchronisation"),
            Request::Stream(stream) => stream.fmt(f),
            Request::Host => f.write_str("the host"),
        }
    }
}

#[cold]
fn cai_zero() -> Violation {
    Violation::new(Rule::StreamZero, Field::CaiStream, 0)
}

#[cold]
fn cai_range(value: i128) -> Violation {
    let violation = Violation::new(Rule::StreamRange, Field::CaiStream, value);
    match value {
        -1 => violation.with_hint("in this interface None means that there is nothing to wait for"),
        _ => violation,
    }
}

#[cold]
fn dlpack_stream(rule: Rule, value: i128) -> Violation {
    let violation = Violation::new(rule, Field::Argument("stream"), value);
    match rule {
        Rule::StreamCpu => violation.with_hint("None blocks until the data is ready for the host"),
        _ => violation,
    }
}
