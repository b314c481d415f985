//! docs/rust.md shows the example extension line by line: the lines are the example's own.

const GUIDE: &str = include_str!("../../docs/rust.md");
const EXAMPLE: &str = include_str!("../../bindings/example/src/lib.rs");

#[test]
fn the_guide_quotes_the_example() {
    let blocks: Vec<&str> = GUIDE
        .split("```rust,ignore\n")
        .skip(1)
        .filter_map(|rest| rest.split("```").next())
        .collect();
    assert!(
        blocks.len() >= 6,
        "the guide goes through the example in steps"
    );
    for block in &blocks {
        assert!(
            EXAMPLE.contains(block),
            "not in bindings/example/src/lib.rs:\n{block}"
        );
    }
    let start = EXAMPLE
        .find("#[pyfunction]\nfn stack")
        .expect("the function");
    let end = EXAMPLE[start..].find("\n}\n").expect("its end") + start;
    let quoted: usize = blocks.iter().map(|block| block.len()).sum();
    assert_eq!(quoted, end + 3 - start, "every line of `stack`, once");
}
