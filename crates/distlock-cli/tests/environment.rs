//! What the command finds: its own stdin, stdout and stderr, the token, and no trace of what stands between it and us.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::process::Stdio;

use common::{Place, code, sh, stderr, stdout};

#[test]
fn the_token_rises_with_every_holder() {
    let place = Place::new();
    for mut command in [place.distlock(), place.leased()] {
        let first = command.args(["run", "x"]).args(sh("echo $DISTLOCK_TOKEN")).output().unwrap();
        let second = command.output().unwrap();
        let token = |output| stdout(output).trim().parse::<u64>().unwrap();
        assert!(token(&second) > token(&first), "{} then {}", stdout(&first), stdout(&second));
    }
}

#[test]
fn a_name_of_any_characters_reaches_the_command_as_it_is() {
    let place = Place::new();
    for name in ["a b", "ü/…/💡", "-dash", "../../etc/passwd", "a\nb\u{1b}[2J", "\"'$(reboot)`", "%00", "."]
    {
        let done = place
            .distlock()
            .args(["run", "--no-wait", "--", name])
            .args(["sh", "-c", "printf %s \"$DISTLOCK_NAME\""])
            .output()
            .unwrap();
        assert_eq!((code(&done), stdout(&done)), (0, name.to_owned()), "{}", stderr(&done));
    }
}

#[test]
fn stdin_stdout_and_stderr_are_the_commands_own() {
    let place = Place::new();
    let mut child = place
        .distlock()
        .args(["run", "-vv", "x"])
        .args(sh("cat; echo to-stderr >&2"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let bytes: Vec<u8> = (0..=255).cycle().take(300_000).collect();
    let mut stdin = child.stdin.take().unwrap();
    let sent = bytes.clone();
    let writer = std::thread::spawn(move || stdin.write_all(&sent).unwrap());
    let done = child.wait_with_output().unwrap();
    writer.join().unwrap();
    assert_eq!(code(&done), 0);
    assert!(done.stdout == bytes, "stdout holds what the command wrote and nothing else");
    assert!(stderr(&done).contains("to-stderr") && stderr(&done).contains("acquired"), "{}", stderr(&done));
}

#[test]
fn arguments_keep_their_bytes_and_their_borders() {
    let place = Place::new();
    let odd = OsStr::from_bytes(b"\xff\xfe *");
    let done = place
        .distlock()
        .args(["run", "x", "--", "printf", "%s|"])
        .args([OsStr::new("a b"), odd, OsStr::new(""), OsStr::new("--help")])
        .output()
        .unwrap();
    assert_eq!(done.stdout, b"a b|\xff\xfe *||--help|");
}

#[test]
fn the_command_inherits_no_file_no_blocked_signal_and_no_helper_variable() {
    let place = Place::new();
    let script = "ls /proc/self/fd | wc -l; grep SigBlk /proc/self/status; grep SigIgn /proc/self/status; env | grep -c ^DISTLOCK_; ps -o pgid= -p $$; echo $$";
    let inside = place.distlock().args(["run", "x"]).args(sh(script)).output().unwrap();
    let outside = std::process::Command::new("sh")
        .env_remove("DISTLOCK_STORE")
        .args(["-c", script])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let (inside, outside) = (stdout(&inside), stdout(&outside));
    let (inside, outside): (Vec<&str>, Vec<&str>) = (inside.lines().collect(), outside.lines().collect());
    assert_eq!(inside[..3], outside[..3], "files, blocked and ignored signals");
    // The programs of the test kit may be named by such variables too.
    let (with, without): (u32, u32) = (inside[3].parse().unwrap(), outside[3].parse().unwrap());
    assert_eq!(with, without + 2, "DISTLOCK_NAME and DISTLOCK_TOKEN");
    assert_eq!(inside[4].trim(), inside[5], "it leads a process group of its own");
}

#[test]
fn a_closed_stdin_is_no_obstacle() {
    let place = Place::new();
    let line = format!("exec 0<&-; {} run x -- sh -c 'cat; echo done'", common::BINARY);
    let done = std::process::Command::new("sh")
        .args(["-c", &line])
        .env("XDG_STATE_HOME", place.path("state"))
        .env_remove("DISTLOCK_STORE")
        .output()
        .unwrap();
    assert_eq!((code(&done), stdout(&done)), (0, "done\n".to_owned()), "{}", stderr(&done));
}

#[test]
fn the_store_of_the_variable_is_used_and_an_empty_one_means_none() {
    let place = Place::new();
    let url = format!("file://{}", place.path("by-variable").display());
    let done = place.distlock().env("DISTLOCK_STORE", &url).args(["run", "x", "true"]).output().unwrap();
    assert_eq!(code(&done), 0, "{}", stderr(&done));
    assert!(place.path("by-variable").exists() && !place.path("state").exists());
    let done = place.distlock().env("DISTLOCK_STORE", "").args(["run", "x", "true"]).output().unwrap();
    assert_eq!(code(&done), 0, "{}", stderr(&done));
    assert!(place.path("state/distlock").exists());
}
