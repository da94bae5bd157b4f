//! Adding distlock breaks nothing else: applications with a `bson` and a `rustls` of their own still compile and run. They are
//! in `tests/clash`, each with a lock file of its own.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::{Path, PathBuf};
use std::process::Command;

use distlock_testkit::servers::MongoReplicaSet;

fn manifest(program: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/clash").join(program).join("Cargo.toml")
}

fn cargo(command: &str, program: &str) -> Command {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.arg(command).arg("--manifest-path").arg(manifest(program));
    // What the outer cargo sets describes this package and not that one.
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
            cargo.env_remove(&*name);
        }
    }
    cargo
}

fn output(what: &str, command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{what}: {error}"));
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{what}: {printed}{}", String::from_utf8_lossy(&output.stderr));
    printed
}

/// Builds a program in the workspace's own target folder, where most of its crates are compiled already.
fn build(program: &str) -> PathBuf {
    let this_test = std::env::current_exe().unwrap();
    let target = this_test.ancestors().nth(3).expect("a target folder");
    output(&format!("build {program}"), cargo("build", program).arg("--target-dir").arg(target));
    target.join("debug").join(format!("clash-{program}"))
}

fn run_with_mongodb(program: &str) {
    let program = build(program);
    let server = MongoReplicaSet::start(1);
    let printed = output("run", Command::new(program).arg(server.url()));
    assert!(printed.contains("stored as a 64-bit integer"), "{printed}");
}

/// The crypto providers of the program's rustls, with features of the program.
fn crypto_providers(program: &str, features: &str) -> Vec<String> {
    let mut tree = cargo("tree", program);
    tree.args([
        "--edges",
        "normal",
        "--prefix",
        "none",
        "--format",
        "{p} features:{f}",
        "--features",
        features,
    ]);
    let tree = output("cargo tree", &mut tree);
    let rustls: Vec<&str> = tree.lines().filter(|line| line.starts_with("rustls v")).collect();
    assert!(!rustls.is_empty(), "rustls is missing: {tree}");
    let all =
        rustls.iter().flat_map(|line| line.split("features:").nth(1).unwrap_or_default().split([',', ' ']));
    let mut found: Vec<String> =
        all.filter(|feature| ["ring", "aws_lc_rs"].contains(feature)).map(str::to_owned).collect();
    found.sort();
    found.dedup();
    found
}

#[test]
fn an_application_with_bson_2_compiles_and_runs() {
    run_with_mongodb("bson-2");
}

#[test]
fn an_application_with_bson_3_compiles_and_runs() {
    run_with_mongodb("bson-3");
}

#[test]
fn rustls_of_the_application_finds_one_crypto_provider_and_does_not_panic() {
    let printed = output("run", &mut Command::new(build("rustls-default")));
    assert_eq!(printed, "one crypto provider\n");
}

#[test]
fn no_store_adds_a_second_crypto_provider() {
    for features in ["", "more-stores", "every-store"] {
        assert_eq!(crypto_providers("rustls-default", features), ["aws_lc_rs"], "{features:?}");
    }
    for features in ["", "every-store"] {
        // The driver of `zookeepers://` brings aws-lc-rs; `zookeeper://` brings nothing.
        assert_eq!(crypto_providers("rustls-ring", features), ["ring"], "{features:?}");
    }
}
