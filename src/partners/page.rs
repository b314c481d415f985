//! The table as the tables of docs/partners.md and docs/pairs.md, and the calls that other pages show.
//!
//! `PARTNERS=overwrite cargo test -p cai-dlpack --lib partners` rewrites the pages.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use super::{
    Call, Checked, Fault, HandOver, Mutability, Order, PARTNERS, Partner, Producer, Remedy,
    Silence, find,
};
use crate::protocol::axes::{Axes, Source};
use crate::protocol::descriptor::Descriptor;
use crate::protocol::device::{Device, DeviceType, Flags};
use crate::protocol::dtype::DType;
use crate::protocol::layout::Layout;
use crate::protocol::stream::Stream;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The generated parts of the page, by the name in their markers.
fn parts() -> [(&'static str, String); 5] {
    [
        ("calls", calls()),
        ("order", order()),
        ("refusals", refusals()),
        ("silence", silence()),
        ("faults", faults()),
    ]
}

fn table<const N: usize>(head: [&str; N], rows: impl Iterator<Item = [String; N]>) -> String {
    let mut text = format!("| {} |\n|{}\n", head.join(" | "), "---|".repeat(N));
    for row in rows {
        let _ = writeln!(text, "| {} |", row.join(" | "));
    }
    text.replace("|  |", "| |").replace("|  |", "| |")
}

fn named(partner: &Partner) -> String {
    format!("{} {}", partner.title, partner.version)
}

fn code(call: &Call) -> String {
    let copies = if call.copies { " (copies)" } else { "" };
    format!("`{}`{copies}", call.code)
}

fn each_call() -> impl Iterator<Item = (&'static Partner, &'static Call)> {
    (PARTNERS.iter()).flat_map(|partner| partner.takers().map(move |call| (partner, call)))
}

fn each_producer() -> impl Iterator<Item = (&'static Partner, &'static Producer)> {
    (PARTNERS.iter()).filter_map(|partner| Some((partner, partner.producer.as_ref()?)))
}

fn calls() -> String {
    let rows = PARTNERS.iter().map(|partner| {
        let array_in = (partner.producer.as_ref()).map(|producer| format!("`{}`", producer.call));
        let mut calls: Vec<_> = partner.takers().map(code).collect();
        calls.dedup();
        let is_read = partner.checked == Checked::Source;
        [
            if is_read {
                partner.title.to_owned()
            } else {
                named(partner)
            },
            array_in.unwrap_or_default(),
            calls.join(", "),
            match partner.checked {
                Checked::Source => format!("source: {}", partner.version),
                checked => checked.name().to_owned(),
            },
            format!("`{}`", partner.name),
        ]
    });
    table(
        [
            "Library",
            "Its array in",
            "A view out",
            "Tried",
            "`explain(to=...)`",
        ],
        rows,
    )
}

fn order() -> String {
    let rows = each_call().map(|(partner, call)| {
        [
            partner.title.to_owned(),
            code(call),
            call.reads.name().to_owned(),
            call.who_waits(),
            call.advice.to_owned(),
        ]
    });
    table(["Library", "Call", "Reads", "Order", "What to do"], rows)
}

fn refusals() -> String {
    let rows = each_call().filter_map(|(partner, call)| {
        let device = |device: &DeviceType| match call.by_build.contains(device) {
            true => format!("{device}*"),
            false => device.to_string(),
        };
        let devices: Vec<_> = call.devices.iter().map(device).collect();
        let refuses: Vec<_> = call.refuses.iter().map(ToString::to_string).collect();
        let dropped = call.drops.iter().map(|drops| drops.name());
        let ignores = [call.ignores]
            .into_iter()
            .chain(dropped)
            .filter(|part| !part.is_empty());
        let ignores: Vec<_> = ignores.collect();
        let says = !(devices.is_empty() && refuses.is_empty() && ignores.is_empty());
        says.then(|| {
            [
                partner.title.to_owned(),
                code(call),
                devices.join(", "),
                refuses.join("; "),
                ignores.join("; "),
            ]
        })
    });
    table(
        ["Library", "Call", "Device types", "Refuses", "Ignores"],
        rows,
    )
}

fn silence() -> String {
    let rows = each_producer().map(|(partner, producer)| {
        let quirks: Vec<_> = producer.quirks.iter().map(|quirk| quirk.name()).collect();
        [
            named(partner),
            producer.silence.to_string(),
            producer.evidence.to_owned(),
            producer.untold.map_or("", Mutability::name).to_owned(),
            quirks.join("; "),
            producer.refuses.to_owned(),
        ]
    });
    table(
        [
            "Library",
            "No stream means",
            "Evidence",
            "Without a read-only flag",
            "Quirks",
            "Does not export",
        ],
        rows,
    )
}

fn faults() -> String {
    let faults = |partner: &'static Partner| {
        let row = |fault: &Fault| {
            [
                named(partner),
                fault.what.to_owned(),
                match fault.report {
                    None => fault.reproduction.to_owned(),
                    Some(url) => format!("{}; [reported]({url})", fault.reproduction),
                },
            ]
        };
        partner.faults.iter().map(row)
    };
    table(
        ["Library", "Fault", "Reproduction"],
        PARTNERS.iter().flat_map(faults),
    )
}

