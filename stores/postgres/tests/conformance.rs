//! The contract, against a real server: for the lease table and for advisory locks.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{Corner, server};
use distlock_core::store::{Backend, StoreUrl};
use distlock_testkit::conformance::{Fixture, Others};

mod lease_table {
    use super::*;

    struct LeaseTable(Corner);

    impl Fixture for LeaseTable {
        async fn open() -> Self {
            LeaseTable(Corner::new())
        }

        async fn connect(&self) -> Backend {
            Self::join(self.0.url("postgres", &server().url())).await
        }

        fn others(&self) -> Others {
            Others::Processes(self.0.url("postgres", &server().url()))
        }

        async fn join(address: String) -> Backend {
            (distlock_postgres::LEASE_DRIVER.connect)(StoreUrl::parse(&address).unwrap()).await.unwrap()
        }

        async fn cut_connections(&self) {
            self.0.cut(server());
        }
    }

    distlock_testkit::conformance!(LeaseTable, faults: [cut_connections]);
}

mod advisory_locks {
    use super::*;

    struct AdvisoryLocks(Corner);

    impl AdvisoryLocks {
        /// Sessions that end soon when their client stands still.
        fn url(&self) -> String {
            format!("{}&distlock.session_timeout=2", self.0.url("postgres+advisory", &server().url()))
        }
    }

    impl Fixture for AdvisoryLocks {
        async fn open() -> Self {
            AdvisoryLocks(Corner::new())
        }

        async fn connect(&self) -> Backend {
            Self::join(self.url()).await
        }

        fn others(&self) -> Others {
            Others::Processes(self.url())
        }

        async fn join(address: String) -> Backend {
            (distlock_postgres::ADVISORY_DRIVER.connect)(StoreUrl::parse(&address).unwrap()).await.unwrap()
        }

        async fn cut_connections(&self) {
            self.0.cut(server());
        }
    }

    distlock_testkit::conformance!(AdvisoryLocks, faults: [cut_connections]);
}
