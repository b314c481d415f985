//! What a view shows of itself: in a terminal, and in a notebook.

use std::fmt::Write as _;

use pyo3::prelude::*;

use crate::protocol::descriptor::Descriptor;
use crate::protocol::device::{Access, Device, DeviceType};
use crate::protocol::stream::Stream;
use crate::python::class::view::PyCaiView;
use crate::python::cpython::int::type_name;
use crate::python::cpython::text::as_tuple;

/// How many rows and columns of an array the picture has.
const ROWS: i64 = 6;
const COLUMNS: i64 = 10;
/// The side of an element in the picture.
const CELL: i64 = 26;

/// The kind of memory, as the attribute `memory` has it.
pub(crate) const fn memory_name(device: Device) -> &'static str {
    match device.device_type {
        DeviceType::CPU => "host",
        DeviceType::CUDA_HOST | DeviceType::ROCM_HOST => "pinned",
        DeviceType::CUDA_MANAGED => "managed",
        _ => "device",
    }
}

/// The facts about a view, with their names. Asks neither producer nor driver.
fn facts(view: &PyCaiView, py: Python<'_>) -> Vec<(&'static str, String)> {
    let of = view.view();
    let descriptor = of.descriptor();
    let (device, ready, producer) = (of.device(), of.ready_number(), of.producer_number());
    let mut facts = vec![
        ("shape", as_tuple(descriptor.shape().iter())),
        ("dtype", descriptor.type_name().to_string()),
        strides(descriptor),
        ("memory", memory_name(device).to_owned()),
        ("device", format!("{:?}", device.to_dlpack())),
        ("ptr", format!("{:#x}", descriptor.data())),
        ("stream", stream_name(ready)),
    ];
    if producer != Some(ready) {
        let producer = producer.map_or_else(|| "unknown".to_owned(), stream_name);
        facts.push(("producer_stream", producer));
    }
    if let Some(owner) = view.owner(py) {
        facts.push(("owner", type_name(&owner)));
    }
    facts
}

/// In elements, as NumPy and torch would say it by their own units; in bytes if they are no whole number of elements.
fn strides(descriptor: &Descriptor) -> (&'static str, String) {
    let elements = descriptor.elem_strides();
    match descriptor.byte_strides() {
        Some(bytes) if elements.len() != descriptor.ndim() => {
            let bytes: Vec<_> = bytes.collect();
            ("byte_strides", as_tuple(bytes.iter()))
        }
        _ => ("elem_strides", as_tuple(elements.iter())),
    }
}

/// Returns shape, dtype and device, as `repr` has them.
pub(crate) fn array(descriptor: &Descriptor) -> String {
    let (shape, device) = (as_tuple(descriptor.shape().iter()), descriptor.device());
    let dtype = descriptor.type_name();
    format!(
        "shape={shape} dtype={dtype} device={:?}",
        device.to_dlpack()
    )
}

pub(crate) fn stream_name(stream: Stream) -> String {
    match stream {
        Stream::None => "None".to_owned(),
        Stream::LegacyDefault => "1 (legacy)".to_owned(),
        Stream::PerThreadDefault => "2 (per-thread)".to_owned(),
        Stream::Handle(_) => format!("{:#x}", stream.raw()),
    }
}

/// What the view is beside its facts, as the end of a sentence.
fn state(view: &PyCaiView) -> &'static str {
    if view.check_alive().is_err() {
        return " ended";
    }
    match view.view().descriptor().access() {
        Access::Writable => "",
        Access::ReadOnly => " read-only",
        Access::Unknown => " perhaps read-only",
    }
}

/// `<CaiView shape=(2, 3) dtype=float32 ...>`.
pub(crate) fn text(view: &PyCaiView, py: Python<'_>) -> String {
    let mut text = "<CaiView".to_owned();
    for (name, fact) in facts(view, py) {
        let _ = write!(text, " {name}={fact}");
    }
    text + state(view) + ">"
}

/// `<Consume shape=(2, 3) dtype=float32 device=(2, 0) stream=1 (legacy) open>`: of its view, the consumer's stream, and
/// whether the block is open.
pub(crate) fn consume(view: &PyCaiView, stream: Stream, is_open: bool) -> String {
    let (array, stream) = (array(view.view().descriptor()), stream_name(stream));
    let open = if is_open { "" } else { "not " };
    format!("<Consume {array} stream={stream} {open}open>")
}

/// The facts as a table, beside a picture of where each element lies.
pub(crate) fn html(view: &PyCaiView, py: Python<'_>) -> String {
    let mut text = format!("<table><caption>CaiView{}</caption><tr><td>", state(view));
    text += &picture(view.view().descriptor());
    text += "</td><td><table>";
    for (name, fact) in facts(view, py) {
        let fact = escaped(&fact);
        let _ = write!(text, "<tr><th>{name}</th><td><code>{fact}</code></td></tr>");
    }
    text + "</table></td></tr></table>"
}

fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    text.replace('>', "&gt;").replace('"', "&quot;")
}

/// The first elements of the last two axes, each with its distance from the first one in elements.
fn picture(descriptor: &Descriptor) -> String {
    let (shape, strides) = (descriptor.shape(), descriptor.elem_strides());
    if strides.len() != shape.len() || shape.contains(&0) {
        return String::new();
    }
    let axis = |from_last: usize| {
        let at = shape.len().checked_sub(from_last);
        at.map_or((1, 0), |at| (shape[at], strides[at]))
    };
    let ((rows, down), (columns, across)) = (axis(2), axis(1));
    let (shown_rows, shown_columns) = (rows.min(ROWS), columns.min(COLUMNS));
    let (width, height) = (shown_columns * CELL + 22, shown_rows * CELL + 22);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" font-size=\"10\" \
         text-anchor=\"middle\" fill=\"currentColor\">"
    );
    for row in 0..shown_rows {
        for column in 0..shown_columns {
            let (x, y) = (column * CELL + 1, row * CELL + 1);
            let at = row
                .wrapping_mul(down)
                .wrapping_add(column.wrapping_mul(across));
            let _ = write!(
                svg,
                "<rect x=\"{x}\" y=\"{y}\" width=\"{CELL}\" height=\"{CELL}\" fill=\"none\" stroke=\"currentColor\"/>\
                 <text x=\"{}\" y=\"{}\">{at}</text>",
                x + CELL / 2,
                y + CELL / 2 + 4
            );
        }
    }
    if columns > shown_columns {
        let _ = write!(svg, "<text x=\"{}\" y=\"16\">...</text>", width - 10);
    }
    if rows > shown_rows {
        let _ = write!(svg, "<text x=\"14\" y=\"{}\">...</text>", height - 8);
    }
    svg + "</svg>"
}
