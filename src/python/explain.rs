//! `explain`: which way an array would go, what would wait for what, and why, without doing it.
//!
//! Attributes are read and the driver is asked about the pointer, where there is one. No `__dlpack__`
//! is called, no event is made, no stream waits.

mod consumers;

use std::fmt::Write;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use self::consumers::{CONSUMERS, Consumer};
use crate::protocol::descriptor::{Descriptor, Device};
use crate::protocol::rule::{Field, Rule, Violation};
use crate::protocol::stream::{Platform, Request, Situation, Stream, plan};
use crate::python::call::options::Options;
use crate::python::call::{policy, stream};
use crate::python::capsule;
use crate::python::class::view::PyCaiView;
use crate::python::cpython::thread_exit;
use crate::python::cpython::thread_exit::entries;
use crate::python::import::describe::Said;
use crate::python::import::{cai, describe, dlpack, fields, known_types};

/// What `explain` found; its text is the `str` of it.
#[pyclass(name = "Explanation", module = "cai_dlpack", frozen)]
pub(crate) struct Explanation {
    /// The way that `view` would take: "exchange", "cai", "dlpack", "capsule" or "view"; None where it
    /// would refuse.
    #[pyo3(get)]
    route: Option<&'static str>,
    /// Who would wait for whom; None where that is not known without asking the producer.
    #[pyo3(get)]
    order: Option<String>,
    /// Why it would be refused, by the import or by the consumer; None where it would not.
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

/// Says which way an array would go, what would wait for what, and why, without doing it.
///
/// to: the name of the consumer's library, such as "torch"; its zero-copy call is shown, and what it
/// ignores or refuses.
/// stream: the consumer's stream, as in `__dlpack__`.
///
/// No GPU is needed; without a driver the device is not known. The answer prints as a text, and has the
/// attributes `route`, `order` and `refused`.
#[pyfunction]
#[pyo3(signature = (obj, /, *, to=None, stream=None))]
pub(crate) fn explain<'py>(
    obj: &Bound<'py, PyAny>,
    to: Option<&str>,
    stream: Option<&Bound<'py, PyAny>>,
) -> PyResult<Explanation> {
    thread_exit::stays();
    let consumer = to.map(consumer).transpose()?;
    let mut found = look(obj)?;
    let mut text = String::new();
    line(
        &mut text,
        "offers",
        &if found.offers.is_empty() {
            "neither protocol".to_owned()
        } else {
            found.offers.join("; ")
        },
    );
    if let Some(route) = found.route {
        line(&mut text, "route", &format!("{route}: {}", found.reason));
    }
    if let Some(descriptor) = &found.descriptor {
        line(
            &mut text,
            "array",
            &shown(obj.py(), descriptor, found.located)?,
        );
    }
    let order = match (&found.descriptor, found.ready) {
        (Some(descriptor), Some(ready)) => Some(order(descriptor, ready, stream, consumer)?),
        _ => None,
    };
    if let Some(order) = &order {
        line(&mut text, "order", order);
    } else if found.route.is_some() {
        line(
            &mut text,
            "order",
            "the producer is told the consumer's stream and orders by itself",
        );
    }
    if let Some(consumer) = consumer {
        line(&mut text, &format!("to {}", consumer.name), consumer.call);
        line(&mut text, "streams", consumer.stream);
        if let (None, Some(descriptor)) = (&found.refused, &found.descriptor) {
            found.refused = refusal_of(consumer, descriptor, found.located);
        }
    }
    if let Some(refused) = &found.refused {
        line(&mut text, "refused", refused);
    }
    Ok(Explanation {
        route: found.route,
        order,
        refused: found.refused,
        text: text.trim_end().to_owned(),
    })
}

fn line(text: &mut String, head: &str, rest: &str) {
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{head:12}{rest}");
}

fn consumer(name: &str) -> PyResult<&'static Consumer> {
    CONSUMERS
        .iter()
        .find(|consumer| consumer.name == name)
        .ok_or_else(|| {
            let names: Vec<_> = CONSUMERS.iter().map(|consumer| consumer.name).collect();
            let violation = Violation::new(
                Rule::ArgumentValue,
                Field::Argument("to"),
                format_args!("'{name}'"),
            );
            violation
                .with_hint(format!("it is one of {}", names.join(", ")))
                .into()
        })
}

