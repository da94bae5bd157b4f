//! The figures of the PostgreSQL stores: what a cycle costs, how fast a lock changes hands, what waiters cost.
//!
//! ```console
//! $ cargo run --release -p distlock-postgres --example figures -- postgres://postgres@127.0.0.1/postgres
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use distlock_core::store::{Backend, Store, StoreUrl};
use distlock_core::{Locks, Options, Result};
use distlock_postgres::{ADVISORY_DRIVER, LeaseTable, PostgresConfig};

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "postgres://postgres@127.0.0.1/postgres".to_owned());
    let config = || PostgresConfig::from_url(&url);
    let store = LeaseTable::connect(config()?).await?;
    println!("{}", store.describe());
    one_task(&store).await?;
    handover("lease table", &|| async { Ok(Backend::lease(LeaseTable::connect(config()?).await?)) }).await?;
    let advisory = url.replacen("postgres", "postgres+advisory", 1);
    handover("advisory locks", &|| async { (ADVISORY_DRIVER.connect)(StoreUrl::parse(&advisory)?).await })
        .await?;
    for waiters in [4, 64] {
        contended(config()?, waiters).await?;
    }
    distinct_names(&store).await?;
    held(&store).await
}

/// Median of some durations.
fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

async fn one_task(store: &LeaseTable) -> Result<()> {
    const CYCLES: u32 = 300;
    let locks = store.locks()?;
    let raw = store.raw_driver().await?;
    let mut ours = Vec::new();
    let mut bare = Vec::new();
    for n in 0..20 {
        locks.mutex(format!("warm/{n}")).acquire().await?.release().await?;
    }
    let before = store.statements();
    for n in 0..CYCLES {
        let begun = Instant::now();
        locks.mutex(format!("alone/{}", n % 10)).acquire().await?.release().await?;
        ours.push(begun.elapsed());
        if let Some(raw) = &raw {
            let begun = Instant::now();
            raw.cycle(&format!("alone/{}", n % 10)).await?;
            bare.push(begun.elapsed());
        }
    }
    let statements = (store.statements() - before) as f64 / f64::from(CYCLES);
    let (ours, bare) = (median(ours), median(bare));
    println!(
        "one task, uncontended: {statements:.2} statements (round trips, commits) a cycle; median {ours:.0?}, raw {bare:.0?}, \
         ratio {:.2}",
        ours.as_secs_f64() / bare.as_secs_f64()
    );
    if let Some(raw) = raw {
        raw.clean_up("alone/").await?;
    }
    Ok(())
}

/// Two processes pass a lock to and fro.
async fn handover<F>(what: &str, connect: &impl Fn() -> F) -> Result<()>
where
    F: Future<Output = Result<Backend>>,
{
    let engines = [Locks::new(connect().await?)?, Locks::new(connect().await?)?];
    let mut line = String::new();
    for kind in ["mutex", "semaphore", "writer", "fair mutex"] {
        let take = move |locks: Locks| async move {
            match kind {
                "mutex" => locks.mutex("handed over").acquire().await,
                "semaphore" => locks.semaphore("handed over", 1).acquire().await,
                "writer" => locks.rw_lock("handed over").write().await,
                _ => locks.mutex("handed over").fair().acquire().await,
            }
        };
        let mut times = Vec::new();
        let mut held = take(engines[0].clone()).await?;
        for round in 1..=100 {
            let next = engines[round % 2].clone();
            let waiting = tokio::spawn(async move { (take(next).await, Instant::now()) });
            tokio::time::sleep(Duration::from_millis(30)).await;
            let released = Instant::now();
            held.release().await?;
            let Ok((granted, at)) = waiting.await else { return Ok(()) };
            held = granted?;
            times.push(at - released);
        }
        held.release().await?;
        line.push_str(&format!("  {kind} {:.2?}", median(times)));
    }
    println!("hand-over, median, {what}:{line}");
    Ok(())
}

