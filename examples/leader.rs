//! A leader with handoff: one of the replicas leads for as long as it holds the lock; when it steps down or
//! dies, the next takes over with a higher token.

use std::time::Duration;

use distlock::{Locks, Result};

async fn replica(number: u32, locks: Locks) -> Result<()> {
    let guard = locks.mutex("leader").fair().acquire().await?;
    println!("replica {number} leads, term {}", guard.token());
    // Leading ends by itself, or at once if the lock is lost: then another replica may lead already.
    match guard.run(tokio::time::sleep(Duration::from_millis(30))).await {
        Ok(()) => {
            guard.release().await?;
            println!("replica {number} steps down");
        }
        Err(error) => println!("replica {number} was deposed: {error}"),
    }
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory:".to_owned());
    let locks = distlock::connect(&url).await?;
    let mut replicas = Vec::new();
    for number in 1..=3 {
        replicas.push(tokio::spawn(replica(number, locks.clone())));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    for replica in replicas {
        if let Ok(result) = replica.await {
            result?;
        }
    }
    Ok(())
}
