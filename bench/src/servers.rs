//! The stores under test, each with its real server, started for the run and gone after it.

use std::any::Any;

use distlock_testkit::servers::{MongoReplicaSet, PostgresServer, RedisServer};

use crate::machine;

/// A store that can be put under load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Contestant {
    /// The word for it.
    pub(crate) name: &'static str,
    /// How its server is set up, for the reader.
    pub(crate) setup: &'static str,
    start: fn() -> Started,
    /// The most locks that it is asked to keep alive at once.
    pub(crate) most_held: fn() -> usize,
}

/// A running server.
pub(crate) struct Started {
    pub(crate) url: String,
    /// What ends the server when it is dropped.
    pub(crate) _keeps: Box<dyn Any + Send>,
    /// What the server calls itself.
    pub(crate) version: String,
}

/// All of them: a store that comes later joins by one entry.
pub(crate) const ALL: &[Contestant] = &[
    Contestant { name: "redis", setup: "one server, nothing on disk", start: redis, most_held: any_number },
    Contestant {
        name: "postgres",
        setup: "lease table, durable (fsync and synchronous_commit on)",
        start: || postgres("postgres"),
        most_held: any_number,
    },
    Contestant {
        name: "postgres-advisory",
        setup: "advisory locks; nothing waits for the disk",
        start: || postgres("postgres+advisory"),
        // The server's lock table has room for max_locks_per_transaction × max_connections: 64 × 300.
        most_held: || 15_000,
    },
    Contestant {
        name: "mongodb",
        setup: "replica set of one, write concern majority with journal",
        start: mongodb,
        most_held: any_number,
    },
    Contestant {
        name: "file",
        setup: "a local folder, kernel locks",
        start: file,
        // A lock is an open file.
        most_held: || machine::open_files().saturating_sub(200),
    },
];

fn any_number() -> usize {
    usize::MAX
}

impl Contestant {
    /// Starts the server.
    pub(crate) fn start(&self) -> Started {
        (self.start)()
    }
}

fn redis() -> Started {
    let server = RedisServer::start();
    let version = format!("Redis {}", server.info("redis_version"));
    Started { url: server.url(), version, _keeps: Box::new(server) }
}

fn postgres(scheme: &str) -> Started {
    let server = PostgresServer::configure()
        .setting("fsync", "on")
        .setting("synchronous_commit", "on")
        .setting("max_connections", "300")
        .start();
    let version = format!("PostgreSQL {}", server.value("SHOW server_version"));
    let url = server.url().replacen("postgres://", &format!("{scheme}://"), 1);
    Started { url, version, _keeps: Box::new(server) }
}

fn mongodb() -> Started {
    let set = MongoReplicaSet::start(1);
    let url = set.url().replacen("/?", "/distlock?", 1);
    let info = distlock_testkit::servers::mongodb::bson::Document::new("buildInfo", 1);
    let version =
        set.primary().command("admin", &info).map(|info| info.text("version").to_owned()).unwrap_or_default();
    Started { url, version: format!("MongoDB {version}"), _keeps: Box::new(set) }
}

fn file() -> Started {
    let folder = tempfile::tempdir().map_err(|error| error.to_string());
    let (url, keeps): (String, Box<dyn Any + Send>) = match folder {
        Ok(folder) => (format!("file://{}", folder.path().display()), Box::new(folder)),
        Err(_) => ("file:".to_owned(), Box::new(())),
    };
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    Started { url, version: format!("Linux {}", kernel.trim()), _keeps: keeps }
}
