//! The measured stores, each with a real server for the duration of the run.

use std::any::Any;

use distlock_testkit::servers::{
    EtcdServer, MongoReplicaSet, MysqlServer, PostgresServer, RedisServer, ZookeeperServer,
};

use crate::machine;

/// A store and how to start its server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoreServer {
    /// The name of the store.
    pub(crate) name: &'static str,
    /// The setup of its server, for the reader.
    pub(crate) setup: &'static str,
    start: fn() -> RunningServer,
    /// The maximum number of held locks.
    pub(crate) max_held: fn() -> usize,
}

/// A running server.
pub(crate) struct RunningServer {
    pub(crate) url: String,
    /// Ends the server when it is dropped.
    pub(crate) _guard: Box<dyn Any + Send>,
    /// Name and version of the server.
    pub(crate) version: String,
}

/// All stores. A new store is one entry.
pub(crate) const ALL: &[StoreServer] = &[
    StoreServer { name: "redis", setup: "one server, nothing on disk", start: redis, max_held: unlimited },
    StoreServer {
        name: "postgres",
        setup: "lease table, durable (fsync and synchronous_commit on)",
        start: || postgres("postgres"),
        max_held: unlimited,
    },
    StoreServer {
        name: "postgres-advisory",
        setup: "advisory locks; nothing waits for the disk",
        start: || postgres("postgres+advisory"),
        max_held: || 100_000,
    },
    StoreServer {
        name: "mongodb",
        setup: "replica set of one, write concern majority with journal",
        start: mongodb,
        max_held: unlimited,
    },
    StoreServer {
        name: "mysql",
        setup: "lease table, durable (innodb_flush_log_at_trx_commit = 1)",
        start: || mysql("mysql"),
        max_held: unlimited,
    },
    StoreServer {
        name: "mysql-session",
        setup: "GET_LOCK; each token is durable (innodb_flush_log_at_trx_commit = 1)",
        start: || mysql("mysql+session"),
        // Each token waits for the disk.
        max_held: || 100_000,
    },
    StoreServer {
        name: "etcd",
        setup: "one member, durable (fsync on)",
        start: etcd,
        // Each grant waits for the disk.
        max_held: || 100_000,
    },
    StoreServer {
        name: "zookeeper",
        setup: "one server, every transaction on disk",
        start: zookeeper,
        // Each grant waits for the disk by itself: 100,000 take more than two minutes.
        max_held: || 30_000,
    },
    StoreServer {
        name: "file",
        setup: "a local folder, kernel locks",
        start: file,
        // Each lock is an open file.
        max_held: || machine::open_files().saturating_sub(200),
    },
];

fn unlimited() -> usize {
    usize::MAX
}

impl StoreServer {
    /// Starts the server.
    pub(crate) fn start(&self) -> RunningServer {
        (self.start)()
    }
}

pub(crate) fn redis() -> RunningServer {
    let server = RedisServer::start();
    let version = format!("Redis {}", server.info("redis_version"));
    RunningServer { url: server.url(), version, _guard: Box::new(server) }
}

fn postgres(scheme: &str) -> RunningServer {
    postgres_with(scheme, 300)
}

pub(crate) fn postgres_with(scheme: &str, max_connections: usize) -> RunningServer {
    let server = PostgresServer::configure()
        .setting("fsync", "on")
        .setting("synchronous_commit", "on")
        .setting("max_connections", &max_connections.to_string())
        // The server's lock table has room for max_locks_per_transaction × max_connections locks: 100,000 held ones and more.
        .setting("max_locks_per_transaction", "400")
        .start();
    let version = format!("PostgreSQL {}", server.value("SHOW server_version"));
    let url = server.url().replacen("postgres://", &format!("{scheme}://"), 1);
    RunningServer { url, version, _guard: Box::new(server) }
}

fn mongodb() -> RunningServer {
    let set = MongoReplicaSet::start(1);
    let url = set.url().replacen("/?", "/distlock?", 1);
    let info = distlock_testkit::servers::mongodb::bson::Document::new("buildInfo", 1);
    let version =
        set.primary().command("admin", &info).map(|info| info.text("version").to_owned()).unwrap_or_default();
    RunningServer { url, version: format!("MongoDB {version}"), _guard: Box::new(set) }
}

fn mysql(scheme: &str) -> RunningServer {
    let server = MysqlServer::configure()
        .setting("innodb-flush-method", "fsync")
        .setting("innodb_flush_log_at_trx_commit", "1")
        .setting("max_connections", "300")
        .start();
    let version = server.value("SELECT VERSION()");
    let product = if version.contains("MariaDB") { "MariaDB" } else { "MySQL" };
    let number = version.split('-').next().unwrap_or_default().to_owned();
    let url = server.url().replacen("mysql://", &format!("{scheme}://"), 1);
    RunningServer { url, version: format!("{product} {number}"), _guard: Box::new(server) }
}

fn etcd() -> RunningServer {
    let server = EtcdServer::configure().durable().start();
    let version = format!("etcd {}", server.version());
    RunningServer { url: server.url(), version, _guard: Box::new(server) }
}

fn zookeeper() -> RunningServer {
    let server =
        ZookeeperServer::configure().property("zookeeper.forceSync", "yes").heap_megabytes(2048).start();
    let text = server.four_letter("srvr");
    let version =
        text.split(['-', ',']).next().unwrap_or_default().replace("Zookeeper version:", "ZooKeeper");
    RunningServer { url: server.url(), version, _guard: Box::new(server) }
}

fn file() -> RunningServer {
    let folder = tempfile::tempdir().map_err(|error| error.to_string());
    let (url, guard): (String, Box<dyn Any + Send>) = match folder {
        Ok(folder) => (format!("file://{}", folder.path().display()), Box::new(folder)),
        Err(_) => ("file:".to_owned(), Box::new(())),
    };
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    RunningServer { url, version: format!("Linux {}", kernel.trim()), _guard: guard }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    const PREFIX: &str = "distlock-bench/notified/";

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_bare_notification_arrives_after_it_was_sent_on_every_store_that_has_one() {
        for store in ALL {
            let server = store.start();
            let baseline = distlock::bench::baseline(&server.url).await.unwrap().unwrap();
            let bare = baseline.notifications(&format!("{PREFIX}name")).await.unwrap();
            // The server of MySQL sends no notification of a row; the driver of etcd has no watch outside of the store.
            assert_eq!(bare.is_none(), matches!(store.name, "mysql" | "etcd"), "{}", store.name);
            if let Some(mut bare) = bare {
                for round in 0..3 {
                    let receiving = tokio::spawn(bare.receive().await.unwrap());
                    let sent = Instant::now();
                    bare.send().await.unwrap();
                    let received = tokio::time::timeout(Duration::from_secs(20), receiving).await;
                    let received =
                        received.unwrap_or_else(|_| panic!("{}: none in round {round}", store.name));
                    assert!(received.unwrap().unwrap() >= sent, "{}", store.name);
                }
            }
            baseline.clean_up(PREFIX).await.unwrap();
        }
    }
}
