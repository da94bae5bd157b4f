//! `distlock bench` on the file store: its output, its plot, and that it leaves no lock.
#![allow(clippy::unwrap_used)]

use std::process::{Command, Output};

use serde_json::Value;

fn bench(folder: &tempfile::TempDir, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_distlock"))
        .env("DISTLOCK_STORE", format!("file://{}", folder.path().display()))
        .arg("bench")
        .args(args)
        .output()
        .unwrap()
}

#[test]
fn every_scenario_gives_an_object_with_the_promised_fields() {
    let folder = tempfile::tempdir().unwrap();
    let args =
        ["--seconds", "0.6", "--held", "20", "--tasks", "4", "--processes", "2", "--json", "--scenario"];
    let all = "uncontended,throughput,handoff,contended,held,takeover";
    let out = bench(&folder, &[&args[..], &[all]].concat());
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let lines: Vec<Value> = serde_json::from_slice(&out.stdout).unwrap();
    let scenarios: Vec<_> = lines.iter().map(|line| line["scenario"].as_str().unwrap()).collect();
    let expected =
        ["uncontended", "throughput", "handoff", "contended", "contended-processes", "held", "takeover"];
    assert_eq!(scenarios, expected);
    for line in &lines {
        let line = line.as_object().unwrap();
        let mut fields: Vec<_> = line.keys().map(String::as_str).collect();
        fields.sort_unstable();
        assert_eq!(fields, distlock_load::JsonRecord::FIELDS);
        assert!(line["p50_us"].as_f64().is_some_and(|median| median > 0.0), "{line:?}");
    }
    let held = Command::new(env!("CARGO_BIN_EXE_distlock"))
        .env("DISTLOCK_STORE", format!("file://{}", folder.path().display()))
        .args(["ls", "--json"])
        .output()
        .unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&held.stdout).unwrap(), serde_json::json!([]));
}

#[test]
fn a_table_and_a_plot_and_no_progress_bar_without_a_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let picture = folder.path().join("bench.svg");
    let args = ["--seconds", "0.3", "--scenario", "uncontended", "--plot", picture.to_str().unwrap()];
    let out = bench(&folder, &args);
    assert!(out.status.success());
    let text = String::from_utf8(out.stdout).unwrap();
    assert!(text.contains("SCENARIO") && text.contains("uncontended"), "{text}");
    assert!(out.stderr.is_empty(), "{}", String::from_utf8_lossy(&out.stderr));
    assert!(std::fs::read_to_string(picture).unwrap().starts_with("<svg"));
}

#[test]
fn wrong_options_are_refused_with_64() {
    let folder = tempfile::tempdir().unwrap();
    for args in [["--scenario", "nonsense"], ["--seconds", "0"], ["--held", "0"]] {
        let out = bench(&folder, &args);
        assert_eq!(out.status.code(), Some(64), "{args:?}");
        assert_eq!(String::from_utf8_lossy(&out.stderr).lines().count(), 1, "{args:?}");
    }
}
