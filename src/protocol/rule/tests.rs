//! The table against docs/rules.md, and how a refusal reads.

use std::collections::BTreeSet;
use std::fmt::{self, Display};
use std::fs;
use std::path::Path;

use rstest::rstest;

use super::violation::FOUND_LIMIT;
use super::*;

const PAGE: &str = include_str!("../../../docs/rules.md");

/// `(id, text)` of each section of the page.
fn sections() -> impl Iterator<Item = (&'static str, &'static str)> {
    let sections = PAGE.split("\n### ").skip(1);
    sections.map(|section| section.split_once('\n').expect("a section has text"))
}

#[test]
fn every_rule_has_its_section_in_order() {
    let ids: Vec<_> = Rule::ALL.iter().map(|rule| rule.id()).collect();
    let heads: Vec<_> = sections().map(|(id, _)| id).collect();
    assert_eq!(heads, ids);
}

/// The text of every source file but tests and the table itself.
fn sources(folder: &Path) -> String {
    let mut text = String::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            text += &sources(&path);
        } else if !path.ends_with("rule.rs") && !path.ends_with("tests.rs") {
            text += &fs::read_to_string(&path).expect("text");
        }
    }
    text
}

#[test]
#[cfg_attr(miri, ignore = "exhaustive, over safe code alone")]
fn every_rule_is_the_reason_of_some_refusal() {
    let text = sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    for rule in Rule::ALL {
        let name = format!("Rule::{rule:?}");
        let is_named = text
            .match_indices(&name)
            .any(|(at, _)| !text[at + name.len()..].starts_with(char::is_alphanumeric));
        assert!(is_named, "{name} refuses nothing");
    }
}

#[test]
fn sections_say_what_the_table_says() {
    for (rule, (id, text)) in Rule::ALL.iter().zip(sections()) {
        let text = text.replace('`', "");
        let wanted = [
            format!("{}: {}.", rule.class().exception(), rule.sentence()),
            format!("*Source*: {}.", rule.source()),
            "*Example*: ".to_owned(),
        ];
        for wanted in wanted {
            assert!(text.contains(&wanted), "{id} should say {wanted:?}");
        }
    }
}

#[test]
fn ids_are_distinct_and_plain() {
    let ids: BTreeSet<_> = Rule::ALL.iter().map(|rule| rule.id()).collect();
    assert_eq!(ids.len(), Rule::ALL.len());
    for id in ids {
        let plain =
            |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '-';
        assert!(id.chars().all(plain), "{id}");
    }
}

/// An id is its variant in kebab case.
#[test]
fn ids_are_the_variants_names() {
    for rule in Rule::ALL {
        let name = format!("{rule:?}").to_lowercase();
        assert_eq!(rule.id().replace('-', ""), name);
    }
}

#[test]
fn sentences_have_no_full_stop() {
    for rule in Rule::ALL {
        for text in [rule.sentence(), rule.source()] {
            assert!(!text.ends_with('.') && !text.is_empty(), "{}", rule.id());
        }
    }
}

#[test]
fn message() {
    let violation = Violation::new(Rule::TypestrByteOrder, Field::CaiTypestr, "'>f4'");
    assert_eq!(
        violation.to_string(),
        "__cuda_array_interface__['typestr'] = '>f4': byte order must be native or '|'; DLPack has \
         no byte-order field [typestr-byte-order]"
    );
    assert_eq!(violation.found(), "'>f4'");
    assert_eq!(
        (violation.field(), violation.hint()),
        (Field::CaiTypestr, None)
    );
}

#[test]
fn message_with_hint() {
    let violation =
        Violation::new(Rule::StreamZero, Field::Argument("stream"), 0).with_hint("pass 1");
    assert_eq!(
        violation.to_string(),
        "argument 'stream' = 0: stream 0 is ambiguous; 1 is the legacy default stream, 2 the \
         per-thread one; pass 1 [stream-zero]"
    );
}

/// A key that is missing has no value to show.
#[test]
fn message_without_value() {
    let violation = Violation::new(Rule::ShapeMissing, Field::CaiShape, "");
    assert_eq!(
        violation.to_string(),
        "__cuda_array_interface__['shape']: the shape must be given [shape-missing]"
    );
}

#[rstest]
#[case(Field::Object, "object", "object")]
#[case(Field::Cai, "__cuda_array_interface__", "__cuda_array_interface__")]
#[case(Field::CaiData, "data", "__cuda_array_interface__['data']")]
#[case(Field::CaiStrides, "strides", "__cuda_array_interface__['strides']")]
#[case(Field::Capsule, "capsule", "capsule")]
#[case(Field::DlpackDevice, "__dlpack_device__", "__dlpack_device__")]
#[case(Field::TensorShape, "shape", "DLTensor.shape")]
#[case(Field::TensorByteOffset, "byte_offset", "DLTensor.byte_offset")]
#[case(Field::TensorVersion, "version", "DLManagedTensorVersioned.version")]
#[case(
    Field::ArrayInterface("typestr"),
    "typestr",
    "__array_interface__['typestr']"
)]
#[case(Field::ObjectDtype, "dtype", "object.dtype")]
#[case(Field::Argument("copy"), "copy", "argument 'copy'")]
fn field_names(#[case] field: Field, #[case] name: &str, #[case] shown: &str) {
    assert_eq!(field.name(), name);
    assert_eq!(field.to_string(), shown);
}

#[test]
fn exceptions_are_those_of_python() {
    let classes = [Class::Type, Class::Value, Class::Buffer, Class::Runtime];
    let names = ["TypeError", "ValueError", "BufferError", "RuntimeError"];
    assert_eq!(classes.map(Class::exception), names);
}

/// NumPy's interface and CUDA's have the same keys, but for CUDA's own.
#[rstest]
#[case(Field::CaiShape, true, Field::ArrayInterface("shape"))]
#[case(Field::CaiShape, false, Field::CaiShape)]
#[case(Field::ArrayInterface("shape"), false, Field::CaiShape)]
#[case(Field::ArrayInterface("shape"), true, Field::ArrayInterface("shape"))]
#[case(
    Field::ArrayInterface("offset"),
    false,
    Field::ArrayInterface("offset")
)]
#[case(Field::CaiStream, true, Field::CaiStream)]
#[case(Field::TensorShape, true, Field::TensorShape)]
#[case(Field::TensorShape, false, Field::TensorShape)]
fn keys_of_both_interfaces(#[case] field: Field, #[case] is_on_cpu: bool, #[case] named: Field) {
    let violation = Violation::new(Rule::ShapeType, field, 1);
    assert_eq!(violation.in_interface_of(is_on_cpu).field(), named);
}

/// An endless value is cut, between two letters.
#[test]
fn found_is_clipped() {
    struct Endless;
    impl Display for Endless {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            loop {
                f.write_str("\u{1f980}")?;
            }
        }
    }
    let violation = Violation::new(Rule::ShapeType, Field::CaiShape, Endless);
    assert!(violation.found().ends_with("..."));
    assert!(violation.found().len() < FOUND_LIMIT + 8);
    let exact = "x".repeat(FOUND_LIMIT);
    let violation = Violation::new(Rule::ShapeType, Field::CaiShape, &exact);
    assert_eq!(violation.found(), exact);
}

#[test]
fn violation_is_one_pointer() {
    assert_eq!(size_of::<Violation>(), size_of::<usize>());
    assert_eq!(size_of::<Result<(), Violation>>(), size_of::<usize>());
    fn across_threads<T: Send + Sync + 'static>() {}
    across_threads::<Violation>();
}
