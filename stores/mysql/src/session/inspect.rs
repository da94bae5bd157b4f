//! Who holds and who waits, as the server tells, and ending sessions.

use std::collections::HashMap;
use std::time::Duration;

use distlock_core::store::support::inspect::select;
use distlock_core::store::{Holder, Query, Record, Waiter};
use distlock_core::{Error, ErrorKind, FencingToken, Kind, LockId, Resource, Result};
use mysql_async::Row;

use super::SessionState;
use super::lock_name::{FROM_KEY, LockName};
use crate::batch::literal;
use crate::rows::{moment, required, text, time_left};

/// How often, and how long apart, a killed session is looked for until it is gone.
const LOOKS: u32 = 100;
const PAUSE: Duration = Duration::from_millis(5);

/// What is held: a row counts if the session that wrote it has the lock now. Waiters are in the server's process list.
pub(super) async fn inspect(state: &SessionState, query: &Query) -> Result<Vec<Record>> {
    if query.kind.is_some_and(|kind| kind != Kind::Mutex) {
        return Ok(Vec::new());
    }
    let wanted = match (&query.name, query.prefix.as_deref()) {
        (Some(name), _) => format!("name = {}", literal(name.as_bytes())),
        (None, Some(prefix)) if !prefix.is_empty() => {
            format!("LEFT(name, {}) = {}", prefix.len(), literal(prefix.as_bytes()))
        }
        _ => "TRUE".to_owned(),
    };
    let held = state.tables.statement(&format!(
        "SELECT name, holder, token, acquired_at, connection_id, {FROM_KEY} AS lock_name FROM {{session}}
         WHERE {wanted} AND IS_USED_LOCK({FROM_KEY}) = connection_id"
    ));
    let rows = run(state, &held).await?;
    let mut waiters = waiters(state).await?;
    let mut records = Vec::new();
    for row in &rows {
        let since: i64 = required(row, "acquired_at")?;
        let holder = Holder::new(LockId::from_stored(text(row, "holder")?), 1)
            .with_token(FencingToken::new(required(row, "token")?))
            .with_acquired_at(moment(time_left(since)));
        let holder = match query.also_held {
            true => holder.with_also_held(others(state, row).await?),
            false => holder,
        };
        let waiters = waiters.remove(&text(row, "lock_name")?).unwrap_or_default();
        records.push(
            Record::new(Kind::Mutex, 1)
                .with_name(text(row, "name")?)
                .with_holders(vec![holder])
                .with_waiters(waiters),
        );
    }
    Ok(select(records, query))
}

/// What else a session holds.
async fn others(state: &SessionState, row: &Row) -> Result<Vec<Resource>> {
    let (connection_id, name): (u64, String) = (required(row, "connection_id")?, text(row, "name")?);
    let held = state.tables.statement(&format!(
        "SELECT name FROM {{session}} WHERE connection_id = {connection_id} AND name <> {}
         AND IS_USED_LOCK({FROM_KEY}) = connection_id ORDER BY name",
        literal(name.as_bytes())
    ));
    run(state, &held).await?.iter().map(|row| Resource::new(Kind::Mutex, text(row, "name")?)).collect()
}

async fn run(state: &SessionState, statement: &str) -> Result<Vec<Row>> {
    state.connections.run(statement).await.map_err(|failure| failure.error)
}

/// Sessions that wait in `GET_LOCK`, by the lock's name, the oldest first. Both servers show the statement.
async fn waiters(state: &SessionState) -> Result<HashMap<String, Vec<Waiter>>> {
    let rows = run(state, "SHOW FULL PROCESSLIST").await?;
    let mut waiting: Vec<(i64, String, Waiter)> = Vec::new();
    for row in &rows {
        let Some((name, lock_id)) = text(row, "Info").ok().and_then(|info| read_wait(&info)) else {
            continue;
        };
        let seconds: i64 = required(row, "Time").unwrap_or_default();
        waiting.push((-seconds, name, Waiter::new(LockId::from_stored(lock_id), 1)));
    }
    waiting.sort_by_key(|(seconds, _, _)| *seconds);
    let mut by_name: HashMap<String, Vec<Waiter>> = HashMap::new();
    for (_, name, waiter) in waiting {
        by_name.entry(name).or_default().push(waiter);
    }
    Ok(by_name)
}

