//! The holders of a lock in a message: `held by web-3:812 for 4m 10s`.

use std::time::Duration;

use distlock::store::{Holder, Query};
use distlock::{Locks, Resource};

/// The time limit of the inspection: a message never makes the command wait for the store.
const LIMIT: Duration = Duration::from_millis(300);

/// The holders of a lock, as in `held by web-3:812 for 4m 10s`. `None` if there are none, or the store does not say in time.
pub(crate) async fn held_by(locks: &Locks, resource: &Resource) -> Option<String> {
    let query = Query::named(resource.name()).with_kind(resource.kind());
    let records = tokio::time::timeout(LIMIT, locks.inspect(&query)).await.ok()?.ok()?;
    let holders: Vec<Holder> = records.into_iter().flat_map(|record| record.holders).collect();
    (!holders.is_empty()).then(|| format!("held by {}", Holder::list(&holders)))
}
