//! Which records `inspect` returns, and in which order.

use crate::store::{Query, Record};

/// The records that the query asks for and that have a holder or a waiter, ordered by name and kind. A record of which
/// the store keeps only a hash (`name` is `None`) matches by kind alone, and only where no name is asked for.
#[must_use]
pub fn select(mut records: Vec<Record>, query: &Query) -> Vec<Record> {
    records.retain(|record| {
        let is_used = !(record.holders.is_empty() && record.waiters.is_empty());
        is_used
            && match &record.name {
                Some(name) => query.matches(record.kind, name),
                None => {
                    query.name.is_none()
                        && query.prefix.as_deref().is_none_or(str::is_empty)
                        && query.kind.is_none_or(|kind| kind == record.kind)
                }
            }
    });
    records.sort_by(|a, b| (&a.name, &a.key, a.kind).cmp(&(&b.name, &b.key, b.kind)));
    records
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::{Kind, LockId};
    use crate::store::Waiter;

    fn record(kind: Kind, name: Option<&str>) -> Record {
        Record {
            kind,
            name: name.map(str::to_owned),
            key: name.is_none().then(|| "17".to_owned()),
            capacity: 1,
            holders: Vec::new(),
            waiters: vec![Waiter { lock_id: LockId::from_stored("x"), weight: 1 }],
        }
    }

    fn selected(query: &Query) -> Vec<(Option<String>, Kind)> {
        let mut free = record(Kind::Mutex, Some("a/free"));
        free.waiters.clear();
        let records = vec![
            record(Kind::Semaphore, Some("b")),
            record(Kind::RwLock, Some("a/2")),
            free,
            record(Kind::Mutex, Some("a/2")),
            record(Kind::Mutex, None),
            record(Kind::Mutex, Some("a/1")),
        ];
        select(records, query).into_iter().map(|record| (record.name, record.kind)).collect()
    }

    fn named(name: &str, kind: Kind) -> (Option<String>, Kind) {
        (Some(name.to_owned()), kind)
    }

    #[test]
    fn records_are_ordered_and_free_ones_are_left_out() {
        assert_eq!(
            selected(&Query::default()),
            [
                (None, Kind::Mutex),
                named("a/1", Kind::Mutex),
                named("a/2", Kind::Mutex),
                named("a/2", Kind::RwLock),
                named("b", Kind::Semaphore),
            ]
        );
    }

    #[test]
    fn a_query_never_returns_more_than_it_asks_for() {
        assert_eq!(selected(&Query::named("b")), [named("b", Kind::Semaphore)]);
        let all = [named("a/1", Kind::Mutex), named("a/2", Kind::Mutex), named("a/2", Kind::RwLock)];
        assert_eq!(selected(&Query::prefixed("a/")), all);
        let kind = Query { kind: Some(Kind::RwLock), ..Query::default() };
        assert_eq!(selected(&kind), [named("a/2", Kind::RwLock)]);
    }
}
