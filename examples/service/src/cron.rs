//! A job that runs once in each period, whichever replica comes first.

use std::time::Duration;

use distlock::{Locks, Options};
use sqlx::PgPool;

use crate::BoxError;

/// A minute or a day in real life.
pub(crate) const PERIOD: Duration = Duration::from_millis(500);

pub(crate) async fn run(locks: Locks, database: PgPool) {
    let mut ticks = tokio::time::interval(PERIOD);
    loop {
        ticks.tick().await;
        match report(&locks, &database).await {
            Ok(true) => tracing::debug!("reported"),
            Ok(false) => tracing::trace!("another replica has reported"),
            Err(error) => tracing::warn!(%error, "no report in this period"),
        }
    }
}

/// False: it was done in this period.
async fn report(locks: &Locks, database: &PgPool) -> Result<bool, BoxError> {
    // The lock is kept until the period is over, even if the job takes a millisecond and the replica then ends: the clocks of the
    // replicas differ, and a late one would find the lock free and run the job again.
    let job = locks.mutex("cron/report").options(Options::new().hold_at_least(PERIOD)?);
    let Some(guard) = job.try_acquire().await? else { return Ok(false) };
    let report = sqlx::query("INSERT INTO reports (token) VALUES ($1)").bind(guard.token()).execute(database);
    guard.run(report).await??;
    guard.release().await?;
    Ok(true)
}
