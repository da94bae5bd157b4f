//! Hazard: `ls` and `show` report wrong or forged lines, or `break` breaks a lock by mistake.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::io::Read;
use std::process::Stdio;

use common::{Background, Sandbox, code, stderr, stdout, wait_for};
use serde_json::Value;

const FIELDS: [&str; 14] = [
    "acquired_at",
    "capacity",
    "command",
    "expires_in_ms",
    "holder",
    "key",
    "kind",
    "lock_id",
    "mode",
    "name",
    "token",
    "user",
    "waiting",
    "weight",
];

fn hold(sandbox: &Sandbox, leased: bool, options: &[&str], name: &str) -> Background {
    let mut command = if leased { sandbox.leased() } else { sandbox.distlock() };
    sandbox.hold(command.arg("run").args(options).arg(name))
}

fn json(sandbox: &Sandbox, leased: bool, args: &[&str]) -> Vec<Value> {
    let mut command = if leased { sandbox.leased() } else { sandbox.distlock() };
    let done = command.args(args).output().unwrap();
    assert!(code(&done) <= 1, "{}", stderr(&done));
    serde_json::from_slice::<Vec<Value>>(&done.stdout).unwrap()
}

fn fields(value: &Value) -> Vec<&str> {
    let mut names: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
    names.sort_unstable();
    names
}

#[test]
fn json_has_exactly_the_fields_of_the_contract() {
    let sandbox = Sandbox::new();
    assert_eq!(json(&sandbox, true, &["ls", "--json"]), Vec::<Value>::new());
    let run = hold(&sandbox, true, &["--expiry", "20s"], "orders/42");
    let list = json(&sandbox, true, &["ls", "--json"]);
    let [entry] = list.as_slice() else { panic!("{list:?}") };
    assert_eq!(fields(entry), FIELDS);
    assert_eq!((entry["kind"].as_str(), entry["mode"].as_str()), (Some("mutex"), Some("exclusive")));
    assert_eq!((entry["name"].as_str(), &entry["key"]), (Some("orders/42"), &Value::Null));
    assert!(entry["holder"].as_str().unwrap().ends_with(&format!(":{}", run.pid())), "{entry}");
    assert!(entry["lock_id"].as_str().unwrap().starts_with(entry["holder"].as_str().unwrap()));
    assert_eq!(entry["token"], sandbox.record("orders/42")["holder"]["token"]);
    let left = entry["expires_in_ms"].as_u64().unwrap();
    assert!(left > 10_000 && left <= 20_000, "{left}");
    assert_eq!((entry["weight"].as_u64(), entry["capacity"].as_u64()), (Some(1), Some(1)));
    let at = entry["acquired_at"].as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
    assert!(jiff::Timestamp::now().duration_since(at).as_secs().abs() < 60, "{at}");
}

#[test]
fn kinds_modes_and_weights_are_shown() {
    let sandbox = Sandbox::new();
    let _runs = [
        hold(&sandbox, false, &[], "m"),
        hold(&sandbox, false, &["--read"], "r"),
        hold(&sandbox, false, &["--write"], "w"),
        hold(&sandbox, false, &["--permits", "2", "--of", "3"], "s"),
    ];
    let list = json(&sandbox, false, &["ls", "--json"]);
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
    let table = stdout(&sandbox.distlock().arg("ls").output().unwrap());
    assert!(table.starts_with("KIND") && table.lines().count() == 5, "{table}");
    assert!(table.contains("2/3") && table.contains("write") && table.contains("read"), "{table}");
    assert_eq!(json(&sandbox, false, &["ls", "--json", "r"]).len(), 1, "only the prefix");
}

#[test]
fn a_name_cannot_forge_a_line_or_move_the_cursor() {
    let sandbox = Sandbox::new();
    let _run = hold(&sandbox, true, &[], "a\n\u{1b}[2Jforged  line");
    let done = sandbox.leased().arg("ls").output().unwrap();
    assert_eq!(stdout(&done).lines().count(), 2);
    assert!(!stdout(&done).contains('\u{1b}'), "a control character or colour");
}

#[test]
fn show_lists_waiters() {
    let sandbox = Sandbox::new();
    let _holder = hold(&sandbox, true, &[], "x");
    let waiter = Background::start(sandbox.leased().args(["run", "x", "true"]));
    let shown = wait_for("the waiter to be shown", || {
        Some(json(&sandbox, true, &["show", "x", "--json"])).filter(|entries| entries.len() == 2)
    });
    assert_eq!((shown[0]["state"].as_str(), shown[1]["state"].as_str()), (Some("held"), Some("waiting")));
    assert!(shown[1]["holder"].as_str().unwrap().ends_with(&format!(":{}", waiter.pid())));
    assert!(shown[1]["token"].is_null());
    let table = stdout(&sandbox.leased().args(["show", "x"]).output().unwrap());
    assert!(table.contains("waiting"), "{table}");
    assert_eq!(json(&sandbox, true, &["ls", "--json"]).len(), 1, "ls lists holders only");
    let list = json(&sandbox, true, &["ls", "--json"]);
    assert_eq!(list[0]["waiting"].as_u64(), Some(1), "{list:?}");
    let table = stdout(&sandbox.leased().arg("ls").output().unwrap());
    assert!(
        table.lines().next().unwrap().ends_with("WAITING") && table.trim_end().ends_with(" 1"),
        "{table}"
    );
}

