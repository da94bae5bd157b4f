//! The bare driver that benchmarks compare with.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::Place;
use mongodb::bson::{Document, doc};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_bare_driver_makes_two_round_trips_and_leaves_nothing() {
    let place = Place::on_one_node();
    let locks = place.locks().await;
    let raw = place.baseline().await;
    let before = raw.server_requests().await.unwrap().expect("a server that counts");
    for n in 0..20 {
        raw.cycle(&format!("bench-{}", n % 3)).await.unwrap();
    }
    let asked = raw.server_requests().await.unwrap().unwrap() - before;
    assert!(asked >= 40, "20 cycles were {asked} requests");

    // What our own locks left under that prefix goes too, and nothing else.
    for name in ["bench-1", "bench-2", "kept"] {
        locks.mutex(name).acquire().await.unwrap().release().await.unwrap();
        locks.semaphore(name, 2).acquire().await.unwrap().release().await.unwrap();
    }
    raw.clean_up("bench-").await.unwrap();
    let database = place.database().await;
    for (collection, kept) in [("distributed.locks", "kept"), ("distributed.locks.queues", "semaphore:kept")]
    {
        let left = database.collection::<Document>(collection).distinct("_id", doc! {}).await.unwrap();
        assert_eq!(left, [kept.into()], "{collection}");
    }
    let names = database.list_collection_names().await.unwrap();
    assert!(!names.iter().any(|name| name.contains("bench")), "{names:?}");
}