/// The pages with generated parts, and these by the name in their markers.
fn generated() -> [(&'static str, Vec<(&'static str, String)>); 2] {
    let partners = parts().into_iter().collect();
    [
        ("docs/partners.md", partners),
        ("docs/pairs.md", vec![("pairs", pairs())]),
    ]
}

/// A matrix of float32 in C order in memory of this type.
fn matrix(device_type: DeviceType, flags: Flags) -> Descriptor {
    let axes = Axes::from_slices(Source::Tensor, &[3, 4], None);
    let layout = axes.and_then(|axes| Layout::from_elem_axes(axes, 4));
    let device = match device_type {
        DeviceType::CPU => Device::HOST,
        _ => Device::cuda(0),
    };
    let made = layout
        .and_then(|layout| Descriptor::from_layout(0x1000, device, DType::F32, flags, layout));
    made.expect("a matrix")
}

/// Stands for the stream that a caller names; the page has [`PRODUCERS`] for it.
const NAMED: u64 = 0x70;
/// The name of that stream on the page.
const PRODUCERS: &str = "`p`";

/// The keyword that names the producer's stream, behind the array; empty if the producer names it.
fn keyword(producer: &Producer) -> String {
    match producer.call.split_once(", producer_stream=s") {
        Some((_, rest)) => format!(", producer_stream=p{}", rest.trim_end_matches(')')),
        None => String::new(),
    }
}

/// The view of a producer's array.
fn view(producer: &Producer) -> String {
    format!("cd.view(array{})", keyword(producer))
}

/// Where a producer's data is ready: on the stream that the caller names, if it names none itself.
fn ready(producer: &Producer) -> Stream {
    match producer.silence {
        _ if !keyword(producer).is_empty() => Stream::from_raw(NAMED),
        Silence::Ready => Stream::None,
        _ => Stream::LegacyDefault,
    }
}

/// Each memory that a producer's arrays are in, and what a library makes of them.
fn plans(
    to: &'static Partner,
    producer: &Producer,
) -> impl Iterator<Item = (DeviceType, HandOver)> {
    let ready = ready(producer);
    let flags = |device| match producer.untold {
        _ if producer.read_only.contains(device) => Flags::READ_ONLY,
        None | Some(Mutability::Mutable) => Flags::NONE,
        Some(_) => Flags::LEGACY,
    };
    (producer.devices.iter()).map(move |device| {
        (
            *device,
            to.plan(&matrix(*device, flags(device)), ready, None),
        )
    })
}

/// Whether a call takes arrays of a producer, or some change of them.
fn takes(to: &'static Partner, producer: &Producer) -> bool {
    plans(to, producer).any(|(_, plan)| plan.refused.is_none() || !plan.remedies.is_empty())
}

