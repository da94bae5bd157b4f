//! The conformance suite's cases for faults of the server and of the network.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use distlock_core::store::Driver;
use distlock_mongodb::DRIVER;
use distlock_testkit::conformance::{Fixture, cases, run};
use distlock_testkit::proxy::Proxy;
use distlock_testkit::servers::{MongoReplicaSet, MongoServer};

/// A standalone server for each case, with a clock that can be set.
struct Alone(MongoServer);

impl Fixture for Alone {
    async fn open() -> Self {
        Alone(MongoServer::configure().movable_clock().start())
    }

    fn driver() -> &'static Driver {
        &DRIVER
    }

    /// With `poll`: the driver's streaming monitor waits by the server's clock. If that is set back, it gives up and
    /// closes every connection once, which is not what these cases test.
    fn url(&self) -> String {
        format!("{}&serverMonitoringMode=poll", self.0.url())
    }

    async fn restart(&self) {
        self.0.kill();
        self.0.start_again();
    }

    async fn move_clock(&self, seconds: i64) {
        self.0.move_clock(seconds);
    }
}

/// A replica set of one member for each case, behind a proxy.
struct OneNode {
    set: MongoReplicaSet,
    proxy: Proxy,
}

impl Fixture for OneNode {
    async fn open() -> Self {
        let set = MongoReplicaSet::start(1);
        let proxy = Proxy::start(set.members()[0].addr());
        OneNode { set, proxy }
    }

    fn driver() -> &'static Driver {
        &DRIVER
    }

    fn url(&self) -> String {
        self.proxy.through(&self.set.members()[0].url())
    }

    async fn cut_connections(&self) {
        self.proxy.cut();
    }

    async fn restart(&self) {
        self.set.members()[0].kill();
        self.set.members()[0].start_again();
        self.set.wait_healthy();
    }
}

const NO_ACTOR: &str = "faults::no_other_process_is_started";

#[test]
fn locks_survive_a_killed_standalone_server() {
    run::<Alone, _, _>(NO_ACTOR, cases::faults::restart);
}

#[test]
fn locks_survive_a_killed_replica_set() {
    run::<OneNode, _, _>(NO_ACTOR, cases::faults::restart);
}

#[test]
fn a_changed_clock_breaks_neither_tokens_nor_exclusion() {
    run::<Alone, _, _>(NO_ACTOR, cases::faults::move_clock);
}

#[test]
fn locks_survive_broken_connections() {
    run::<OneNode, _, _>(NO_ACTOR, cases::faults::cut_connections);
}
