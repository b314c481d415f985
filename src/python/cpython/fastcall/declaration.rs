//! The declaration of a Python function as data, and the texts that are made of it.

use std::borrow::Cow;
use std::ffi::CStr;
use std::fmt::Write;

/// One parameter of a declared function, as [`signature!`] has it.
pub(crate) struct Parameter {
    pub(crate) name: &'static str,
    /// Its type, as the stub says it.
    pub(crate) kind: &'static str,
    /// Its default, as Python writes it; a parameter without one is required.
    pub(crate) default: Option<&'static str>,
    /// Its description, each line as rustdoc has it (after a blank).
    pub(crate) doc: &'static [&'static str],
}

/// What [`signature!`] declares.
pub(crate) trait Signature {
    /// The name in Python.
    const NAME: &'static CStr;
    /// The docstring, each line as rustdoc has it (after a blank).
    const DOC: &'static [&'static str];
    /// The positional-only parameters, `self` not among them.
    const POSITIONAL: &'static [Parameter];
    /// The keyword-only parameters.
    const KEYWORDS: &'static [Parameter];
    /// The type of the result, as the stub says it.
    const RETURNS: &'static str;
}

pub(super) fn name<S: Signature>() -> Cow<'static, str> {
    S::NAME.to_string_lossy()
}

/// The docstring in numpydoc's form: what is said of the function, with the parameters before the first section.
pub(super) fn docstring<S: Signature>() -> String {
    let lines: Vec<_> = S::DOC.iter().map(|line| unindented(line)).collect();
    let is_rule = |line: &&str| line.len() > 2 && line.bytes().all(|byte| byte == b'-');
    let sections = match lines.iter().position(is_rule) {
        Some(rule) => rule.saturating_sub(1),
        None => lines.len(),
    };
    let (head, tail) = lines.split_at(sections);
    let mut parts = vec![head.join("\n")];
    let parameters: String = S::POSITIONAL.iter().chain(S::KEYWORDS).map(entry).collect();
    parts.extend((!parameters.is_empty()).then(|| format!("Parameters\n----------\n{parameters}")));
    parts.extend((!tail.is_empty()).then(|| tail.join("\n")));
    let parts: Vec<_> = parts.iter().map(|part| part.trim()).collect();
    parts.join("\n\n")
}

/// A parameter's entry in the section of parameters.
fn entry(parameter: &Parameter) -> String {
    let Parameter { name, default, .. } = parameter;
    let kind = parameter.kind.replace('_', "");
    let mut text = match default {
        Some(default) => format!("{name} : {kind}, default {default}\n"),
        None => format!("{name} : {kind}\n"),
    };
    for line in parameter.doc {
        let _ = writeln!(text, "    {}", unindented(line));
    }
    text
}

fn unindented(line: &'static str) -> &'static str {
    line.strip_prefix(' ').unwrap_or(line)
}

/// The line of the stub, with `slf` as its first parameter.
pub(crate) fn stub<S: Signature>(slf: &str) -> String {
    let parameters = text::<S>(slf, |parameter| {
        let Parameter { name, kind, .. } = parameter;
        match parameter.default {
            Some(default) => format!("{name}: {kind} = {default}"),
            None => format!("{name}: {kind}"),
        }
    });
    format!("def {}{parameters} -> {}: ...", name::<S>(), S::RETURNS)
}

/// The parameters in parentheses, with the marks between the kinds.
pub(super) fn text<S: Signature>(slf: &str, parameter: impl Fn(&Parameter) -> String) -> String {
    let mut parts: Vec<String> = Vec::new();
    parts.extend((!slf.is_empty()).then(|| slf.to_owned()));
    parts.extend(S::POSITIONAL.iter().map(&parameter));
    parts.extend((!S::POSITIONAL.is_empty()).then(|| "/".to_owned()));
    parts.extend((!S::KEYWORDS.is_empty()).then(|| "*".to_owned()));
    parts.extend(S::KEYWORDS.iter().map(&parameter));
    format!("({})", parts.join(", "))
}
