//! The figures of this store on a replica set of one member: requests and time, beside the raw driver in the same run.
//!
//! `cargo run --release -p distlock-mongodb --example figures [uncontended|handover|contended|distinct|held [COUNT]]`
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use distlock_core::store::{Backend, RawDriver};
use distlock_core::{Locks, Options};
use distlock_mongodb::{MongoOptions, MongoStore};
use distlock_testkit::servers::MongoReplicaSet;
use mongodb::Client;
use mongodb::bson::{Bson, doc};
use tokio::sync::Barrier;

#[tokio::main]
async fn main() {
    let set = MongoReplicaSet::start(1);
    let bench = Bench { url: set.url().replace("/?", "/figures?"), watch: watch(&set.url()).await };
    let only: Option<String> = std::env::args().nth(1);
    let wanted = |name: &str| only.as_deref().is_none_or(|only| name.contains(only));
    if wanted("uncontended") {
        bench.uncontended().await;
    }
    if wanted("handover") {
        bench.hand_over().await;
    }
    for contenders in [4, 64] {
        if wanted("contended") {
            bench.contended(contenders).await;
        }
    }
    if wanted("distinct") {
        bench.distinct(256).await;
    }
    if wanted("held") {
        let count = std::env::args().nth(2).and_then(|count| count.parse().ok()).unwrap_or(100_000);
        bench.held(count).await;
    }
}

struct Bench {
    url: String,
    watch: Client,
}

/// What the server was asked, by command.
type Counts = BTreeMap<&'static str, i64>;
const COMMANDS: [&str; 6] = ["findAndModify", "update", "find", "aggregate", "getMore", "killCursors"];

async fn watch(url: &str) -> Client {
    Client::with_uri_str(url).await.unwrap()
}

impl Bench {
    async fn locks(&self) -> Locks {
        let store = MongoStore::connect(&self.url, &MongoOptions::new()).await.unwrap();
        let options = Options::new().expiry(Duration::from_secs(10)).unwrap();
        Locks::builder(Backend::lease(store)).options(options).build().unwrap()
    }

    async fn counts(&self) -> Counts {
        let status = self.watch.database("admin").run_command(doc! { "serverStatus": 1 }).await.unwrap();
        let commands = status.get_document("metrics").unwrap().get_document("commands").unwrap();
        let total = |name: &str| {
            let total = commands.get_document(name).ok().and_then(|command| command.get("total").cloned());
            match total {
                Some(Bson::Int64(n)) => n,
                Some(Bson::Int32(n)) => i64::from(n),
                _ => 0,
            }
        };
        COMMANDS.into_iter().map(|name| (name, total(name))).collect()
    }

    async fn since(&self, before: &Counts, per: u64) -> String {
        let now = self.counts().await;
        let mut each = Vec::new();
        let (mut steps, mut all) = (0.0, 0.0);
        for (name, n) in now {
            let n = (n - before[name]) as f64 / per as f64;
            all += n;
            if matches!(name, "findAndModify" | "update" | "find") {
                steps += n;
            }
            if n >= 0.005 {
                each.push(format!("{name} {n:.2}"));
            }
        }
        format!("{steps:.2} requests, {all:.2} with those of the change stream ({})", each.join(", "))
    }

    /// One task, one name, nobody else: ours and the raw driver in turns, so that both meet the same noise.
    async fn uncontended(&self) {
        let locks = self.locks().await;
        let raw = raw(&locks).await;
        let mutex = locks.mutex("uncontended");
        for _ in 0..100 {
            mutex.acquire().await.unwrap().release().await.unwrap();
            raw.cycle("raw").await.unwrap();
        }
        let before = self.counts().await;
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..20 {
            for _ in 0..50 {
                let begun = Instant::now();
                mutex.acquire().await.unwrap().release().await.unwrap();
                ours.push(begun.elapsed());
            }
        }
        println!("uncontended cycle: {}", self.since(&before, 1000).await);
        // Timed in turns only: a busy machine changes from one second to the next.
        ours.clear();
        for _ in 0..20 {
            for _ in 0..50 {
                let begun = Instant::now();
                mutex.acquire().await.unwrap().release().await.unwrap();
                ours.push(begun.elapsed());
                let begun = Instant::now();
                raw.cycle("raw").await.unwrap();
                theirs.push(begun.elapsed());
            }
        }
        let (ours, theirs) = (median(&mut ours), median(&mut theirs));
        println!(
            "  median {ours:?}, raw driver {theirs:?}: {:.2} of it",
            ours.as_secs_f64() / theirs.as_secs_f64()
        );
    }

