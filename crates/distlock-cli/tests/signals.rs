//! Hazard: a signal to `distlock` does not reach the command, or ends a wait and leaves a waiter.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{Background, Sandbox, is_alive, sh, state, wait_for, wait_until_dead};
use nix::sys::signal::Signal;

#[test]
fn a_signal_reaches_the_whole_command_and_its_exit_code_is_returned() {
    let sandbox = Sandbox::new();
    for (signal, wanted) in [
        (Signal::SIGINT, 130),
        (Signal::SIGTERM, 143),
        (Signal::SIGHUP, 129),
        (Signal::SIGQUIT, 131),
        (Signal::SIGUSR1, 138),
        (Signal::SIGUSR2, 140),
    ] {
        let _ = std::fs::remove_file(sandbox.path("grandchild"));
        let script = "sh -c 'echo $$ > grandchild; exec sleep 60'; exit 9";
        let run = Background::start(sandbox.distlock().args(["run", "x"]).args(sh(script)));
        let grandchild = sandbox.wait_for_pid("grandchild");
        run.send(signal);
        let (code, said) = run.finish();
        assert_eq!((code, said.as_str()), (wanted, ""), "{signal}");
        wait_until_dead(grandchild);
        assert!(sandbox.is_free("x"), "{signal}");
    }
}

#[test]
fn the_lock_is_held_while_a_command_cleans_up_after_a_signal() {
    let sandbox = Sandbox::new();
    let script = "trap 'echo > told; while ! test -e go; do sleep 0.01; done; exit 7' TERM; echo > ready; while :; do sleep 0.01; done";
    let run = Background::start(sandbox.leased().args(["run", "x"]).args(sh(script)));
    sandbox.wait_for_file("ready");
    run.send(Signal::SIGTERM);
    sandbox.wait_for_file("told");
    assert!(sandbox.record("x")["holder"].is_object(), "released while the command cleans up");
    std::fs::write(sandbox.path("go"), "").unwrap();
    assert_eq!(run.finish().0, 7);
    assert!(sandbox.record("x")["holder"].is_null(), "released");
}

#[test]
fn a_signal_ends_the_wait_and_leaves_no_waiter() {
    let sandbox = Sandbox::new();
    let holder = sandbox.hold(sandbox.leased().args(["run", "x"]));
    for (signal, wanted) in
        [(Signal::SIGINT, 130), (Signal::SIGTERM, 143), (Signal::SIGHUP, 129), (Signal::SIGUSR1, 138)]
    {
        let waiter = Background::start(sandbox.leased().args(["run", "x", "--", "touch", "ran"]));
        let pid = format!(":{}#", waiter.pid());
        wait_for("the waiter", || sandbox.record("x")["waiters"].to_string().contains(&pid).then_some(()));
        waiter.send(signal);
        assert_eq!(waiter.finish().0, wanted, "{signal}");
        assert_eq!(sandbox.record("x")["waiters"].as_array().unwrap().len(), 0, "withdrawn");
    }
    holder.send(Signal::SIGTERM);
    holder.finish();
    assert!(!sandbox.path("ran").exists());
    assert!(sandbox.record("x")["holder"].is_null(), "still held");
}

#[test]
fn an_ignored_sighup_stays_ignored() {
    let sandbox = Sandbox::new();
    let line =
        format!("trap '' HUP; exec {} run x -- sh -c 'echo $$ > ready; exec sleep 60'", common::BINARY);
    let mut command = std::process::Command::new("sh");
    command.args(["-c", &line]).current_dir(sandbox.path("")).env("XDG_STATE_HOME", sandbox.path("state"));
    let run = Background::start(command.env_remove("DISTLOCK_STORE"));
    let command = sandbox.wait_for_pid("ready");
    run.send(Signal::SIGHUP);
    common::send(command, Signal::SIGHUP);
    // The ignored signal comes first, then one that is handled.
    run.send(Signal::SIGTERM);
    assert_eq!(run.finish().0, 143, "ended by the first signal");
}

#[test]
fn ctrl_z_stops_distlock_and_the_command_and_both_resume() {
    let sandbox = Sandbox::new();
    let run = Background::start(
        sandbox
            .distlock()
            .args(["run", "x"])
            // A shell that is stopped while it forks looks uninterruptible, not stopped; so this one starts no programs.
            .args(sh("mkfifo go; echo $$ > ready; read line < go")),
    );
    let command = sandbox.wait_for_pid("ready");
    run.send(Signal::SIGTSTP);
    wait_for("the command to stop", || (state(command) == Some('T')).then_some(()));
    wait_for("distlock to stop", || (state(run.pid()) == Some('T')).then_some(()));
    assert!(is_alive(command));
    run.send(Signal::SIGCONT);
    std::fs::write(sandbox.path("go"), "on\n").unwrap();
    assert_eq!(run.finish().0, 0);
    assert!(sandbox.is_free("x"));
}

#[test]
fn a_daemon_of_a_command_that_ended_by_itself_keeps_running() {
    let sandbox = Sandbox::new();
    let script = "sleep 60 >/dev/null 2>&1 & echo $! > daemon; exit 3";
    let run = Background::start(sandbox.distlock().args(["run", "x"]).args(sh(script)));
    assert_eq!(run.finish().0, 3);
    let daemon = sandbox.wait_for_pid("daemon");
    assert!(is_alive(daemon), "the daemon was killed");
    common::send(daemon, Signal::SIGKILL);
    assert!(sandbox.is_free("x"));
}
