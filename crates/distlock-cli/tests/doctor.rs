//! `doctor`: a warning is never mistaken for health, nor an outage for a warning.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{Place, code, stderr, stdout};

#[test]
fn health_is_0_a_warning_1_and_an_outage_69() {
    let place = Place::new();
    let healthy = place.leased().arg("doctor").output().unwrap();
    assert_eq!(code(&healthy), 0, "{}", stderr(&healthy));
    assert!(stdout(&healthy).contains("[ok]") && !stdout(&healthy).contains("[!!]"), "{}", stdout(&healthy));
    place.fault("doctor.warn");
    let warned = place.leased().arg("doctor").output().unwrap();
    assert_eq!(code(&warned), 1);
    assert!(stdout(&warned).contains("[!!] it loses locks on command"), "{}", stdout(&warned));
    assert!(stdout(&warned).contains("use a real store"), "the advice is there");
    assert_eq!(stderr(&warned), "");
    place.fault("connect.fail");
    let gone = place.distlock().args(["--store", &place.lease_url(), "doctor"]).output().unwrap();
    assert_eq!((code(&gone), stdout(&gone)), (69, String::new()));
}

#[test]
fn programs_read_the_same_as_people() {
    let place = Place::new();
    place.fault("doctor.warn");
    let done = place.leased().args(["doctor", "--json"]).output().unwrap();
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
    let place = Place::new();
    let done = place.distlock().arg("doctor").output().unwrap();
    assert!(code(&done) <= 1, "{}", stderr(&done));
    assert!(stdout(&done).contains(&place.path("state/distlock").display().to_string()), "{}", stdout(&done));
    assert!(!stdout(&done).contains('\u{1b}'), "no colour where there is no terminal");
}