    /// From the call of release to the grant in another engine.
    async fn hand_over(&self) {
        let engines = [self.locks().await, self.locks().await];
        let mut times = Vec::new();
        let mut held = engines[0].mutex("handed").acquire().await.unwrap();
        for round in 1..=300 {
            let mutex = engines[round % 2].mutex("handed");
            let waiting = tokio::spawn(async move {
                let guard = mutex.acquire().await.unwrap();
                (guard, Instant::now())
            });
            tokio::time::sleep(Duration::from_millis(15)).await;
            let begun = Instant::now();
            held.release().await.unwrap();
            let (guard, granted) = waiting.await.unwrap();
            times.push(granted.saturating_duration_since(begun));
            held = guard;
        }
        held.release().await.unwrap();
        println!(
            "hand-over between two engines: median {:?}, p90 {:?}",
            median(&mut times),
            times[times.len() * 9 / 10]
        );
        // A holder that took the lock when nobody waited, and does not listen.
        let mut times = Vec::new();
        for round in 0..50 {
            let name = format!("first-{round}");
            let held = engines[0].mutex(name.as_str()).acquire().await.unwrap();
            let mutex = engines[1].mutex(name.as_str());
            let waiting = tokio::spawn(async move {
                let guard = mutex.acquire().await.unwrap();
                (guard, Instant::now())
            });
            tokio::time::sleep(Duration::from_millis(60)).await;
            let begun = Instant::now();
            held.release().await.unwrap();
            let (guard, granted) = waiting.await.unwrap();
            times.push(granted.saturating_duration_since(begun));
            guard.release().await.unwrap();
        }
        println!(
            "  the first one of a name: median {:?}, p90 {:?}",
            median(&mut times),
            times[times.len() * 9 / 10]
        );
        let engines = [self.locks().await, self.locks().await];
        let mut times = Vec::new();
        let mut held = engines[0].semaphore("handed", 1).acquire().await.unwrap();
        for round in 1..=100 {
            let semaphore = engines[round % 2].semaphore("handed", 1);
            let waiting = tokio::spawn(async move {
                let guard = semaphore.acquire().await.unwrap();
                (guard, Instant::now())
            });
            tokio::time::sleep(Duration::from_millis(15)).await;
            let begun = Instant::now();
            held.release().await.unwrap();
            let (guard, granted) = waiting.await.unwrap();
            times.push(granted.saturating_duration_since(begun));
            held = guard;
        }
        println!("  of a semaphore: median {:?}, p90 {:?}", median(&mut times), times[times.len() * 9 / 10]);
    }

