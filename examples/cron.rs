//! One job in the fleet: five replicas wake up at the same minute, one of them does the work.
//!
//! `cargo run --example cron -- file:///tmp/cron-locks` — run it on as many hosts as you like, on a shared store.

use std::time::Duration;

use distlock::{Locks, Options, Result};

async fn nightly(replica: u32, locks: &Locks) -> Result<bool> {
    // Held at least a minute in real life: a job that ends early does not run again on a host whose clock is late.
    let options = Options::new().hold_at_least(Duration::from_millis(200))?;
    let job = locks.mutex("cron/nightly").options(options);
    let Some(guard) = job.try_acquire().await? else {
        println!("replica {replica}: another replica runs it");
        return Ok(false);
    };
    println!("replica {replica}: doing it, token {}", guard.token());
    guard.run(tokio::time::sleep(Duration::from_millis(20))).await?;
    guard.release().await?;
    Ok(true)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory:".to_owned());
    let locks = distlock::connect(&url).await?;
    let replicas: Vec<_> = (1..=5)
        .map(|replica| {
            let locks = locks.clone();
            tokio::spawn(async move { nightly(replica, &locks).await })
        })
        .collect();
    let mut done = 0;
    for replica in replicas {
        if let Ok(result) = replica.await {
            done += u32::from(result?);
        }
    }
    println!("done {done} time(s)");
    Ok(())
}
