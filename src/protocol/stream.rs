//! Streams as both protocols write them, and what must wait for what, decided as data.
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
//! The trap of the pair is `None`: for CAI it says "there is nothing to wait for", which DLPack
//! writes -1; for DLPack it says "I will use the legacy default stream", which CAI writes 1.
//! So neither integer gets past this file: [`Stream`] is what data is ready on, `Request` is
//! what a consumer asks for, and `NoSync` exists only as a request.
//!
//! # The decision
//!
//! `plan()` is a pure function from a `Situation` to a `Plan`. The driver room gathers the
//! facts and carries the plan out (`driver::order`); `explain` and the tests read it.
//! `settled` is the part of the decision that needs no fact from the driver, so that the usual
//! conversions (same stream, nothing to wait for) cost a comparison and no call.

use std::fmt;
use std::num::NonZeroU64;

use super::rule::{Field, Rule, Violation};

mod plan;
#[cfg(test)]
mod tests;

pub(crate) use plan::{
    Capture, Plan, Reason, Situation, SyncPolicy, plan, plan_without_captures, settled,
};

/// The number of CUDA's legacy default stream in both protocols (`CU_STREAM_LEGACY`).
const LEGACY: u64 = 1;
/// The number of the calling thread's default stream in both protocols (`CU_STREAM_PER_THREAD`).
const PER_THREAD: u64 = 2;

/// What data is ready on: the stream that a consumer must wait for.
///
/// There is no "no synchronisation" here: that is a wish of the consumer.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum Stream {
    /// Nothing to wait for: the data is ready now, for any stream and for the host.
    None,
    /// The legacy default stream of a context (1).
    LegacyDefault,
    /// The per-thread default stream (2). It names another stream on every thread, so whoever
    /// keeps one must keep its thread as well.
    PerThreadDefault,
    /// A `cudaStream_t` (or `hipStream_t`): [`Stream::from_handle`].
    Handle(StreamHandle),
}

/// The handle of a stream that somebody has promised to keep alive; never 0, 1 or 2.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct StreamHandle(NonZeroU64);

impl Stream {
    /// The stream of a CAI dict's `stream` value; a missing key or `None` is [`Stream::None`] and
    /// does not come here.
    ///
    /// 0 is disallowed by CAI v3, "as it would be ambiguous between None and the default stream";
    /// Numba's own `default_stream()` exports it, so it is the legacy default stream unless
    /// `strict` (the caller warns).
    ///
    /// # Errors
    /// A [`Violation`] for a negative value, a value of 2^64 or more, and 0 when `strict`.
    #[inline]
    pub(crate) fn from_cai(value: i128, strict: bool) -> Result<Stream, Violation> {
        match u64::try_from(value) {
            Ok(0) if strict => Err(cai_zero()),
            Ok(handle) => Ok(Stream::from_raw(handle)),
            Err(_) => Err(cai_range(value)),
        }
    }

    /// The value of a CAI dict's `stream` key: an integer of 1 or more, or `None` for Python's
    /// `None`. Never 0.
    #[inline]
    pub const fn to_cai(self) -> Option<u64> {
        match self {
            Stream::None => None,
            named => Some(named.raw()),
        }
    }

    /// The stream behind a `CUstream` as the driver and the C Exchange API hand it out, where 0
    /// is the legacy default stream.
    ///
    /// Within the library the promise of [`Stream::from_handle`] is the producer's or the caller's of a
    /// protocol, whose number this is.
    #[inline]
    pub(crate) const fn from_raw(handle: u64) -> Stream {
        match NonZeroU64::new(handle) {
            None => Stream::LegacyDefault,
            Some(handle) => match handle.get() {
                LEGACY => Stream::LegacyDefault,
                PER_THREAD => Stream::PerThreadDefault,
                _ => Stream::Handle(StreamHandle(handle)),
            },
        }
    }

    /// The `CUstream` to hand to the driver; 0 for [`Stream::None`], which names no stream and
    /// must not be handed to it.
    #[inline]
    pub const fn raw(self) -> u64 {
        match self {
            Stream::None => 0,
            Stream::LegacyDefault => LEGACY,
            Stream::PerThreadDefault => PER_THREAD,
            Stream::Handle(handle) => handle.0.get(),
        }
    }

    /// The `stream=` argument for a producer's `__dlpack__` that makes the data ready on this
    /// stream: -1 for [`Stream::None`] (no synchronisation is wanted), else [`raw`](Self::raw).
    /// Never Python's `None`, which names the legacy default stream there.
    #[inline]
    pub(crate) const fn to_dlpack_arg(self) -> i128 {
        match self {
            Stream::None => -1,
            named => named.raw() as i128,
        }
    }

    /// The same on another platform: ROCm writes its default stream 0, not 1.
    #[inline]
    pub(crate) const fn to_dlpack_arg_on(self, platform: Platform) -> i128 {
        match (self, platform) {
            (Stream::LegacyDefault, Platform::Rocm) => 0,
            (stream, _) => stream.to_dlpack_arg(),
        }
    }

    /// Whether this is one of the two default streams, which mean something only within a context.
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

/// Whose rules the `stream` argument of `__dlpack__` follows.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Platform {
    /// CUDA device memory (DLPack device type 2).
    Cuda,
    /// CUDA memory that the host reads as well: pinned (3) and managed (13). DLPack is silent on
    /// it; consumers either name a stream (Warp, CuPy) or name none and read on the host (NumPy),
    /// so here an integer is a CUDA stream and `None` is the host.
    HostReadable,
    /// ROCm, device and pinned (10, 11). Parsed and compared; ordering needs a HIP driver, which
    /// this library does not have.
    Rocm,
    /// The CPU (1), and anything exported with `dl_device=(1, 0)`.
    Host,
}

impl Platform {
    /// The platform of a DLPack device type; `None` where DLPack defines no stream for it.
    #[inline]
    pub(crate) const fn from_device_type(device_type: i32) -> Option<Platform> {
        match device_type {
            1 => Some(Platform::Host),
            2 => Some(Platform::Cuda),
            3 | 13 => Some(Platform::HostReadable),
            10 | 11 => Some(Platform::Rocm),
            _ => None,
        }
    }
}

/// What a consumer asks for.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Request {
    /// Nothing: the consumer orders by itself (DLPack's -1).
    NoSync,
    /// Make this stream, the consumer's, wait until the data is ready.
    Stream(Stream),
    /// Block the calling thread until the data is ready: the host reads it, or the consumer's
    /// streams cannot be named.
    Host,
}

impl Request {
    /// The request behind the `stream` argument of `__dlpack__`; `None` is Python's `None`, or the
    /// argument left out.
    ///
    /// # Errors
    /// A [`Violation`] for what the table of the [module](self) refuses, naming the platform.
    #[inline]
    pub(crate) fn from_dlpack(
        value: Option<i128>,
        platform: Platform,
    ) -> Result<Request, Violation> {
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

    /// Whether a consumer that asks this may have to wait for `ready`: false means that no driver
    /// call will be made, so there is no GIL to release.
    ///
    /// Two per-thread default streams count as different here, because a thread is not known; the
    /// exact answer is [`settled`]'s.
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
    /// A consumer that works on `stream`; [`Stream::None`] asks for nothing.
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
        -1 => violation.with_hint("the interface says \"nothing to wait for\" with None"),
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
