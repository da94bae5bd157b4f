//! What `doctor` reports about the server. For both stores.

use std::time::{Duration, SystemTime};

use distlock_core::Result;
use distlock_core::store::Finding;
use tokio_postgres::Client;
use tokio_postgres::types::{ToSql, Type};

use crate::error;
use crate::values::{column, from_micros};

/// Clients measure durations only, so an offset is no danger by itself. But a server clock that is far off may be set soon.
const MAX_CLOCK_OFFSET: Duration = Duration::from_secs(5);

/// Examines the server, and the rights of the role to our tables.
pub(crate) async fn examine(client: &Client, tables: &[String]) -> Result<Vec<Finding>> {
    let tables = tables.to_vec();
    let typed: &[(&(dyn ToSql + Sync), Type)] = &[(&tables, Type::TEXT_ARRAY)];
    let before = SystemTime::now();
    let rows =
        client.query_typed(include_str!("sql/doctor.sql"), typed).await.map_err(error::from_statement)?;
    let after = SystemTime::now();
    let mut findings = Vec::new();
    let Some(row) = rows.first() else { return Ok(findings) };
    findings.push(Finding::ok(format!("PostgreSQL {}", column::<&str>(row, "version")?)));
    if column(row, "replica")? {
        findings.push(Finding::warning(
            "this server is a replica and takes no writes",
            "connect to the primary, or name all hosts in the URL: the one that takes writes is used",
        ));
    } else if column(row, "read_only")? {
        findings.push(Finding::warning(
            "transactions of this role are read only",
            "ALTER ROLE … SET default_transaction_read_only = off",
        ));
    }
    if !column::<bool>(row, "fsync")? || !column::<bool>(row, "full_pages")? {
        findings.push(Finding::warning(
            "fsync or full_page_writes is off: a crash of the machine may undo grants and tokens",
            "set fsync = on and full_page_writes = on",
        ));
    }
    if column::<&str>(row, "commits")? == "off" {
        findings.push(Finding::warning(
            "synchronous_commit is off: a crash of the server may undo the last grants",
            "set synchronous_commit = on for this role",
        ));
    }
    let lagging: i64 = column(row, "lagging")?;
    if lagging > 0 {
        findings.push(Finding::warning(
            format!("{lagging} replicas follow asynchronously: a fail-over may undo the last grants"),
            "set synchronous_standby_names, or delay fail-over for longer than your leases last",
        ));
    }
    if column::<i64>(row, "unlogged")? > 0 && !tables.iter().any(|table| table.contains("_session\"")) {
        findings.push(Finding::warning(
            "a lock table is unlogged: a crash of the server empties it",
            "ALTER TABLE … SET LOGGED",
        ));
    }
    let missing: &str = column(row, "missing")?;
    if missing.is_empty() {
        findings.push(Finding::ok("the tables exist, and this role may use them"));
    } else {
        findings.push(Finding::warning(format!("rights are missing: {missing}"), "GRANT them to this role"));
    }
    let (open, most): (i64, i32) = (column(row, "connections")?, column(row, "max_connections")?);
    if open * 10 > i64::from(most) * 9 {
        findings.push(Finding::warning(
            format!("{open} of {most} connections are in use"),
            "raise max_connections, or put PgBouncer in front of the server",
        ));
    }
    findings.push(clock(column(row, "clock")?, before, after));
    Ok(findings)
}

fn clock(server: i64, before: SystemTime, after: SystemTime) -> Finding {
    let server = SystemTime::UNIX_EPOCH + from_micros(server);
    let behind = before.duration_since(server).unwrap_or_default();
    let ahead = server.duration_since(after).unwrap_or_default();
    let offset = behind.max(ahead);
    if offset > MAX_CLOCK_OFFSET {
        return Finding::warning(
            format!("the server's clock and ours differ by {offset:.1?}"),
            "synchronise both with NTP: a clock that is set ends leases early or late",
        );
    }
    Finding::ok(format!("the server's clock differs from ours by {offset:.0?} or less"))
}
