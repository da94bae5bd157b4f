//! Harm done to the server and to the way there: the suite's cases for it.
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

    /// The driver's monitor asks the server to wait for news for a while, by the server's clock. If that is set back
    /// meanwhile, the monitor gives up and ends every connection, once; that is not what these cases are about.
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

const NOBODY: &str = "faults::no_other_process_is_started";

#[test]
fn what_is_held_on_a_standalone_server_is_still_held_after_it_was_killed() {
    run::<Alone, _, _>(NOBODY, cases::faults::restart);
}

#[test]
fn what_is_held_on_a_replica_set_is_still_held_after_it_was_killed() {
    run::<OneNode, _, _>(NOBODY, cases::faults::restart);
}

#[test]
fn tokens_rise_and_one_holds_however_the_clock_is_set() {
    run::<Alone, _, _>(NOBODY, cases::faults::move_clock);
}

#[test]
fn what_is_held_is_still_held_when_every_connection_ended() {
    run::<OneNode, _, _>(NOBODY, cases::faults::cut_connections);
}
