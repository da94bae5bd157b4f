//! The holders of a lock in a message: `held by web-3:812 for 4m 10s`.

use std::time::{Duration, SystemTime};

use distlock::store::{Holder, Query};
use distlock::{Locks, Resource};

use crate::duration;
use crate::table::escape;

/// How many holders are named.
const NAMED: usize = 3;

/// The time limit of the inspection: a message never makes the command wait for the store.
const LIMIT: Duration = Duration::from_millis(300);

/// The holders of a lock, as in `held by web-3:812 for 4m 10s`. `None` if there are none, or the store does not say in time.
pub(crate) async fn held_by(locks: &Locks, resource: &Resource) -> Option<String> {
    let query = Query { kind: Some(resource.kind()), ..Query::named(resource.name()) };
    let records = tokio::time::timeout(LIMIT, locks.inspect(&query)).await.ok()?.ok()?;
    let holders: Vec<&Holder> = records.iter().flat_map(|record| &record.holders).collect();
    describe(&holders, SystemTime::now())
}

fn describe(holders: &[&Holder], now: SystemTime) -> Option<String> {
    let named = holders.iter().take(NAMED).map(|holder| {
        let label = escape(holder.lock_id.label());
        match holder.acquired_at {
            // The store's clock may be ahead of ours.
            Some(at) => format!("{label} for {}", duration::show(now.duration_since(at).unwrap_or_default())),
            None => label,
        }
    });
    let mut text = named.collect::<Vec<_>>().join(", ");
    if holders.len() > NAMED {
        text.push_str(&format!(" and {} more", holders.len() - NAMED));
    }
    (!text.is_empty()).then(|| format!("held by {text}"))
}

#[cfg(test)]
mod tests {
    use distlock::LockId;

    use super::*;

    #[test]
    fn holders_are_named_with_the_time_since_the_grant() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
        let holder = |label: &str, acquired_at| Holder {
            lock_id: LockId::from_stored(format!("{label}#00ff-1")),
            token: None,
            acquired_at,
            expires_in: None,
            weight: 1,
        };
        let web = holder("web-3:812", Some(now - Duration::from_secs(250)));
        let other = holder("a\nb:1", None);
        assert_eq!(describe(&[], now), None);
        assert_eq!(describe(&[&web], now).unwrap(), "held by web-3:812 for 4m 10s");
        let many = describe(&[&web, &other, &other, &other, &other], now).unwrap();
        assert_eq!(many, r"held by web-3:812 for 4m 10s, a\nb:1, a\nb:1 and 2 more");
    }
}
