//! Compares the public API of cai-dlpack, as rustdoc sees it with every feature, with docs/public-api.txt.
//!
//! ```text
//! public-api-guard RUSTDOC_JSON LIST [--write]
//! ```
//!
//! `make public-api` runs it and exits with 1 on any difference; `make public-api WRITE=1` replaces the list, which
//! is a decision to be seen in the change. The reader is the library under cargo-public-api: it lists constants,
//! fields, variants, signatures with their bounds, and implemented traits, wherever a macro or a derive made them.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::{env, fs};

use public_api::Builder;

/// Automatic traits that are the compiler's own business. `Send`, `Sync` and the rest stay: losing one breaks users.
const INTERNAL: [&str; 3] = [
    "core::marker::Freeze",
    "core::marker::StructuralPartialEq",
    "core::marker::UnsafeUnpin",
];
const CRATE: &str = "cai_dlpack::";

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let (json, list, write) = match &arguments[..] {
        [json, list] => (json, list, false),
        [json, list, flag] if flag == "--write" => (json, list, true),
        _ => {
            eprintln!("usage: public-api-guard RUSTDOC_JSON LIST [--write]");
            return ExitCode::from(2);
        }
    };
    let now = match listed(json) {
        Ok(now) => now,
        Err(why) => {
            eprintln!(
                "{json}: {why}\nThe reader fits rustdoc's JSON of one version (Cargo.toml): another compiler needs \
                 another version of public-api."
            );
            return ExitCode::from(2);
        }
    };
    if write {
        fs::write(list, now).expect("the list is written");
        return ExitCode::SUCCESS;
    }
    let kept = fs::read_to_string(list).expect("the list is read");
    let difference = difference(&kept, &now);
    if difference.is_empty() {
        return ExitCode::SUCCESS;
    }
    eprintln!(
        "The public API differs from {list} (- no longer there, + not in it):\n{}\n\
         If that is meant: make public-api WRITE=1, and a line in CHANGELOG.md.",
        difference.join("\n")
    );
    ExitCode::FAILURE
}

/// Returns one line for each item that a user can name or rely on.
fn listed(json: &str) -> Result<String, public_api::Error> {
    let api = Builder::from_rustdoc_json(json)
        .omit_blanket_impls(true)
        .omit_auto_trait_impls(false)
        .omit_auto_derived_impls(false)
        .sorted(true)
        .build()?;
    Ok(api
        .items()
        .map(|item| item.to_string().replace(CRATE, ""))
        .filter(|line| !INTERNAL.iter().any(|name| line.contains(name)))
        .map(|line| line + "\n")
        .collect())
}

/// Returns the lines that one text has more often than the other, in the order of their text.
fn difference(kept: &str, now: &str) -> Vec<String> {
    let mut counts: BTreeMap<&str, i32> = BTreeMap::new();
    for line in now.lines() {
        *counts.entry(line).or_default() += 1;
    }
    for line in kept.lines() {
        *counts.entry(line).or_default() -= 1;
    }
    let differing = counts.into_iter().filter(|(_, count)| *count != 0);
    differing
        .map(|(line, count)| format!("{} {line}", if count > 0 { '+' } else { '-' }))
        .collect()
}
