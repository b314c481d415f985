//! The usual conversions in one go: what nobody asks for is neither looked at nor carried along.
//!
//! A CAI object becomes a capsule without a view where nobody would look at it: its dict is the usual one,
//! and its data is ready where the consumer wants it. Everything else goes on as [`functions`] does, from as
//! far as it has come: an attribute is read once.

use pyo3::Borrowed;
use pyo3::prelude::*;

use crate::protocol::descriptor::Device;
use crate::protocol::stream::{Platform, Request, Stream};
use crate::python::call::options::Options;
use crate::python::class::alloc::Room;
use crate::python::class::view::PyCaiView;
use crate::python::cpython::fastcall::{Answer, Value};
use crate::python::cpython::{int, release};
use crate::python::export::dlpack;
use crate::python::export::dlpack::Export;
use crate::python::functions;
use crate::python::import::cai::Takes;
use crate::python::import::cai_dict::Numbers;
use crate::python::import::dlpack as dlpack_import;
use crate::python::import::dlpack::Ask;
use crate::python::import::exchange::{self, Exchanged};
use crate::python::import::known_types::Traits;
use crate::python::import::{cai, cai_dict, dtype_hint, known_types};

/// What the caller asks, as far as it is usual.
#[derive(Clone, Copy)]
struct Asked {
    stream: Option<i64>,
    versioned: bool,
    ordinal: Option<i32>,
}

impl Asked {
    #[inline(always)]
    fn read(
        stream: Value<'_, '_>,
        max_version: Value<'_, '_>,
        ordinal: Value<'_, '_>,
    ) -> Option<Self> {
        Some(Self {
            stream: match stream {
                None => None,
                Some(number) => Some(int::quick(number)?),
            },
            versioned: match max_version {
                None => false,
                Some(pair) => dlpack::quick_version(&pair)?,
            },
            ordinal: match ordinal {
                None => None,
                Some(number) => Some(
                    i32::try_from(int::quick(number)?)
                        .ok()
                        .filter(|n| *n >= 0)?,
                ),
            },
        })
    }

    /// The consumer's request, where it is a valid one.
    #[inline(always)]
    fn request(self, device: Device) -> Option<Request> {
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

/// `to_dlpack` with these keywords at most; `None`, with nothing done, where one of them or the object is not
/// usual.
#[inline(always)]
pub(crate) fn to_dlpack<'py>(
    object: Borrowed<'_, 'py, PyAny>,
    stream: Value<'_, 'py>,
    max_version: Value<'_, 'py>,
    ordinal: Value<'_, 'py>,
) -> Option<Answer<'py>> {
    let asked = Asked::read(stream, max_version, ordinal)?;
    if !known_types::remembered(&object)?
        .traits
        .any_of(Traits::PLAIN)
    {
        return None;
    }
    let py = object.py();
    let dict = match cai::attribute(&object) {
        Ok(dict) => dict,
        Err(error) => return Some(Answer::raise(py, error)),
    };
    if let Some(dict) = &dict
        && let Some(answer) = capsule(&object, dict, asked)
    {
        return Some(answer);
    }
    Some(go_on(&object, dict, stream, max_version, ordinal))
}

/// The capsule; `None`, with nothing done, where a view is needed or something is wrong.
#[inline(always)]
fn capsule<'py>(
    object: &Bound<'py, PyAny>,
    dict: &Bound<'py, PyAny>,
    asked: Asked,
) -> Option<Answer<'py>> {
    let mut numbers = Numbers::default();
    let usual = cai_dict::usual(dict, &mut numbers)?;
    let mut described = usual
        .array
        .described(Device::cuda(asked.ordinal.unwrap_or(0)));
    let hides_flag = described.flags.read_only() && !asked.versioned;
    if !usual.knows_stream || hides_flag || dtype_hint::is_doubtful(object, described.dtype) {
        return None;
    }
    if asked.ordinal.is_none() && described.data != 0 {
        // What has to wait goes the other way, which asks the driver too; once is enough.
        if usual.stream != Stream::None {
            return None;
        }
        match cai::device_at(described.data) {
            Ok(device) => described.device = device,
            Err(error) => return Some(Answer::raise(object.py(), error.into())),
        }
    }
    if asked.request(described.device)?.needs_order(usual.stream) {
        return None;
    }
    let py = object.py();
    let capsule = match release::own(object.clone()) {
        Ok(owner) => Export::made(py, described, asked.versioned, owner),
        Err(error) => Err(error),
    };
    Some(Answer::from_result(py, capsule))
}

