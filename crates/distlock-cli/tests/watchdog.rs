//! Whatever happens to `distlock` or to its watchdog, the command does not run on without the lock.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::time::Duration;

use common::{Background, Place, boot_clock, in_time, is_alive, send, sh, state, wait_for, wait_until_dead};
use nix::sys::signal::Signal;

/// A command with a child in its group and one that left the group and lost its parent, as daemons do. None of them
/// hears SIGTERM.
const STUBBORN_FAMILY: &str = "trap '' TERM INT HUP
    sleep 60 & echo $! > child
    (setsid sh -c 'echo $$ > stray; exec sleep 60' &)
    while ! test -s child -a -s stray; do sleep 0.01; done
    echo $$ > leader; while :; do sleep 0.05; done";

fn family(place: &Place) -> [i32; 3] {
    ["leader", "child", "stray"].map(|name| place.wait_for_pid(name))
}

/// The lease that has to hold until everybody is dead: read before anything happens to who extends it.
fn dead_before_the_lease_ends(place: &Place, family: [i32; 3]) -> Result<Duration, String> {
    // Read again and again while it is extended; once that stops, this is the end that counts.
    let mut end = Duration::ZERO;
    wait_for("the end of the command", || {
        end = place.lease_end("x").unwrap_or(end).max(end);
        family.iter().all(|pid| !is_alive(*pid)).then_some(())
    });
    let now = boot_clock();
    end.checked_sub(now).ok_or_else(|| format!("the command outlived its lease, by {:?} at most", now - end))
}

#[test]
fn a_killed_distlock_takes_its_command_with_it() {
    let place = Place::new();
    for mut command in [place.distlock(), place.leased()] {
        for name in ["leader", "child", "stray"] {
            let _ = std::fs::remove_file(place.path(name));
        }
        let run = Background::start(command.args(["run", "x"]).args(sh(STUBBORN_FAMILY)));
        let (family, watchdog) = (family(&place), run.watchdog());
        run.send(Signal::SIGKILL);
        for pid in family {
            wait_until_dead(pid);
        }
        wait_until_dead(watchdog);
    }
    assert!(place.is_free("x"));
}

#[test]
fn a_frozen_distlock_loses_its_command_before_the_lease_ends() {
    in_time(|| {
        let place = Place::new();
        let run =
            Background::start(place.leased().args(["run", "--expiry", "2s", "x"]).args(sh(STUBBORN_FAMILY)));
        let family = family(&place);
        run.send(Signal::SIGSTOP);
        let left = dead_before_the_lease_ends(&place, family)?;
        println!("frozen distlock: dead {left:?} before the end of a lease of 2 s");
        assert_eq!(state(run.pid()), Some('T'), "it is still frozen");
        run.send(Signal::SIGCONT);
        let (code, said) = run.finish();
        assert_eq!(code, 76, "{said}");
        assert!(said.contains("lost mutex \"x\"") || said.contains("losing mutex \"x\""), "{said}");
        Ok(())
    });
}

#[test]
fn a_stop_of_the_whole_group_of_distlock_does_not_stop_the_watchdog() {
    in_time(|| {
        let place = Place::new();
        let run =
            Background::start(place.leased().args(["run", "--expiry", "1s", "x"]).args(sh(STUBBORN_FAMILY)));
        let family = family(&place);
        nix::sys::signal::killpg(nix::unistd::Pid::from_raw(run.pid()), Signal::SIGSTOP).unwrap();
        let left = dead_before_the_lease_ends(&place, family)?;
        println!("frozen group: dead {left:?} before the end of a lease of 1 s");
        run.send(Signal::SIGCONT);
        assert_eq!(run.finish().0, 76);
        Ok(())
    });
}

#[test]
fn a_frozen_distlock_keeps_its_command_where_the_kernel_keeps_the_lock() {
    let place = Place::new();
    let run = Background::start(
        place.distlock().args(["run", "--expiry", "100ms", "x"]).args(sh("echo $$ > leader; exec sleep 60")),
    );
    let leader = place.wait_for_pid("leader");
    run.send(Signal::SIGSTOP);
    // Many times the expiry, which means nothing here.
    std::thread::sleep(Duration::from_millis(600));
    assert!(is_alive(leader) && !place.is_free("x"), "the lock is held, and so the command may run");
    run.send(Signal::SIGCONT);
    run.send(Signal::SIGTERM);
    assert_eq!(run.finish().0, 143);
}

