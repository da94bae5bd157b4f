//! The contract, against real servers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use distlock_core::store::Backend;
use distlock_redis::{RedisConfig, RedisStore};
use distlock_testkit::conformance::{Fixture, Others};
use distlock_testkit::servers::RedisServer;

async fn connect(url: &str) -> Backend {
    let config = RedisConfig::parse(url).expect("a good URL");
    Backend::lease(RedisStore::connect(config).await.expect("a server that runs"))
}

/// One server for each case.
struct Redis(RedisServer);

impl Fixture for Redis {
    async fn open() -> Self {
        Redis(RedisServer::configure().args(["--appendonly", "yes", "--appendfsync", "always"]).start())
    }

    async fn connect(&self) -> Backend {
        connect(&self.0.url()).await
    }

    fn others(&self) -> Others {
        Others::Processes(self.0.url())
    }

    async fn join(url: String) -> Backend {
        connect(&url).await
    }

    async fn cut_connections(&self) {
        self.0.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    }

    async fn restart(&self) {
        self.0.kill();
        self.0.start_again();
    }
}

mod redis {
    use super::Redis;
    distlock_testkit::conformance!(Redis, faults: [cut_connections, restart]);
}
