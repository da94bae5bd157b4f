//! The statements of a session: several locks are taken and released in one request.

use std::time::Duration;

use distlock_core::LockId;
use distlock_core::store::support::process_socket;

use super::lock_name::LockName;
use crate::batch::{literal, micros};
use crate::identifier::Tables;

/// How long one `GET_LOCK` waits, in seconds; then it is sent again. The servers differ in what a negative or a huge number
/// means.
pub(super) const LONGEST_WAIT: u64 = 3600;

const DRAW: &str = include_str!("../sql/session_draw.sql");
const ANSWER: &str = include_str!("../sql/session_answer.sql");
/// The same where no row has an answer.
const ANSWER_RELEASES: &str =
    "SELECT 0 AS n, 0 AS got, NULL AS k FROM DUAL WHERE FALSE UNION ALL SELECT {asked}";

/// Waits for a lock. The lock id is there for people who look at the server's process list.
pub(super) fn wait(name: &LockName, lock_id: &LockId) -> String {
    format!(
        "SELECT GET_LOCK('{}', {LONGEST_WAIT}) AS got, {} AS waiter",
        name.text(),
        literal(lock_id.as_str().as_bytes())
    )
}

/// Whether this session holds a lock. Behind a proxy that changed the session it does not.
pub(super) fn heartbeat(witness: Option<&LockName>) -> String {
    match witness {
        Some(name) => format!("SELECT IS_USED_LOCK('{}') = CONNECTION_ID() AS ours", name.text()),
        None => "SELECT 1 AS ours".to_owned(),
    }
}

/// A lock to take, or a token to draw for a lock that is held.
#[derive(Clone, Debug)]
pub(super) struct Grant {
    pub(super) name: LockName,
    pub(super) shown: String,
    pub(super) lock_id: LockId,
}

impl Grant {
    pub(super) fn new(name: LockName, shown: &str, lock_id: &LockId) -> Self {
        Grant { name, shown: shown.to_owned(), lock_id: lock_id.clone() }
    }
}

/// Whether the session has the lock already and only needs its token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Held {
    Yes,
    No,
}

/// A lock to release.
#[derive(Clone, Debug)]
pub(super) struct Release {
    pub(super) name: LockName,
    pub(super) lock_id: LockId,
    pub(super) mark: Mark,
}

/// What the row of a released lock tells the next client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// No guard of this lock exists any more.
    Released,
    /// It was never granted. An earlier holder may hold a guard, and this much less long than the row says.
    NotGranted { paid: Duration },
    /// The row is not ours.
    Untouched,
}

/// Releases locks, takes those that are free, and draws a token for each that was taken. The reply has a row for each, in
/// that order: `n`, `got`, `token`, `pending`.
pub(super) fn exchange(
    tables: &Tables,
    releases: &[Release],
    grants: &[(Grant, Held)],
    hold: Duration,
) -> String {
    let mut text = mark(tables, releases);
    // What is asked for, with the key of the row that has the answer.
    let mut asked = Vec::new();
    for (at, release) in releases.iter().enumerate() {
        text.push_str(&format!("SET @distlock_r{at} = RELEASE_LOCK('{}'); ", release.name.text()));
        asked.push(format!("{at}, @distlock_r{at}, NULL"));
    }
    let mut rows: Vec<(LockName, String)> = Vec::new();
    for (at, (grant, held)) in grants.iter().enumerate() {
        if *held == Held::No {
            text.push_str(&format!("SET @distlock_g{at} = GET_LOCK('{}', 0); ", grant.name.text()));
        } else {
            text.push_str(&format!("SET @distlock_g{at} = 1; "));
        }
        let row = format!(
            "{}, {}, {} FROM DUAL WHERE @distlock_g{at} = 1",
            grant.name.key(),
            literal(grant.shown.as_bytes()),
            literal(grant.lock_id.as_str().as_bytes()),
        );
        rows.push((grant.name, row));
        asked.push(format!("{}, @distlock_g{at}, {}", releases.len() + at, grant.name.key()));
    }
    if !rows.is_empty() {
        // In one order in every session.
        rows.sort();
        let rows: Vec<String> = rows.into_iter().map(|(_, row)| row).collect();
        let draw = DRAW.replace("{process}", &own_process()).replace("{hold}", &micros(hold).to_string());
        text.push_str(&tables.statement(&draw).replace("{rows}", &rows.join(" UNION ALL SELECT ")));
        text.push_str("; ");
    }
    let answer = if grants.is_empty() { ANSWER_RELEASES.to_owned() } else { tables.statement(ANSWER) };
    text + &answer.replace("{asked}", &asked.join(" UNION ALL SELECT "))
}

/// The socket of this process, and where the server sees it: machines that were copied while they ran share all that their kernels
/// know.
fn own_process() -> String {
    match process_socket::name() {
        Some(name) => format!("CONCAT('{name}@', {ADDRESS})"),
        None => "''".to_owned(),
    }
}

/// The client's address as the server sees it.
const ADDRESS: &str = "SUBSTRING_INDEX(USER(), '@', -1)";

/// The socket of the process of an earlier holder that did not release, in a row that is ours. No row if it cannot be asked for here.
pub(super) fn earlier_process(tables: &Tables, grant: &Grant) -> String {
    tables.statement(&format!(
        "SELECT SUBSTRING_INDEX(pending_process, '@', 1) AS process FROM {{session}} WHERE {}
         AND SUBSTRING_INDEX(pending_process, '@', -1) = {ADDRESS}",
        own_row(grant)
    ))
}

/// Notes that no guard of an earlier holder is left. The lock is granted after this: the next client then looks at its holder alone.
pub(super) fn settled(tables: &Tables, grant: &Grant) -> String {
    let row = own_row(grant);
    tables.statement(&format!("UPDATE {{session}} SET pending_us = 0, pending_process = '' WHERE {row}"))
}

fn own_row(grant: &Grant) -> String {
    format!("k = {} AND holder = {}", grant.name.key(), literal(grant.lock_id.as_str().as_bytes()))
}

/// Marks the rows of locks that are about to be released: committed before they are. A row with another lock id was
/// written by another client, and stays as it is.
fn mark(tables: &Tables, releases: &[Release]) -> String {
    let mut text = String::new();
    let released: Vec<&Release> = releases.iter().filter(|one| one.mark == Mark::Released).collect();
    if !released.is_empty() {
        let keys: Vec<String> = released.iter().map(|one| one.name.key()).collect();
        let ids: Vec<String> = released.iter().map(|one| literal(one.lock_id.as_str().as_bytes())).collect();
        text.push_str(&tables.statement(&format!(
            "UPDATE {{session}} FORCE INDEX (PRIMARY) SET hold_us = 0, pending_us = 0 WHERE k IN ({}) AND holder IN ({}); ",
            keys.join(", "),
            ids.join(", ")
        )));
    }
    for one in releases {
        let Mark::NotGranted { paid } = one.mark else { continue };
        // Rounded up, `micros` would count more than was waited.
        let paid = u64::try_from(paid.as_micros()).unwrap_or(u64::MAX);
        text.push_str(&tables.statement(&format!(
            "UPDATE {{session}} SET hold_us = 0, pending_us = IF(pending_us > {paid}, pending_us - {paid}, 0)
             WHERE k = {} AND holder = {}; ",
            one.name.key(),
            literal(one.lock_id.as_str().as_bytes())
        )));
    }
    text
}