    /// Engines that all want one mutex, hold it for a moment and pause before they want it again.
    async fn contended(&self, contenders: usize) {
        for (what, kind) in [("mutex", 0), ("semaphore of one", 1)] {
            let name = format!("contended-{contenders}");
            let mut engines = Vec::new();
            for _ in 0..contenders {
                engines.push(self.locks().await);
            }
            let counted = Arc::new(AtomicU64::new(0));
            let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
            let ready = Arc::new(Barrier::new(contenders + 1));
            let mut tasks = Vec::new();
            for locks in engines {
                let (counted, stop, ready, name) =
                    (Arc::clone(&counted), Arc::clone(&stop), Arc::clone(&ready), name.clone());
                tasks.push(tokio::spawn(async move {
                    ready.wait().await;
                    let mut own = Vec::new();
                    while !stop.load(Ordering::Relaxed) {
                        let guard = match kind {
                            0 => locks.mutex(name.as_str()).acquire().await.unwrap(),
                            _ => locks.semaphore(name.as_str(), 1).acquire().await.unwrap(),
                        };
                        own.push(Instant::now());
                        counted.fetch_add(1, Ordering::Relaxed);
                        tokio::time::sleep(Duration::from_millis(1)).await;
                        guard.release().await.unwrap();
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                    own
                }));
            }
            ready.wait().await;
            tokio::time::sleep(Duration::from_secs(4)).await;
            let (before, begun, first) =
                (self.counts().await, Instant::now(), counted.load(Ordering::Relaxed));
            tokio::time::sleep(Duration::from_secs(6)).await;
            let granted = counted.load(Ordering::Relaxed) - first;
            let ended = Instant::now();
            let told = self.since(&before, granted.max(1)).await;
            stop.store(true, Ordering::Relaxed);
            let mut each = Vec::new();
            for task in tasks {
                let own = task.await.unwrap();
                each.push(own.iter().filter(|at| **at > begun && **at < ended).count());
            }
            each.sort_unstable();
            println!(
                "{contenders} contenders for a {what}: {told}; {granted} grants in 6 s, each between {} and {}",
                each[0],
                each[each.len() - 1],
            );
        }
    }

    /// Many tasks, each with a name of its own, through one engine; and the same through the raw driver.
    async fn distinct(&self, tasks: usize) {
        let locks = self.locks().await;
        let raw: Arc<dyn RawDriver> = raw(&locks).await.into();
        for _ in 0..2 {
            let before = self.counts().await;
            let engine = locks.clone();
            let (ours, cycles) = rate(tasks, move |n| {
                let mutex = engine.mutex(format!("distinct-{n}"));
                async move { mutex.acquire().await.unwrap().release().await.unwrap() }
            })
            .await;
            let told = self.since(&before, cycles).await;
            let driver = Arc::clone(&raw);
            let (theirs, _) = rate(tasks, move |n| {
                let driver = Arc::clone(&driver);
                async move { driver.cycle(&format!("raw-{n}")).await.unwrap() }
            })
            .await;
            println!(
                "{tasks} tasks on names of their own: {ours:.0} cycles/s, raw driver {theirs:.0}: {:.1} of it; a cycle is {told}",
                ours / theirs,
            );
        }
    }
}

impl Bench {
    /// Many locks held at once, extended every three seconds.
    async fn held(&self, count: usize) {
        const CADENCE: Duration = Duration::from_secs(3);
        let store = MongoStore::connect(&self.url, &MongoOptions::new()).await.unwrap();
        let options = Options::new().expiry(3 * CADENCE).unwrap();
        let locks = Locks::builder(Backend::lease(store)).options(options).build().unwrap();
        let begun = Instant::now();
        let mut held = Vec::with_capacity(count);
        let mut names = 0..count;
        loop {
            let some: Vec<_> = names.by_ref().take(2000).map(|n| locks.mutex(format!("held-{n}"))).collect();
            if some.is_empty() {
                break;
            }
            let taking = some.into_iter().map(|mutex| async move { mutex.acquire().await.unwrap() });
            held.extend(futures_util::future::join_all(taking).await);
        }
        println!("{count} locks taken in {:?}", begun.elapsed());
        tokio::time::sleep(CADENCE).await;
        let (before, used_before, begun) = (self.counts().await, cpu(), Instant::now());
        tokio::time::sleep(4 * CADENCE).await;
        let ticks = begun.elapsed().as_secs_f64() / CADENCE.as_secs_f64();
        let used = (cpu() - used_before) / begun.elapsed().as_secs_f64();
        let now = self.counts().await;
        let requests: i64 = now.iter().map(|(name, n)| n - before[name]).sum();
        let lost = held.iter().filter(|guard| guard.is_lost()).count();
        println!(
            "{count} held locks: {:.0} requests for each extension of all of them, {used:.2} of a core, {lost} lost",
            requests as f64 / ticks,
        );
        let begun = Instant::now();
        drop(held);
        let ended = locks.shutdown().await;
        println!("  given back in {:?}: {ended:?}", begun.elapsed());
    }
}

/// The processor time of this process, in seconds.
fn cpu() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
    let ticks = |n: usize| fields.get(n).and_then(|text| text.parse::<f64>().ok()).unwrap_or_default();
    (ticks(11) + ticks(12)) / 100.0
}

/// Cycles a second over four seconds.
async fn rate<F, Fut>(tasks: usize, cycle: F) -> (f64, u64)
where
    F: Fn(usize) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = ()> + Send,
{
    let counted = Arc::new(AtomicU64::new(0));
    let begun = Instant::now();
    let ends = begun + Duration::from_secs(4);
    let running: Vec<_> = (0..tasks)
        .map(|n| {
            let (counted, cycle) = (Arc::clone(&counted), cycle.clone());
            tokio::spawn(async move {
                while Instant::now() < ends {
                    cycle(n).await;
                    counted.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    for task in running {
        task.await.unwrap();
    }
    let counted = counted.load(Ordering::Relaxed);
    (counted as f64 / begun.elapsed().as_secs_f64(), counted)
}

/// The driver alone, in the same run.
async fn raw(locks: &Locks) -> Box<dyn RawDriver> {
    locks.raw_driver().await.unwrap().unwrap()
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}
