//! Real servers for the duration of a test.
//!
//! Every server is a direct child of the test process, listens on a free loopback port, has its own temporary data folder, and
//! runs as the user `nobody` when the tests run as root. It ends when its handle is dropped or the test process is killed.
//!
//! All handles dereference to [`ServerProcess`], which has the faults: [`kill`](ServerProcess::kill),
//! [`pause`](ServerProcess::pause), [`stop`](ServerProcess::stop), [`restart`](ServerProcess::restart) with the same data on the
//! same port, [`set_clock_offset`](ServerProcess::set_clock_offset). [`crate::proxy`] has the faults of the network.
//!
//! The API blocks the calling thread while a server starts (milliseconds for Redis, seconds for a replica set). It needs no
//! async runtime and may be called inside one, because nothing it waits for runs on the caller's runtime. It reports errors by
//! panics with the end of the server's log; a missing program is reported with the command that installs it.
//!
//! ```no_run
//! use distlock_testkit::servers::RedisServer;
//!
//! let redis = RedisServer::configure().args(["--appendonly", "yes"]).start();
//! let url = redis.url();
//! redis.kill();
//! redis.start_again();
//! # let _ = url;
//! ```
//!
//! The tests of a program may share a server in a `static` `OnceLock`: it then ends with the program.
//!
//! # Adding a server
//! One file: find the program ([`program`]), describe its start and readiness ([`Launch`]), wrap the [`ServerProcess`], and
//! install it in `scripts/setup`. A SQL server wraps a [`sql::SqlServer`] instead and gets its methods.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod data;
pub mod etcd;
pub mod mongodb;
pub mod mysql;
pub mod pgbouncer;
pub mod port;
pub mod postgres;
pub mod process;
pub mod program;
pub mod redis;
pub mod spawn;
pub mod sql;
pub mod wait;
pub mod zookeeper;

mod clock;
mod tcp;
mod tree;

pub use data::DataFolder;
pub use etcd::{EtcdCluster, EtcdServer};
pub use mongodb::{MongoReplicaSet, MongoServer};
pub use mysql::{GaleraCluster, MysqlServer};
pub use pgbouncer::PgBouncer;
pub use port::Port;
pub use postgres::{PostgresPair, PostgresServer};
pub use process::{Launch, ServerProcess};
pub use redis::{RedisCluster, RedisSentinel, RedisServer};
pub use wait::{until, wait_for};
pub use zookeeper::{ZookeeperEnsemble, ZookeeperServer};
