//! What is found at a server, and what is dangerous there. For both stores.

use std::time::{Duration, SystemTime};

use distlock_core::Result;
use distlock_core::store::Finding;
use tokio_postgres::Client;
use tokio_postgres::types::{ToSql, Type};

use crate::failure;
use crate::values::{get, left};

/// Clients measure durations only, so a distance is no danger by itself; but a server whose clock is far off is one
/// whose clock somebody may set.
const FAR: Duration = Duration::from_secs(5);

/// What concerns every store on this server.
pub(crate) async fn examine(client: &Client, tables: &[String]) -> Result<Vec<Finding>> {
    let tables = tables.to_vec();
    let typed: &[(&(dyn ToSql + Sync), Type)] = &[(&tables, Type::TEXT_ARRAY)];
    let before = SystemTime::now();
    let rows = client
        .query_typed(include_str!("sql/doctor.sql"), typed)
        .await
        .map_err(|error| failure::of_statement(&error))?;
    let after = SystemTime::now();
    let mut found = Vec::new();
    let Some(row) = rows.first() else { return Ok(found) };
    found.push(Finding::ok(format!("PostgreSQL {}", get::<&str>(row, "version")?)));
    if get(row, "replica")? {
        found.push(Finding::warning(
            "this server is a replica and takes no writes",
            "connect to the primary, or name all hosts in the URL: the one that takes writes is found",
        ));
    } else if get(row, "read_only")? {
        found.push(Finding::warning(
            "transactions of this role are read only",
            "ALTER ROLE … SET default_transaction_read_only = off",
        ));
    }
    if !get::<bool>(row, "fsync")? || !get::<bool>(row, "full_pages")? {
        found.push(Finding::warning(
            "fsync or full_page_writes is off: a crash of the machine may take grants and tokens back",
            "set fsync = on and full_page_writes = on",
        ));
    }
    if get::<&str>(row, "commits")? == "off" {
        found.push(Finding::warning(
            "synchronous_commit is off: a crash of the server may take the last grants back",
            "set synchronous_commit = on for this role",
        ));
    }
    let lagging: i64 = get(row, "lagging")?;
    if lagging > 0 {
        found.push(Finding::warning(
            format!("{lagging} replicas follow asynchronously: a fail-over may take the last grants back"),
            "set synchronous_standby_names, or let fail-over wait for longer than your leases last",
        ));
    }
    if get::<i64>(row, "unlogged")? > 0 && !tables.iter().any(|table| table.contains("_session\"")) {
        found.push(Finding::warning(
            "a lock table is unlogged: a crash of the server empties it",
            "ALTER TABLE … SET LOGGED",
        ));
    }
    let missing: &str = get(row, "missing")?;
    if missing.is_empty() {
        found.push(Finding::ok("the tables are there, and this role may use them"));
    } else {
        found.push(Finding::warning(format!("rights are missing: {missing}"), "GRANT them to this role"));
    }
    let (open, most): (i64, i32) = (get(row, "connections")?, get(row, "max_connections")?);
    if open * 10 > i64::from(most) * 9 {
        found.push(Finding::warning(
            format!("{open} of {most} connections are in use"),
            "raise max_connections, or put PgBouncer in front of the server",
        ));
    }
    found.push(clock(get(row, "clock")?, before, after));
    Ok(found)
}

fn clock(server: i64, before: SystemTime, after: SystemTime) -> Finding {
    let server = SystemTime::UNIX_EPOCH + left(server);
    let behind = before.duration_since(server).unwrap_or_default();
    let ahead = server.duration_since(after).unwrap_or_default();
    let distance = behind.max(ahead);
    if distance > FAR {
        return Finding::warning(
            format!("the server's clock and ours are {distance:.1?} apart"),
            "let both follow an NTP server: a clock that is set ends leases early or late",
        );
    }
    Finding::ok(format!("the server's clock is {distance:.0?} from ours or less"))
}
