//! Where the time of an uncontended cycle goes: the driver alone, our scripts without the engine, and all of it. One
//! task, medians, interleaved. `cargo run --release -p distlock-redis --example layers [URL]`; without a URL it
//! starts a server of its own.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::{Duration, Instant};

use distlock_core::store::{Backend, Claim, Lease, LeaseStore, Store, StoreUrl};
use distlock_core::{FencingToken, Kind, LockIds, Locks, Resource};
use distlock_redis::{RedisConfig, RedisStore};
use distlock_testkit::servers::RedisServer;

const ROUNDS: usize = 40;
const CYCLES: usize = 100;

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

#[tokio::main]
async fn main() {
    let server = std::env::args().nth(1).is_none().then(RedisServer::start);
    let url = server.as_ref().map_or_else(|| std::env::args().nth(1).unwrap(), RedisServer::url);
    let store =
        RedisStore::connect(RedisConfig::from_url(&StoreUrl::parse(&url).unwrap()).unwrap()).await.unwrap();
    let raw = store.baseline().await.unwrap().unwrap();
    let locks = Locks::new(Backend::lease(store.clone())).unwrap();
    let mutex = locks.mutex("layers");
    let ids = LockIds::new("layers");
    let (mut bare, mut scripts, mut engine) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        for _ in 0..CYCLES {
            let begun = Instant::now();
            raw.cycle("layers").await.unwrap();
            bare.push(begun.elapsed());
        }
        for _ in 0..CYCLES {
            let claim = Claim {
                resource: Resource::new(Kind::Mutex, "layers").unwrap(),
                lock_id: ids.next(),
                weight: 1,
                capacity: 1,
                expiry: Duration::from_secs(30),
                waiting: None,
                no_overtaking: false,
            };
            let begun = Instant::now();
            store.try_acquire(std::slice::from_ref(&claim)).await.unwrap();
            store.release(&[Lease::of(&claim, FencingToken::new(0))]).await.unwrap();
            scripts.push(begun.elapsed());
        }
        for _ in 0..CYCLES {
            let begun = Instant::now();
            mutex.acquire().await.unwrap().release().await.unwrap();
            engine.push(begun.elapsed());
        }
    }
    let (bare, scripts, engine) = (median(bare), median(scripts), median(engine));
    println!("driver alone          {bare:>10.1?}");
    println!("our scripts           {scripts:>10.1?}  {:.2}", scripts.as_secs_f64() / bare.as_secs_f64());
    println!("scripts and engine    {engine:>10.1?}  {:.2}", engine.as_secs_f64() / bare.as_secs_f64());
}