/// What takes all that the producer makes, if the usual call takes none of it.
fn remedy(to: &'static Partner, producer: &Producer) -> Option<Remedy> {
    let remedies = plans(to, producer).map(|(_, plan)| plan.remedies.into_iter().next());
    let remedies: Option<Vec<_>> = remedies.collect();
    remedies?.into_iter().next()
}

/// Returns the line that a user writes.
fn line(to: &'static Partner, producer: &Producer, remedy: Option<&Remedy>) -> String {
    let has_arrays = to.call.needs().is_none();
    let (name, keyword, of_array) = (to.name, keyword(producer), view(producer));
    let ordered = ordered(to, producer);
    // Of the view, or of its copy.
    let ready = |view: &str| match ordered {
        Some(code) => code.replacen('v', view, 1),
        None => view.to_owned(),
    };
    // The view that is presented otherwise, or the copy.
    let changed = |argument: &str| {
        let view = argument.replacen("(v", &format!("({of_array}"), 1);
        ready(&view.replacen("v.", &format!("{of_array}."), 1))
    };
    match remedy {
        None if has_arrays && ordered.is_none() => format!("`cd.to(array, \"{name}\"{keyword})`"),
        None if has_arrays => format!("`cd.to({}, \"{name}\")`", ready(&of_array)),
        None => of_view(to.call.code, &ready(&of_array)),
        Some(remedy) => match remedy.argument {
            Some(argument) if has_arrays => match argument.strip_prefix("cd.view(v, ") {
                Some(keywords) => format!("`cd.to(array, \"{name}\"{keyword}, {keywords}`"),
                None => format!("`cd.to({}, \"{name}\")`", changed(argument)),
            },
            Some(argument) => of_view(to.call.code, &changed(argument)),
            None => of_view(&remedy.code, &of_array),
        },
    }
}

