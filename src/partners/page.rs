//! The table as the tables of docs/partners.md, and the calls that other pages show.
//!
//! `PARTNERS=overwrite cargo test -p cai-dlpack --lib partners` rewrites the page.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use super::{Call, Checked, Fault, Mutability, PARTNERS, Partner, Producer, find};

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
    (PARTNERS.iter()).flat_map(|partner| partner.calls().map(move |call| (partner, call)))
}

fn each_producer() -> impl Iterator<Item = (&'static Partner, &'static Producer)> {
    (PARTNERS.iter()).filter_map(|partner| Some((partner, partner.producer.as_ref()?)))
}

fn calls() -> String {
    let rows = PARTNERS.iter().map(|partner| {
        let array_in = (partner.producer.as_ref()).map(|producer| format!("`{}`", producer.call));
        let calls: Vec<_> = partner.calls().map(code).collect();
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
        let devices: Vec<_> = call.devices.iter().map(ToString::to_string).collect();
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
                fault.reproduction.to_owned(),
            ]
        };
        partner.faults.iter().map(row)
    };
    table(
        ["Library", "Fault", "Reproduction"],
        PARTNERS.iter().flat_map(faults),
    )
}

/// The page with its generated parts as they should be.
fn page(text: &str) -> String {
    let mut text = text.to_owned();
    for (name, part) in parts() {
        let head = format!("<!-- partners: {name} -->\n");
        let (before, rest) = text.split_once(&head).expect("a marker for each part");
        let (_, after) = rest.split_once("<!-- end -->").expect("the part's end");
        text = format!("{before}{head}{part}<!-- end -->{after}");
    }
    text
}

#[test]
fn the_page_is_the_table() {
    let path = root().join("docs/partners.md");
    let found = fs::read_to_string(&path).expect("the page");
    let wanted = page(&found);
    if std::env::var_os("PARTNERS").is_some_and(|what| what == "overwrite") {
        fs::write(&path, &wanted).expect("the page is written");
    } else {
        let stale: Vec<_> = wanted
            .lines()
            .filter(|line| !found.lines().any(|known| known == *line))
            .collect();
        assert!(
            found == wanted,
            "docs/partners.md is not src/partners/table.rs; if the table is right, \
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
            let Some((partner, function_of)) = dotted
                .split_once('.')
                .and_then(|(root, rest)| Some((library(root)?, rest)))
            else {
                continue;
            };
            let is_known =
                |call: &Call| function(call.code).is_some_and(|(_, known)| known == function_of);
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
const PINS: [&str; 4] = [
    "conformance/requirements.txt",
    "conformance/matrix/requirements.txt",
    "conformance/matrix/pycuda.sh",
    "conformance/requirements-torch.txt",
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
