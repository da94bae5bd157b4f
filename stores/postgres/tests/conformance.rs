//! The contract, against a real server: for the lease table and for advisory locks.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{Corner, server};
use distlock_core::store::Driver;
use distlock_testkit::conformance::Fixture;

mod lease_table {
    use super::*;

    struct LeaseTable(Corner);

    impl Fixture for LeaseTable {
        async fn open() -> Self {
            LeaseTable(Corner::new())
        }

        fn driver() -> &'static Driver {
            &distlock_postgres::LEASE_DRIVER
        }

        fn url(&self) -> String {
            self.0.url("postgres", &server().url())
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

    impl Fixture for AdvisoryLocks {
        async fn open() -> Self {
            AdvisoryLocks(Corner::new())
        }

        fn driver() -> &'static Driver {
            &distlock_postgres::ADVISORY_DRIVER
        }

        /// Sessions that end soon when their client stands still.
        fn url(&self) -> String {
            format!("{}&distlock.session_timeout=2", self.0.url("postgres+advisory", &server().url()))
        }

        async fn cut_connections(&self) {
            self.0.cut(server());
        }
    }

    distlock_testkit::conformance!(AdvisoryLocks, faults: [cut_connections]);
}