/// What can be said of an object without importing it.
#[derive(Default)]
struct Found {
    offers: Vec<String>,
    route: Option<&'static str>,
    reason: &'static str,
    descriptor: Option<Descriptor>,
    /// The descriptor's device is known, and not only assumed.
    located: bool,
    /// What the data is ready on, where the route says it.
    ready: Option<Stream>,
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
    let known = known_types::known(object)?;
    let has_table = known.table.is_some();
    if has_table {
        found.offers.push("the C Exchange API".into());
    }
    look_at_cai(object, &mut found)?;
    let dlpack = look_at_dlpack(object, &mut found);
    if has_table {
        (found.route, found.reason) = (
            Some("exchange"),
            "it is the quickest, and names the stream that the producer works on",
        );
        (found.ready, found.refused) = (None, None);
        if let Some(table) = known.table {
            look_at_table(object, table, known.traits, &mut found);
        }
    } else if dlpack && (found.route.is_none() || found.ready.is_none()) {
        (found.route, found.reason) = (
            Some("dlpack"),
            "the producer makes the data ready on the stream that it is told",
        );
        (found.ready, found.refused) = (None, None);
    } else if found.route.is_some() && found.ready.is_none() {
        // An interface that names no stream is taken at its word where there is nothing better.
        found.ready = Some(Stream::None);
        found.reason =
            "nothing else is offered; it names no stream: pass producer_stream= if work is pending";
    } else if found.route.is_none() && found.refused.is_none() {
        found.refused = Some(cai::missing(object).value(object.py()).to_string());
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
    }
}

/// What the table says, as a borrowed description.
fn look_at_table(
    object: &Bound<'_, PyAny>,
    table: known_types::Table,
    traits: known_types::Traits,
    found: &mut Found,
) {
    match describe::look(object, table, traits) {
        Ok(Said::Array(descriptor, ready)) => {
            (found.descriptor, found.ready) = (Some(descriptor), Some(ready));
            found.located = true;
        }
        Ok(Said::Nothing) => {}
        Ok(Said::LessThanDlpack) => {
            (found.route, found.reason) = (
                Some("dlpack"),
                "its table says less than its __dlpack__, which is asked",
            );
        }
        Err(error) => found.refused = Some(error.value(object.py()).to_string()),
    }
}

/// The interface of an object, or of a bare dict.
fn look_at_cai(object: &Bound<'_, PyAny>, found: &mut Found) -> PyResult<()> {
    let dict = if object.is_instance_of::<PyDict>() {
        Some(object.clone())
    } else {
        cai::attribute(object)?
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
    found.ready = read.knows_stream().then_some(ready);
    let described = if is_struct {
        found.refused = read.interface.descr().refusal().map(|why| why.to_string());
        let whole = read.interface.into_struct(Device::cuda(0));
        whole.map(|(descriptor, _)| descriptor)
    } else {
        cai::describe(read.interface, &options)
    };
    match described {
        Err(violation) => found.refused = Some(violation.to_string()),
        Ok(descriptor) => {
            found.route = Some("cai");
            found.reason = "it names the stream that the producer works on";
            match cai::locate(&descriptor, &options) {
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

/// Whether the object speaks DLPack, and where it says that it is.
fn look_at_dlpack(object: &Bound<'_, PyAny>, found: &mut Found) -> bool {
    if !dlpack::speaks(object).unwrap_or(false) {
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
    let flag = if descriptor.read_only() {
        ", read-only"
    } else {
        ""
    };
    Ok(format!(
        "{shape} {} on {place}, strides {strides} elements{flag}",
        descriptor.dtype()
    ))
}

/// The plan for the consumer's stream; captures are not looked at.
fn order(
    descriptor: &Descriptor,
    ready: Stream,
    stream: Option<&Bound<'_, PyAny>>,
    consumer: Option<&Consumer>,
) -> PyResult<String> {
    if consumer.is_some_and(|consumer| !consumer.dlpack) && stream.is_none() {
        return Ok(format!("{ready} is passed on in the dict; no call is made"));
    }
    let platform =
        Platform::from_device_type(descriptor.device().device_type).unwrap_or(Platform::Host);
    let reads_on_host =
        stream.is_none() && consumer.is_some_and(|consumer| consumer.name == "tensorflow");
    let request = if reads_on_host {
        Request::Host
    } else {
        stream::request(stream, platform)?
    };
    let situation = Situation {
        platform,
        ..Situation::new(ready, request, policy::policy())
    };
    Ok(plan(&situation).to_string())
}

/// Why the consumer would not take it; `None` where nothing is known against it.
fn refusal_of(consumer: &Consumer, descriptor: &Descriptor, located: bool) -> Option<String> {
    let device = descriptor.device();
    let name = consumer.name;
    if located && !consumer.devices.is_empty() && !consumer.devices.contains(&device.device_type) {
        let way = match device.device_type {
            Device::CUDA_MANAGED | Device::CUDA_HOST
                if consumer.devices.contains(&Device::CUDA) =>
            {
                "; v.present_as(\"cuda\") names it device memory"
            }
            _ => "",
        };
        return Some(format!(
            "{name} takes no memory of device type {}{way}",
            device.device_type
        ));
    }
    if !consumer.dlpack
        && let Err(violation) = descriptor.to_interface(Stream::None)
    {
        return Some(violation.to_string());
    }
    if consumer.legacy && descriptor.read_only() {
        return Some(format!(
            "{name} asks for a legacy tensor, which cannot be read-only; read_only=False asserts that nobody will write"
        ));
    }
    let is_negative = descriptor.elem_strides().iter().any(|stride| *stride < 0);
    (consumer.no_negative_strides && is_negative)
        .then(|| format!("{name} takes no negative strides"))
}
