//! The conformance suite on real servers: one member, three members, and a second version of etcd.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use distlock_core::store::Driver;
use distlock_etcd::DRIVER;
use distlock_testkit::conformance::{Fixture, Timing};
use distlock_testkit::proxy::Proxy;
use distlock_testkit::servers::{EtcdCluster, EtcdServer};

/// A prefix for each case, because cases share servers.
fn with_own_prefix(url: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{url}?distlock.prefix=case-{}-{number}/", std::process::id())
}

/// A lease lasts at least one second here, and the server looks for ended leases every half second.
fn timing() -> Timing {
    Timing {
        expiry: Duration::from_secs(1),
        crash_detected_within: Some(Duration::from_secs(3)),
        ..Timing::default()
    }
}

/// A server of its own, behind a proxy that can cut its connections.
struct OneMember {
    server: EtcdServer,
    proxy: Proxy,
    url: String,
}

impl OneMember {
    fn behind_proxy(server: EtcdServer) -> Self {
        let proxy = Proxy::start(server.addr());
        let url = with_own_prefix(&proxy.through(&server.url()));
        OneMember { server, proxy, url }
    }
}

impl Fixture for OneMember {
    async fn open() -> Self {
        OneMember::behind_proxy(EtcdServer::start())
    }

    fn driver() -> &'static Driver {
        &DRIVER
    }

    fn url(&self) -> String {
        self.url.clone()
    }

    fn timing(&self) -> Timing {
        timing()
    }

    async fn cut_connections(&self) {
        self.proxy.cut();
    }

    async fn restart(&self) {
        self.server.kill();
        self.server.start_again();
    }
}

/// Three members that all cases share.
struct ThreeMembers(String);

impl Fixture for ThreeMembers {
    async fn open() -> Self {
        static CLUSTER: OnceLock<EtcdCluster> = OnceLock::new();
        ThreeMembers(with_own_prefix(&CLUSTER.get_or_init(EtcdCluster::start).url()))
    }

    fn driver() -> &'static Driver {
        &DRIVER
    }

    fn url(&self) -> String {
        self.0.clone()
    }

    fn timing(&self) -> Timing {
        timing()
    }
}

/// A member of another version that all cases share.
struct NextVersion(String);

impl Fixture for NextVersion {
    async fn open() -> Self {
        static SERVER: OnceLock<EtcdServer> = OnceLock::new();
        let server = SERVER.get_or_init(|| EtcdServer::configure().next_version().start());
        NextVersion(with_own_prefix(&server.url()))
    }

    fn driver() -> &'static Driver {
        &DRIVER
    }

    fn url(&self) -> String {
        self.0.clone()
    }

    fn timing(&self) -> Timing {
        timing()
    }
}

mod one_member {
    use super::OneMember;
    distlock_testkit::conformance!(OneMember, faults: [cut_connections, restart]);
}

mod three_members {
    use super::ThreeMembers;
    distlock_testkit::conformance!(ThreeMembers);
}

mod next_version {
    use super::NextVersion;
    distlock_testkit::conformance!(NextVersion);
}
