//! Redis Sentinel: one master, two replicas, three sentinels.

use std::fmt::Write;
use std::time::Duration;

use super::{RedisServer, Reply};
use crate::servers::{Port, wait_for};

const LIMIT: Duration = Duration::from_secs(60);
const SENTINELS: usize = 3;

/// A master with two replicas and three sentinels, which consider it down after one second.
#[derive(Debug)]
pub struct RedisSentinel {
    data: Vec<RedisServer>,
    sentinels: Vec<RedisServer>,
}

impl RedisSentinel {
    /// The master's name for the sentinels.
    pub const MASTER_NAME: &'static str = "mymaster";

    /// Starts all six servers and waits until the replicas are in sync and the sentinels know all servers, so that a fail-over can
    /// begin at once.
    #[must_use]
    pub fn start() -> Self {
        let master = RedisServer::start();
        let port = master.port().to_string();
        let mut data = vec![master];
        data.extend(
            (0..2).map(|_| RedisServer::configure().args(["--replicaof", "127.0.0.1", &port]).spawn()),
        );
        let ports: Vec<Port> = (0..SENTINELS).map(|_| Port::reserve()).collect();
        let numbers: Vec<u16> = ports.iter().map(Port::number).collect();
        let sentinels: Vec<RedisServer> = ports
            .into_iter()
            .enumerate()
            .map(|(i, port)| {
                RedisServer::configure().sentinel(configuration(&data, &numbers, i)).spawn_on(port)
            })
            .collect();
        let all = Self { data, sentinels };
        all.data.iter().chain(&all.sentinels).for_each(|server| server.wait_ready());
        for sentinel in &all.sentinels {
            // By default a sentinel polls the servers every ten seconds, and suspends itself for thirty after a pause of its own.
            // Before Redis 7 that cannot be changed.
            let words =
                ["SENTINEL", "DEBUG", "INFO-PERIOD", "1000", "PUBLISH-PERIOD", "500", "TILT-PERIOD", "2000"];
            let reply = sentinel.command(&words);
            let old = matches!(&reply, Reply::Error(text) if text.contains("Unknown subcommand"));
            assert!(old || reply.text() == "OK", "{words:?} on {}: {reply:?}", sentinel.name());
        }
        all.wait_healthy();
        all
    }

    /// Master and replicas, in their current roles.
    #[must_use]
    pub fn data_servers(&self) -> &[RedisServer] {
        &self.data
    }

    /// The sentinels.
    #[must_use]
    pub fn sentinels(&self) -> &[RedisServer] {
        &self.sentinels
    }

    /// The URLs of the sentinels.
    #[must_use]
    pub fn sentinel_urls(&self) -> Vec<String> {
        self.sentinels.iter().map(RedisServer::url).collect()
    }

    /// The master that all running sentinels agree on and that reports this role itself; waits until there is one.
    ///
    /// # Panics
    /// If there is none after a minute.
    #[must_use]
    pub fn master(&self) -> &RedisServer {
        wait_for("a master that the sentinels agree on", LIMIT, || {
            let mut named = up(&self.sentinels).map(|sentinel| {
                let words = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", Self::MASTER_NAME];
                let reply = sentinel.try_command(&words).ok()?;
                reply.list().get(1).and_then(|port| port.text().parse::<u16>().ok())
            });
            let first = named.next()??;
            let agreed = named.all(|port| port == Some(first));
            up(&self.data).find(|server| agreed && server.port() == first && server.info("role") == "master")
        })
    }

    /// Waits until the running replicas follow the master and the running sentinels could fail over.
    ///
    /// # Panics
    /// If that is not so after a minute.
    pub fn wait_healthy(&self) {
        wait_for("the replicas follow the master", LIMIT, || {
            let master = self.master().port();
            let follows = |server: &RedisServer| {
                server.info("master_port") == master.to_string() && server.info("master_link_status") == "up"
            };
            up(&self.data).all(|server| server.port() == master || follows(server)).then_some(())
        });
        wait_for("the sentinels have a quorum and know the replicas", LIMIT, || {
            up(&self.sentinels).all(|sentinel| self.could_fail_over(sentinel)).then_some(())
        });
    }

    fn could_fail_over(&self, sentinel: &RedisServer) -> bool {
        let quorum = sentinel.try_command(&["SENTINEL", "CKQUORUM", Self::MASTER_NAME]);
        if !matches!(quorum, Ok(Reply::Status(ok)) if ok.starts_with("OK")) {
            return false;
        }
        let Ok(replicas) = sentinel.try_command(&["SENTINEL", "REPLICAS", Self::MASTER_NAME]) else {
            return false;
        };
        // A sentinel can promote a replica once it has read its INFO with the link to the master.
        let promotable = |replica: &&Reply| {
            let fields: Vec<String> = replica.list().iter().map(Reply::text).collect();
            let has = |name: &str, value: &str| fields.windows(2).any(|w| w[0] == name && w[1] == value);
            has("flags", "slave") && has("master-link-status", "ok")
        };
        replicas.list().iter().filter(promotable).count() == up(&self.data).count() - 1
    }
}

fn up(servers: &[RedisServer]) -> impl Iterator<Item = &RedisServer> {
    servers.iter().filter(|server| server.is_running() && !server.is_paused())
}

/// Configures what sentinels would otherwise discover about each other in two seconds or more.
fn configuration(data: &[RedisServer], sentinels: &[u16], me: usize) -> String {
    let name = RedisSentinel::MASTER_NAME;
    let id = |i: usize| format!("{:040x}", i + 1);
    let mut text = format!(
        "sentinel myid {}\nsentinel monitor {name} 127.0.0.1 {} 2\n\
         sentinel down-after-milliseconds {name} 1000\nsentinel failover-timeout {name} 5000\n",
        id(me),
        data[0].port()
    );
    for replica in &data[1..] {
        let _ = writeln!(text, "sentinel known-replica {name} 127.0.0.1 {}", replica.port());
    }
    for (i, port) in sentinels.iter().enumerate().filter(|(i, _)| *i != me) {
        let _ = writeln!(text, "sentinel known-sentinel {name} 127.0.0.1 {port} {}", id(i));
    }
    text
}
