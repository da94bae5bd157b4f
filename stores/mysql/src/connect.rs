//! The first connection of a store: examines the server and creates what is missing.

use distlock_core::Result;

use crate::config::MysqlConfig;
use crate::connections::{Connections, Source};
use crate::identifier::Tables;
use crate::schema::{self, Purpose};
use crate::server::Server;

/// How a session of ours is set up, whatever the server's defaults and its previous user. A row that another session
/// keeps locked fails after a second (the shortest that the servers know), a table after five.
pub(crate) const SETUP: &str = "SET SESSION autocommit = 1, completion_type = 0, timestamp = DEFAULT,
        sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', sql_safe_updates = 0, sql_select_limit = DEFAULT,
        group_concat_max_len = 1000000, innodb_lock_wait_timeout = 1, lock_wait_timeout = 5, wait_timeout = 28800;
    SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED;
    SET SESSION TRANSACTION READ WRITE";

/// A server that can keep our locks.
pub(crate) struct Connected {
    pub(crate) connections: Connections,
    pub(crate) tables: Tables,
    pub(crate) server: Server,
}

/// Connects, checks that the server can do what `purpose` needs, and creates the tables if they are not there.
pub(crate) async fn connect(
    source: Result<Source>,
    config: &MysqlConfig,
    purpose: Purpose,
    location: &str,
) -> Result<Connected> {
    let connected = async {
        let mut connections = Connections::new(source?, SETUP.to_owned());
        let mut connection = connections.open().await?;
        let server = Server::examine(&mut connection).await?;
        match purpose {
            Purpose::Lease => server.check_lease()?,
            Purpose::Session => server.check_session()?,
        }
        let tables = config.tables(server.database.as_deref())?;
        schema::ensure(&mut connection, &tables, purpose).await?;
        if server.galera {
            connections.send_statements_apart(server.product);
        } else {
            connections.keep(connection);
        }
        Ok(Connected { connections, tables, server })
    };
    connected.await.map_err(|error: distlock_core::Error| error.on(location.to_owned()))
}
