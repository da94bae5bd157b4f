//! Hazard: `doctor` reports a warning as success, or an outage as a warning.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{Sandbox, code, stderr, stdout};

#[test]
fn no_warning_is_0_a_warning_1_and_an_outage_69() {
    let sandbox = Sandbox::new();
    let healthy = sandbox.leased().arg("doctor").output().unwrap();
    assert_eq!(code(&healthy), 0, "{}", stderr(&healthy));
    assert!(stdout(&healthy).contains("[ok]") && !stdout(&healthy).contains("[!!]"), "{}", stdout(&healthy));
    sandbox.fault("doctor.warn");
    let warned = sandbox.leased().arg("doctor").output().unwrap();
    assert_eq!(code(&warned), 1);
    assert!(stdout(&warned).contains("[!!] it loses locks on command"), "{}", stdout(&warned));
    assert!(stdout(&warned).contains("use a real store"), "no advice");
    assert_eq!(stderr(&warned), "");
    sandbox.fault("connect.fail");
    let gone = sandbox.distlock().args(["--store", &sandbox.lease_url(), "doctor"]).output().unwrap();
    assert_eq!((code(&gone), stdout(&gone)), (69, String::new()));
}

#[test]
fn json_has_the_same_findings_as_the_text() {
    let sandbox = Sandbox::new();
    sandbox.fault("doctor.warn");
    let done = sandbox.leased().args(["doctor", "--json"]).output().unwrap();
    assert_eq!(code(&done), 1);
    let report: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
    assert!(report["store"].as_str().unwrap().starts_with("test store"));
    let findings = report["findings"].as_array().unwrap();
    assert_eq!(findings[0]["level"], "good");
    assert_eq!(findings[1]["level"], "warning");
    assert_eq!(findings[1]["advice"], "use a real store");
}

#[test]
fn the_default_store_needs_no_set_up() {
    let sandbox = Sandbox::new();
    let done = sandbox.distlock().arg("doctor").output().unwrap();
    assert_eq!(code(&done), 0, "{}{}", stdout(&done), stderr(&done));
    assert!(
        stdout(&done).contains(&sandbox.path("state/distlock").display().to_string()),
        "{}",
        stdout(&done)
    );
    assert!(!stdout(&done).contains('\u{1b}'), "colour without a terminal");
}
