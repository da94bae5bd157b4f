//! The servers and the participants on each.

use std::any::Any;

use distlock_testkit::servers::mongodb::bson::{Document, Value};
use distlock_testkit::servers::{MongoReplicaSet, PostgresServer, RedisServer};

/// A server and its participants.
pub struct PeerServer {
    pub name: &'static str,
    pub setup: &'static str,
    pub participants: &'static [&'static str],
    start: fn() -> Server,
}

/// A running server with its request counter.
pub struct Server {
    pub url: String,
    pub version: String,
    /// Resets the counter, where that is possible.
    reset: Option<Box<dyn Fn()>>,
    requests: Box<dyn Fn() -> Option<u64>>,
    _guard: Option<Box<dyn Any>>,
}

impl PeerServer {
    pub fn start(&self) -> Server {
        (self.start)()
    }
}

impl Server {
    /// The count now, for [`since`](Server::since).
    pub fn mark(&self) -> Option<u64> {
        if let Some(reset) = &self.reset {
            reset();
        }
        (self.requests)()
    }

    /// The number of requests since the mark, where the server counts them.
    pub fn since(&self, mark: Option<u64>) -> Option<u64> {
        (self.requests)().zip(mark).map(|(now, mark)| now.saturating_sub(mark))
    }
}

pub const ALL: &[PeerServer] = &[
    PeerServer {
        name: "redis",
        setup: "one server, nothing on disk",
        participants: &[
            "distlock",
            "baseline",
            "rslock",
            "distributed-lock-redis",
            "redsync",
            "redis-py",
            "node-redlock",
        ],
        start: redis,
    },
    PeerServer {
        name: "postgres",
        setup: "durable; distributed-lock uses advisory locks, see postgres-advisory",
        participants: &["distlock", "baseline"],
        start: || postgres("postgres"),
    },
    PeerServer {
        name: "postgres-advisory",
        setup: "advisory locks",
        participants: &["distlock", "baseline", "distributed-lock-postgres"],
        start: || postgres("postgres+advisory"),
    },
    PeerServer {
        name: "mongodb",
        setup: "replica set of one; distlock writes with majority and journal, the peers with the server's default",
        participants: &["distlock", "baseline", "distributed-lock-mongo", "mongodb-lock"],
        start: mongodb,
    },
    PeerServer {
        name: "file",
        setup: "a local folder",
        participants: &["distlock", "baseline", "distributed-lock-file"],
        start: file,
    },
];

/// The commands that clients send. The server also counts the calls inside scripts; commands that only scripts of these libraries
/// call (GET, DEL, PEXPIRE and the like) are left out.
const REDIS_REQUESTS: [&str; 8] =
    ["set", "setnx", "evalsha", "eval", "subscribe", "unsubscribe", "script|load", "ping"];

fn redis() -> Server {
    let server = std::rc::Rc::new(RedisServer::start());
    let (counting, resetting) = (std::rc::Rc::clone(&server), std::rc::Rc::clone(&server));
    let reset = move || drop(resetting.try_command(&["CONFIG", "RESETSTAT"]));
    let requests = move || {
        let text = counting.try_command(&["INFO", "commandstats"]).ok()?.text();
        let calls = |command: &str| {
            let line =
                text.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")))?;
            line.split(',').next()?.parse::<u64>().ok()
        };
        // Only distlock's scripts call TIME, and they call SET once per grant. The counter is reset for each participant.
        let ours = text.lines().any(|line| line.starts_with("cmdstat_time:"));
        let counted = REDIS_REQUESTS.iter().filter(|command| !(ours && **command == "set"));
        Some(counted.filter_map(|command| calls(command)).sum())
    };
    Server {
        url: server.url(),
        version: format!("Redis {}", server.info("redis_version")),
        reset: Some(Box::new(reset)),
        requests: Box::new(requests),
        _guard: None,
    }
}

fn postgres(scheme: &str) -> Server {
    let server = PostgresServer::configure()
        .setting("fsync", "on")
        .setting("synchronous_commit", "on")
        .setting("max_connections", "300")
        .start();
    let server = std::rc::Rc::new(server);
    let counting = std::rc::Rc::clone(&server);
    // Counts transactions with writes; advisory locks have none.
    let requests = move || counting.value("SELECT pg_snapshot_xmax(pg_current_snapshot())").parse().ok();
    Server {
        url: server.url().replacen("postgres://", &format!("{scheme}://"), 1),
        version: format!("PostgreSQL {}", server.value("SHOW server_version")),
        reset: None,
        requests: Box::new(requests),
        _guard: None,
    }
}

fn mongodb() -> Server {
    let set = std::rc::Rc::new(MongoReplicaSet::start(1));
    let counting = std::rc::Rc::clone(&set);
    let requests = move || {
        let status = counting.primary().command("admin", &Document::new("serverStatus", 1)).ok()?;
        let Some(Value::Document(network)) = status.get("network") else { return None };
        match network.get("numRequests") {
            Some(Value::Int64(count)) => u64::try_from(*count).ok(),
            Some(Value::Int32(count)) => u64::try_from(*count).ok(),
            _ => None,
        }
    };
    let info = Document::new("buildInfo", 1);
    let version = set.primary().command("admin", &info).map(|info| info.text("version").to_owned());
    Server {
        url: set.url().replacen("/?", "/distlock?", 1),
        version: format!("MongoDB {}", version.unwrap_or_default()),
        reset: None,
        requests: Box::new(requests),
        _guard: None,
    }
}

fn file() -> Server {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    Server {
        url: format!("file://{}", folder.path().display()),
        version: format!("Linux {}", kernel.trim()),
        reset: None,
        requests: Box::new(|| None),
        _guard: Some(Box::new(folder)),
    }
}
