//! Who takes part, on which server.

use std::any::Any;

use distlock_testkit::servers::mongodb::bson::{Document, Value};
use distlock_testkit::servers::{MongoReplicaSet, PostgresServer, RedisServer};

/// A server and those who compete on it.
pub struct Arena {
    pub name: &'static str,
    pub setup: &'static str,
    pub participants: &'static [&'static str],
    start: fn() -> Server,
}

/// A running server: its URL, and its own count of requests.
pub struct Server {
    pub url: String,
    pub version: String,
    /// Begins to count anew, where that can be done.
    reset: Option<Box<dyn Fn()>>,
    requests: Box<dyn Fn() -> Option<u64>>,
    _keeps: Option<Box<dyn Any>>,
}

impl Arena {
    pub fn start(&self) -> Server {
        (self.start)()
    }
}

impl Server {
    /// The count now, to be given to [`since`](Server::since).
    pub fn mark(&self) -> Option<u64> {
        if let Some(reset) = &self.reset {
            reset();
        }
        (self.requests)()
    }

    /// How many requests were carried out since, where the server counts.
    pub fn since(&self, mark: Option<u64>) -> Option<u64> {
        (self.requests)().zip(mark).map(|(now, mark)| now.saturating_sub(mark))
    }
}

pub const ARENAS: &[Arena] = &[
    Arena {
        name: "redis",
        setup: "one server, nothing on disk",
        participants: &[
            "distlock",
            "raw",
            "rslock",
            "distributed-lock-redis",
            "redsync",
            "redis-py",
            "node-redlock",
        ],
        start: redis,
    },
    Arena {
        name: "postgres",
        setup: "durable; distributed-lock has advisory locks, so it stands beside postgres-advisory too",
        participants: &["distlock", "raw"],
        start: || postgres("postgres"),
    },
    Arena {
        name: "postgres-advisory",
        setup: "advisory locks",
        participants: &["distlock", "raw", "distributed-lock-postgres"],
        start: || postgres("postgres+advisory"),
    },
    Arena {
        name: "mongodb",
        setup: "replica set of one; we write with majority and journal, the peers as the server's default says",
        participants: &["distlock", "raw", "distributed-lock-mongo", "mongodb-lock"],
        start: mongodb,
    },
    Arena {
        name: "file",
        setup: "a local folder",
        participants: &["distlock", "raw", "distributed-lock-file"],
        start: file,
    },
];

/// What clients send. The server counts what scripts call inside as well, and the commands that the scripts of these
/// libraries call are left out: GET, DEL, PEXPIRE and the like.
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
        // Our own scripts call SET inside, once for each grant, and always TIME; nobody else's does. The count begins
        // anew for each participant.
        let ours = text.lines().any(|line| line.starts_with("cmdstat_time:"));
        let counted = REDIS_REQUESTS.iter().filter(|command| !(ours && **command == "set"));
        Some(counted.filter_map(|command| calls(command)).sum())
    };
    Server {
        url: server.url(),
        version: format!("Redis {}", server.info("redis_version")),
        reset: Some(Box::new(reset)),
        requests: Box::new(requests),
        _keeps: None,
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
    // Transactions that wrote; those of advisory locks write nothing.
    let requests = move || counting.value("SELECT pg_snapshot_xmax(pg_current_snapshot())").parse().ok();
    Server {
        url: server.url().replacen("postgres://", &format!("{scheme}://"), 1),
        version: format!("PostgreSQL {}", server.value("SHOW server_version")),
        reset: None,
        requests: Box::new(requests),
        _keeps: None,
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
        _keeps: None,
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
        _keeps: Some(Box::new(folder)),
    }
}
