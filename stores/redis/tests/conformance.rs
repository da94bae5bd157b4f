//! The conformance suite on real servers: one Redis, one Valkey, a Cluster of three masters with a replica each, and a Redlock
//! of five.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use distlock_core::store::Driver;
use distlock_redis::DRIVER;
use distlock_testkit::conformance::Fixture;
use distlock_testkit::servers::{RedisCluster, RedisServer};

/// A prefix for each case, because cases share servers.
fn own_prefix() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("case-{}-{}:", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

fn hosts(servers: &[RedisServer]) -> String {
    servers.iter().map(|server| server.addr().to_string()).collect::<Vec<_>>().join(",")
}

/// One server for each case.
struct Redis(RedisServer);

impl Fixture for Redis {
    async fn open() -> Self {
        Redis(RedisServer::configure().args(["--appendonly", "yes", "--appendfsync", "always"]).start())
    }

    fn driver() -> &'static Driver {
        &DRIVER
    }

    fn url(&self) -> String {
        self.0.url()
    }

    async fn cut_connections(&self) {
        self.0.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    }

    async fn restart(&self) {
        self.0.kill();
        self.0.start_again();
    }
}

/// One Valkey server for each case, with a clock that can be set.
struct Valkey(RedisServer);

impl Fixture for Valkey {
    async fn open() -> Self {
        Valkey(RedisServer::configure().valkey().movable_clock().start())
    }

    fn driver() -> &'static Driver {
        &DRIVER
    }

    fn url(&self) -> String {
        self.0.url()
    }

    async fn move_clock(&self, seconds: i64) {
        self.0.move_clock(seconds);
    }
}

/// One Cluster for all cases.
struct Cluster {
    prefix: String,
}

impl Fixture for Cluster {
    async fn open() -> Self {
        Cluster { prefix: own_prefix() }
    }

    fn driver() -> &'static Driver {
        &DRIVER
    }

    fn url(&self) -> String {
        static CLUSTER: OnceLock<RedisCluster> = OnceLock::new();
        let cluster = CLUSTER.get_or_init(RedisCluster::start);
        format!("redis+cluster://{}?distlock.prefix={}", hosts(cluster.nodes()), self.prefix)
    }
}

/// Five servers for all cases.
struct Redlock {
    prefix: String,
}

impl Fixture for Redlock {
    async fn open() -> Self {
        Redlock { prefix: own_prefix() }
    }

    fn driver() -> &'static Driver {
        &DRIVER
    }

    fn url(&self) -> String {
        static SERVERS: OnceLock<Vec<RedisServer>> = OnceLock::new();
        let servers = SERVERS.get_or_init(|| RedisServer::start_many(5));
        // The machine that runs the tests is busy: a reply may take longer than the default limit.
        let limit = "distlock.node_timeout=500ms";
        format!("redlock://{}?distlock.prefix={}&{limit}", hosts(servers), self.prefix)
    }

    fn readers_may_share_tokens(&self) -> bool {
        true
    }
}

mod redis {
    use super::Redis;
    distlock_testkit::conformance!(Redis, faults: [cut_connections, restart]);
}

mod valkey {
    use super::Valkey;
    distlock_testkit::conformance!(Valkey, faults: [move_clock]);
}

mod cluster {
    use super::Cluster;
    distlock_testkit::conformance!(Cluster);
}

mod redlock {
    use super::Redlock;
    distlock_testkit::conformance!(Redlock);
}
