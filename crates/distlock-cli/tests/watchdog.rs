//! Hazard: `distlock` or its watchdog is paused or killed, and the command keeps running without the lock.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::process::Command;
use std::time::Duration;

use common::{
    Background, Sandbox, boot_clock, in_time, is_alive, send, sh, state, wait_for, wait_until_dead,
};
use nix::sys::signal::Signal;

/// A command with a child in its group and one that left the group and lost its parent, as daemons do. None of them
/// handles SIGTERM.
const STUBBORN_TREE: &str = "trap '' TERM INT HUP
    sleep 60 & echo $! > child
    (setsid sh -c 'echo $$ > stray; exec sleep 60' &)
    while ! test -s child -a -s stray; do sleep 0.01; done
    echo $$ > leader; while :; do sleep 0.05; done";

/// The files with the process ids of the tree.
const TREE: [&str; 3] = ["leader", "child", "stray"];

/// Starts the command, and returns its process ids.
fn start(sandbox: &Sandbox, command: &mut Command) -> (Background, [i32; 3]) {
    let run = Background::start(command.arg("x").args(sh(STUBBORN_TREE)));
    (run, TREE.map(|name| sandbox.wait_for_pid(name)))
}

/// Runs a test on the file store and on a store with leases, in one sandbox.
fn on_both_stores(test: impl Fn(Background, [i32; 3])) -> Sandbox {
    let sandbox = Sandbox::new();
    for mut command in [sandbox.distlock(), sandbox.leased()] {
        let (run, tree) = start(&sandbox, command.arg("run"));
        test(run, tree);
        TREE.iter().for_each(|name| std::fs::remove_file(sandbox.path(name)).unwrap());
    }
    sandbox
}

/// Runs the command under a lease and checks that it is dead before the lease ends, whatever `disturb` does.
fn dies_before_the_lease_ends(
    expiry: &str,
    disturb: impl Fn(&Sandbox, &Background),
    after: impl Fn(Background),
) -> Result<(), String> {
    let sandbox = Sandbox::new();
    let (run, tree) = start(&sandbox, sandbox.leased().args(["run", "--expiry", expiry]));
    disturb(&sandbox, &run);
    // Read repeatedly while the lease is renewed; the last value is its end.
    let mut end = Duration::ZERO;
    wait_for("the end of the command", || {
        end = sandbox.lease_end("x").unwrap_or(end).max(end);
        tree.iter().all(|pid| !is_alive(*pid)).then_some(())
    });
    let now = boot_clock();
    let left = end
        .checked_sub(now)
        .ok_or_else(|| format!("the command outlived its lease, by {:?} at most", now - end))?;
    println!("dead {left:?} before the end of a lease of {expiry}");
    after(run);
    Ok(())
}

#[test]
fn a_killed_distlock_takes_its_command_with_it() {
    let sandbox = on_both_stores(|run, tree| {
        let watchdog = run.watchdog();
        run.send(Signal::SIGKILL);
        tree.into_iter().for_each(wait_until_dead);
        wait_until_dead(watchdog);
    });
    assert!(sandbox.is_free("x"));
}

#[test]
fn a_paused_distlock_loses_its_command_before_the_lease_ends() {
    in_time(|| {
        dies_before_the_lease_ends(
            "2s",
            |_, run| run.send(Signal::SIGSTOP),
            |run| {
                assert_eq!(state(run.pid()), Some('T'), "it is still paused");
                run.send(Signal::SIGCONT);
                let (code, said) = run.finish();
                assert_eq!(code, 76, "{said}");
                assert!(said.contains("lost mutex \"x\"") || said.contains("losing mutex \"x\""), "{said}");
            },
        )
    });
}

#[test]
fn a_stop_of_the_whole_group_of_distlock_does_not_stop_the_watchdog() {
    in_time(|| {
        dies_before_the_lease_ends(
            "1s",
            |_, run| {
                nix::sys::signal::killpg(nix::unistd::Pid::from_raw(run.pid()), Signal::SIGSTOP).unwrap();
            },
            |run| {
                run.send(Signal::SIGCONT);
                assert_eq!(run.finish().0, 76);
            },
        )
    });
}

