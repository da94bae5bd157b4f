//! Every command on every store with a server: the contract is the same.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::process::Command;

use common::{BINARY, Background, Sandbox, code, sh, stderr, stdout, wait_for, wait_until_dead};
use distlock_testkit::servers::{
    EtcdServer, MongoServer, MysqlServer, PostgresServer, RedisServer, ServerProcess, ZookeeperServer,
};

const NAME: &str = "a b/ü";

/// The command on one store.
struct StoreFixture {
    sandbox: Sandbox,
    url: String,
}

impl StoreFixture {
    fn new(url: String) -> Self {
        StoreFixture { sandbox: Sandbox::new(), url }
    }

    fn distlock(&self) -> Command {
        let mut command = self.sandbox.distlock();
        command.env("DISTLOCK_STORE", &self.url).env("D", BINARY);
        command
    }

    /// Runs it, checks its exit code, and returns its stdout.
    fn run_to_end(&self, wanted: i32, args: &[&str]) -> String {
        let done = self.distlock().args(args).output().unwrap();
        assert_eq!(code(&done), wanted, "{}: {args:?}: {}", self.url, stderr(&done));
        stdout(&done)
    }

    /// Holds the lock with a long-running command: its token, and its process id.
    fn hold(&self, expiry: &str) -> (Background, u64, i32) {
        let script = "echo $$ > pid; echo $DISTLOCK_TOKEN > token; exec sleep 60";
        for file in ["pid", "token"] {
            let _ = std::fs::remove_file(self.sandbox.path(file));
        }
        let run = Background::start(self.distlock().args(["run", "--expiry", expiry, NAME]).args(sh(script)));
        let token = self.sandbox.wait_for_file("token").trim().parse().unwrap();
        (run, token, self.sandbox.wait_for_pid("pid"))
    }
}

impl StoreFixture {
    fn shared_and_fair_locks(&self) {
        let inner = "\"$D\" run --no-wait --read both true && ! \"$D\" run --no-wait --write both true";
        self.run_to_end(0, &["run", "--read", "both", "--", "sh", "-c", inner]);
        self.run_to_end(
            75,
            &[
                "run",
                "--of",
                "3",
                "--permits",
                "2",
                "gpu",
                BINARY,
                "run",
                "-n",
                "--of",
                "3",
                "--permits",
                "2",
                "gpu",
                "true",
            ],
        );
        self.run_to_end(0, &["run", "--fair", NAME, "true"]);
    }

    /// A forced release ends a session with all its locks, and says so.
    fn break_names_what_else_is_lost(&self) {
        let locks = distlock::blocking::connect(&self.url).unwrap();
        let guards = [NAME, "beside it"].map(|name| locks.mutex(name).acquire().unwrap());
        let broken = self.distlock().args(["break", NAME, "--yes"]).output().unwrap();
        let said = stderr(&broken);
        assert_eq!(code(&broken), 0, "{said}");
        assert!(said.contains("all that its session held: also mutex \"beside it\""), "{said}");
        wait_for("the loss", || guards.iter().all(|guard| guard.is_lost()).then_some(()));
    }

    /// Waits until a second client is counted, where the store shows waiters.
    fn waiter_is_counted(&self) {
        let listed =
            || -> serde_json::Value { serde_json::from_str(&self.run_to_end(0, &["ls", "--json"])).unwrap() };
        let now = listed()[0]["waiting"].clone();
        if now.is_null() {
            return;
        }
        assert_eq!(now, 0);
        let waiter = Background::start(self.distlock().args(["run", NAME, "true"]));
        wait_for("a counted waiter", || (listed()[0]["waiting"] == 1).then_some(()));
        waiter.send(nix::sys::signal::Signal::SIGTERM);
        waiter.finish();
    }
}

