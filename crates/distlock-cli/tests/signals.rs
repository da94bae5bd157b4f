//! Signals to `distlock`: passed on to the whole command, or the end of a wait that leaves nothing behind.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{Background, Place, is_alive, sh, state, wait_for, wait_until_dead};
use nix::sys::signal::Signal;

#[test]
fn a_signal_reaches_the_whole_command_and_its_code_comes_back() {
    let place = Place::new();
    for (signal, wanted) in [
        (Signal::SIGINT, 130),
        (Signal::SIGTERM, 143),
        (Signal::SIGHUP, 129),
        (Signal::SIGQUIT, 131),
        (Signal::SIGUSR1, 138),
        (Signal::SIGUSR2, 140),
    ] {
        let _ = std::fs::remove_file(place.path("grandchild"));
        let script = "sh -c 'echo $$ > grandchild; exec sleep 60'; exit 9";
        let run = Background::start(place.distlock().args(["run", "x"]).args(sh(script)));
        let grandchild = place.wait_for_pid("grandchild");
        run.send(signal);
        let (code, said) = run.finish();
        assert_eq!((code, said.as_str()), (wanted, ""), "{signal}");
        wait_until_dead(grandchild);
        assert!(place.is_free("x"), "{signal}");
    }
}

#[test]
fn a_command_that_tidies_up_is_waited_for_and_the_lock_held_until_then() {
    let place = Place::new();
    let script = "trap 'echo > told; while ! test -e go; do sleep 0.01; done; exit 7' TERM; echo > ready; while :; do sleep 0.01; done";
    let run = Background::start(place.leased().args(["run", "x"]).args(sh(script)));
    place.wait_for_file("ready");
    run.send(Signal::SIGTERM);
    place.wait_for_file("told");
    assert!(place.record("x")["holder"].is_object(), "still held while the command tidies up");
    std::fs::write(place.path("go"), "").unwrap();
    assert_eq!(run.finish().0, 7);
    assert!(place.record("x")["holder"].is_null(), "released");
}

#[test]
fn a_signal_ends_the_wait_and_leaves_nothing_behind() {
    let place = Place::new();
    let holder = Background::start(place.leased().args(["run", "x"]).args(sh("echo > held; exec sleep 60")));
    place.wait_for_file("held");
    for (signal, wanted) in
        [(Signal::SIGINT, 130), (Signal::SIGTERM, 143), (Signal::SIGHUP, 129), (Signal::SIGUSR1, 138)]
    {
        let waiter = Background::start(place.leased().args(["run", "x", "--", "touch", "ran"]));
        let pid = format!(":{}#", waiter.pid());
        wait_for("the waiter", || place.record("x")["waiters"].to_string().contains(&pid).then_some(()));
        waiter.send(signal);
        assert_eq!(waiter.finish().0, wanted, "{signal}");
        assert_eq!(place.record("x")["waiters"].as_array().unwrap().len(), 0, "withdrawn");
    }
    holder.send(Signal::SIGTERM);
    holder.finish();
    assert!(!place.path("ran").exists());
    assert!(place.record("x")["holder"].is_null(), "nothing is held by anybody");
}

#[test]
fn nohup_keeps_its_promise() {
    let place = Place::new();
    let line =
        format!("trap '' HUP; exec {} run x -- sh -c 'echo $$ > ready; exec sleep 60'", common::BINARY);
    let mut command = std::process::Command::new("sh");
    command.args(["-c", &line]).current_dir(place.path("")).env("XDG_STATE_HOME", place.path("state"));
    let run = Background::start(command.env_remove("DISTLOCK_STORE"));
    let command = place.wait_for_pid("ready");
    run.send(Signal::SIGHUP);
    common::send(command, Signal::SIGHUP);
    // A signal that is heard comes after one that is not.
    run.send(Signal::SIGTERM);
    assert_eq!(run.finish().0, 143, "ended by the second, not by the first");
}

#[test]
fn a_stop_by_ctrl_z_stops_the_command_too_and_both_go_on() {
    let place = Place::new();
    let run = Background::start(
        place
            .distlock()
            .args(["run", "x"])
            // A shell that starts programs all the time may be stopped just when its child is born, and then looks
            // uninterruptible and not stopped.
            .args(sh("mkfifo go; echo $$ > ready; read line < go")),
    );
    let command = place.wait_for_pid("ready");
    run.send(Signal::SIGTSTP);
    wait_for("the command to stop", || (state(command) == Some('T')).then_some(()));
    wait_for("distlock to stop", || (state(run.pid()) == Some('T')).then_some(()));
    assert!(is_alive(command));
    run.send(Signal::SIGCONT);
    std::fs::write(place.path("go"), "on\n").unwrap();
    assert_eq!(run.finish().0, 0);
    assert!(place.is_free("x"));
}

#[test]
fn what_a_command_leaves_in_the_background_is_left_alone_when_it_ends_by_itself() {
    let place = Place::new();
    let script = "sleep 60 >/dev/null 2>&1 & echo $! > daemon; exit 3";
    let run = Background::start(place.distlock().args(["run", "x"]).args(sh(script)));
    assert_eq!(run.finish().0, 3);
    let daemon = place.wait_for_pid("daemon");
    assert!(is_alive(daemon), "as daemons are started");
    common::send(daemon, Signal::SIGKILL);
    assert!(place.is_free("x"));
}
