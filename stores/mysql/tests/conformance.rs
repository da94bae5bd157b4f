//! The contract, against a real MariaDB: the lease tables and `GET_LOCK`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use distlock_core::store::Driver;
use distlock_mysql::{DRIVER, SESSION_DRIVER};
use distlock_testkit::conformance::Fixture;
use distlock_testkit::servers::MysqlServer;

/// A database of its own on the server that all cases share.
fn own_database(scheme: &str) -> String {
    static SERVER: OnceLock<MysqlServer> = OnceLock::new();
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let server = SERVER.get_or_init(MysqlServer::start);
    let database = format!("case_{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    server.sql(&format!("CREATE DATABASE {database}"));
    server.url_of(scheme, &database)
}

struct Lease(String);

impl Fixture for Lease {
    async fn open() -> Self {
        Lease(own_database("mysql"))
    }

    fn driver() -> &'static Driver {
        &DRIVER
    }

    fn url(&self) -> String {
        self.0.clone()
    }
}

struct Session(String);

impl Fixture for Session {
    async fn open() -> Self {
        Session(own_database("mysql+session"))
    }

    fn driver() -> &'static Driver {
        &SESSION_DRIVER
    }

    fn url(&self) -> String {
        self.0.clone()
    }
}

mod lease {
    use super::*;
    distlock_testkit::conformance!(Lease);
}

mod session {
    use super::*;
    distlock_testkit::conformance!(Session);
}
