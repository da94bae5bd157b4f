//! The examples run, and say what they promise, on every embedded store.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::PathBuf;
use std::process::Command;

fn run(example: &str, store: Option<&str>) -> String {
    // Cargo builds the examples before it runs the tests, beside the folder that this test is in.
    let mut program: PathBuf = std::env::current_exe().unwrap();
    program.pop();
    program.pop();
    program.push("examples");
    program.push(example);
    let output =
        Command::new(&program).args(store).output().unwrap_or_else(|error| panic!("{program:?}: {error}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{example}: {text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

/// The store of this process alone, and the embedded default in a folder of its own.
fn on_embedded_stores(example: &str, check: impl Fn(&str)) {
    check(&run(example, None));
    let folder = tempfile::tempdir().unwrap();
    check(&run(example, Some(&format!("file://{}", folder.path().display()))));
}

#[test]
fn one_job_in_the_fleet_is_done_once() {
    on_embedded_stores("cron", |text| assert!(text.ends_with("done 1 time(s)\n"), "{text}"));
}

#[test]
fn a_paused_holder_is_refused() {
    let text = run("fenced_write", None);
    assert!(text.contains("lost = true") && text.contains("refused: the fencing token"), "{text}");
}

#[test]
fn readers_do_not_starve_the_writer() {
    on_embedded_stores("read_mostly_cache", |text| assert!(text.contains("version 4"), "{text}"));
}

#[test]
fn the_limit_is_kept_and_used() {
    on_embedded_stores("limited_concurrency", |text| {
        assert!(text.contains("never more than 4 GPUs"), "{text}")
    });
}

#[test]
fn every_replica_leads_once_with_rising_terms() {
    on_embedded_stores("leader", |text| {
        let terms: Vec<u64> = text
            .lines()
            .filter_map(|line| line.split("term ").nth(1))
            .map(|term| term.parse().unwrap())
            .collect();
        assert!(terms.len() == 3 && terms.is_sorted_by(|a, b| a < b), "{text}");
    });
}
