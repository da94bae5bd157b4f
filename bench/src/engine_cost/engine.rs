//! Scenarios of the engine on the memory store.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use distlock_core::memory::{MemoryStore, Stats};
use distlock_core::store::Backend;
use distlock_core::{Locks, Options, Result};

use crate::allocations;

const HELD: usize = 100_000;

fn print(scenario: &str, cycles: u64, took: Duration, allocations: u64, stats: &Stats) {
    let per = |total: u64| total as f64 / cycles.max(1) as f64;
    println!(
        "{scenario:<34} {:>10.0} cycles/s {:>8.2} us/cycle {:>6.1} allocations {:>5.2} requests",
        cycles as f64 / took.as_secs_f64(),
        took.as_secs_f64() * 1e6 / cycles.max(1) as f64,
        per(allocations),
        per(stats.acquire.requests + stats.release.requests),
    );
}

fn fresh() -> Result<(MemoryStore, Locks)> {
    let store = MemoryStore::new();
    let locks = Locks::new(Backend::lease(store.clone()))?;
    Ok((store, locks))
}

/// Runs all scenarios, each for about this long.
pub(crate) async fn run(limit: Duration) -> Result<()> {
    uncontended(limit).await?;
    for tasks in [64, 256] {
        many(limit, tasks, false).await?;
    }
    many(limit, 64, true).await?;
    held(limit).await
}

async fn uncontended(limit: Duration) -> Result<()> {
    let (store, locks) = fresh()?;
    let mutex = locks.mutex("one");
    mutex.acquire().await?.release().await?;
    let (begun, allocated, mut cycles) = (Instant::now(), allocations::calls(), 0);
    while begun.elapsed() < limit {
        mutex.acquire().await?.release().await?;
        cycles += 1;
    }
    print("one task, one name", cycles, begun.elapsed(), allocations::calls() - allocated, &store.stats());
    Ok(())
}

async fn many(limit: Duration, tasks: u64, one_name: bool) -> Result<()> {
    let (store, locks) = fresh()?;
    let cycles = Arc::new(AtomicU64::new(0));
    let (begun, allocated) = (Instant::now(), allocations::calls());
    let running: Vec<_> = (0..tasks)
        .map(|n| {
            let name = if one_name { "shared".to_owned() } else { format!("name/{n}") };
            let (mutex, cycles) = (locks.mutex(name), Arc::clone(&cycles));
            tokio::spawn(async move {
                while begun.elapsed() < limit {
                    mutex.acquire().await?.release().await?;
                    cycles.fetch_add(1, Ordering::Relaxed);
                }
                Ok::<(), distlock_core::Error>(())
            })
        })
        .collect();
    for task in running {
        task.await.map_err(|error| {
            distlock_core::Error::new(distlock_core::ErrorKind::Internal, error.to_string())
        })??;
    }
    let scenario = format!("{tasks} tasks, {}", if one_name { "one name" } else { "distinct names" });
    let allocations = allocations::calls() - allocated;
    print(&scenario, cycles.load(Ordering::Relaxed), begun.elapsed(), allocations, &store.stats());
    Ok(())
}

async fn held(limit: Duration) -> Result<()> {
    // Expiry 9 s and a renewal every 3 s, as in the targets.
    let store = MemoryStore::new();
    let options = Options::new().expiry(Duration::from_secs(9))?;
    let locks = Locks::builder(Backend::lease(store.clone())).options(options).build()?;
    // The store's records are in this process too: measured first, with a record but no guard for each name.
    let before = allocations::live_bytes();
    for n in 0..HELD {
        locks.mutex(format!("held/{n}")).acquire().await?.release().await?;
    }
    let records = allocations::live_bytes() - before;
    let begun = Instant::now();
    let before = allocations::live_bytes();
    let mut guards = Vec::with_capacity(HELD);
    for n in 0..HELD {
        guards.push(locks.mutex(format!("held/{n}")).acquire().await?);
    }
    let bytes = allocations::live_bytes() - before;
    println!(
        "{HELD} held: acquired in {:.2} s, {} bytes per lock in the engine (the memory store's records: {} more)",
        begun.elapsed().as_secs_f64(),
        bytes / HELD as u64,
        records / HELD as u64
    );
    let measured = limit.max(Duration::from_secs(9));
    let (renewed, cpu, begun) = (store.stats().renew, cpu_seconds(), Instant::now());
    tokio::time::sleep(measured).await;
    let (after, took) = (store.stats().renew, begun.elapsed().as_secs_f64());
    let ticks = took / 3.0;
    println!(
        "  over {took:.0} s: {:.0} renewal requests per tick of 3 s for {:.0} locks, {:.3} core, lost {}",
        (after.requests - renewed.requests) as f64 / ticks,
        (after.items - renewed.items) as f64 / ticks,
        (cpu_seconds() - cpu) / took,
        guards.iter().filter(|guard| guard.is_lost()).count()
    );
    drop(guards);
    locks.shutdown().await
}

/// The CPU time of this process so far, including the store.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The second field may contain spaces; user and system time are the 12th and 13th after its closing parenthesis.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(11) + ticks(12)) / 100.0
}
