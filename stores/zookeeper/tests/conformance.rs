//! The conformance suite on real servers: one, and an ensemble of three.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use distlock_core::store::Driver;
use distlock_testkit::conformance::{Fixture, Timing};
use distlock_testkit::servers::{ZookeeperEnsemble, ZookeeperServer};
use distlock_zookeeper::DRIVER;

/// A chroot for each case, because cases share servers.
fn own_chroot() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("/case-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// A session lasts as long as the expiry, and its heartbeats share two cores with the servers and the other cases.
fn timing() -> Timing {
    Timing { expiry: Duration::from_millis(2000), ..Timing::default() }
}

/// One server for all cases.
struct One {
    chroot: String,
}

impl Fixture for One {
    async fn open() -> Self {
        One { chroot: own_chroot() }
    }

    fn driver() -> &'static Driver {
        &DRIVER
    }

    fn url(&self) -> String {
        static SERVER: OnceLock<ZookeeperServer> = OnceLock::new();
        format!("{}{}", SERVER.get_or_init(ZookeeperServer::start).url(), self.chroot)
    }

    fn timing(&self) -> Timing {
        timing()
    }
}

/// One ensemble for all cases.
struct Three {
    chroot: String,
}

impl Fixture for Three {
    async fn open() -> Self {
        Three { chroot: own_chroot() }
    }

    fn driver() -> &'static Driver {
        &DRIVER
    }

    fn url(&self) -> String {
        static ENSEMBLE: OnceLock<ZookeeperEnsemble> = OnceLock::new();
        format!("{}{}", ENSEMBLE.get_or_init(ZookeeperEnsemble::start).url(), self.chroot)
    }

    fn timing(&self) -> Timing {
        timing()
    }
}

/// A server for each fault.
struct Faulty(ZookeeperServer);

impl Fixture for Faulty {
    async fn open() -> Self {
        Faulty(ZookeeperServer::start())
    }

    fn driver() -> &'static Driver {
        &DRIVER
    }

    fn url(&self) -> String {
        self.0.url()
    }

    fn timing(&self) -> Timing {
        timing()
    }

    async fn restart(&self) {
        self.0.kill();
        self.0.start_again();
    }
}

mod one {
    use super::One;
    distlock_testkit::conformance!(One);
}

mod three {
    use super::Three;
    distlock_testkit::conformance!(Three);
}

mod faults {
    use super::Faulty;
    use distlock_testkit::conformance::{cases, run};

    #[test]
    fn restart() {
        run::<Faulty, _, _>(concat!(module_path!(), "::restart"), cases::faults::restart);
    }
}
