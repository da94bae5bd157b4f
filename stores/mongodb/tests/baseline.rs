//! The bare driver that benchmarks compare with.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::TestDatabase;
use mongodb::bson::{Document, doc};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_bare_driver_makes_two_round_trips_and_leaves_nothing() {
    let test_db = TestDatabase::on_replica_set();
    let locks = test_db.locks().await;
    let baseline = test_db.baseline().await;
    let before = baseline.server_requests().await.unwrap().expect("a server that counts");
    for n in 0..20 {
        baseline.cycle(&format!("bench-{}", n % 3)).await.unwrap();
    }
    let sent = baseline.server_requests().await.unwrap().unwrap() - before;
    assert!(sent >= 40, "20 cycles were {sent} requests");

    // Documents of our own locks with that prefix are removed too, and no others.
    for name in ["bench-1", "bench-2", "kept"] {
        locks.mutex(name).acquire().await.unwrap().release().await.unwrap();
        locks.semaphore(name, 2).acquire().await.unwrap().release().await.unwrap();
    }
    baseline.clean_up("bench-").await.unwrap();
    let database = test_db.database().await;
    for (collection, kept) in [("distributed.locks", "kept"), ("distributed.locks.queues", "semaphore:kept")]
    {
        let left = database.collection::<Document>(collection).distinct("_id", doc! {}).await.unwrap();
        assert_eq!(left, [kept.into()], "{collection}");
    }
    let names = database.list_collection_names().await.unwrap();
    assert!(!names.iter().any(|name| name.contains("bench")), "{names:?}");
}
