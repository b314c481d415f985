//! Describes a Python function as data, and generates its docstring, `__text_signature__` and line of the stub.

use std::borrow::Cow;
use std::ffi::CStr;
use std::fmt::Write;

/// One parameter of a declared function.
pub(crate) struct Parameter {
    pub(crate) name: &'static str,
    /// The type, as the stub has it.
    pub(crate) kind: &'static str,
    /// The default as written in Python; a parameter without one is required.
    pub(crate) default: Option<&'static str>,
    /// The lines of the description, each after a blank, as in rustdoc.
    pub(crate) doc: &'static [&'static str],
}

/// The declaration of a function; implemented by [`signature!`](super::signature).
pub(crate) trait Signature {
    /// The name in Python.
    const NAME: &'static CStr;
    /// The lines of the docstring, each after a blank, as in rustdoc.
    const DOC: &'static [&'static str];
    /// The positional-only parameters, without `self`.
    const POSITIONAL: &'static [Parameter];
    /// The keyword-only parameters.
    const KEYWORDS: &'static [Parameter];
    /// The type of the result, as the stub has it.
    const RETURNS: &'static str;
}

pub(super) fn name<S: Signature>() -> Cow<'static, str> {
    S::NAME.to_string_lossy()
}

/// Builds the docstring in numpydoc's form, with the section of parameters before the other sections.
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

/// Builds a parameter's entry of the section of parameters.
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

/// Builds the line of the stub, with `slf` as its first parameter.
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

/// Joins the parameters in parentheses, with `/` and `*` between the kinds.
pub(super) fn text<S: Signature>(slf: &str, parameter: impl Fn(&Parameter) -> String) -> String {
    let mut parts: Vec<String> = Vec::new();
    parts.extend((!slf.is_empty()).then(|| slf.to_owned()));
    parts.extend(S::POSITIONAL.iter().map(&parameter));
    // CPython's own sign of the object, which is positional, too.
    let is_positional = !S::POSITIONAL.is_empty() || slf.starts_with('$');
    parts.extend(is_positional.then(|| "/".to_owned()));
    parts.extend((!S::KEYWORDS.is_empty()).then(|| "*".to_owned()));
    parts.extend(S::KEYWORDS.iter().map(&parameter));
    format!("({})", parts.join(", "))
}
