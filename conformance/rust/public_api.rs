//! The public API, item by item, against docs/public-api.txt: what grows or changes there is a decision.
//!
//! The list is made from the sources, which rustfmt has laid out: each `pub` item up to its body, the
//! functions of public traits, and the traits that are implemented. The lint `unreachable_pub` sees to it
//! that `pub` means reachable. Items inside `macro_rules!` are listed once, as the macro says them.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

const LIST: &str = "docs/public-api.txt";

#[test]
fn the_public_api_is_the_one_that_is_listed() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let now = list(&root.join("src"));
    let path = root.join(LIST);
    if std::env::var_os("PUBLIC_API").is_some_and(|what| what == "overwrite") {
        fs::write(&path, &now).expect("the list is written");
    }
    let listed = fs::read_to_string(&path).unwrap_or_default();
    let missing = difference(&now, &listed);
    let stale = difference(&listed, &now);
    assert!(
        missing.is_empty() && stale.is_empty(),
        "the public API has changed; if that is meant, PUBLIC_API=overwrite cargo test public_api\n\
         not in {LIST}:\n{missing}no longer there:\n{stale}"
    );
}

/// The lines of `one` that `other` lacks.
fn difference(one: &str, other: &str) -> String {
    one.lines()
        .filter(|line| !other.lines().any(|known| known == *line))
        .fold(String::new(), |mut text, line| {
            let _ = writeln!(text, "    {line}");
            text
        })
}

fn list(sources: &Path) -> String {
    let mut files = Vec::new();
    find(sources, &mut files);
    files.sort();
    let sources: Vec<_> = files
        .iter()
        .map(|file| {
            (
                file.strip_prefix(sources).expect("a file of src"),
                read(file),
            )
        })
        .collect();
    let private = private_types(sources.iter().flat_map(|(_, source)| source.lines()));
    let mut text = String::new();
    for (name, source) in &sources {
        let items = items(source, &private);
        if !items.is_empty() {
            let _ = writeln!(text, "{}", name.display());
            for item in items {
                let _ = writeln!(text, "  {item}");
            }
        }
    }
    text
}

fn read(file: &Path) -> String {
    let source = fs::read_to_string(file).expect("a source file");
    let code = source.split("\n#[cfg(test)]\nmod tests {").next();
    code.unwrap_or_default().to_owned()
}

/// Every source file but those of tests.
fn find(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder of src") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            find(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") && !is_test(&path) {
            files.push(path);
        }
    }
}

/// Whether the module that a file belongs to, or is below, is declared for tests only.
fn is_test(file: &Path) -> bool {
    let parent = file.parent().expect("a folder");
    let declares = format!(
        "#[cfg(test)]\nmod {};",
        file.file_stem().expect("a name").display()
    );
    let above = [parent.with_extension("rs"), parent.join("mod.rs")];
    let mut texts = above
        .iter()
        .filter_map(|path| fs::read_to_string(path).ok());
    texts.any(|text| text.contains(&declares))
}

/// The names of types that are not public.
fn private_types<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let kinds = ["struct ", "enum ", "union "];
    lines
        .filter(|line| !line.trim_start().starts_with("pub "))
        .filter_map(|line| {
            let line = line.trim_start();
            let line = line
                .strip_prefix("pub(crate) ")
                .or(line.strip_prefix("pub(super) "))
                .unwrap_or(line);
            kinds.iter().find_map(|kind| line.strip_prefix(kind))
        })
        .filter_map(|rest| {
            rest.split(|c: char| !c.is_alphanumeric() && c != '_')
                .next()
        })
        .collect()
}

/// The public items of one file, each with the block that it stands in.
fn items(source: &str, private: &[&str]) -> Vec<String> {
    let lines: Vec<&str> = source.lines().collect();
    let mut items = Vec::new();
    let (mut block, mut in_trait) = (String::new(), false);
    for (at, line) in lines.iter().enumerate() {
        let code = line.trim_start();
        if *line == "}" {
            (block, in_trait) = (String::new(), false);
        }
        let opens_block = code.starts_with("impl") || code.starts_with("unsafe impl");
        if opens_block && (code.ends_with('{') || code.contains('<')) {
            block = head(&lines[at..]);
            if implements(&block).is_some_and(|name| !private.contains(&name)) {
                items.push(block.clone());
            }
            if code.ends_with("{}") {
                block.clear();
            }
        } else if is_public(code) {
            let item = head(&lines[at..]);
            items.push(if block.is_empty() || line.starts_with("pub") {
                item.clone()
            } else {
                format!("{block}: {item}")
            });
            if opens_members(&item) {
                in_trait = item.contains("trait ");
                block = item;
            }
        } else if in_trait && is_function(code) {
            items.push(format!("{block}: {}", head(&lines[at..])));
        }
    }
    items.dedup();
    items
}

/// The type that a trait is implemented for, in the head of such a block.
fn implements(block: &str) -> Option<&str> {
    let (_, of) = block.split_once(" for ")?;
    let path = of.split(['<', ' ']).next()?;
    path.rsplit("::").next()
}

fn is_public(code: &str) -> bool {
    code.starts_with("pub ") || code.contains(")] pub const ")
}

/// Whether fields or functions of this item follow.
fn opens_members(item: &str) -> bool {
    [
        "pub struct ",
        "pub enum ",
        "pub trait ",
        "pub unsafe trait ",
    ]
    .iter()
    .any(|start| item.starts_with(start))
}

fn is_function(code: &str) -> bool {
    ["fn ", "unsafe fn ", "const "]
        .iter()
        .any(|start| code.starts_with(start))
}

/// Whether a line is a field: `pub name: Type,`.
fn is_field(code: &str) -> bool {
    let name = code
        .strip_prefix("pub ")
        .and_then(|rest| rest.split(':').next());
    name.is_some_and(|name| name.chars().all(|c| c.is_alphanumeric() || c == '_'))
}

/// An item up to its body, on one line.
fn head(lines: &[&str]) -> String {
    let mut text = String::new();
    for line in lines {
        let code = line.trim();
        if !text.is_empty() && !text.ends_with('(') {
            text.push(' ');
        }
        text.push_str(code);
        if is_field(&text) || ends_head(code, text.starts_with("pub use")) {
            break;
        }
    }
    let end = text
        .find(" {")
        .filter(|_| !text.starts_with("pub use"))
        .unwrap_or(text.len());
    text[..end]
        .trim_end_matches([';', ','])
        .replace(", )", ")")
        .to_owned()
}

fn ends_head(code: &str, is_use: bool) -> bool {
    code.ends_with(';') || !is_use && code.ends_with(['{', '}'])
}
