//! What `distlock doctor` finds at the server.

use std::time::{Duration, SystemTime};

use distlock_core::Result;
use distlock_core::store::Finding;

use crate::connections::Connections;
use crate::identifier::Tables;
use crate::lease::LeaseState;
use crate::rows::{moment, required, text, time_left};
use crate::server::Server;
use crate::session::SessionState;

/// A larger difference between two clocks is worth a warning.
const CLOCK_TOLERANCE: Duration = Duration::from_secs(1);

const VARIABLES: &str =
    "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('innodb_flush_log_at_trx_commit', 'sync_binlog',
    'log_bin', 'read_only', 'super_read_only', 'binlog_format', 'wsrep_on', 'max_allowed_packet')";

pub(crate) async fn examine_lease(state: &LeaseState) -> Result<Vec<Finding>> {
    let mut findings = common(&state.connections, &state.tables, &state.server, state.plain_text).await?;
    // An update that matches nothing needs the rights that acquiring a lock needs.
    let probe = state.tables.statement(
        "START TRANSACTION; INSERT INTO {lock} (k, name) SELECT k, name FROM {lock} WHERE FALSE;
         UPDATE {lock} SET token = token WHERE FALSE; DELETE FROM {entry} WHERE FALSE; ROLLBACK",
    );
    findings.push(rights(&state.connections, &probe).await);
    findings.push(Finding::ok(
        "waiters ask again, at the latest when the lease in their way ends: the server cannot wake them",
    ));
    if state.server.galera {
        findings.push(Finding::warning(
            "a Galera node: locks that are acquired on different nodes at once fail in certification and are sent again, and \
             each node measures leases by its own clock",
            "let all clients write to one node, and keep the clocks of the nodes synchronised",
        ));
    }
    Ok(findings)
}

pub(crate) async fn examine_session(state: &SessionState) -> Result<Vec<Finding>> {
    let mut findings = common(&state.connections, &state.tables, &state.server, state.plain_text).await?;
    let probe = state.tables.statement(
        "START TRANSACTION; INSERT INTO {session} SELECT * FROM {session} WHERE FALSE;
         UPDATE {session} SET token = token WHERE FALSE; ROLLBACK",
    );
    findings.push(rights(&state.connections, &probe).await);
    findings.push(Finding::ok(
        "locks are known to this server alone: after a fail-over all guards are lost, and a proxy that shares connections \
         breaks them",
    ));
    Ok(findings)
}

async fn common(
    connections: &Connections,
    tables: &Tables,
    server: &Server,
    plain_text: bool,
) -> Result<Vec<Finding>> {
    // The first request decides whether the server is reachable.
    let asked = SystemTime::now();
    let clock =
        connections.run(&tables.statement("SELECT {now} AS now")).await.map_err(|failure| failure.error)?;
    let answered = SystemTime::now();
    let mut findings = vec![Finding::ok(server.shown.clone())];
    if let Some(server_time) =
        clock.first().and_then(|row| required::<i64>(row, "now").ok()).and_then(|now| moment(time_left(now)))
    {
        findings.push(clocks(asked, server_time, answered));
    }
    let variables = connections.run(VARIABLES).await.map_err(|failure| failure.error)?;
    let value = |name: &str| {
        variables.iter().find_map(|row| {
            let same = text(row, "Variable_name").is_ok_and(|other| other == name);
            same.then(|| text(row, "Value").unwrap_or_default())
        })
    };
    let is_on = |name: &str| value(name).is_some_and(|value| value == "ON" || value == "1");
    if is_on("read_only") || is_on("super_read_only") {
        findings.push(Finding::warning("the server is read-only", "connect to the server that takes writes"));
    }
    let flush = value("innodb_flush_log_at_trx_commit").unwrap_or_default();
    if flush == "1" {
        findings.push(Finding::ok("a commit waits for the disk (innodb_flush_log_at_trx_commit = 1)"));
    } else {
        findings.push(Finding::warning(
            format!(
                "innodb_flush_log_at_trx_commit = {flush}: a crash of the server can lose the latest grants"
            ),
            "set innodb_flush_log_at_trx_commit = 1",
        ));
    }
    if is_on("log_bin") && value("binlog_format").is_some_and(|format| format == "STATEMENT") {
        findings.push(Finding::warning(
            "binlog_format = STATEMENT: the server refuses to write under READ COMMITTED",
            "set binlog_format = ROW",
        ));
    }
    if plain_text {
        findings.push(Finding::warning(
            "the connection is not encrypted",
            "add ssl-mode=VERIFY_IDENTITY to the URL",
        ));
    }
    Ok(findings)
}

fn clocks(asked: SystemTime, server: SystemTime, answered: SystemTime) -> Finding {
    let behind = asked.duration_since(server).unwrap_or_default();
    let ahead = server.duration_since(answered).unwrap_or_default();
    let distance = behind.max(ahead);
    if distance <= CLOCK_TOLERANCE {
        return Finding::ok("the server's clock agrees with this machine's");
    }
    Finding::warning(
        format!("the server's clock and this machine's differ by {distance:.1?}"),
        "synchronise both clocks; expiry is measured by the server's alone, so locks are safe",
    )
}

async fn rights(connections: &Connections, probe: &str) -> Finding {
    match connections.run(probe).await {
        Ok(_) => Finding::ok("the user may read and write the lock tables"),
        Err(failure) => Finding::warning(
            format!("the lock tables cannot be written: {}", failure.error),
            failure.error.advice().unwrap_or("check the user's rights").to_owned(),
        ),
    }
}
