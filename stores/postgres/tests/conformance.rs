//! The conformance suite against a real server: for the lease table and for advisory locks.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

mod lease_table {
    use crate::common::fixtures::LeaseFixture;

    distlock_testkit::conformance!(LeaseFixture, faults: [cut_connections]);
}

mod advisory_locks {
    /// Sessions that end soon when their client is stalled.
    type ShortSessions = crate::common::fixtures::AdvisoryFixture<2>;

    distlock_testkit::conformance!(ShortSessions, faults: [cut_connections]);
}
