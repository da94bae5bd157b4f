//! What operators see and do: every field of the contract, names that would forge a line, and no lock broken by mistake.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::io::Read;
use std::process::Stdio;

use common::{Background, Place, code, sh, stderr, stdout, wait_for};
use serde_json::Value;

const FIELDS: [&str; 11] = [
    "acquired_at",
    "capacity",
    "expires_in_ms",
    "holder",
    "key",
    "kind",
    "lock_id",
    "mode",
    "name",
    "token",
    "weight",
];

fn hold(place: &Place, leased: bool, options: &[&str], name: &str) -> Background {
    let _ = std::fs::remove_file(place.path("held"));
    let mut command = if leased { place.leased() } else { place.distlock() };
    let run =
        Background::start(command.arg("run").args(options).arg(name).args(sh("echo > held; exec sleep 60")));
    place.wait_for_file("held");
    run
}

fn json(place: &Place, leased: bool, args: &[&str]) -> Vec<Value> {
    let mut command = if leased { place.leased() } else { place.distlock() };
    let done = command.args(args).output().unwrap();
    assert_eq!(code(&done), 0, "{}", stderr(&done));
    serde_json::from_slice::<Vec<Value>>(&done.stdout).unwrap()
}

fn fields(value: &Value) -> Vec<&str> {
    let mut names: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
    names.sort_unstable();
    names
}

#[test]
fn json_has_exactly_the_fields_of_the_contract() {
    let place = Place::new();
    assert_eq!(json(&place, true, &["ls", "--json"]), Vec::<Value>::new());
    let run = hold(&place, true, &["--expiry", "20s"], "orders/42");
    let list = json(&place, true, &["ls", "--json"]);
    let [entry] = list.as_slice() else { panic!("{list:?}") };
    assert_eq!(fields(entry), FIELDS);
    assert_eq!((entry["kind"].as_str(), entry["mode"].as_str()), (Some("mutex"), Some("exclusive")));
    assert_eq!((entry["name"].as_str(), &entry["key"]), (Some("orders/42"), &Value::Null));
    assert!(entry["holder"].as_str().unwrap().ends_with(&format!(":{}", run.pid())), "{entry}");
    assert!(entry["lock_id"].as_str().unwrap().starts_with(entry["holder"].as_str().unwrap()));
    assert_eq!(entry["token"], place.record("orders/42")["holder"]["token"]);
    let left = entry["expires_in_ms"].as_u64().unwrap();
    assert!(left > 10_000 && left <= 20_000, "{left}");
    assert_eq!((entry["weight"].as_u64(), entry["capacity"].as_u64()), (Some(1), Some(1)));
    let at = entry["acquired_at"].as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
    assert!(jiff::Timestamp::now().duration_since(at).as_secs().abs() < 60, "{at}");
}

#[test]
fn kinds_modes_and_weights_are_told_apart() {
    let place = Place::new();
    let _runs = [
        hold(&place, false, &[], "m"),
        hold(&place, false, &["--read"], "r"),
        hold(&place, false, &["--write"], "w"),
        hold(&place, false, &["--permits", "2", "--of", "3"], "s"),
    ];
    let list = json(&place, false, &["ls", "--json"]);
    let seen: Vec<_> = list
        .iter()
        .map(|e| (e["kind"].as_str().unwrap(), e["name"].as_str().unwrap(), e["mode"].as_str().unwrap()))
        .collect();
    assert_eq!(
        seen,
        [
            ("mutex", "m", "exclusive"),
            ("rwlock", "r", "shared"),
            ("rwlock", "w", "exclusive"),
            ("semaphore", "s", "shared")
        ]
    );
    assert_eq!((list[3]["weight"].as_u64(), list[3]["capacity"].as_u64()), (Some(2), Some(3)));
    assert!(
        list.iter().all(|e| fields(e) == FIELDS && e["expires_in_ms"].is_null()),
        "kernel locks do not expire"
    );
    let table = stdout(&place.distlock().arg("ls").output().unwrap());
    assert!(table.starts_with("KIND") && table.lines().count() == 5, "{table}");
    assert!(table.contains("2/3") && table.contains("write") && table.contains("read"), "{table}");
    assert_eq!(json(&place, false, &["ls", "--json", "r"]).len(), 1, "only the prefix");
}

#[test]
fn a_name_cannot_forge_a_line_or_move_the_cursor() {
    let place = Place::new();
    let _run = hold(&place, true, &[], "a\n\u{1b}[2Jforged  line");
    let done = place.leased().arg("ls").output().unwrap();
    assert_eq!(stdout(&done).lines().count(), 2);
    assert!(!stdout(&done).contains('\u{1b}'), "neither from the name nor as colour");
}