/// Returns the view to pass to a call that makes no order, if some of the producer's arrays may be pending there.
fn ordered(to: &'static Partner, producer: &Producer) -> Option<&'static str> {
    let in_order = |call: &Call| call.ordered();
    plans(to, producer).find_map(|(device, plan)| {
        let copied = plan.refused.is_some() && device == DeviceType::CPU;
        let is_pending = matches!(plan.order, Order::Unordered { .. } | Order::PassedOn { .. });
        let call = to.call_of(Device::new(device, 0));
        match copied {
            // A copy is ready on the stream that has made it.
            true => in_order(&to.call),
            false => is_pending.then(|| in_order(call))?,
        }
    })
}

/// The row of a launch that takes arrays of a producer; memory of the host alone is no kernel's.
fn launch(to: &'static Partner, producer: &Producer) -> Option<[String; 4]> {
    let launch = to.launch.as_ref()?;
    let by_kernels = |kind: &&DeviceType| Device::new(**kind, 0).is_cuda_accessible();
    producer.devices.iter().find(by_kernels)?;
    let kernel = format!("{}, a kernel of it", to.title);
    let happens = launch.waits.name().to_owned();
    Some([
        kernel,
        of_view(launch.code, &view(producer)),
        happens,
        String::new(),
    ])
}

/// The call of a view that is made for it.
fn of_view(code: &str, view: &str) -> String {
    format!("`{}`", code.replace("(v", &format!("({view}")))
}

/// Tells who waits in an order that the caller makes.
fn in_order(ordered: &str, ready: Stream) -> String {
    if ordered.ends_with(".synchronize()") {
        return format!("the host waits for {ready}");
    }
    let stream = ordered.trim_start_matches("v.on(").trim_end_matches(')');
    match (stream, ready) {
        ("1", Stream::LegacyDefault) => {
            format!("{ready} is the library's, too: nobody has to wait")
        }
        ("1", _) => format!("{} waits for an event on {ready}", Stream::LegacyDefault),
        _ => format!("`{stream}` waits for an event on {ready}, unless it is that stream"),
    }
}

fn told(to: &'static Partner, producer: &Producer, remedy: Option<&Remedy>) -> String {
    let told = plans(to, producer).map(|(device, plan)| {
        let what = match (&plan.refused, remedy) {
            (Some(refused), Some(remedy)) => format!("{refused}; this call {}", remedy.does),
            (Some(_), None) => plan.refusal().unwrap_or_default(),
            (None, _) if device == DeviceType::CPU => "nobody has to wait".to_owned(),
            (None, _) => match (&plan.order, plan.call.ordered()) {
                (Order::Unordered { .. } | Order::PassedOn { .. }, Some(ordered)) => {
                    in_order(ordered, ready(producer))
                }
                (order, _) => order.to_string(),
            },
        };
        let what = match plan.unknown {
            Some(_) => format!("{what}; not every build takes it"),
            None => what,
        };
        let named = Stream::from_raw(NAMED).to_string();
        (device, what.replace(&named, PRODUCERS))
    });
    let mut told: Vec<_> = told.collect();
    told.dedup_by(|(_, second), (_, first)| first == second);
    if let [(_, what)] = &told[..] {
        return what.clone();
    }
    let told = told.iter().map(|(device, what)| match device {
        &DeviceType::CPU => format!("host memory: {what}"),
        _ => format!("device memory: {what}"),
    });
    told.collect::<Vec<_>>().join("; ")
}

/// Each producer, and what every other library makes of its arrays.
fn pairs() -> String {
    let mut text = String::new();
    for (from, producer) in each_producer() {
        let _ = writeln!(text, "\n## I have an array of {}\n", from.title);
        if !keyword(producer).is_empty() {
            let of_host = match producer.devices.contains(&DeviceType::CPU) {
                true => "; for memory of the CPU, which has none, leave `producer_stream=` out",
                false => "",
            };
            let _ = writeln!(
                text,
                "It names no stream: {PRODUCERS} is the one that its work is pending on{of_host}.\n"
            );
        }
        let others = PARTNERS.iter().filter(|to| to.name != from.name);
        let (taken, not_taken): (Vec<_>, Vec<_>) = others.partition(|to| takes(to, producer));
        let rows = taken.iter().flat_map(|to| {
            let lost: Vec<_> = to.call.drops.iter().map(|drops| drops.name()).collect();
            let remedy = remedy(to, producer);
            let call = [
                to.title.to_owned(),
                line(to, producer, remedy.as_ref()),
                told(to, producer, remedy.as_ref()),
                lost.join("; "),
            ];
            launch(to, producer).into_iter().chain([call])
        });
        let head = ["I need one of", "Call", "What happens", "Does not arrive"];
        text += &table(head, rows);
        let not_taken: Vec<_> = not_taken.iter().map(|to| to.title).collect();
        if !not_taken.is_empty() {
            let _ = writeln!(text, "\nTaken by no call of: {}.", not_taken.join(", "));
        }
    }
    text
}

/// A page with its generated parts as they should be.
fn page(text: &str, parts: &[(&str, String)]) -> String {
    let mut text = text.to_owned();
    for (name, part) in parts {
        let head = format!("<!-- partners: {name} -->\n");
        let (before, rest) = text.split_once(&head).expect("a marker for each part");
        let (_, after) = rest.split_once("<!-- end -->").expect("the part's end");
        text = format!("{before}{head}{part}<!-- end -->{after}");
    }
    text
}

#[test]
fn the_pages_are_the_table() {
    for (name, parts) in generated() {
        is_the_table(name, &parts);
    }
}

fn is_the_table(name: &str, parts: &[(&str, String)]) {
    let path = root().join(name);
    let found = fs::read_to_string(&path).expect("the page");
    let wanted = page(&found, parts);
    if std::env::var_os("PARTNERS").is_some_and(|what| what == "overwrite") {
        fs::write(&path, &wanted).expect("the page is written");
    } else {
        let stale: Vec<_> = wanted
            .lines()
            .filter(|line| !found.lines().any(|known| known == *line))
            .collect();
        assert!(
            found == wanted,
            "{name} is not src/partners/table.rs; if the table is right, \
             PARTNERS=overwrite cargo test -p cai-dlpack --lib partners\nmissing:\n{}",
            stale.join("\n")
        );
    }
}

/// The pages for users.
fn pages() -> Vec<PathBuf> {
    let docs = fs::read_dir(root().join("docs")).expect("the pages");
    let docs = docs.map(|entry| entry.expect("a page").path());
    let is_page = |path: &PathBuf| path.extension().is_some_and(|end| end == "md");
    docs.filter(is_page)
        .chain([root().join("README.md")])
        .collect()
}

/// The called function, from behind the library's name on: `dlpack.from_dlpack` of `jax.dlpack.from_dlpack(v)`.
fn function(code: &str) -> Option<(&str, &str)> {
    code.split_once('(')?.0.split_once('.')
}

/// The name that a library has in the code of a call, such as `np`.
fn library(name: &str) -> Option<&'static Partner> {
    let by_call = |partner: &&Partner| {
        partner
            .calls()
            .any(|call| function(call.code).is_some_and(|(root, _)| root == name))
    };
    find(name).or_else(|| PARTNERS.iter().find(by_call))
}

