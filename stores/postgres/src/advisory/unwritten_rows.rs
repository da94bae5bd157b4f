//! Locks that are held and have no row yet: `inspect` waits for the rows.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use distlock_core::Result;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::key::AdvisoryKey;
use super::shared_session::SharedSession;
use super::store::StoreState;
use crate::statement::Request;
use crate::values::column;

/// How long `inspect` waits for the rows of all holders.
const LIMIT: Duration = Duration::from_secs(1);
/// The same for one lock. It is shorter: a lock in short holds has a holder without a row most of the time.
const LIMIT_OF_ONE: Duration = Duration::from_millis(300);
/// The first pause between two looks. Each look reads all locks of the server, so the pauses double.
const FIRST_PAUSE: Duration = Duration::from_millis(5);

/// A lock by its server process and key.
type Lock = (i32, i64, bool);

/// Waits until the locks that are held now have their rows, or are released. A client that is stalled, or cannot write, has none:
/// its locks are left out where all are asked for. Where one is asked for, its holder is shown like that of another program.
pub(super) async fn until_written(
    state: &StoreState,
    shared: &SharedSession,
    key: Option<AdvisoryKey>,
) -> Result<()> {
    let (number, pair) = key.map_or((None, false), |key| (Some(key.parts().0), key.parts().1));
    let (started, limit) = (Instant::now(), if key.is_some() { LIMIT_OF_ONE } else { LIMIT });
    let mut first: Option<HashSet<Lock>> = None;
    let mut pause = FIRST_PAUSE;
    loop {
        let request: [&(dyn ToSql + Sync); 2] = [&number, &pair];
        let rows = shared.session.connection.query(&Request::new(&state.lock.without_row, &request)).await?;
        let read = |row: &Row| -> Result<Lock> {
            Ok((column(row, "pid")?, column(row, "key")?, column(row, "pair")?))
        };
        let now: HashSet<Lock> = rows.iter().map(read).collect::<Result<_>>()?;
        let left: HashSet<Lock> = first.take().map_or(now.clone(), |first| &first & &now);
        // Where all locks are asked for, one of each session is its session lock.
        let sessions: HashSet<i32> = left.iter().map(|(pid, ..)| *pid).collect();
        let never = if key.is_some() { 0 } else { sessions.len() };
        let rest = limit.saturating_sub(started.elapsed());
        if left.len() <= never || rest.is_zero() {
            return Ok(());
        }
        first = Some(left);
        tokio::time::sleep(pause.min(rest)).await;
        pause *= 2;
    }
}
