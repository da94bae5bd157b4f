//! A PostgreSQL primary with a streaming replica.

use std::ffi::OsString;
use std::time::Duration;

use super::{PostgresBuilder, PostgresServer, bin, data_of};
use crate::servers::data::DataFolder;
use crate::servers::{spawn, wait_for};

const LIMIT: Duration = Duration::from_secs(30);
const SLOT: &str = "standby1";

/// A primary and a replica that follows it; there is no failover but [`promote`](Self::promote).
#[derive(Debug)]
pub struct PostgresPair {
    /// The server that takes writes at first.
    pub primary: PostgresServer,
    /// The server that only reads, until it is promoted.
    pub replica: PostgresServer,
}

impl PostgresPair {
    /// Starts both, and waits until the replica follows. A write acknowledged by the primary may not have
    /// reached the replica when it is promoted; see [`start_synchronous`](Self::start_synchronous).
    #[must_use]
    pub fn start() -> Self {
        Self::start_with(PostgresServer::configure())
    }

    /// [`start`](Self::start), with a primary that acknowledges a write only after the replica has it, and none while the replica
    /// is down.
    #[must_use]
    pub fn start_synchronous() -> Self {
        let pair = Self::start();
        pair.primary.sql("ALTER SYSTEM SET synchronous_standby_names = '*'");
        pair.primary.sql("SELECT pg_reload_conf()");
        wait_for("the replica counts as synchronous", LIMIT, || {
            (pair.primary.value("SELECT sync_state FROM pg_stat_replication") == "sync").then_some(())
        });
        pair
    }

    /// [`start`](Self::start), with settings for both.
    #[must_use]
    pub fn start_with(settings: PostgresBuilder) -> Self {
        let primary = settings.clone().start();
        let folder = DataFolder::create();
        let port = primary.port().to_string();
        let args = ["-h", "127.0.0.1", "-p", &port, "-U", "postgres", "-R", "-X", "stream", "-C", "-S", SLOT];
        let args = args.into_iter().chain(["-c", "fast", "--no-sync", "-D"]).map(OsString::from);
        spawn::run(&bin("pg_basebackup"), args.chain([data_of(&folder).into()]));
        let pair = Self { primary, replica: settings.start_in(folder) };
        pair.wait_streaming();
        pair
    }

    /// Waits until the replica follows the primary.
    ///
    /// # Panics
    /// If it does not after half a minute.
    pub fn wait_streaming(&self) {
        wait_for("the replica follows the primary", LIMIT, || {
            (self.primary.value("SELECT state FROM pg_stat_replication") == "streaming").then_some(())
        });
    }

    /// Waits until the replica has replayed all writes of the primary so far.
    ///
    /// # Panics
    /// If it has not after half a minute.
    pub fn wait_replayed(&self) {
        let written = self.primary.value("SELECT pg_current_wal_lsn()");
        wait_for("the replica has replayed what the primary wrote", LIMIT, || {
            let behind = format!("SELECT pg_last_wal_replay_lsn() >= '{written}'::pg_lsn");
            (self.replica.value(&behind) == "t").then_some(())
        });
    }

    /// Promotes the replica and waits until it accepts writes. The old primary is not touched: kill or pause it first, unless the
    /// test wants two primaries.
    ///
    /// # Panics
    /// If it is not promoted after half a minute.
    pub fn promote(&self) {
        self.replica.sql("SELECT pg_promote(false)");
        wait_for("the replica is promoted", LIMIT, || {
            let value = self.replica.try_sql("SELECT pg_is_in_recovery()").ok()?;
            (value == [[Some("f".to_owned())]]).then_some(())
        });
    }
}
