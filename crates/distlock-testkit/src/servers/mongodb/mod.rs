//! MongoDB: a standalone server, and replica sets.

pub mod bson;
mod replica_set;
pub mod wire;

use std::ffi::OsString;
use std::io;
use std::ops::Deref;
use std::time::Duration;

pub use replica_set::MongoReplicaSet;

use super::clock;
use super::data::DataFolder;
use super::port::Port;
use super::process::{Launch, ServerProcess};
use super::program::MONGOD;
use bson::Document;

/// One `mongod`.
#[derive(Debug)]
pub struct MongoServer {
    process: ServerProcess,
}

impl MongoServer {
    /// Starts a standalone server, without transactions and change streams.
    #[must_use]
    pub fn start() -> Self {
        Self::configure().start()
    }

    /// A builder for a server with other settings than the defaults.
    pub fn configure() -> MongoBuilder {
        MongoBuilder::default()
    }

    /// The server's URL, for a connection to this server alone.
    #[must_use]
    pub fn url(&self) -> String {
        format!("mongodb://127.0.0.1:{}/?directConnection=true", self.port())
    }

    /// Runs a command on a connection of its own.
    ///
    /// # Errors
    /// If the server does not answer within five seconds, or answers that the command failed.
    pub fn command(&self, database: &str, command: &Document) -> io::Result<Document> {
        wire::run(self.port(), database, command, Duration::from_secs(5))
    }

    /// The server's clock, in seconds since 1970; `None` if it does not answer in time.
    #[must_use]
    pub fn time(&self) -> Option<i64> {
        let hello = self.command("admin", &Document::new("hello", 1)).ok()?;
        match hello.get("localTime") {
            Some(bson::Value::DateTime(millis)) => Some(millis / 1000),
            _ => None,
        }
    }

    /// Moves the server's wall clock by this many seconds from the true time, and waits until the server sees it.
    ///
    /// # Panics
    /// If the server was not started with a movable clock, or does not see it.
    pub fn move_clock(&self, seconds: i64) {
        self.set_clock_offset(&format!("{seconds:+}"));
        clock::wait_until_moved(seconds, || self.time());
    }
}

impl Deref for MongoServer {
    type Target = ServerProcess;

    fn deref(&self) -> &ServerProcess {
        &self.process
    }
}

/// How to start a [`MongoServer`].
#[derive(Debug, Default)]
#[must_use]
pub struct MongoBuilder {
    args: Vec<OsString>,
    movable_clock: bool,
}

impl MongoBuilder {
    /// Adds arguments.
    pub fn args<A: Into<OsString>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Lets the test move the server's wall clock.
    pub fn movable_clock(mut self) -> Self {
        self.movable_clock = true;
        self
    }

    /// Starts the server and waits until it answers.
    #[must_use]
    pub fn start(self) -> MongoServer {
        let server = self.spawn();
        server.wait_ready();
        server
    }

    fn spawn(self) -> MongoServer {
        let (folder, port) = (DataFolder::create(), Port::reserve());
        let path = folder.path().as_os_str().to_owned();
        let number = port.number().to_string();
        let mut args: Vec<OsString> =
            vec!["--dbpath".into(), path.clone(), "--unixSocketPrefix".into(), path];
        args.extend(
            ["--port", &number, "--bind_ip", "127.0.0.1", "--wiredTigerCacheSizeGB", "0.25"].map(Into::into),
        );
        for parameter in [
            "diagnosticDataCollectionEnabled=false",
            // Once a minute by default.
            "ttlMonitorSleepSecs=1",
            // Otherwise a member of a replica set takes 15 s to stop.
            "shutdownTimeoutMillisForSignaledShutdown=100",
        ] {
            args.extend(["--setParameter", parameter].map(Into::into));
        }
        let launch = Launch::new(MONGOD.find(), folder, port, ready).args(args).args(self.args);
        MongoServer { process: launch.movable_clock(self.movable_clock).spawn() }
    }
}

fn ready(port: u16) -> Result<(), String> {
    let reply = wire::run(port, "admin", &Document::new("ping", 1), Duration::from_secs(1));
    reply.map(drop).map_err(|e| e.to_string())
}
