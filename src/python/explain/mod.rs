//! `explain`: describes the route of an import, the order and the consumer's call, without doing any of it.
//!
//! Reads attributes, and queries the driver about the pointer. Calls no `__dlpack__`, makes no event, makes no stream
//! wait. The consumer's side is [`Partner::plan`].

use std::fmt::Write;

use pyo3::Borrowed;
use pyo3::exceptions::{PyException, PyMemoryError, PyRecursionError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::partners;
use crate::partners::{Asked, PARTNERS, Partner, order_for};
use crate::protocol::descriptor::Descriptor;
use crate::protocol::device::{Access, Device};
use crate::protocol::rule::{Field, Rule, Violation};
use crate::protocol::stream::{Platform, Stream};
use crate::python::call::choice::text;
use crate::python::call::options::Options;
use crate::python::call::{policy, stream};
use crate::python::capsule;
use crate::python::class::view::PyCaiView;
use crate::python::cpython::fastcall::{Function, signature};
use crate::python::cpython::int::repr;
use crate::python::cpython::recursion::Level;
use crate::python::cpython::release;
use crate::python::cpython::thread_exit::entries;
use crate::python::exchange_table::Table;
use crate::python::import::describe::Loan;
use crate::python::import::traits::Traits;
use crate::python::import::{
    cai, describe, dlpack, exchange, fields, known_types, masked_array, route, undeclared,
};

/// The description of an import, returned by `explain`; its `str` is a text of a few lines.
///
/// Attributes
/// ----------
/// route
/// ready
/// order
/// refused
#[pyclass(name = "Explanation", module = "cai_dlpack", frozen)]
pub(crate) struct Explanation {
    /// The route of `view`: "exchange", "cai", "dlpack", "capsule" or "view"; None if it would refuse the array.
    #[pyo3(get)]
    route: Option<&'static str>,
    /// Where the data is ready: "now", "on" a stream, or "undeclared" with the stream that is taken; None if the
    /// producer makes it ready on the stream that it is passed.
    #[pyo3(get)]
    ready: Option<String>,
    /// Which stream would wait for which; None if the order depends on the producer.
    #[pyo3(get)]
    order: Option<String>,
    /// The error that the import or the consumer would raise; None if neither would.
    #[pyo3(get)]
    refused: Option<String>,
    text: String,
}

entries! {
impl Explanation {
    fn __str__(&self) -> &str {
        &self.text
    }

    fn __repr__(&self) -> &str {
        &self.text
    }
}
}

signature! {
    /// Describes what `view` would do with an array, without doing it: the route, the order, the consumer's call.
    ///
    /// Needs no GPU; without a driver the device is unknown.
    ///
    /// Returns
    /// -------
    /// Explanation
    ///     Prints as a text of a few lines.
    ///
    /// Raises
    /// ------
    /// ValueError
    ///     If `to` names no library of the table of partners, or `stream` no stream.
    Explain = explain [
        /// Any array that `view` takes.
        obj: "object",
    ] (
        /// The consumer's library by any of its names, such as "torch" or "pytorch". Adds its zero-copy call, and
        /// what the call refuses.
        to: "str | None" = None,
        /// The consumer's stream, as in `CaiView.__dlpack__`.
        stream: "_StreamLike | None" = None,
    ) -> "Explanation"
}

impl Function for Explain {
    fn call<'py>(
        _: Borrowed<'_, 'py, PyAny>,
        arguments: Self::Arguments<'_, 'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let _level = Level::begin(arguments.obj.py())?;
        let to = arguments.to.map(partner).transpose()?;
        // Errors of attributes become text, and are dropped.
        let explanation =
            release::dropping(|| explain(&arguments.obj, to, arguments.stream.as_deref()))?;
        Ok(Bound::new(arguments.obj.py(), explanation)?.into_any())
    }
}

