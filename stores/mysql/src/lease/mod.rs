//! The lease tables: locks as rows that expire by the server's clock.

mod acquire;
mod counted;
mod inspect;
mod locked_rows;
mod store;
mod verbs;

use std::sync::Arc;
use std::time::Duration;

use distlock_core::Result;
use mysql_async::Pool;

pub use store::MysqlStore;

use crate::batch::micros;
use crate::config::MysqlConfig;
use crate::connect::{self, Connected};
use crate::connections::{Connections, Source};
use crate::identifier::Tables;
use crate::schema::Purpose;
use crate::server::Server;
use crate::sweep::{self, Swept, Target};
use locked_rows::LockedRows;
use verbs::Verbs;

/// What clones of a store share.
#[derive(Debug)]
pub(crate) struct LeaseState {
    pub(crate) connections: Connections,
    pub(crate) tables: Tables,
    pub(crate) server: Server,
    pub(crate) retention: Duration,
    pub(crate) plain_text: bool,
    verbs: Verbs,
    locked_rows: LockedRows,
}

/// How long an expired entry stays: steps delete those of names in use at once.
const ENTRY_GRACE: Duration = Duration::from_secs(60);

impl Swept for LeaseState {
    fn connections(&self) -> &Connections {
        &self.connections
    }

    fn tables(&self) -> &Tables {
        &self.tables
    }

    fn targets(&self) -> Vec<Target> {
        let (grace, retention, entry) =
            (micros(ENTRY_GRACE), micros(self.retention), self.tables.quoted("_entry"));
        let unused = format!(
            "t.token < @distlock_now DIV 1000 AND NOT EXISTS (SELECT 1 FROM {entry} e WHERE e.k = t.k)"
        );
        vec![
            Target { ending: "_entry", spent: format!("t.expires_at <= @distlock_now - {grace}") },
            Target { ending: "", spent: format!("t.expires_at <= @distlock_now - {retention} AND {unused}") },
            Target {
                ending: "_pool",
                spent: format!("t.used_at <= @distlock_now - {retention} AND {unused}"),
            },
        ]
    }
}

impl MysqlStore {
    /// Connects, and creates the tables if they are not there.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`](distlock_core::ErrorKind::Unavailable) if the server cannot be reached;
    /// [`ErrorKind::Denied`](distlock_core::ErrorKind::Denied) if it refuses us, or tables are missing and the user may
    /// not create them; [`ErrorKind::Unsupported`](distlock_core::ErrorKind::Unsupported) before MySQL 8.0 and MariaDB
    /// 10.6, and for tables of another engine than InnoDB.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind but tables that were created.
    pub async fn connect(config: MysqlConfig) -> Result<Self> {
        let location = config.location();
        open(Source::of_config(&config), &config, config.is_plain_text(), location).await
    }

    /// Uses a pool that the application has already, and the names and the retention of `config`. The store keeps up to four
    /// connections of the pool, with settings of its own. They are closed afterwards and never go back.
    ///
    /// # Errors
    /// As for [`connect`](MysqlStore::connect).
    ///
    /// # Cancel safety
    /// As for [`connect`](MysqlStore::connect).
    pub async fn with_client(pool: Pool, config: MysqlConfig) -> Result<Self> {
        open(Ok(Source::Pool(pool)), &config, false, "mysql pool".to_owned()).await
    }
}

async fn open(
    source: Result<Source>,
    config: &MysqlConfig,
    plain_text: bool,
    location: String,
) -> Result<MysqlStore> {
    let Connected { connections, tables, server } =
        connect::connect(source, config, Purpose::Lease, &location).await?;
    let state = Arc::new(LeaseState {
        verbs: Verbs::new(&tables),
        locked_rows: LockedRows::new(&tables),
        retention: config.get_retention(),
        connections,
        tables,
        server,
        plain_text,
    });
    sweep::start(&state);
    Ok(MysqlStore::new(state, location))
}
