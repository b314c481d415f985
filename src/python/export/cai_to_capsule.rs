//! A CAI object becomes a capsule without a view between them.
//!
//! Taken if no one would look at the view: the dict is a plain one, no option changes it, and the data is
//! ready on the stream that the consumer named. Without it 1.67 of the floor's instructions, with it 1.18
//! (budget 1.25: docs/performance.md).

use pyo3::prelude::*;

use crate::protocol::device::Device;
use crate::protocol::stream::{Platform, Request, Stream};
use crate::python::cpython::fastcall::Value;
use crate::python::cpython::{int, release};
use crate::python::export::dlpack::{Export, quick_version};
use crate::python::import::cai_dict::{self, Numbers};
use crate::python::import::{cai, dtype_hint};

/// The capsule; `None`, with nothing done, if a view is needed or something is wrong.
///
/// # Errors
/// The driver's, which is asked for the device if the caller gives none; out of memory.
#[inline(always)]
pub(crate) fn convert<'py>(
    object: &Bound<'py, PyAny>,
    dict: &Bound<'py, PyAny>,
    wish: Wish,
    device_id: Option<i32>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let mut numbers = Numbers::default();
    let Some(usual) = cai_dict::usual(dict, &mut numbers) else {
        return Ok(None);
    };
    let mut described = usual.array.borrowed(Device::cuda(device_id.unwrap_or(0)));
    let hides_flag = described.flags.read_only() && !wish.versioned;
    if !usual.knows_stream || hides_flag || dtype_hint::is_doubtful(object, described.dtype) {
        return Ok(None);
    }
    if device_id.is_none() && described.data != 0 {
        // What has to wait needs a view, whose import asks the driver too; once is enough.
        if usual.stream != Stream::None {
            return Ok(None);
        }
        described.device = cai::device_at(described.data)?;
    }
    let is_managed = described.device.device_type == Device::CUDA_MANAGED;
    match wish.stream_request(described.device) {
        // The host may have to wait for managed memory that is ready.
        Some(Request::Host) if is_managed => return Ok(None),
        Some(wanted) if !wanted.needs_order(usual.stream) => {}
        _ => return Ok(None),
    }
    let owner = release::own(object.clone())?;
    Export::made(object.py(), described, wish.versioned, owner).map(Some)
}

/// What the consumer asks, if its arguments are exact ints.
#[derive(Clone, Copy)]
pub(crate) struct Wish {
    stream: Option<i64>,
    versioned: bool,
}

impl Wish {
    /// `None` if an argument is of another type.
    #[inline(always)]
    pub(crate) fn read(stream: Value<'_, '_>, max_version: Value<'_, '_>) -> Option<Self> {
        Some(Self {
            stream: match stream {
                None => None,
                Some(number) => Some(int::quick(number)?),
            },
            versioned: match max_version {
                None => false,
                Some(pair) => quick_version(&pair)?,
            },
        })
    }

    /// The consumer's request, if it is a valid one.
    #[inline(always)]
    fn stream_request(self, device: Device) -> Option<Request> {
        match (device.device_type, self.stream) {
            (Device::CUDA, None) => Some(Request::Stream(Stream::LegacyDefault)),
            (Device::CUDA, Some(-1)) => Some(Request::NoSync),
            (Device::CUDA, Some(handle)) if handle > 0 => {
                Some(Request::Stream(Stream::from_raw(handle.cast_unsigned())))
            }
            (device_type, stream) => {
                let platform = Platform::from_device_type(device_type)?;
                Request::from_dlpack(stream.map(i128::from), platform).ok()
            }
        }
    }
}
