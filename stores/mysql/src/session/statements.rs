//! The statements of a session: several locks are taken and released in one request.

use distlock_core::LockId;

use super::lock_name::LockName;
use crate::batch::literal;
use crate::identifier::Tables;

/// How long one `GET_LOCK` waits, in seconds; then it is sent again. The servers differ in what a negative or a huge number
/// means.
pub(super) const LONGEST_WAIT: u64 = 3600;

/// Waits for a lock. The lock id is there for people who look at the server's process list.
pub(super) fn wait(name: &LockName, lock_id: &LockId) -> String {
    format!(
        "SELECT GET_LOCK('{}', {LONGEST_WAIT}) AS got, {} AS waiter",
        name.text(),
        literal(lock_id.as_str().as_bytes())
    )
}

/// A lock to take, or a token to draw for a lock that is held.
#[derive(Clone, Debug)]
pub(super) struct Grant {
    pub(super) name: LockName,
    pub(super) shown: String,
    pub(super) lock_id: LockId,
}

/// Releases locks, takes those that are free, and draws a token for each that was taken. The reply has a row for each, in
/// that order: `n`, `got`, `token`.
pub(super) fn exchange(tables: &Tables, releases: &[LockName], grants: &[(Grant, Held)]) -> String {
    let mut text = String::new();
    let mut answers = Vec::new();
    for (at, name) in releases.iter().enumerate() {
        text.push_str(&format!("SET @distlock_r{at} = RELEASE_LOCK('{}'); ", name.text()));
        answers.push(format!("SELECT {at} AS n, @distlock_r{at} AS got, NULL AS token"));
    }
    let mut rows: Vec<(LockName, String)> = Vec::new();
    for (at, (grant, held)) in grants.iter().enumerate() {
        if *held == Held::No {
            text.push_str(&format!("SET @distlock_g{at} = GET_LOCK('{}', 0); ", grant.name.text()));
        } else {
            text.push_str(&format!("SET @distlock_g{at} = 1; "));
        }
        let row = tables.statement(&format!(
            "SELECT {} AS k, {} AS name, {{now}} DIV 1000 AS token, {} AS holder, CONNECTION_ID() AS connection_id, {{now}} AS \
             acquired_at FROM DUAL WHERE @distlock_g{at} = 1",
            grant.name.key(),
            literal(grant.shown.as_bytes()),
            literal(grant.lock_id.as_str().as_bytes()),
        ));
        rows.push((grant.name, row));
        answers.push(tables.statement(&format!(
            "SELECT {} AS n, @distlock_g{at} AS got, (SELECT token FROM {{session}} WHERE k = {} AND @distlock_g{at} = 1) AS token",
            releases.len() + at,
            grant.name.key()
        )));
    }
    if !rows.is_empty() {
        // In one order in every session.
        rows.sort();
        let rows: Vec<String> = rows.into_iter().map(|(_, row)| row).collect();
        text.push_str(&tables.statement(&format!(
            "INSERT INTO {{session}} (k, name, token, holder, connection_id, acquired_at)
             SELECT * FROM ({}) fresh
             ON DUPLICATE KEY UPDATE token = GREATEST({{session}}.token + 1, VALUES(token)), holder = VALUES(holder),
                connection_id = VALUES(connection_id), acquired_at = VALUES(acquired_at); ",
            rows.join(" UNION ALL ")
        )));
    }
    text + &answers.join(" UNION ALL ")
}

/// Whether the session has the lock already and only needs its token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Held {
    Yes,
    No,
}