fn every_command_works(url: String, server: &ServerProcess, has_schema: bool, pushes: bool) {
    let store = StoreFixture::new(url);
    let fresh = store.distlock().arg("doctor").output().unwrap();
    // Test servers have warnings of their own, such as a single member; what is not created yet is none.
    assert!([0, 1].contains(&code(&fresh)), "{}", stderr(&fresh));
    let warnings: Vec<String> =
        stdout(&fresh).lines().filter(|line| line.starts_with("[!!]")).map(str::to_owned).collect();
    for word in ["missing", "not exist", "no table", "index"] {
        assert!(!warnings.iter().any(|line| line.contains(word)), "a fresh store: {warnings:?}");
    }
    let (holder, token, _) = store.hold("10s");
    let busy = store.distlock().args(["run", "--no-wait", NAME, "true"]).output().unwrap();
    assert_eq!(code(&busy), 75, "{}", stderr(&busy));
    let said = stderr(&busy);
    // ZooKeeper knows when a holder queued, not when it was granted.
    let since = if store.url.starts_with("zookeeper:") { " (" } else { " for " };
    let holder_label = format!(":{}{since}", holder.pid());
    assert!(said.contains(&format!("mutex {NAME:?} is held by ")) && said.contains(&holder_label), "{said}");
    store.run_to_end(9, &["run", "--timeout", "300ms", "-E", "9", NAME, "true"]);
    let listed: serde_json::Value =
        serde_json::from_str(&store.run_to_end(0, &["ls", "a b", "--json"])).unwrap();
    assert_eq!(listed.as_array().map(Vec::len), Some(1), "{listed}");
    assert_eq!((&listed[0]["kind"], &listed[0]["mode"]), (&"mutex".into(), &"exclusive".into()), "{listed}");
    assert!(listed[0]["holder"].as_str().unwrap().ends_with(&format!(":{}", holder.pid())), "{listed}");
    assert_eq!(listed[0]["token"], token, "{listed}");
    assert!(store.run_to_end(0, &["show", NAME]).contains("mutex"));
    let shown = store.run_to_end(0, &["show", NAME, "--json"]);
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown[0]["command"], "sh", "{shown}");
    assert!(shown[0]["user"].is_string(), "{shown}");
    store.waiter_is_counted();
    assert_eq!(store.run_to_end(1, &["show", "free", "--json"]), "[]\n");
    store.run_to_end(1, &["break", "free", "--yes"]);

    let broken = store.distlock().args(["break", NAME, "--yes"]).output().unwrap();
    let said = stderr(&broken);
    assert_eq!(code(&broken), 0, "{said}");
    assert_eq!(said.contains("told at once"), pushes, "{said}");
    assert!(said.contains(&format!(":{} ", holder.pid())) && said.contains("at the same time"), "{said}");
    let (status, said) = holder.finish();
    assert_eq!(status, 76, "{said}");
    let next = store.run_to_end(0, &["run", NAME, "--", "sh", "-c", "echo $DISTLOCK_TOKEN"]);
    assert!(next.trim().parse::<u64>().unwrap() > token, "{next} after {token}");

    if !store.url.starts_with("mysql+session:") {
        store.shared_and_fair_locks();
    } else {
        // What a store cannot do is refused.
        for args in [&["--read"][..], &["--of", "3"], &["--fair"]] {
            let refused = store.distlock().arg("run").args(args).args([NAME, "true"]).output().unwrap();
            assert!(code(&refused) == 64 && stderr(&refused).contains("mysql://"), "{}", stderr(&refused));
        }
    }
    assert_eq!(store.run_to_end(0, &["ls", "--json"]), "[]\n", "a lock is left");

    let examined = store.distlock().arg("doctor").output().unwrap();
    assert!([0, 1].contains(&code(&examined)) && !stdout(&examined).is_empty(), "{}", stderr(&examined));
    let schema = store.run_to_end(if has_schema { 0 } else { 64 }, &["schema"]);
    assert_eq!(!schema.is_empty(), has_schema, "{schema}");

    let (holder, _, command) = store.hold("3s");
    server.kill();
    wait_until_dead(command);
    let (status, said) = holder.finish();
    assert_eq!(status, 76, "{said}");
    for args in [&["run", NAME, "true"][..], &["ls"], &["doctor"]] {
        store.run_to_end(69, args);
    }
}

#[test]
fn redis() {
    let server = RedisServer::start();
    every_command_works(server.url(), &server, false, true);
}

#[test]
fn postgres() {
    let server = PostgresServer::start();
    every_command_works(server.url(), &server, true, true);
}

#[test]
fn postgres_advisory() {
    let server = PostgresServer::start();
    let url = server.url().replace("postgres:", "postgres+advisory:");
    StoreFixture::new(url.clone()).break_names_what_else_is_lost();
    every_command_works(url, &server, true, true);
}

#[test]
fn mysql() {
    let server = MysqlServer::start();
    every_command_works(server.url(), &server, true, false);
}

#[test]
fn mysql_session() {
    let server = MysqlServer::start();
    let url = server.url_of("mysql+session", "app");
    StoreFixture::new(url.clone()).break_names_what_else_is_lost();
    every_command_works(url, &server, true, true);
}

#[test]
fn zookeeper() {
    let server = ZookeeperServer::start();
    every_command_works(server.url(), &server, false, true);
}

#[test]
fn etcd() {
    let server = EtcdServer::start();
    every_command_works(server.url(), &server, false, true);
}

#[test]
fn mongodb() {
    let server = MongoServer::start();
    every_command_works(server.url().replace("/?", "/locks?"), &server, true, false);
}
