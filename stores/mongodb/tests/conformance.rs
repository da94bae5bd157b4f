//! The contract, against real servers: a standalone MongoDB, and replica sets of one and of three members.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use distlock_core::store::Driver;
use distlock_mongodb::DRIVER;
use distlock_testkit::conformance::Fixture;
use distlock_testkit::servers::{MongoReplicaSet, MongoServer};

/// A server's URL with a database of its own, so that cases can share servers.
fn with_own_database(url: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let database = format!("case-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    url.replace("/?", &format!("/{database}?"))
}

/// A fixture for servers that all cases share.
macro_rules! shared {
    ($fixture:ident, $server:ty, $start:expr) => {
        struct $fixture(String);

        impl Fixture for $fixture {
            async fn open() -> Self {
                static SERVER: OnceLock<$server> = OnceLock::new();
                $fixture(with_own_database(&SERVER.get_or_init($start).url()))
            }

            fn driver() -> &'static Driver {
                &DRIVER
            }

            fn url(&self) -> String {
                self.0.clone()
            }
        }
    };
}

shared!(Standalone, MongoServer, MongoServer::start);
shared!(OneNode, MongoReplicaSet, || MongoReplicaSet::start(1));
shared!(ThreeNodes, MongoReplicaSet, || MongoReplicaSet::start(3));

mod standalone {
    use super::*;
    distlock_testkit::conformance!(Standalone);
}

mod one_node {
    use super::*;
    distlock_testkit::conformance!(OneNode);
}

mod three_nodes {
    use super::*;
    distlock_testkit::conformance!(ThreeNodes);
}
