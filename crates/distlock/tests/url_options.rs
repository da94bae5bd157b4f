//! Every `distlock.` parameter of every store's URL stands in one table of the documentation, and the table has no other.
#![cfg(all(
    feature = "etcd",
    feature = "file",
    feature = "mongodb",
    feature = "mysql",
    feature = "postgres",
    feature = "redis",
    feature = "sqlserver",
    feature = "zookeeper",
    unix
))]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

const INTRODUCTION: &str = "\
# URL options

What is ours and not the driver's goes into query parameters that begin with `distlock.`, for instance
`redis://cache?distlock.prefix=app:&distlock.retention=1h`. An unknown `distlock.` parameter is an error, and so is one that
is given twice. A duration has a unit: `500ms`, `10s`, `2m`, `1h`. A range is two durations: `10ms-800ms`. A switch is `on` or
`off`.

This table is written by `DISTLOCK_BLESS=1 cargo test -p distlock --all-features --test url_options` from the options that the
stores declare.
";

const LOCKS: &str = "
## Every store

The options that locks begin with; they have the names of the setters of `Options`. For each option the nearest value counts: what a
lock names (`.options(…)`), what its `Locks` name, what the URL names, the default. So code wins over the URL, and options
that are given later change only what they name.

";

const HEAD: &str = "| option | value | default | meaning |\n| --- | --- | --- | --- |\n";

fn row(option: &distlock::store::UrlOption) -> String {
    let default = if option.default.is_empty() { String::new() } else { format!("`{}`", option.default) };
    let value = option.value.replace('|', ", ");
    format!("| `distlock.{}` | {value} | {default} | {} |\n", option.name, option.meaning)
}

fn table() -> String {
    let mut text = String::from(INTRODUCTION) + LOCKS + HEAD;
    text.extend(distlock::LOCK_OPTIONS.iter().map(row));
    for driver in distlock::drivers() {
        let schemes: Vec<String> = driver.schemes().iter().map(|scheme| format!("`{scheme}:`")).collect();
        write!(text, "\n## {}\n\nExample: `{}`\n\n", schemes.join(", "), driver.example()).unwrap();
        if driver.options().is_empty() {
            text.push_str("No others.\n");
            continue;
        }
        text.push_str(HEAD);
        text.extend(driver.options().iter().map(row));
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
        for option in driver.options().iter().chain(distlock::LOCK_OPTIONS) {
            let wrong = match option.value {
                "duration" | "range" => "10",
                "on|off" => "yes",
                values if values.contains('|') => "neither",
                "number" => "many",
                _ => continue,
            };
            let separator = if driver.example().contains('?') { '&' } else { '?' };
            let url = format!("{}{separator}distlock.{}={wrong}", driver.example(), option.name);
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let opened = runtime.block_on(distlock::open(&url)).expect_err(&url);
            let lazy = distlock::connect_lazy(&url).expect_err(&url);
            for error in [opened, lazy] {
                assert_eq!(error.kind(), distlock::ErrorKind::InvalidInput, "{url}: {error}");
                assert!(error.to_string().contains(option.name), "{url}: {error}");
            }
        }
    }
}

#[test]
fn no_store_has_an_option_of_the_name_of_one_of_locks() {
    for driver in distlock::drivers() {
        for option in driver.options() {
            let clash = distlock::LOCK_OPTIONS.iter().find(|of_locks| of_locks.name == option.name);
            assert!(clash.is_none(), "distlock.{} of {:?} means two things", option.name, driver.schemes());
        }
    }
}

/// Nothing is connected to: the URL alone says it.
#[test]
fn the_options_of_locks_are_read_from_the_url_of_every_store() {
    for driver in distlock::drivers() {
        let separator = if driver.example().contains('?') { '&' } else { '?' };
        let query = "distlock.expiry=7s&distlock.request_timeout=900ms&distlock.adaptive_backoff=on";
        let url = format!("{}{separator}{query}", driver.example());
        let locks = distlock::connect_lazy(&url).expect(&url);
        let named = distlock::Options::new()
            .expiry(Duration::from_secs(7))
            .and_then(|options| options.request_timeout(Duration::from_millis(900)))
            .unwrap()
            .adaptive_backoff(true);
        assert_eq!(*locks.options(), named, "{url}");
        let bad = format!("{}{separator}distlock.expiryy=7s", driver.example());
        let error = distlock::connect_lazy(&bad).expect_err(&bad).to_string();
        assert!(error.contains("distlock.expiry,"), "{bad}: {error}");
    }
}

#[test]
fn code_that_names_an_option_wins_over_the_url() {
    let store = distlock::open_lazy("memory:?distlock.expiry=7s&distlock.request_timeout=900ms").unwrap();
    let named = distlock::Options::new().expiry(Duration::from_secs(3)).unwrap();
    let locks = distlock::Locks::builder(store).options(named).build().unwrap();
    assert_eq!(locks.options().get_expiry(), Duration::from_secs(3));
    assert_eq!(locks.options().get_request_timeout(), Duration::from_millis(900));
}
