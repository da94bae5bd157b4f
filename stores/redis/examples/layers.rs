//! The cost of an uncontended cycle by layer: the bare driver, the scripts without the engine, and both. One task, medians,
//! interleaved. `cargo run --release -p distlock-redis --example layers [URL]`; without a URL it starts a server.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::{Duration, Instant};

use distlock_core::store::{Backend, Claim, Lease, LeaseStore, StoreUrl};
use distlock_core::{FencingToken, Kind, LockIds, Locks, Resource};
use distlock_redis::{DRIVER, RedisConfig, RedisStore};
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
    let url = StoreUrl::parse(&url).unwrap();
    let store = RedisStore::connect(RedisConfig::from_url(&url).unwrap()).await.unwrap();
    let baseline = DRIVER.baseline(url).await.unwrap().unwrap();
    let locks = Locks::new(Backend::lease(store.clone())).unwrap();
    let mutex = locks.mutex("layers");
    let ids = LockIds::new("layers");
    let (mut driver, mut scripts, mut engine) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        for _ in 0..CYCLES {
            let started = Instant::now();
            baseline.cycle("layers").await.unwrap();
            driver.push(started.elapsed());
        }
        for _ in 0..CYCLES {
            let resource = Resource::new(Kind::Mutex, "layers").unwrap();
            let claim = Claim::new(resource, ids.next(), Duration::from_secs(30));
            let started = Instant::now();
            store.try_acquire(std::slice::from_ref(&claim)).await.unwrap();
            store.release(&[Lease::of(&claim, FencingToken::new(0))]).await.unwrap();
            scripts.push(started.elapsed());
        }
        for _ in 0..CYCLES {
            let started = Instant::now();
            mutex.acquire().await.unwrap().release().await.unwrap();
            engine.push(started.elapsed());
        }
    }
    let (driver, scripts, engine) = (median(driver), median(scripts), median(engine));
    println!("bare driver           {driver:>10.1?}");
    println!("scripts               {scripts:>10.1?}  {:.2}", scripts.as_secs_f64() / driver.as_secs_f64());
    println!("scripts and engine    {engine:>10.1?}  {:.2}", engine.as_secs_f64() / driver.as_secs_f64());
}
