//! A waiter that is stopped (SIGSTOP) while it waits, is granted the lock meanwhile, and resumes after that grant has
//! ended and another holder is at work. It asks again, is told to wait, and then the message about the old grant comes.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::fs;
use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use common::{Background, Place, code, sh, state, stderr, stdout, wait_for};
use distlock_testkit::proxy::Proxy;
use distlock_testkit::servers::{MongoReplicaSet, PostgresServer, RedisServer};
use nix::sys::signal::Signal;

/// Each kind of lock so many times, all kinds at once.
const ROUNDS: usize = 3;

/// The kinds of lock that pass from a holder to a waiter.
const KINDS: [&[&str]; 3] = [&[], &["--write"], &["--permits", "1", "--of", "1"]];

/// Longer than the grant to a waiter lasts.
const PAUSED: Duration = Duration::from_millis(2150);

/// From the waiter's resuming to its hearing of the grant. Were the message not held up, chance would decide whether the
/// waiter reads it before or after its next attempt, and it does harm only after that.
const LATE: Duration = Duration::from_millis(300);

/// For how long both are observed after that.
const OBSERVED: Duration = Duration::from_millis(1000);

/// Says that it runs, notes whether it runs alone, and goes on until it is told to end.
fn alone(who: &str) -> String {
    format!(
        "mkdir inside || echo {who} >> overlaps; echo > {who}-runs
         while ! test -e {who}-end; do sleep 0.01; done; rmdir inside || true"
    )
}

/// The server's URL and its address.
struct Site {
    url: String,
    addr: SocketAddr,
}

struct Round<'a> {
    place: Place,
    site: &'a Site,
    /// The waiter's way to the server.
    proxy: &'a Proxy,
    kind: &'a [&'a str],
    name: String,
}

impl Round<'_> {
    fn distlock(&self) -> Command {
        let mut command = self.place.distlock();
        command.env("DISTLOCK_STORE", &self.site.url);
        command
    }

    fn start(&self, who: &str, options: &[&str], mut distlock: Command) -> Background {
        let run = distlock.arg("run").args(options).args(self.kind).arg(&self.name);
        Background::start(run.args(sh(&alone(who))))
    }

    fn end(&self, who: &str) {
        fs::write(self.place.path(&format!("{who}-end")), "").unwrap();
    }

    fn wait_until_queued(&self, waiter: &Background) {
        let label = format!(":{}\"", waiter.pid());
        wait_for("the waiter to be queued", || {
            let shown = self.distlock().args(["show", &self.name, "--json"]).output().unwrap();
            assert_eq!(code(&shown), 0, "{}", stderr(&shown));
            let shown = stdout(&shown);
            (shown.contains("\"waiting\"") && shown.contains(&label)).then_some(())
        });
    }

    /// True if the other holder and the resumed waiter ran side by side.
    fn play(&self) -> bool {
        let holder = self.start("first", &[], self.distlock());
        self.place.wait_for_file("first-runs");
        let mut through = self.distlock();
        through.env("DISTLOCK_STORE", self.proxy.through(&self.site.url));
        // Not for longer, since an attempt that is in flight now may be granted for as long as it asks.
        let waiter = self.start("waiter", &["--expiry", "3s"], through);
        self.wait_until_queued(&waiter);
        waiter.send(Signal::SIGSTOP);
        wait_for("a stopped waiter", || (state(waiter.pid()) == Some('T')).then_some(()));
        self.proxy.pause();
        self.end("first");
        assert_eq!(holder.finish().0, 0);
        std::thread::sleep(PAUSED);
        let other = self.start("other", &[], self.distlock());
        self.place.wait_for_file("other-runs");
        waiter.send(Signal::SIGCONT);
        std::thread::sleep(LATE);
        self.proxy.resume();
        let side_by_side = self.ran_by(Instant::now() + OBSERVED);
        self.end("waiter");
        self.end("other");
        let (other, said) = other.finish();
        assert_eq!(other, 0, "{said}");
        if !side_by_side {
            let (waiter, said) = waiter.finish();
            assert_eq!(waiter, 0, "the waiter still gets its turn: {said}");
        }
        side_by_side || self.place.path("overlaps").exists()
    }

    /// Whether the waiter's command was started by then.
    fn ran_by(&self, then: Instant) -> bool {
        while Instant::now() < then {
            if self.place.path("waiter-runs").exists() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    }
}

fn a_resumed_waiter_never_runs_beside_the_next_holder(site: &Site) {
    let rounds = |at: usize, kind: &[&str]| {
        let proxy = &Proxy::start(site.addr);
        let rounds = (0..ROUNDS).map(|round| {
            let name = format!("paused-{at}-{round}");
            let round = Round { place: Place::new(), site, proxy, kind, name };
            round.play().then(|| format!("{kind:?}"))
        });
        rounds.flatten().collect::<Vec<String>>()
    };
    let side_by_side: Vec<String> = std::thread::scope(|scope| {
        let kinds = KINDS.iter().enumerate().map(|(at, kind)| scope.spawn(move || rounds(at, kind)));
        let kinds: Vec<_> = kinds.collect();
        kinds.into_iter().flat_map(|kind| kind.join().unwrap()).collect()
    });
    let (count, rounds) = (side_by_side.len(), KINDS.len() * ROUNDS);
    assert_eq!(count, 0, "two commands side by side in {count} of {rounds} rounds: {side_by_side:?}");
}

#[test]
fn a_stale_grant_is_not_believed_on_redis() {
    let server = RedisServer::start();
    a_resumed_waiter_never_runs_beside_the_next_holder(&Site { url: server.url(), addr: server.addr() });
}

#[test]
fn a_stale_grant_is_not_believed_on_postgres() {
    let server = PostgresServer::start();
    a_resumed_waiter_never_runs_beside_the_next_holder(&Site { url: server.url(), addr: server.addr() });
}

#[test]
fn a_stale_grant_is_not_believed_on_mongodb() {
    // Only a replica set can push.
    let set = MongoReplicaSet::start(1);
    let server = &set.members()[0];
    let url = server.url().replace("/?", "/locks?");
    a_resumed_waiter_never_runs_beside_the_next_holder(&Site { url, addr: server.addr() });
}
