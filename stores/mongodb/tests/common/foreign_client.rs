//! Another implementation of the format, as in a program in another language: it counts its tokens from one, deletes the
//! document on release, and polls.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::Duration;

use mongodb::bson::{Bson, Document, doc};
use mongodb::options::ReturnDocument;
use mongodb::{Collection, Database};

pub struct ForeignClient {
    locks: Collection<Document>,
    instance: String,
    acquisitions: std::sync::atomic::AtomicU32,
}

/// What it holds.
#[derive(Debug, Clone)]
pub struct Handle {
    pub name: String,
    pub lock_id: String,
    pub token: i64,
}

impl ForeignClient {
    pub fn new(database: &Database, instance: &str) -> Self {
        let locks = database.collection("distributed.locks");
        ForeignClient { locks, instance: instance.to_owned(), acquisitions: 0.into() }
    }

    pub async fn try_acquire(&self, name: &str, expiry: Duration) -> Option<Handle> {
        let n = self.acquisitions.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let lock_id = format!("{}-{n:012}", self.instance);
        let is_free = doc! { "$lte": [{ "$ifNull": ["$expiresAt", mongodb::bson::DateTime::from_millis(0)] }, "$$NOW"] };
        let set = |value: Bson, field: &str| doc! { "$cond": [is_free.clone(), value, format!("${field}")] };
        let expiry = i64::try_from(expiry.as_millis()).unwrap();
        let pipeline = vec![doc! { "$set": {
            "lockId": set(lock_id.as_str().into(), "lockId"),
            "acquiredAt": set("$$NOW".into(), "acquiredAt"),
            "expiresAt": set(doc! { "$add": ["$$NOW", expiry] }.into(), "expiresAt"),
            "fencingToken": set(doc! { "$add": [{ "$ifNull": ["$fencingToken", 0_i64] }, 1_i64] }.into(), "fencingToken"),
        } }];
        let taken = loop {
            let taken = self
                .locks
                .find_one_and_update(doc! { "_id": name }, pipeline.clone())
                .upsert(true)
                .return_document(ReturnDocument::After)
                .await;
            match taken {
                Ok(taken) => break taken.unwrap(),
                // Two upserts collided.
                Err(error) if error.to_string().contains("11000") => {}
                Err(error) => panic!("{error}"),
            }
        };
        (taken.get_str("lockId").unwrap() == lock_id).then(|| Handle {
            name: name.to_owned(),
            lock_id,
            token: taken.get_i64("fencingToken").unwrap(),
        })
    }

    pub async fn acquire(&self, name: &str, expiry: Duration) -> Handle {
        loop {
            if let Some(handle) = self.try_acquire(name, expiry).await {
                return handle;
            }
            tokio::time::sleep(Duration::from_millis(fastrand_ms())).await;
        }
    }

    /// False: the handle is lost.
    pub async fn renew(&self, handle: &Handle, expiry: Duration) -> bool {
        let expiry = i64::try_from(expiry.as_millis()).unwrap();
        let pipeline = vec![doc! { "$set": { "expiresAt": { "$add": ["$$NOW", expiry] } } }];
        let ours = doc! { "_id": &handle.name, "lockId": &handle.lock_id };
        self.locks.update_one(ours, pipeline).await.unwrap().matched_count == 1
    }

    /// False: the handle was lost.
    pub async fn release(&self, handle: Handle) -> bool {
        let ours = doc! { "_id": handle.name, "lockId": handle.lock_id };
        self.locks.delete_one(ours).await.unwrap().deleted_count == 1
    }
}

fn fastrand_ms() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    10 + RandomState::new().hash_one(0) % 20
}
