//! Every `distlock.` parameter of every store's URL stands in one table of the documentation, and the table has no other.
#![cfg(all(
    feature = "etcd",
    feature = "file",
    feature = "mongodb",
    feature = "mysql",
    feature = "postgres",
    feature = "redis",
    feature = "zookeeper",
    unix
))]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fmt::Write;
use std::path::Path;

const INTRODUCTION: &str = "\
# URL options

What is ours and not the driver's goes into query parameters that begin with `distlock.`, for instance
`redis://cache?distlock.prefix=app:&distlock.retention=1h`. An unknown `distlock.` parameter is an error, and so is one that
is given twice. A duration has a unit: `500ms`, `10s`, `2m`, `1h`. A switch is `on` or `off`.

This table is written by `DISTLOCK_BLESS=1 cargo test -p distlock --all-features --test url_options` from the options that the
stores declare.
";

fn table() -> String {
    let mut text = String::from(INTRODUCTION);
    for driver in distlock::drivers() {
        let schemes: Vec<String> = driver.schemes().iter().map(|scheme| format!("`{scheme}:`")).collect();
        write!(text, "\n## {}\n\nExample: `{}`\n\n", schemes.join(", "), driver.example()).unwrap();
        if driver.options().is_empty() {
            text.push_str("No options.\n");
            continue;
        }
        text.push_str("| option | value | default | meaning |\n| --- | --- | --- | --- |\n");
        for option in driver.options() {
            let default =
                if option.default.is_empty() { String::new() } else { format!("`{}`", option.default) };
            let value = option.value.replace('|', ", ");
            writeln!(text, "| `distlock.{}` | {value} | {default} | {} |", option.name, option.meaning)
                .unwrap();
        }
    }
    text
}

#[test]
fn the_documented_options_are_the_ones_that_the_stores_declare() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/OPTIONS.md");
    if std::env::var_os("DISTLOCK_BLESS").is_some() {
        std::fs::write(&path, table()).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap();
    assert!(written == table(), "docs/OPTIONS.md is out of date: run the command that it names");
}

#[test]
fn options_of_one_name_have_one_grammar_on_all_stores() {
    for first in distlock::drivers() {
        for second in distlock::drivers() {
            for option in first.options() {
                let same = second.options().iter().find(|other| other.name == option.name);
                assert!(
                    same.is_none_or(|other| other.value == option.value),
                    "distlock.{} is a {} on {:?} and something else on {:?}",
                    option.name,
                    option.value,
                    first.schemes(),
                    second.schemes()
                );
            }
        }
    }
}

/// Options with a fixed set of values, switches and durations: what the table says is what the parser accepts.
#[test]
fn a_value_of_the_wrong_grammar_is_refused_and_named() {
    for driver in distlock::drivers() {
        for option in driver.options() {
            let wrong = match option.value {
                "duration" => "10",
                "on|off" => "yes",
                values if values.contains('|') => "neither",
                "number" => "many",
                _ => continue,
            };
            let separator = if driver.example().contains('?') { '&' } else { '?' };
            let url = format!("{}{separator}distlock.{}={wrong}", driver.example(), option.name);
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let error = runtime.block_on(distlock::open(&url)).expect_err(&url);
            assert_eq!(error.kind(), distlock::ErrorKind::InvalidInput, "{url}: {error}");
            assert!(error.to_string().contains(option.name), "{url}: {error}");
        }
    }
}