/// Calls in a text whose last name is that of some call of the table, with dots: `paddle.from_dlpack`.
fn calls_in(text: &str) -> Vec<&str> {
    let verbs: Vec<_> = each_call()
        .filter_map(|(_, call)| function(call.code)?.1.rsplit('.').next())
        .collect();
    let is_part = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == '.';
    text.match_indices('(')
        .map(|(end, _)| {
            let head = &text[..end];
            &head[head.trim_end_matches(is_part).len()..]
        })
        .filter(|dotted| {
            let last = dotted.rsplit_once('.');
            last.is_some_and(|(_, last)| verbs.contains(&last))
        })
        .collect()
}

#[test]
fn no_page_shows_another_call() {
    let mut wrong = String::new();
    let mut right = 0;
    for path in pages() {
        let text = fs::read_to_string(&path).expect("a page");
        // The faults are reproduced with whatever shows them.
        let text = text
            .split("<!-- partners: faults -->")
            .next()
            .unwrap_or_default();
        for dotted in calls_in(text) {
            // Our own functions are in the table for a library that takes what one of them returns, and on every page.
            let Some((partner, function_of)) = dotted
                .split_once('.')
                .filter(|(root, _)| *root != "cai_dlpack")
                .and_then(|(root, rest)| Some((library(root)?, rest)))
            else {
                continue;
            };
            let is_known = |call: &Call| {
                let known = function(call.code).map_or("", |(_, known)| known);
                known == function_of || known == dotted
            };
            if partner.calls().any(is_known) {
                right += 1;
            } else {
                let _ = writeln!(wrong, "{}: {dotted}", path.display());
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "calls that src/partners/table.rs lacks:\n{wrong}"
    );
    assert!(
        right > 20,
        "only {right} calls found: the pattern has gone blind"
    );
}

/// The files that pin the libraries of the tests.
const PINS: [&str; 6] = [
    "conformance/requirements.txt",
    "conformance/matrix/requirements.txt",
    "conformance/matrix/pycuda.sh",
    "conformance/requirements-torch.txt",
    "conformance/requirements-readers.txt",
    "conformance/requirements-reach.txt",
];

#[test]
fn the_versions_are_those_that_are_tested() {
    let pins: String = PINS
        .iter()
        .filter_map(|file| fs::read_to_string(root().join(file)).ok())
        .collect();
    if pins.is_empty() {
        // In the published crate, which has the pages and no tests.
        assert!(!root().join("conformance").exists());
        return;
    }
    for partner in PARTNERS {
        let pin = format!("{}=={}", partner.distribution, partner.version);
        let is_pinned = pins
            .split_whitespace()
            .any(|word| word.trim_end_matches(';') == pin);
        let is_tested = partner.checked != Checked::Source;
        assert_eq!(is_pinned, is_tested, "{pin} in {}", PINS.join(", "));
    }
}