/// Many processes want one mutex and hold it for a moment.
async fn contended(config: PostgresConfig, waiters: usize) -> Result<()> {
    const EACH: usize = 20;
    let total = Arc::new(AtomicU64::new(0));
    let mut stores = Vec::new();
    for _ in 0..waiters {
        stores.push(LeaseTable::connect(config.clone()).await?);
    }
    let mut tasks = tokio::task::JoinSet::new();
    let begun = Instant::now();
    for store in &stores {
        let (locks, total) = (store.locks()?, Arc::clone(&total));
        tasks.spawn(async move {
            for _ in 0..EACH {
                let guard = locks.mutex("contended").acquire().await?;
                total.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_micros(200)).await;
                guard.release().await.ok();
            }
            Result::<()>::Ok(())
        });
    }
    for done in tasks.join_all().await {
        done?;
    }
    let elapsed = begun.elapsed();
    let statements: u64 = stores.iter().map(LeaseTable::statements).sum();
    let grants = total.load(Ordering::Relaxed);
    println!(
        "{waiters} contenders: {:.2} statements an acquisition, {:.0} acquisitions a second",
        statements as f64 / grants as f64,
        grants as f64 / elapsed.as_secs_f64()
    );
    Ok(())
}

/// Many tasks of one process, each with names of its own, beside eight connections without a library.
async fn distinct_names(store: &LeaseTable) -> Result<()> {
    const TASKS: usize = 256;
    let time = Duration::from_secs(3);
    let locks = store.locks()?;
    let Some(raw) = store.raw_driver().await? else { return Ok(()) };
    let raw: Arc<dyn distlock_core::store::RawDriver> = Arc::from(raw);
    let mut rates = [Vec::new(), Vec::new()];
    for _ in 0..3 {
        for (which, rates) in rates.iter_mut().enumerate() {
            let mut tasks = tokio::task::JoinSet::new();
            let begun = Instant::now();
            for task in 0..TASKS {
                let (locks, raw) = (locks.clone(), Arc::clone(&raw));
                tasks.spawn(async move {
                    let mut cycles = 0_u64;
                    let name = format!("distinct/{task}");
                    while begun.elapsed() < time {
                        match which {
                            0 => locks
                                .mutex(name.as_str())
                                .acquire()
                                .await?
                                .release()
                                .await
                                .map_err(|_| ())
                                .unwrap_or(()),
                            _ => raw.cycle(&name).await?,
                        }
                        cycles += 1;
                    }
                    Result::<u64>::Ok(cycles)
                });
            }
            let mut cycles = 0;
            for done in tasks.join_all().await {
                cycles += done?;
            }
            rates.push(cycles as f64 / begun.elapsed().as_secs_f64());
        }
    }
    let best = |rates: &[f64]| rates.iter().copied().fold(0.0, f64::max);
    let (ours, bare) = (best(&rates[0]), best(&rates[1]));
    println!(
        "{TASKS} tasks, distinct names: {ours:.0} cycles a second, eight raw connections {bare:.0}, ratio {:.1}",
        ours / bare
    );
    raw.clean_up("distinct/").await
}

/// Many locks that are held and extended.
async fn held(store: &LeaseTable) -> Result<()> {
    const LOCKS: usize = 100_000;
    const EXPIRY: Duration = Duration::from_secs(9);
    let locks = store.locks()?.with_options(Options::new().expiry(EXPIRY)?);
    let begun = Instant::now();
    let mut guards = Vec::with_capacity(LOCKS);
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..500 {
        let locks = locks.clone();
        tasks.spawn(async move {
            let mut guards = Vec::new();
            for n in 0..LOCKS / 500 {
                guards.push(locks.mutex(format!("held/{task}/{n}")).acquire().await?);
            }
            Result::<Vec<_>>::Ok(guards)
        });
    }
    for done in tasks.join_all().await {
        guards.extend(done?);
    }
    let taken = begun.elapsed();
    tokio::time::sleep(EXPIRY / 3).await;
    let before = store.statements();
    tokio::time::sleep(EXPIRY).await;
    let ticks = (store.statements() - before) as f64 / 3.0;
    let lost = guards.iter().filter(|guard| guard.is_lost()).count();
    println!(
        "{LOCKS} held locks, taken in {taken:.1?}: {ticks:.0} statements to extend all of them once; {lost} lost"
    );
    let begun = Instant::now();
    drop(guards);
    locks.shutdown().await?;
    println!("given back in {:.1?}", begun.elapsed());
    Ok(())
}