fn explain<'py>(
    obj: &Bound<'py, PyAny>,
    partner: Option<&'static Partner>,
    stream: Option<&Bound<'py, PyAny>>,
) -> PyResult<Explanation> {
    let mut found = look(obj)?;
    let mut text = String::new();
    let offers = if found.offers.is_empty() {
        "neither protocol".to_owned()
    } else {
        found.offers.join("; ")
    };
    line(&mut text, "offers", &offers);
    if let Some(route) = found.route {
        line(&mut text, "route", &format!("{route}: {}", found.reason));
    }
    if let Some(descriptor) = &found.descriptor {
        let array = shown(obj.py(), descriptor, found.located)?;
        line(&mut text, "array", &array);
    }
    let ready = found.ready.map(|ready| state(ready, found.undeclared));
    if let Some(ready) = &ready {
        line(&mut text, "ready", ready);
    }
    let order = hand_over(obj.py(), &mut found, partner, stream)?;
    if let Some(order) = &order {
        line(&mut text, "order", order);
    } else if found.route.is_some() && ready.is_none() {
        line(
            &mut text,
            "order",
            "the producer is told the consumer's stream and orders by itself",
        );
    }
    if let Some(partner) = partner {
        let call = &partner.call;
        line(&mut text, &format!("to {}", partner.name), call.code);
        line(&mut text, "streams", &call.streams().replace('`', ""));
    }
    if let Some(refused) = &found.refused {
        line(&mut text, "refused", refused);
    }
    Ok(Explanation {
        route: found.route,
        ready,
        order,
        refused: found.refused,
        text: text.trim_end().to_owned(),
    })
}

/// Returns the state of data that is ready on a stream, or taken to be.
fn state(ready: Stream, undeclared: bool) -> String {
    match (undeclared, ready) {
        (false, Stream::None) => "now".to_owned(),
        (false, stream) => format!("on {stream}"),
        (true, Stream::None) => "undeclared; taken as ready now".to_owned(),
        (true, stream) => format!("undeclared; taken as pending on {stream}"),
    }
}

fn line(text: &mut String, head: &str, rest: &str) {
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{head:12}{rest}");
}

fn partner(to: Borrowed<'_, '_, PyAny>) -> PyResult<&'static Partner> {
    let name = text(&to, "to", "a str, the name of a library")?;
    let partner = name.and_then(|name| partners::find(&name));
    partner.ok_or_else(|| {
        let names: Vec<_> = PARTNERS.iter().map(|partner| partner.name).collect();
        Violation::new(Rule::ArgumentValue, Field::Argument("to"), repr(&to))
            .with_hint(format!("must be one of {}", names.join(", ")))
            .into()
    })
}

/// Returns the order, if it is known; adds the consumer's refusal, if the import has none.
fn hand_over(
    py: Python<'_>,
    found: &mut Found,
    partner: Option<&'static Partner>,
    stream: Option<&Bound<'_, PyAny>>,
) -> PyResult<Option<String>> {
    let Some(array) = &found.descriptor else {
        return Ok(None);
    };
    let device_type = array.device().device_type;
    let platform = Platform::from_device_type(device_type).unwrap_or(Platform::Host);
    let asked = Asked {
        stream: (stream.map(|stream| stream::request(Some(stream), platform))).transpose()?,
        policy: policy::policy(py)?,
        is_located: found.located,
    };
    let ready = found.ready.unwrap_or(Stream::None);
    let order = match partner {
        None => order_for(array, ready, asked, None),
        Some(partner) => {
            let plan = partner.plan_asked(array, ready, asked);
            if found.refused.is_none() {
                found.refused = plan.refusal();
            }
            plan.order
        }
    };
    Ok(found.ready.map(|_| order.to_string()))
}

/// The facts about an object that need no import.
#[derive(Default)]
struct Found {
    offers: Vec<String>,
    route: Option<&'static str>,
    reason: &'static str,
    descriptor: Option<Descriptor>,
    /// Whether the descriptor's device is known, not assumed.
    located: bool,
    /// The stream that the data is ready on, if the route names it or it is assumed.
    ready: Option<Stream>,
    /// Whether the producer leaves the stream unsaid.
    undeclared: bool,
    refused: Option<String>,
}

