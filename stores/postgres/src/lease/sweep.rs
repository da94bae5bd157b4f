//! Forgetting what was not used for long: expired rows and those that only remember a token. In the background, at a
//! bounded [pace](crate::pace), and by one process at a time.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use distlock_core::Result;
use tokio_postgres::types::Type;

use super::Inner;
use crate::pace::{self, AT_ONCE, Rest, Walk};
use crate::statement::{Statement, Tables};
use crate::values::micros;

pub(crate) static SWEEP: [Type; 3] = [Type::TEXT, Type::INT8, Type::INT8];

#[derive(Debug)]
pub(super) struct Statements([Statement; 2]);

impl Statements {
    pub(super) fn new(tables: &Tables) -> Self {
        Statements([
            Statement::new(6, include_str!("../sql/lock_sweep.sql"), tables, &SWEEP),
            Statement::new(7, include_str!("../sql/pool_sweep.sql"), tables, &SWEEP),
        ])
    }
}

/// The task ends with the store.
pub(super) fn start(store: &Arc<Inner>) {
    let store = Arc::downgrade(store);
    tokio::spawn(async move {
        let mut rest = Rest::new();
        tokio::time::sleep(Rest::first()).await;
        while let Some(walked) = walk(&store, pace::pause_after).await {
            tokio::time::sleep(rest.after(&walked)).await;
        }
    });
}

/// Walks through both tables once, and says how many rows were forgotten.
pub(super) async fn once(store: &Arc<Inner>) -> Result<u64> {
    // Only a store that is gone gives nothing, and this one is not.
    let walked = walk(&Arc::downgrade(store), |_| Duration::ZERO).await;
    walked.map_or(Ok(0), |walked| Ok(walked?.deleted))
}

/// `None`: the store is gone.
async fn walk(store: &Weak<Inner>, pause: fn(Duration) -> Duration) -> Option<Result<Walk>> {
    let mut walk = Walk::default();
    for table in 0..2 {
        let mut after = String::new();
        loop {
            let begun = Instant::now();
            let step = {
                let store = store.upgrade()?;
                let retention = micros(store.link.config().retention);
                let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 3] =
                    [&after, &AT_ONCE, &retention];
                let rows = store.link.run(&store.sweep.0[table], &parameters).await;
                rows.and_then(|rows| walk.note(&rows))
            };
            match step {
                Ok(Some(last)) => after = last,
                Ok(None) => break,
                Err(error) => {
                    tracing::debug!(%error, "cannot sweep the lock tables now");
                    return Some(Err(error));
                }
            }
            tokio::time::sleep(pause(begun.elapsed())).await;
        }
    }
    Some(Ok(walk))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LeaseTable, PostgresConfig};
    use distlock_testkit::servers::PostgresServer;

    /// As in the background. A thousand rows a second would take more than twenty seconds.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn the_sweep_in_the_background_keeps_up_with_thousands_of_names_a_second() {
        let server = PostgresServer::start();
        let config = PostgresConfig::from_url(&server.url()).unwrap();
        let store = LeaseTable::connect(config).await.unwrap();
        server.sql(
            "INSERT INTO distribute_lock (key, value, expire_time, token)
             SELECT 'old/' || n, '', now() - interval '2 hours', 1 FROM generate_series(1, 25000) n;
             INSERT INTO distribute_lock (key, value, expire_time, token)
             SELECT 'new/' || n, '', now(), 1 FROM generate_series(1, 5000) n",
        );
        let begun = Instant::now();
        let walked = walk(&Arc::downgrade(&store.0), pace::pause_after).await.unwrap().unwrap();
        assert_eq!((walked.deleted, walked.seen), (25_000, 30_000));
        assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
        assert_eq!(server.value("SELECT count(*) FROM distribute_lock"), "5000");
    }
}