#[test]
fn a_script_can_tell_a_free_lock_from_a_held_one() {
    let sandbox = Sandbox::new();
    let _run = hold(&sandbox, true, &[], "x");
    let show = |args: &[&str]| code(&sandbox.leased().arg("show").args(args).output().unwrap());
    assert_eq!((show(&["x"]), show(&["x", "--json"])), (0, 0));
    assert_eq!((show(&["y"]), show(&["y", "--json"])), (1, 1));
    assert!(json(&sandbox, true, &["show", "y", "--json"]).is_empty());
}

#[test]
fn no_lock_is_broken_without_a_yes() {
    let sandbox = Sandbox::new();
    let _run = hold(&sandbox, true, &[], "x");
    let done = sandbox.leased().args(["break", "x"]).output().unwrap();
    assert_eq!(code(&done), 64, "{}", stderr(&done));
    assert!(stderr(&done).contains("--yes"), "{}", stderr(&done));
    assert!(sandbox.record("x")["holder"].is_object());
    let free = sandbox.leased().args(["break", "y", "--yes"]).output().unwrap();
    assert_eq!(code(&free), 1, "{}", stderr(&free));
    assert!(stderr(&free).contains("nothing to break"), "{}", stderr(&free));
    let other = sandbox.leased().args(["break", "x", "--kind", "semaphore", "--yes"]).output().unwrap();
    assert!(stderr(&other).contains("nothing to break"), "{}", stderr(&other));
    assert!(sandbox.record("x")["holder"].is_object());
    let done = sandbox.leased().args(["break", "x", "--kind", "mutex", "--yes"]).output().unwrap();
    assert_eq!(code(&done), 0, "{}", stderr(&done));
    assert!(stdout(&done).starts_with("broke mutex \"x\", held by "), "{}", stdout(&done));
    // On a store that cannot push, the holder learns of it late.
    let said = stderr(&done);
    assert!(said.contains("next renewal, within ") && said.contains("at the same time"), "{said}");
    assert!(!said.contains("at once"), "{said}");
    assert!(sandbox.record("x")["holder"].is_null());
}

#[test]
fn break_does_not_guess_among_several_locks_of_one_name() {
    let sandbox = Sandbox::new();
    let _runs = [hold(&sandbox, false, &[], "x"), hold(&sandbox, false, &["--of", "2"], "x")];
    let done = sandbox.distlock().args(["break", "x", "--yes"]).output().unwrap();
    assert_eq!(code(&done), 64, "{}", stderr(&done));
    let said = stderr(&done);
    assert!(
        said.contains("mutex and semaphore") && said.contains("--kind") && said.lines().count() == 1,
        "{said}"
    );
}

#[test]
fn a_lock_that_cannot_be_broken_names_its_holder() {
    let sandbox = Sandbox::new();
    let run = hold(&sandbox, false, &[], "x");
    let done = sandbox.distlock().args(["break", "x", "--yes"]).output().unwrap();
    assert_eq!(code(&done), 64, "{}", stderr(&done));
    assert!(stderr(&done).contains(&run.pid().to_string()), "{}", stderr(&done));
    assert!(!sandbox.is_free("x"));
}

#[test]
fn an_unreadable_record_hides_no_other_and_is_reported() {
    let sandbox = Sandbox::new();
    let _runs = [hold(&sandbox, false, &[], "one"), hold(&sandbox, false, &["--of", "2"], "two")];
    let link = sandbox.path("state/distlock/mutex/forged%0aname.lock");
    std::os::unix::fs::symlink("/etc/passwd", &link).unwrap();
    for args in [&["ls"][..], &["ls", "--json"]] {
        let done = sandbox.distlock().args(args).output().unwrap();
        assert_eq!(code(&done), 0, "{}", stderr(&done));
        assert!(stdout(&done).contains("one") && stdout(&done).contains("two"), "{}", stdout(&done));
        let said = stderr(&done);
        assert!(said.contains("warning") && said.contains("symbolic link"), "{said}");
        assert!(said.contains("forged%0aname.lock") && said.lines().count() == 1, "{said}");
    }
    // The unreadable lock must not look free.
    for args in [&["show", "forged\nname"][..], &["break", "--yes", "forged\nname"]] {
        let done = sandbox.distlock().args(args).output().unwrap();
        assert_eq!(code(&done), 69, "{}", stderr(&done));
        assert!(stderr(&done).contains("symbolic link"), "{}", stderr(&done));
    }
    let done = sandbox.distlock().args(["show", "one"]).output().unwrap();
    assert_eq!((code(&done), stderr(&done)), (0, String::new()), "a readable lock was affected");
}

#[test]
fn a_closed_pipe_is_not_an_error() {
    let sandbox = Sandbox::new();
    let _run = hold(&sandbox, true, &[], "x");
    for args in [
        &["ls"][..],
        &["ls", "--json"],
        &["show", "x"],
        &["doctor"],
        &["completions", "bash"],
        &["run", "--help"],
    ] {
        let mut child =
            sandbox.leased().args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let status = child.wait().unwrap();
        let mut said = String::new();
        child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert_eq!((status.code(), said.as_str()), (Some(0), ""), "{args:?}");
    }
}