fn look(object: &Bound<'_, PyAny>) -> PyResult<Found> {
    if let Ok(view) = object.cast::<PyCaiView>() {
        return Ok(look_at_view(view.get()));
    }
    if capsule::is_capsule(object) {
        return Ok(Found {
            offers: vec!["a DLPack capsule".into()],
            route: Some("capsule"),
            reason: "it can be consumed once, and cannot be asked anything",
            ..Found::default()
        });
    }
    let mut found = Found::default();
    let facts = known_types::facts_of(object)?;
    if facts.traits.intersects(Traits::MASKED)
        && let Err(error) = masked_array::check(object)
    {
        found
            .offers
            .push("a mask, which neither protocol has for it".into());
        found.refused = Some(refusal(object.py(), error)?);
        return Ok(found);
    }
    let has_table = facts.table.is_some();
    if has_table {
        found.offers.push("the C Exchange API".into());
    }
    look_at_cai(object, &mut found)?;
    let dlpack = look_at_dlpack(object, facts.traits, &mut found);
    if has_table {
        (found.route, found.reason) = (
            Some("exchange"),
            "it is the quickest, and names the stream that the producer works on",
        );
        (found.ready, found.refused, found.undeclared) = (None, None, false);
        if let Some(table) = facts.table {
            look_at_table(object, table, facts.traits, &mut found)?;
        }
    } else if dlpack && (found.route.is_none() || found.ready.is_none()) {
        (found.route, found.reason) = (
            Some("dlpack"),
            "the producer makes the data ready on the stream that it is told",
        );
        (found.ready, found.refused, found.undeclared) = (None, None, false);
        if facts.traits.intersects(Traits::IGNORES_STREAM) && has_streams(object) {
            found.reason = "the producer ignores the stream that it is told: pass producer_stream=";
            (found.ready, found.undeclared) = (Some(Stream::LegacyDefault), true);
        }
    } else if found.route.is_some() && found.ready.is_none() {
        // An interface that names no stream is used if nothing better is offered.
        found.ready = Some(match facts.traits.intersects(Traits::SILENT_UNKNOWN) {
            true => Stream::LegacyDefault,
            false => Stream::None,
        });
        found.undeclared = true;
        found.reason =
            "nothing else is offered; it names no stream: pass producer_stream= if work is pending";
    } else if found.route.is_none() && found.refused.is_none() {
        found.refused = Some(cai::missing(object).value(object.py()).to_string());
    }
    if found.undeclared && found.refused.is_none() && policy::is_strict(object.py())? {
        found.refused = Some(undeclared::refusal(object).to_string());
    }
    Ok(found)
}

fn look_at_view(view: &PyCaiView) -> Found {
    let (view, refused) = (view.view(), view.descr().refusal());
    Found {
        offers: vec!["both protocols, and the C Exchange API".into()],
        route: Some("view"),
        reason: "it is a view already",
        descriptor: Some(view.descriptor().clone()),
        located: true,
        ready: Some(view.ready()),
        refused: refused.map(|why| why.to_string()),
        undeclared: false,
    }
}

/// Borrows the description of an object from its table.
///
/// # Errors
/// Those of [`refusal`].
fn look_at_table(
    object: &Bound<'_, PyAny>,
    table: Table,
    traits: Traits,
    found: &mut Found,
) -> PyResult<()> {
    match describe::borrow(object, table, traits) {
        Ok(Loan::Array(descriptor, ready)) => {
            if traits.intersects(Traits::IGNORES_STREAM) && ready == Stream::LegacyDefault {
                found.undeclared = true;
                found.reason = "it is the quickest; it names no stream: pass producer_stream=";
            }
            (found.descriptor, found.ready) = (Some(descriptor), Some(ready));
            found.located = true;
        }
        Ok(Loan::NotOffered) => {}
        Ok(Loan::Incomplete) => {
            (found.route, found.reason) = (
                Some("dlpack"),
                "its table leaves out what its __dlpack__ tells, which is asked",
            );
        }
        Err(error) => {
            // torch appends a backtrace of C++.
            let text = refusal(object.py(), error)?;
            found.refused = text.lines().next().map(str::to_owned);
        }
    }
    Ok(())
}

/// Returns the text of an error by which `view` would refuse an object.
///
/// # Errors
/// The error itself, if it tells of the process rather than of the object: a lack of memory or of stack, an interrupt.
fn refusal(py: Python<'_>, error: PyErr) -> PyResult<String> {
    let is_of_the_process = !error.is_instance_of::<PyException>(py)
        || error.is_instance_of::<PyMemoryError>(py)
        || error.is_instance_of::<PyRecursionError>(py);
    match is_of_the_process {
        true => Err(error),
        false => Ok(error.value(py).to_string()),
    }
}

