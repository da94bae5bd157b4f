//! Hazard: the command does not get its stdin, stdout, stderr or token, or inherits what belongs to `distlock`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::process::Stdio;

use common::{Sandbox, code, sh, stderr, stdout};

#[test]
fn the_token_rises_with_every_holder() {
    let sandbox = Sandbox::new();
    for mut command in [sandbox.distlock(), sandbox.leased()] {
        let first = command.args(["run", "x"]).args(sh("echo $DISTLOCK_TOKEN")).output().unwrap();
        let second = command.output().unwrap();
        let token = |output| stdout(output).trim().parse::<u64>().unwrap();
        assert!(token(&second) > token(&first), "{} then {}", stdout(&first), stdout(&second));
    }
}

#[test]
fn a_name_of_any_characters_reaches_the_command_unchanged() {
    let sandbox = Sandbox::new();
    for name in ["a b", "ü/…/💡", "-dash", "../../etc/passwd", "a\nb\u{1b}[2J", "\"'$(reboot)`", "%00", "."]
    {
        let done = sandbox
            .distlock()
            .args(["run", "--no-wait", "--", name])
            .args(["sh", "-c", "printf %s \"$DISTLOCK_NAME\""])
            .output()
            .unwrap();
        assert_eq!((code(&done), stdout(&done)), (0, name.to_owned()), "{}", stderr(&done));
    }
}

#[test]
fn stdin_stdout_and_stderr_belong_to_the_command() {
    let sandbox = Sandbox::new();
    let mut child = sandbox
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
    assert!(done.stdout == bytes, "stdout is not exactly what the command wrote");
    assert!(stderr(&done).contains("to-stderr") && stderr(&done).contains("acquired"), "{}", stderr(&done));
}

#[test]
fn arguments_reach_the_command_byte_for_byte() {
    let sandbox = Sandbox::new();
    let odd = OsStr::from_bytes(b"\xff\xfe *");
    let done = sandbox
        .distlock()
        .args(["run", "x", "--", "printf", "%s|"])
        .args([OsStr::new("a b"), odd, OsStr::new(""), OsStr::new("--help")])
        .output()
        .unwrap();
    assert_eq!(done.stdout, b"a b|\xff\xfe *||--help|");
}

#[test]
fn the_command_inherits_no_file_no_blocked_signal_and_no_helper_variable() {
    let sandbox = Sandbox::new();
    let script = "ls /proc/self/fd | wc -l; grep SigBlk /proc/self/status; grep SigIgn /proc/self/status; env | grep -c ^DISTLOCK_; ps -o pgid= -p $$; echo $$";
    let inside = sandbox.distlock().args(["run", "x"]).args(sh(script)).output().unwrap();
    let outside = std::process::Command::new("sh")
        .env_remove("DISTLOCK_STORE")
        .args(["-c", script])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let (inside, outside) = (stdout(&inside), stdout(&outside));
    let (inside, outside): (Vec<&str>, Vec<&str>) = (inside.lines().collect(), outside.lines().collect());
    assert_eq!(inside[..3], outside[..3], "files, blocked and ignored signals");
    // The test kit has such variables too.
    let (with, without): (u32, u32) = (inside[3].parse().unwrap(), outside[3].parse().unwrap());
    assert_eq!(with, without + 2, "DISTLOCK_NAME and DISTLOCK_TOKEN");
    assert_eq!(inside[4].trim(), inside[5], "it does not lead its own process group");
}

#[test]
fn a_closed_stdin_does_not_fail_the_run() {
    let sandbox = Sandbox::new();
    let line = format!("exec 0<&-; {} run x -- sh -c 'cat; echo done'", common::BINARY);
    let done = std::process::Command::new("sh")
        .args(["-c", &line])
        .env("XDG_STATE_HOME", sandbox.path("state"))
        .env_remove("DISTLOCK_STORE")
        .output()
        .unwrap();
    assert_eq!((code(&done), stdout(&done)), (0, "done\n".to_owned()), "{}", stderr(&done));
}

#[test]
fn without_home_the_folder_of_the_user_is_found() {
    let sandbox = Sandbox::new();
    let listed = |home: Option<&str>| {
        let mut command = sandbox.distlock();
        command.env_remove("XDG_STATE_HOME").env_remove("HOME").args(["ls", "nothing/has/this/prefix"]);
        if let Some(home) = home {
            command.env("HOME", home);
        }
        command.output().unwrap()
    };
    let unset = listed(None);
    assert_eq!(code(&unset), 0, "{}", stderr(&unset));
    // A relative folder would be another one in each current folder.
    let relative = listed(Some("home"));
    assert_eq!(code(&relative), 64, "{}", stderr(&relative));
}

#[test]
fn the_store_variable_is_used_and_an_empty_one_counts_as_unset() {
    let sandbox = Sandbox::new();
    let url = format!("file://{}", sandbox.path("by-variable").display());
    let done = sandbox.distlock().env("DISTLOCK_STORE", &url).args(["run", "x", "true"]).output().unwrap();
    assert_eq!(code(&done), 0, "{}", stderr(&done));
    assert!(sandbox.path("by-variable").exists() && !sandbox.path("state").exists());
    let done = sandbox.distlock().env("DISTLOCK_STORE", "").args(["run", "x", "true"]).output().unwrap();
    assert_eq!(code(&done), 0, "{}", stderr(&done));
    assert!(sandbox.path("state/distlock").exists());
}
