//! Rows of sessions that ended: of waiters that were killed, and of holders that did not release and whose names no client has used since.

use std::sync::{Arc, Weak};
use std::time::Duration;

use distlock_core::Result;
use distlock_core::store::support::ended_session::at_least;

use crate::inspect::entries;
use crate::store::StoreState;

/// How often the background task looks, on average.
const CADENCE: Duration = Duration::from_secs(600);

pub(crate) fn start(state: &Arc<StoreState>) {
    if !state.config.tokens {
        return;
    }
    let state = Arc::downgrade(state);
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(CADENCE.mul_f64(0.5 + fastrand::f64())).await;
            let Some(state) = Weak::upgrade(&state) else { return };
            if let Err(error) = once(&state).await {
                tracing::debug!(%error, "the rows of ended sessions were not deleted; the next sweep tries again");
            }
        }
    });
}

/// Deletes them, once the guards of their holders are lost, and returns their number.
pub(crate) async fn once(state: &StoreState) -> Result<u64> {
    if !state.config.tokens {
        return Ok(0);
    }
    let observer = state.sessions.observer().await?;
    let (entries, alive) = entries(state, &observer).await?;
    let dead: Vec<_> = entries.into_iter().filter(|entry| !alive.contains(&entry.session)).collect();
    let pending = dead.iter().map(|entry| entry.hold).max().unwrap_or_default();
    tokio::time::sleep(at_least(pending)).await;
    let mut deleted = 0;
    for entry in &dead {
        let params =
            vec![(&entry.resource[..]).into(), (&entry.id[..]).into(), entry.session.as_str().into()];
        observer.query(&state.statements.sweep, params).await?;
        deleted += 1;
    }
    Ok(deleted)
}