#[cold]
#[inline(never)]
fn go_on<'py>(
    object: &Bound<'py, PyAny>,
    dict: Option<Bound<'py, PyAny>>,
    stream: Value<'_, 'py>,
    max_version: Value<'_, 'py>,
    ordinal: Value<'_, 'py>,
) -> Answer<'py> {
    let asked = dlpack::Asked {
        stream: stream.as_deref(),
        max_version: max_version.as_deref(),
        dl_device: None,
        copy: None,
        writable: false,
        on_host: false,
    };
    let capsule = functions::to_dlpack_by_attribute(object, dict, ordinal.as_deref(), &asked);
    Answer::from_result(object.py(), capsule)
}

/// `view` with no keyword but this, of an object that is asked by its attributes; `None`, with nothing done,
/// for others.
#[inline(always)]
pub(crate) fn view_located<'py>(
    object: Borrowed<'_, 'py, PyAny>,
    ordinal: Value<'_, 'py>,
) -> Option<Answer<'py>> {
    let traits = known_types::remembered(&object)?.traits;
    traits
        .any_of(Traits::PLAIN)
        .then(|| by_attribute(&object, ordinal))
}

/// `view` without keywords; `None`, with nothing done, for types that were not met before, and for our own.
#[inline(always)]
pub(crate) fn view<'py>(object: Borrowed<'_, 'py, PyAny>) -> Option<Answer<'py>> {
    let known = known_types::remembered(&object)?;
    if known.traits.any_of(Traits::OURS) {
        return None;
    }
    let Some(table) = known.table else {
        return known
            .traits
            .any_of(Traits::PLAIN)
            .then(|| by_attribute(&object, None));
    };
    let py = object.py();
    let room = match Room::new(py) {
        Ok(room) => room?,
        Err(error) => return Some(Answer::raise(py, error)),
    };
    Some(
        match exchange::import_object(room, &object, table, known.traits) {
            Ok(Some(view)) => Answer::Object(view.into_any()),
            Ok(None) => made(py, by_protocol(&object)),
            Err(error) => Answer::raise(py, error),
        },
    )
}

#[cold]
#[inline(never)]
fn by_protocol<'py>(object: &Bound<'py, PyAny>) -> PyResult<Exchanged> {
    functions::by_protocol(object, &Options::default(), Takes::Structs)
}

#[inline(never)]
fn by_attribute<'py>(object: &Bound<'py, PyAny>, ordinal: Value<'_, 'py>) -> Answer<'py> {
    let found = Options::located(ordinal.as_deref()).and_then(|options| {
        functions::by_attribute(object, cai::attribute(object)?, &options, Takes::Structs)
    });
    made(object.py(), found)
}

/// `from_dlpack` without keywords; `None`, with nothing done, for types that were not met before.
#[inline(always)]
pub(crate) fn from_dlpack<'py>(object: Borrowed<'_, 'py, PyAny>) -> Option<Answer<'py>> {
    let traits = known_types::remembered(&object)?.traits;
    if !traits.any_of(Traits::SPEAKS) {
        return None;
    }
    let found = dlpack_import::import_known(&object, traits, Ask::default());
    Some(made(object.py(), found.map(Exchanged::plain)))
}

#[inline(always)]
fn made(py: Python<'_>, found: PyResult<Exchanged>) -> Answer<'_> {
    let object = found.and_then(|found| PyCaiView::from_route(found).into_object(py));
    Answer::from_result(py, object)
}
