//! Redis: one server, several independent ones, Cluster, Sentinel; and Valkey.

mod cluster;
pub mod resp;
mod sentinel;

use std::ffi::OsString;
use std::ops::Deref;
use std::time::Duration;

pub use cluster::RedisCluster;
pub use sentinel::RedisSentinel;

use super::clock;
use super::data::DataFolder;
use super::port::Port;
use super::process::{Launch, ServerProcess};
use super::program::{REDIS_SERVER, VALKEY_SERVER};
use resp::{RedisConnection, Reply};

/// The distance of the cluster bus port from the client port. Before Redis 7 it was fixed.
const BUS: u16 = 10_000;

/// A Redis or Valkey server, by default without persistence.
#[derive(Debug)]
pub struct RedisServer {
    process: ServerProcess,
}

impl RedisServer {
    /// Starts a Redis server without persistence.
    #[must_use]
    pub fn start() -> Self {
        Self::configure().start()
    }

    /// Starts `count` independent servers, as Redlock needs them.
    #[must_use]
    pub fn start_many(count: usize) -> Vec<Self> {
        let servers: Vec<Self> = (0..count).map(|_| Self::configure().spawn()).collect();
        servers.iter().for_each(|server| server.wait_ready());
        servers
    }

    /// Starts a Valkey server without persistence.
    #[must_use]
    pub fn start_valkey() -> Self {
        Self::configure().valkey().start()
    }

    /// A builder for a server with other settings than the defaults.
    pub fn configure() -> RedisBuilder {
        RedisBuilder::default()
    }

    /// The server's URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port())
    }

    /// Runs one command on its own connection.
    ///
    /// # Panics
    /// If the server does not answer within five seconds. An error of the server is a [`Reply::Error`].
    pub fn command(&self, words: &[&str]) -> Reply {
        self.try_command(words)
            .unwrap_or_else(|e| panic!("{words:?} on {}: {e}\n{}", self.name(), self.log_tail()))
    }

    /// [`command`](Self::command) for servers that may be down or paused.
    ///
    /// # Errors
    /// If the server does not answer within five seconds.
    pub fn try_command(&self, words: &[&str]) -> std::io::Result<Reply> {
        RedisConnection::open(self.port(), Duration::from_secs(5))?.command(words)
    }

    /// The server's clock, in seconds since 1970; `None` if it does not answer in time.
    #[must_use]
    pub fn time(&self) -> Option<i64> {
        self.try_command(&["TIME"]).ok()?.list()[0].text().parse().ok()
    }

    /// Moves the server's wall clock by this many seconds from the true time, and waits until the server sees it.
    ///
    /// # Panics
    /// If the server was not started with a movable clock, or does not see it.
    pub fn move_clock(&self, seconds: i64) {
        self.set_clock_offset(&format!("{seconds:+}"));
        clock::wait_until_moved(seconds, || self.time());
    }

    /// One field of `INFO`, empty if it is missing or the server is down.
    #[must_use]
    pub fn info(&self, field: &str) -> String {
        let text = self.try_command(&["INFO"]).map(|reply| reply.text()).unwrap_or_default();
        let found = text.lines().filter_map(|line| line.split_once(':')).find(|(name, _)| *name == field);
        found.map(|(_, value)| value.trim().to_owned()).unwrap_or_default()
    }
}

impl Deref for RedisServer {
    type Target = ServerProcess;

    fn deref(&self) -> &ServerProcess {
        &self.process
    }
}

/// How to start a [`RedisServer`].
#[derive(Debug, Default)]
#[must_use]
pub struct RedisBuilder {
    args: Vec<OsString>,
    valkey: bool,
    movable_clock: bool,
    cluster: bool,
    sentinel: Option<String>,
}

impl RedisBuilder {
    /// Adds arguments, which override the defaults: `["--appendonly", "yes", "--appendfsync", "always"]`.
    pub fn args<A: Into<OsString>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Starts Valkey instead of Redis.
    pub fn valkey(mut self) -> Self {
        self.valkey = true;
        self
    }

    /// Lets the test move the server's wall clock. Only with [`valkey`](Self::valkey): Debian's Redis 7 hangs.
    pub fn movable_clock(mut self) -> Self {
        self.movable_clock = true;
        self
    }

    /// Starts the server and waits until it answers.
    #[must_use]
    pub fn start(self) -> RedisServer {
        let server = self.spawn();
        server.wait_ready();
        server
    }

    /// Makes it a Cluster node without peers. This also reserves its bus port, which the argument `--cluster-enabled` alone
    /// would not do.
    pub fn cluster_node(mut self) -> Self {
        self.cluster = true;
        self
    }

    fn sentinel(mut self, configuration: String) -> Self {
        self.sentinel = Some(configuration);
        self
    }

    fn spawn(self) -> RedisServer {
        if self.cluster {
            let (port, bus) = Port::reserve_pair(BUS);
            return self.spawn_with(port, Some(bus));
        }
        self.spawn_on(Port::reserve())
    }

    fn spawn_on(self, port: Port) -> RedisServer {
        self.spawn_with(port, None)
    }

    fn spawn_with(self, port: Port, bus: Option<Port>) -> RedisServer {
        assert!(
            self.valkey || !self.movable_clock,
            "a movable clock needs valkey(): Redis 7 hangs under libfaketime"
        );
        let program = if self.valkey { VALKEY_SERVER.find() } else { REDIS_SERVER.find() };
        let folder = DataFolder::create();
        let mut args: Vec<OsString> = Vec::new();
        if let Some(configuration) = &self.sentinel {
            args.push(folder.write("sentinel.conf", configuration).into());
            args.push("--sentinel".into());
        }
        args.extend(["--port".into(), port.number().to_string().into()]);
        args.extend(["--bind", "127.0.0.1", "--dir"].map(Into::into));
        args.push(folder.path().into());
        if self.sentinel.is_none() {
            // Without the last option, the first sync of a replica starts after five seconds.
            args.extend(
                ["--save", "", "--appendonly", "no", "--repl-diskless-sync-delay", "0"].map(Into::into),
            );
        }
        let mut launch =
            Launch::new(program, folder, port, ready).args(args).movable_clock(self.movable_clock);
        if let Some(bus) = bus {
            launch = launch.args(["--cluster-enabled", "yes"]).also_port(bus);
        }
        RedisServer { process: launch.args(self.args).spawn() }
    }
}

/// Expects `PONG`: a server that still loads its data returns an error.
fn ready(port: u16) -> Result<(), String> {
    let reply =
        RedisConnection::open(port, Duration::from_millis(500)).and_then(|mut c| c.command(&["PING"]));
    match reply {
        Ok(Reply::Status(pong)) if pong == "PONG" => Ok(()),
        Ok(other) => Err(format!("unexpected reply to PING: {other:?}")),
        Err(e) => Err(e.to_string()),
    }
}
