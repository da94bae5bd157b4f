//! The README's example is one that compiles: the crate's own, whose documentation test has what is not shown.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

/// The lines of the first block of Rust that a reader sees.
fn shown<'a>(lines: impl Iterator<Item = &'a str>, begin: &str) -> Vec<&'a str> {
    lines
        .skip_while(|line| *line != begin)
        .skip(1)
        .take_while(|line| *line != "```")
        .filter(|line| !line.starts_with("# "))
        .collect()
}

#[test]
fn the_example_of_the_readme_is_the_one_that_is_compiled() {
    let readme = shown(include_str!("../../../README.md").lines(), "```rust");
    let docs = include_str!("../src/lib.rs").lines().filter_map(|line| line.strip_prefix("//!"));
    let docs = shown(docs.map(|line| line.strip_prefix(' ').unwrap_or(line)), "```no_run");
    assert!(readme.len() >= 10, "{readme:#?}");
    assert_eq!(readme, docs);
}