#[test]
fn show_tells_who_waits() {
    let place = Place::new();
    let _holder = hold(&place, true, &[], "x");
    let waiter = Background::start(place.leased().args(["run", "x", "true"]));
    let shown = wait_for("the waiter to be shown", || {
        Some(json(&place, true, &["show", "x", "--json"])).filter(|entries| entries.len() == 2)
    });
    assert_eq!((shown[0]["state"].as_str(), shown[1]["state"].as_str()), (Some("held"), Some("waiting")));
    assert!(shown[1]["holder"].as_str().unwrap().ends_with(&format!(":{}", waiter.pid())));
    assert!(shown[1]["token"].is_null());
    let table = stdout(&place.leased().args(["show", "x"]).output().unwrap());
    assert!(table.contains("waiting"), "{table}");
    assert_eq!(json(&place, true, &["ls", "--json"]).len(), 1, "ls lists who holds");
    assert!(json(&place, true, &["show", "y", "--json"]).is_empty());
}

#[test]
fn nothing_is_broken_without_a_yes() {
    let place = Place::new();
    let _run = hold(&place, true, &[], "x");
    let done = place.leased().args(["break", "x"]).output().unwrap();
    assert_eq!(code(&done), 64, "{}", stderr(&done));
    assert!(stderr(&done).contains("--yes"), "{}", stderr(&done));
    assert!(place.record("x")["holder"].is_object());
    let nobody = place.leased().args(["break", "y", "--yes"]).output().unwrap();
    assert_eq!(code(&nobody), 0, "what is free is free: {}", stderr(&nobody));
    let other = place.leased().args(["break", "x", "--kind", "semaphore", "--yes"]).output().unwrap();
    assert!(stderr(&other).contains("nothing to break"), "{}", stderr(&other));
    assert!(place.record("x")["holder"].is_object());
    let done = place.leased().args(["break", "x", "--kind", "mutex", "--yes"]).output().unwrap();
    assert_eq!(code(&done), 0, "{}", stderr(&done));
    assert!(stdout(&done).starts_with("broke mutex \"x\", held by "), "{}", stdout(&done));
    // What cannot be guaranteed, on a store that cannot push.
    let said = stderr(&done);
    assert!(said.contains("next renewal, within ") && said.contains("side by side"), "{said}");
    assert!(!said.contains("at once"), "{said}");
    assert!(place.record("x")["holder"].is_null());
}

#[test]
fn one_name_of_several_locks_is_not_guessed() {
    let place = Place::new();
    let _runs = [hold(&place, false, &[], "x"), hold(&place, false, &["--of", "2"], "x")];
    let done = place.distlock().args(["break", "x", "--yes"]).output().unwrap();
    assert_eq!(code(&done), 64, "{}", stderr(&done));
    let said = stderr(&done);
    assert!(
        said.contains("mutex and semaphore") && said.contains("--kind") && said.lines().count() == 1,
        "{said}"
    );
}

#[test]
fn where_nothing_can_be_broken_the_holder_is_named() {
    let place = Place::new();
    let run = hold(&place, false, &[], "x");
    let done = place.distlock().args(["break", "x", "--yes"]).output().unwrap();
    assert_eq!(code(&done), 64, "{}", stderr(&done));
    assert!(stderr(&done).contains(&run.pid().to_string()), "{}", stderr(&done));
    assert!(!place.is_free("x"));
}

#[test]
fn a_record_that_cannot_be_read_hides_no_other_and_is_told() {
    let place = Place::new();
    let _runs = [hold(&place, false, &[], "one"), hold(&place, false, &["--of", "2"], "two")];
    let link = place.path("state/distlock/mutex/forged%0aname.lock");
    std::os::unix::fs::symlink("/etc/passwd", &link).unwrap();
    for args in [&["ls"][..], &["ls", "--json"]] {
        let done = place.distlock().args(args).output().unwrap();
        assert_eq!(code(&done), 0, "{}", stderr(&done));
        assert!(stdout(&done).contains("one") && stdout(&done).contains("two"), "{}", stdout(&done));
        let said = stderr(&done);
        assert!(said.contains("warning") && said.contains("symbolic link"), "{said}");
        assert!(said.contains("forged%0aname.lock") && said.lines().count() == 1, "{said}");
    }
    // The one that is asked for must not look free.
    for args in [&["show", "forged\nname"][..], &["break", "--yes", "forged\nname"]] {
        let done = place.distlock().args(args).output().unwrap();
        assert_eq!(code(&done), 69, "{}", stderr(&done));
        assert!(stderr(&done).contains("symbolic link"), "{}", stderr(&done));
    }
    let done = place.distlock().args(["show", "one"]).output().unwrap();
    assert_eq!((code(&done), stderr(&done)), (0, String::new()), "what is asked for is fine");
}

#[test]
fn a_reader_that_goes_away_is_no_crash() {
    let place = Place::new();
    let _run = hold(&place, true, &[], "x");
    for args in [
        &["ls"][..],
        &["ls", "--json"],
        &["show", "x"],
        &["doctor"],
        &["completions", "bash"],
        &["run", "--help"],
    ] {
        let mut child =
            place.leased().args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let status = child.wait().unwrap();
        let mut said = String::new();
        child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert_eq!((status.code(), said.as_str()), (Some(0), ""), "{args:?}");
    }
}