/// Reads the interface of an object, or a bare dict.
fn look_at_cai(object: &Bound<'_, PyAny>, found: &mut Found) -> PyResult<()> {
    let dict = if object.is_instance_of::<PyDict>() {
        Some(object.clone())
    } else {
        match cai::attribute(object) {
            Ok(dict) => dict,
            Err(error) => {
                found.offers.push("__cuda_array_interface__".into());
                found.refused = Some(refusal(object.py(), error)?);
                return Ok(());
            }
        }
    };
    let Some(dict) = dict else { return Ok(()) };
    let options = Options::default();
    let read = cai::read(object, &dict, &options).and_then(|mut read| {
        let is_struct = fields::is_one(object, &mut read, &options)?;
        Ok((read, is_struct))
    });
    let (read, is_struct) = match read {
        Ok(found) => found,
        Err(error) => {
            found.offers.push("__cuda_array_interface__".into());
            found.refused = Some(error.value(object.py()).to_string());
            return Ok(());
        }
    };
    let (version, ready) = (read.interface.version().number(), read.interface.stream());
    found.offers.push(format!(
        "__cuda_array_interface__ version {version}, {ready}"
    ));
    let traits = known_types::facts_of(object)?.traits;
    let has_elements = read.interface.data() != 0;
    let is_silent = ready == Stream::None && has_elements;
    found.ready = match traits.assumed_stream() {
        Some(assumed) if is_silent => {
            found.undeclared = true;
            Some(assumed)
        }
        _ => {
            let is_declared = route::is_declared(traits, ready, read.is_stream_known());
            (is_declared || !has_elements).then_some(ready)
        }
    };
    let typestr = read.typestr;
    let descriptor = if is_struct {
        found.refused = read.interface.descr().refusal().map(|why| why.to_string());
        let whole = read.interface.into_struct(Device::cuda(0));
        whole.map(|(descriptor, _)| descriptor)
    } else {
        cai::describe(read.interface, &options)
    };
    match descriptor {
        Err(violation) => found.refused = Some(cai::verbatim(violation, &typestr).to_string()),
        Ok(descriptor) => {
            found.route = Some("cai");
            found.reason = match found.undeclared {
                true => "it names no stream: the default stream of its library is taken",
                false => "it names the stream that the producer works on",
            };
            let located = cai::locate(&descriptor, &options);
            match located.map(|(device, _)| device) {
                Ok(device) => {
                    found.located = true;
                    found.descriptor = Some(descriptor.with_device(device));
                }
                Err(error) => {
                    found
                        .offers
                        .push(format!("device not known: {}", error.value(object.py())));
                    found.descriptor = Some(descriptor);
                }
            }
        }
    }
    Ok(())
}

/// Whether the device that an object announces has streams.
fn has_streams(object: &Bound<'_, PyAny>) -> bool {
    let device = dlpack::announced_device(object);
    device.is_ok_and(|device| !exchange::has_no_streams(device))
}

/// Whether the object has `__dlpack__`; adds its device to the offers.
fn look_at_dlpack(object: &Bound<'_, PyAny>, traits: Traits, found: &mut Found) -> bool {
    if !dlpack::has_dlpack(object, traits).unwrap_or(false) {
        return false;
    }
    found.offers.push(match dlpack::announced_device(object) {
        Ok(device) => format!("__dlpack__ on ({}, {})", device.device_type, device.id),
        Err(error) => format!("__dlpack__ ({})", error.value(object.py())),
    });
    true
}

fn shown(py: Python<'_>, descriptor: &Descriptor, located: bool) -> PyResult<String> {
    let device = descriptor.device();
    let place = if located {
        format!("({}, {})", device.device_type, device.id)
    } else {
        "a device that is not known".to_owned()
    };
    let shape = PyTuple::new(py, descriptor.shape())?;
    let strides = PyTuple::new(py, descriptor.elem_strides())?;
    let flag = match descriptor.access() {
        Access::Writable => "",
        Access::ReadOnly => ", read-only",
        Access::Unknown => ", perhaps read-only",
    };
    Ok(format!(
        "{shape} {} on {place}, strides {strides} elements{flag}",
        descriptor.dtype()
    ))
}