#[test]
fn a_frozen_distlock_does_not_save_a_command_whose_lock_file_was_removed() {
    for (options, file) in [(&[][..], "mutex/x.lock"), (&["--write"], "rwlock/x/hold")] {
        let place = Place::new();
        let run =
            Background::start(place.distlock().arg("run").args(options).arg("x").args(sh(STUBBORN_FAMILY)));
        let family = family(&place);
        run.send(Signal::SIGSTOP);
        wait_for("a frozen distlock", || (state(run.pid()) == Some('T')).then_some(()));
        let path = place.path("state/distlock").join(file);
        if path.is_dir() {
            std::fs::remove_dir_all(&path).unwrap();
        } else {
            std::fs::remove_file(&path).unwrap();
        }
        for pid in family {
            wait_until_dead(pid);
        }
        assert_eq!(state(run.pid()), Some('T'), "it is still frozen");
        run.send(Signal::SIGCONT);
        let (code, said) = run.finish();
        assert_eq!(code, 76, "{said}");
        assert!(said.contains("lost ") && said.contains("removed"), "{said}");
    }
}

#[test]
fn a_killed_watchdog_takes_the_command_with_it_and_the_lock_is_given_back() {
    let place = Place::new();
    for mut command in [place.distlock(), place.leased()] {
        for name in ["leader", "child", "stray"] {
            let _ = std::fs::remove_file(place.path(name));
        }
        let run = Background::start(command.args(["run", "x"]).args(sh(STUBBORN_FAMILY)));
        let family = family(&place);
        send(run.watchdog(), Signal::SIGKILL);
        let (code, said) = run.finish();
        assert_eq!(code, 137, "{said}");
        assert!(said.contains("watchdog"), "{said}");
        for pid in family {
            assert!(!is_alive(pid), "nobody is left when the lock is given back");
        }
    }
    assert!(place.is_free("x"));
    assert!(place.record("x")["holder"].is_null());
}

#[test]
fn a_frozen_watchdog_does_not_save_a_command_that_lost_its_lock() {
    in_time(|| {
        let place = Place::new();
        let run =
            Background::start(place.leased().args(["run", "--expiry", "2s", "x"]).args(sh(STUBBORN_FAMILY)));
        let family = family(&place);
        send(run.watchdog(), Signal::SIGSTOP);
        place.fault("renew.fail");
        let left = dead_before_the_lease_ends(&place, family)?;
        println!("frozen watchdog: all dead {left:?} before the end of a lease of 2 s");
        let (code, said) = run.finish();
        assert_eq!(code, 76, "{said}");
        Ok(())
    });
}

#[test]
fn a_watchdog_hears_no_signal_that_can_be_refused() {
    let place = Place::new();
    let run = Background::start(
        place
            .distlock()
            .args(["run", "x"])
            .args(sh("echo $$ > leader; while ! test -e go; do sleep 0.01; done; exit 4")),
    );
    let leader = place.wait_for_pid("leader");
    let watchdog = run.watchdog();
    for signal in
        [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGTSTP, Signal::SIGUSR1]
    {
        send(watchdog, signal);
    }
    assert!(is_alive(watchdog) && is_alive(leader));
    std::fs::write(place.path("go"), "").unwrap();
    let (code, said) = run.finish();
    assert_eq!((code, said.as_str()), (4, ""));
}

#[test]
fn a_program_file_that_was_replaced_meanwhile_does_not_matter() {
    let place = Place::new();
    let copy = place.path("distlock");
    std::fs::copy(common::BINARY, &copy).unwrap();
    let holder =
        Background::start(place.distlock().args(["run", "x"]).args(sh("echo > held; exec sleep 60")));
    place.wait_for_file("held");
    let mut waiter = std::process::Command::new(&copy);
    waiter.env_remove("DISTLOCK_STORE").env("XDG_STATE_HOME", place.path("state"));
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
