//! Real servers, started for a test and gone after it.
//!
//! Every server is a direct child of the test process, listens on a loopback port that is free, keeps its data in a
//! temporary folder of its own, and runs as `nobody` when the tests run as root. It dies with the handle, and also
//! when the test process is killed.
//!
//! All handles dereference to [`ServerProcess`], which has the faults: [`kill`](ServerProcess::kill),
//! [`pause`](ServerProcess::pause), [`stop`](ServerProcess::stop), [`restart`](ServerProcess::restart) with the
//! same data on the same port. Clocks are moved with [`set_clock_offset`](ServerProcess::set_clock_offset).
//! Faults of the network between a client and a server are the business of [`crate::proxy`].
//!
//! The API blocks the calling thread for as long as a server takes to start (milliseconds for Redis, seconds for a
//! replica set). It needs no async runtime and may be called from within one: nothing it waits for runs on the
//! caller's runtime. Panics are its errors: each says what did not happen and shows the end of the server's log, and
//! a missing program is answered with the command that installs it.
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
//! A server may be shared by the tests of a program through a `static` `OnceLock`: it then ends with the program.
//!
//! # Adding a server
//! One file: find the program ([`program`]), describe the start and what "ready" means ([`Launch`]), wrap the
//! [`ServerProcess`], and teach `scripts/setup` to install it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod data;
pub mod mongodb;
pub mod pgbouncer;
pub mod port;
pub mod postgres;
pub mod process;
pub mod program;
pub mod redis;
pub mod spawn;
pub mod wait;

mod clock;
mod tcp;
mod tree;

pub use data::DataFolder;
pub use mongodb::{MongoReplicaSet, MongoServer};
pub use pgbouncer::PgBouncer;
pub use port::Port;
pub use postgres::{PostgresPair, PostgresServer};
pub use process::{Launch, ServerProcess};
pub use redis::{RedisCluster, RedisSentinel, RedisServer};
pub use wait::wait_for;
