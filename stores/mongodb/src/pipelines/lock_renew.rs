//! Renewing a mutex that our lock id holds. Expiry is final: a renewal that is late matches no document, even if the lock
//! is still free.

use distlock_core::Result;
use distlock_core::store::Lease;
use mongodb::bson::{Bson, Document, RawDocumentBuf, doc};

use super::lock_document::is_held;
use super::renewed_until;
use crate::documents::stored_token;
use crate::raw_bson::RawElements;

/// The document keeps the larger token.
pub(crate) fn lock_renew(expiry_ms: i64, token: impl Into<Bson>) -> Vec<Document> {
    let token = doc! { "$max": ["$fencingToken", token.into()] };
    vec![doc! { "$set": { "expiresAt": renewed_until("$expiresAt", expiry_ms), "fencingToken": token } }]
}

/// The renewal of many locks by one update of their documents. It is written, not built: see [`RawElements`].
pub(crate) struct LockRenewEach {
    is_held: RawDocumentBuf,
    expires_at: RawDocumentBuf,
    /// The documents have their tokens already: see [`Lease::token_is_known`].
    tokens_are_known: bool,
}

impl LockRenewEach {
    pub(crate) fn new(expiry_ms: i64, tokens_are_known: bool) -> Result<Self> {
        Ok(LockRenewEach {
            is_held: RawElements::of_tree(&is_held())?,
            expires_at: RawElements::of_tree(&renewed_until("$expiresAt", expiry_ms))?,
            tokens_are_known,
        })
    }

    /// About how many bytes the update of these leases takes.
    pub(crate) fn size(leases: &[&Lease]) -> usize {
        let each = |lease: &&Lease| lease.resource.name().len() + 2 * lease.lock_id.as_str().len() + 48;
        1024 + leases.iter().map(each).sum::<usize>()
    }

    /// Writes the update. Each document that one of the lock ids holds keeps the larger of its token and of that lease's, unless it
    /// is known to have that: a list of lock ids and tokens, which the server searches for each document, is half of the update.
    ///
    /// Lock ids are unique: a document with one of these names and one of these lock ids belongs to one of these leases.
    pub(crate) fn write<'a>(
        &self,
        update: &mut RawElements,
        leases: impl Iterator<Item = &'a Lease> + Clone,
    ) {
        let mut lock_ids = None;
        update.nested("q", |query| {
            query.nested("_id", |id| {
                id.texts("$in", leases.clone().map(|lease| lease.resource.name()));
            });
            query.nested("lockId", |lock_id| {
                lock_ids = Some(lock_id.texts("$in", leases.clone().map(|lease| lease.lock_id.as_str())));
            });
            query.embedded("$expr", &self.is_held);
        });
        // The lists are literals: a lock id that begins with `$` is no path.
        let index = |index: &mut RawElements| {
            index.array("$indexOfArray", |of| {
                of.nested("0", |list| {
                    if let Some(lock_ids) = lock_ids {
                        list.repeated("$literal", lock_ids);
                    }
                });
                of.text("1", "$lockId");
            });
        };
        let token = |token: &mut RawElements| {
            token.array("$arrayElemAt", |of| {
                of.nested("0", |list| list.int64s("$literal", leases.map(|lease| stored_token(lease.token))));
                of.nested("1", index);
            });
        };
        update.array("u", |pipeline| {
            pipeline.nested("0", |stage| {
                stage.nested("$set", |set| {
                    set.embedded("expiresAt", &self.expires_at);
                    if self.tokens_are_known {
                        return;
                    }
                    set.nested("fencingToken", |larger| {
                        larger.array("$max", |of| {
                            of.text("0", "$fencingToken");
                            of.nested("1", token);
                        });
                    });
                });
            });
        });
        update.boolean("multi", true);
        // Without the hint the server may choose an index that examines other documents too.
        update.nested("hint", |hint| hint.int32("_id", 1));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use distlock_core::{FencingToken, Kind, LockId, Resource};

    use super::super::literal;
    use super::*;

    fn lease(name: &str, lock_id: &str, token: u64) -> Lease {
        let resource = Resource::new(Kind::Mutex, name).unwrap();
        Lease::new(resource, LockId::from_stored(lock_id), FencingToken::new(token), Duration::from_secs(9))
    }

    #[test]
    fn a_written_renewal_is_the_same_as_one_that_is_built() {
        let many = (0..300).map(|n| lease(&format!("name {n}"), &format!("host:1#{n:x}"), n << 40));
        let odd = [lease("$name\0.\"é", "$lockId", 0), lease("ends with \0", "", i64::MAX as u64)];
        for leases in [many.collect(), odd.to_vec(), Vec::new()] {
            let leases: Vec<Lease> = leases;
            let write = |known| {
                let renewal = LockRenewEach::new(9000, known).unwrap();
                RawElements::document(16, |update| renewal.write(update, leases.iter())).unwrap()
            };
            let (written, without_tokens) = (write(false), write(true));
            let names: Vec<&str> = leases.iter().map(|lease| lease.resource.name()).collect();
            let lock_ids: Vec<&str> = leases.iter().map(|lease| lease.lock_id.as_str()).collect();
            let tokens: Vec<i64> = leases.iter().map(|lease| stored_token(lease.token)).collect();
            let index = doc! { "$indexOfArray": [literal(lock_ids.clone()), "$lockId"] };
            let token = doc! { "$arrayElemAt": [literal(tokens), index] };
            let query = doc! { "_id": { "$in": names }, "lockId": { "$in": lock_ids }, "$expr": is_held() };
            let expires_at = renewed_until("$expiresAt", 9000);
            let expiry_alone = vec![doc! { "$set": { "expiresAt": expires_at } }];
            for (written, pipeline) in [(written, lock_renew(9000, token)), (without_tokens, expiry_alone)] {
                let built = doc! { "q": query.clone(), "u": pipeline, "multi": true, "hint": { "_id": 1 } };
                assert_eq!(Document::try_from(&*written).unwrap(), built);
                // Byte by byte: the reader above does not look at the keys of arrays.
                assert_eq!(written.as_bytes(), RawElements::of_tree(&built).unwrap().as_bytes());
            }
        }
    }
}
