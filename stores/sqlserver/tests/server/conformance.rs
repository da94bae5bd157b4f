//! The contract, against a real server.

use distlock_core::store::Driver;
use distlock_sqlserver::DRIVER;
use distlock_testkit::conformance::Fixture;

use crate::own_url;

struct Server(String);

impl Fixture for Server {
    async fn open() -> Self {
        Server(own_url())
    }

    fn driver() -> &'static Driver {
        &DRIVER
    }

    fn url(&self) -> String {
        self.0.clone()
    }
}

distlock_testkit::conformance!(Server);