#[test]
fn a_paused_distlock_keeps_its_command_where_the_kernel_keeps_the_lock() {
    let sandbox = Sandbox::new();
    let run = Background::start(
        sandbox
            .distlock()
            .args(["run", "--expiry", "100ms", "x"])
            .args(sh("echo $$ > leader; exec sleep 60")),
    );
    let leader = sandbox.wait_for_pid("leader");
    run.send(Signal::SIGSTOP);
    // Many times the expiry, which kernel locks do not have.
    std::thread::sleep(Duration::from_millis(600));
    assert!(is_alive(leader) && !sandbox.is_free("x"), "the lock is held, so the command may run");
    run.send(Signal::SIGCONT);
    run.send(Signal::SIGTERM);
    assert_eq!(run.finish().0, 143);
}

#[test]
fn a_paused_distlock_does_not_save_a_command_whose_lock_file_was_removed() {
    for (options, file) in [(&[][..], "mutex/x.lock"), (&["--write"], "rwlock/x/hold")] {
        let sandbox = Sandbox::new();
        let (run, tree) = start(&sandbox, sandbox.distlock().arg("run").args(options));
        run.send(Signal::SIGSTOP);
        wait_for("a paused distlock", || (state(run.pid()) == Some('T')).then_some(()));
        let path = sandbox.path("state/distlock").join(file);
        if path.is_dir() {
            std::fs::remove_dir_all(&path).unwrap();
        } else {
            std::fs::remove_file(&path).unwrap();
        }
        tree.into_iter().for_each(wait_until_dead);
        assert_eq!(state(run.pid()), Some('T'), "it is still paused");
        run.send(Signal::SIGCONT);
        let (code, said) = run.finish();
        assert_eq!(code, 76, "{said}");
        assert!(said.contains("lost ") && said.contains("removed"), "{said}");
    }
}

#[test]
fn a_killed_watchdog_takes_the_command_with_it_and_the_lock_is_released() {
    let sandbox = on_both_stores(|run, tree| {
        send(run.watchdog(), Signal::SIGKILL);
        let (code, said) = run.finish();
        assert_eq!(code, 137, "{said}");
        assert!(said.contains("watchdog"), "{said}");
        for pid in tree {
            assert!(!is_alive(pid), "alive when the lock is released");
        }
    });
    assert!(sandbox.is_free("x"));
    assert!(sandbox.record("x")["holder"].is_null());
}

#[test]
fn a_paused_watchdog_does_not_save_a_command_that_lost_its_lock() {
    in_time(|| {
        dies_before_the_lease_ends(
            "2s",
            |sandbox, run| {
                send(run.watchdog(), Signal::SIGSTOP);
                sandbox.fault("renew.fail");
            },
            |run| {
                let (code, said) = run.finish();
                assert_eq!(code, 76, "{said}");
            },
        )
    });
}

#[test]
fn a_watchdog_ignores_every_signal_that_can_be_blocked() {
    let sandbox = Sandbox::new();
    let run = Background::start(
        sandbox
            .distlock()
            .args(["run", "x"])
            .args(sh("echo $$ > leader; while ! test -e go; do sleep 0.01; done; exit 4")),
    );
    let leader = sandbox.wait_for_pid("leader");
    let watchdog = run.watchdog();
    for signal in
        [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGTSTP, Signal::SIGUSR1]
    {
        send(watchdog, signal);
    }
    assert!(is_alive(watchdog) && is_alive(leader));
    std::fs::write(sandbox.path("go"), "").unwrap();
    let (code, said) = run.finish();
    assert_eq!((code, said.as_str()), (4, ""));
}

#[test]
fn a_program_file_that_was_replaced_meanwhile_does_not_fail_the_run() {
    let sandbox = Sandbox::new();
    let copy = sandbox.path("distlock");
    common::copy_program(common::BINARY, &copy);
    let holder = sandbox.hold(sandbox.distlock().args(["run", "x"]));
    let mut waiter = Command::new(&copy);
    waiter.env_remove("DISTLOCK_STORE").env("XDG_STATE_HOME", sandbox.path("state"));
    let waiter = Background::start(waiter.args(["run", "-v", "x", "--", "sh", "-c", "exit 5"]));
    wait_for("the waiter to wait", || {
        (common::children(waiter.pid()).is_empty() && is_alive(waiter.pid())).then_some(())
    });
    std::fs::remove_file(&copy).unwrap();
    std::fs::write(&copy, "not a program").unwrap();
    holder.send(Signal::SIGTERM);
    let (code, said) = waiter.finish();
    assert_eq!(code, 5, "{said}");
}