/// The lock's name and the lock id in a statement of ours that waits.
fn read_wait(info: &str) -> Option<(String, String)> {
    let rest = info.strip_prefix("SELECT GET_LOCK('")?;
    let (name, rest) = rest.split_once('\'')?;
    let (_, rest) = rest.split_once("X'")?;
    let (digits, _) = rest.split_once("' AS waiter")?;
    let bytes: Option<Vec<u8>> = (0..digits.len() / 2)
        .map(|at| digits.get(2 * at..2 * at + 2).and_then(|pair| u8::from_str_radix(pair, 16).ok()))
        .collect();
    Some((name.to_owned(), String::from_utf8_lossy(&bytes?).into_owned()))
}

/// Ends a session that waits for a lock, and returns when the server has forgotten it. Only a session that runs our
/// statement is killed: behind a proxy the number may be another client's. Where that fails, closing the connection must do:
/// the server notices within seconds. Returns whether it was killed.
pub(super) async fn end_waiter(state: &SessionState, connection_id: u32, name: &LockName) -> bool {
    let waits = format!(
        "SELECT COUNT(*) AS found FROM information_schema.processlist WHERE id = {connection_id}
         AND info LIKE 'SELECT GET_LOCK(''{}''%'",
        name.text()
    );
    let found = run(state, &waits).await.and_then(|rows| count(&rows));
    if !matches!(found, Ok(1)) || run(state, &format!("KILL {connection_id}")).await.is_err() {
        return false;
    }
    wait_until_gone(state, u64::from(connection_id)).await;
    true
}

async fn wait_until_gone(state: &SessionState, connection_id: u64) {
    let look =
        format!("SELECT COUNT(*) AS found FROM information_schema.processlist WHERE id = {connection_id}");
    for _ in 0..LOOKS {
        if !matches!(run(state, &look).await.and_then(|rows| count(&rows)), Ok(1..)) {
            return;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

fn count(rows: &[Row]) -> Result<i64> {
    rows.first().map_or(Ok(0), |row| required(row, "found"))
}

/// Ends the session that holds a lock.
pub(super) async fn break_lock(state: &SessionState, resource: &Resource) -> Result<Vec<Holder>> {
    let name = LockName::of(&state.tables, resource);
    let used = format!("SELECT COALESCE(IS_USED_LOCK('{}'), 0) AS found", name.text());
    let session = count(&run(state, &used).await?)?;
    let Some(session) = u64::try_from(session).ok().filter(|session| *session > 0) else {
        return Ok(Vec::new());
    };
    let query = Query::named(resource.name()).with_kind(Kind::Mutex).with_also_held();
    let holders = inspect(state, &query).await?.into_iter().flat_map(|record| record.holders).collect();
    if let Err(error) = run(state, &format!("KILL {session}")).await {
        let what = format!("the session {session} that holds it cannot be ended: {error}");
        return Err(Error::new(ErrorKind::Denied, what).about(resource).advise(
            "use the holder's account, or one with the right CONNECTION_ADMIN (MariaDB: CONNECTION ADMIN)",
        ));
    }
    wait_until_gone(state, session).await;
    Ok(holders)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_waits_are_read() {
        let ours = "SELECT GET_LOCK('distlock.00ff', 3600) AS got, X'61623A31' AS waiter";
        assert_eq!(read_wait(ours), Some(("distlock.00ff".to_owned(), "ab:1".to_owned())));
        for other in ["SELECT 1", "SELECT GET_LOCK('a', 1)", "SELECT GET_LOCK('a", "DO SLEEP(3)", "…"] {
            assert_eq!(read_wait(other), None, "{other}");
        }
    }
}
