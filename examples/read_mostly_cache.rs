//! A read-mostly cache: many readers at once, and now and then a writer whom they do not starve.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use distlock::Result;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory:".to_owned());
    let locks = distlock::connect(&url).await?;
    let (version, reads) = (Arc::new(AtomicU64::new(1)), Arc::new(AtomicU64::new(0)));

    let readers: Vec<_> = (0..8)
        .map(|_| {
            let (catalogue, version, reads) =
                (locks.rw_lock("catalogue"), Arc::clone(&version), Arc::clone(&reads));
            tokio::spawn(async move {
                while version.load(Ordering::SeqCst) < 4 {
                    let guard = catalogue.read().await?;
                    tokio::time::sleep(Duration::from_millis(2)).await;
                    reads.fetch_add(1, Ordering::SeqCst);
                    guard.release().await?;
                }
                Ok::<(), distlock::Error>(())
            })
        })
        .collect();

    for _ in 0..3 {
        tokio::time::sleep(Duration::from_millis(30)).await;
        let guard = locks.rw_lock("catalogue").write().await?;
        let now = version.fetch_add(1, Ordering::SeqCst) + 1;
        println!(
            "rebuilt: version {now} after {} reads, token {}",
            reads.load(Ordering::SeqCst),
            guard.token()
        );
        guard.release().await?;
    }
    for reader in readers {
        if let Ok(result) = reader.await {
            result?;
        }
    }
    Ok(())
}
