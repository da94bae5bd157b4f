//! The contract, against a real server.

use std::time::Duration;

use distlock_core::store::Driver;
use distlock_sqlserver::DRIVER;
use distlock_testkit::conformance::{Fixture, Timing};

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

    /// The server may be a slow one: some parse every statement of a new session for a tenth of a second.
    fn timing(&self) -> Timing {
        let request_timeout = Duration::from_secs(60);
        Timing { wait_limit: Duration::from_secs(100), request_timeout, ..Timing::default() }
    }

    /// SQL Server has no time limit for idle sessions.
    fn frees_silent_holders(&self) -> bool {
        false
    }
}

distlock_testkit::conformance!(Server);
