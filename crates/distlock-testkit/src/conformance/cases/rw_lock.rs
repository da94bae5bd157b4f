//! Reader-writer locks: many readers or one writer; no writer starves.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::conformance::{Fixture, Harness};
use crate::history::LockSpec;

/// Readers of several engines hold at once.
pub async fn many_readers_hold_at_once<F: Fixture>(harness: Harness<F>) {
    let engines = [harness.locks().await, harness.locks().await, harness.locks().await];
    let (read, write) = (LockSpec::read("catalogue"), LockSpec::write("catalogue"));
    if !harness.supports(&engines[0], &read).await {
        return;
    }
    let recorder = harness.recorder("all");
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..30 {
        let (harness, recorder, locks, read) =
            (harness.clone(), Arc::clone(&recorder), engines[n % 3].clone(), read.clone());
        tasks.spawn(async move { harness.acquire(&recorder, &locks, &read).await });
    }
    let readers = tasks.join_all().await;
    assert!(readers.iter().all(|reader| reader.check_held()));
    assert!(recorder.try_acquire(&engines[0], &write).await.unwrap().is_none());
    let record = harness.record(&engines[1], &read).await.expect("readers");
    assert_eq!(record.holders.len(), 30, "{record:?}");
    for reader in readers {
        reader.release().await.unwrap();
    }
    recorder
        .try_acquire(&engines[0], &write)
        .await
        .unwrap()
        .expect("no reader is left")
        .release()
        .await
        .unwrap();
}

/// A reader excludes writers and a writer excludes all, on the same engine and on another.
pub async fn a_writer_excludes_readers_and_writers<F: Fixture>(harness: Harness<F>) {
    let engines = [harness.locks().await, harness.locks().await];
    let (read, write) = (LockSpec::read("catalogue"), LockSpec::write("catalogue"));
    if !harness.supports(&engines[0], &read).await {
        return;
    }
    let recorder = harness.recorder("all");
    let reader = harness.acquire(&recorder, &engines[0], &read).await;
    for locks in &engines {
        assert!(recorder.try_acquire(locks, &write).await.unwrap().is_none(), "a writer beside a reader");
        let another = recorder.try_acquire(locks, &read).await.unwrap().expect("readers share");
        another.release().await.unwrap();
    }
    reader.release().await.unwrap();
    let writer = harness.acquire(&recorder, &engines[0], &write).await;
    for locks in &engines {
        assert!(recorder.try_acquire(locks, &write).await.unwrap().is_none(), "two writers");
        assert!(recorder.try_acquire(locks, &read).await.unwrap().is_none(), "a reader beside a writer");
    }
    writer.release().await.unwrap();
    recorder.try_acquire(&engines[1], &read).await.unwrap().expect("it is free").release().await.unwrap();
}

/// A stream of readers holds the lock without a gap. A waiting writer is still granted the lock where the store promises it;
/// elsewhere it is granted when the stream ends.
pub async fn a_writer_is_not_starved_by_a_stream_of_readers<F: Fixture>(harness: Harness<F>) {
    let engines = [harness.locks().await, harness.locks().await];
    let (read, write) = (LockSpec::read("stream"), LockSpec::write("stream"));
    if !harness.supports(&engines[0], &read).await {
        return;
    }
    let promised = engines[0].capabilities().writer_not_starved;
    let ends = Arc::new(AtomicBool::new(false));
    let mut readers = tokio::task::JoinSet::new();
    let recorder = harness.recorder("readers");
    for n in 0..4_u64 {
        let (recorder, locks, read) = (Arc::clone(&recorder), engines[0].clone(), read.clone());
        let ends = Arc::clone(&ends);
        let (hold, first) = (std::time::Duration::from_millis(20), std::time::Duration::from_millis(5 * n));
        readers.spawn(async move {
            tokio::time::sleep(first).await;
            while !ends.load(Ordering::SeqCst) {
                let reader = recorder.acquire(&locks, &read).await.expect("a grant to a reader");
                tokio::time::sleep(hold).await;
                reader.release().await.expect("a release");
            }
        });
    }
    let writer = harness.recorder("writer");
    if !promised {
        tokio::time::sleep(harness.timing().queue_delay).await;
        ends.store(true, Ordering::SeqCst);
    }
    for _ in 0..3 {
        let guard = harness.acquire(&writer, &engines[1], &write).await;
        guard.check_held();
        guard.release().await.unwrap();
    }
    ends.store(true, Ordering::SeqCst);
    harness.within("the end of the readers", readers.join_all()).await;
}

/// On a store that does not starve writers, a single attempt of a reader fails while a writer waits.
pub async fn a_waiting_writer_blocks_later_readers<F: Fixture>(harness: Harness<F>) {
    let engines = [harness.locks().await, harness.locks().await];
    let (read, write) = (LockSpec::read("queued"), LockSpec::write("queued"));
    if !harness.supports(&engines[0], &read).await {
        return;
    }
    let recorder = harness.recorder("readers");
    let reader = harness.acquire(&recorder, &engines[0], &read).await;
    let writer = tokio::spawn({
        let (harness, locks) = (harness.clone(), engines[1].clone());
        let recorder = harness.recorder("writer");
        async move { harness.acquire(&recorder, &locks, &write).await.release().await.unwrap() }
    });
    harness.wait_for_waiters(&engines[0], &read, 1).await;
    let late = recorder.try_acquire(&engines[0], &read).await.unwrap();
    if engines[0].capabilities().writer_not_starved {
        assert!(late.is_none(), "a reader overtook a waiting writer");
    }
    drop(late);
    reader.release().await.unwrap();
    harness.within("the grant to the writer", writer).await.unwrap();
    harness.acquire(&recorder, &engines[0], &read).await.release().await.unwrap();
}
