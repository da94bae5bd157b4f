//! Limited concurrency: at most four of the fleet's jobs use the GPUs, and a big job takes two at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use distlock::Result;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory:".to_owned());
    let locks = distlock::connect(&url).await?;
    let (busy, most) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let jobs: Vec<_> = (0..20)
        .map(|job| {
            let (gpus, busy, most) = (locks.semaphore("gpu", 4), Arc::clone(&busy), Arc::clone(&most));
            tokio::spawn(async move {
                let wanted = if job % 5 == 0 { 2 } else { 1 };
                let guard = gpus.acquire_many(wanted).await?;
                let now = busy.fetch_add(wanted, Ordering::SeqCst) + wanted;
                most.fetch_max(now, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(10)).await;
                busy.fetch_sub(wanted, Ordering::SeqCst);
                guard.release().await?;
                Ok::<(), distlock::Error>(())
            })
        })
        .collect();
    for job in jobs {
        if let Ok(result) = job.await {
            result?;
        }
    }
    println!("20 jobs, never more than {} GPUs at once", most.load(Ordering::SeqCst));
    Ok(())
}
