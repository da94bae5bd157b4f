//! Both stores as fixtures of the conformance suite, each in a schema of its own on the shared server.

use distlock_core::store::Driver;
use distlock_postgres::{ADVISORY_DRIVER, DRIVER};
use distlock_testkit::conformance::Fixture;

use super::{TestSchema, server};

/// The lease table.
pub(crate) struct LeaseFixture(pub(crate) TestSchema);

impl Fixture for LeaseFixture {
    async fn open() -> Self {
        LeaseFixture(TestSchema::new())
    }

    fn driver() -> &'static Driver {
        &DRIVER
    }

    fn url(&self) -> String {
        self.0.url("postgres", &server().url())
    }

    async fn cut_connections(&self) {
        self.0.cut(server());
    }
}

/// Advisory locks, with a session time-out in seconds.
pub(crate) struct AdvisoryFixture<const SESSION_TIMEOUT: u64>(pub(crate) TestSchema);

impl<const SESSION_TIMEOUT: u64> Fixture for AdvisoryFixture<SESSION_TIMEOUT> {
    async fn open() -> Self {
        AdvisoryFixture(TestSchema::new())
    }

    fn driver() -> &'static Driver {
        &ADVISORY_DRIVER
    }

    fn url(&self) -> String {
        let url = self.0.url("postgres+advisory", &server().url());
        format!("{url}&distlock.session_timeout={SESSION_TIMEOUT}s")
    }

    async fn cut_connections(&self) {
        self.0.cut(server());
    }
}
