//! Hazard: a pool admits too many, or in the wrong order.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use distlock_core::store::SessionStore;
use distlock_core::{ErrorKind, Kind, WRITER_WEIGHT};
use tokio_util::sync::CancellationToken;

use crate::agent::{Agent, spell};
use crate::support::{LONG, acquire, claim, mutex, open, release, tree, try_once, until};

fn slots(dir: &std::path::Path, folder: &str) -> usize {
    tree(dir).iter().filter(|path| path.contains(&format!("/{folder}/"))).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_permits_cost_a_file_for_each_holder_and_not_for_each_permit() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    let most = claim(Kind::Semaphore, "x", 9_990, 10_000);
    let hold = acquire(&store, &most).await;
    assert_eq!(slots(dir.path(), "hold"), 1);
    let few: Vec<_> = (0..10).map(|_| claim(Kind::Semaphore, "x", 1, 10_000)).collect();
    for claim in &few {
        try_once(&store, claim).await.unwrap().expect("there are permits left");
    }
    assert!(try_once(&store, &claim(Kind::Semaphore, "x", 1, 10_000)).await.unwrap().is_none());
    release(&store, &most, &hold).await;
    assert!(try_once(&store, &claim(Kind::Semaphore, "x", 9_991, 10_000)).await.unwrap().is_none());
    assert!(try_once(&store, &claim(Kind::Semaphore, "x", 9_990, 10_000)).await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_holders_fit_and_one_more_does_not() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    let mut last = None;
    let mut first = None;
    for _ in 0..1000 {
        let one = claim(Kind::Semaphore, "x", 1, 1000);
        let hold = try_once(&store, &one).await.unwrap().expect("there are permits left");
        assert!(Some(hold.token) > last);
        last = Some(hold.token);
        first.get_or_insert((one, hold));
    }
    let one_more = claim(Kind::Semaphore, "x", 1, 1000);
    assert!(try_once(&store, &one_more).await.unwrap().is_none());
    let (claim, hold) = first.unwrap();
    release(&store, &claim, &hold).await;
    assert!(try_once(&store, &one_more).await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_of_one_process_are_served_in_the_order_in_which_they_asked() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    let first = claim(Kind::Semaphore, "x", 1, 1);
    let hold = acquire(&store, &first).await;
    let served = Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut waiting = futures_util::stream::FuturesUnordered::new();
    // All at once: none waits until the previous one is queued.
    for number in 0..30 {
        let (store, served) = (store.clone(), Arc::clone(&served));
        waiting.push(async move {
            let claim = claim(Kind::Semaphore, "x", 1, 1);
            let hold = acquire(&store, &claim).await;
            served.lock().unwrap().push(number);
            release(&store, &claim, &hold).await;
        });
    }
    let release_first = async {
        until("all are queued", async || slots(dir.path(), "queue") == 30).await;
        release(&store, &first, &hold).await;
    };
    let all = async { while futures_util::StreamExt::next(&mut waiting).await.is_some() {} };
    tokio::join!(release_first, all);
    assert_eq!(*served.lock().unwrap(), (0..30).collect::<Vec<_>>());
}

#[test]
fn waiters_of_different_processes_are_served_in_order_of_arrival() {
    let dir = tempfile::tempdir().unwrap();
    for kind in [Kind::Semaphore, Kind::FairQueue, Kind::RwLock] {
        let lock = spell(kind, "x", 1, 1);
        let mut agents: Vec<Agent> = (0..5).map(|_| Agent::start(dir.path())).collect();
        let (mut token, _) = agents[0].acquire(1, &lock);
        for (at, agent) in agents.iter_mut().enumerate().skip(1) {
            agent.tell(&format!("acquire 1 {lock}"));
            wait_for_slots(dir.path(), at);
        }
        for at in 1..agents.len() {
            agents[at - 1].release(1);
            let (next, _) = agents[at].granted(1);
            assert!(next > token, "{next} after {token}");
            token = next;
        }
    }
}

fn wait_for_slots(dir: &std::path::Path, count: usize) {
    let start = std::time::Instant::now();
    while slots(dir, "queue") != count {
        assert!(start.elapsed() < LONG);
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

#[tokio::test]
async fn a_small_claim_does_not_overtake_a_large_waiter() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    let held = claim(Kind::Semaphore, "x", 2, 3);
    let hold = acquire(&store, &held).await;
    let big = claim(Kind::Semaphore, "x", 3, 3);
    let waiting = {
        let (store, big) = (store.clone(), big.clone());
        tokio::spawn(async move { acquire(&store, &big).await })
    };
    until("it waits", async || slots(dir.path(), "queue") == 1).await;
    // One permit is free, but a waiter is before it.
    assert!(try_once(&store, &claim(Kind::Semaphore, "x", 1, 3)).await.unwrap().is_none());
    release(&store, &held, &hold).await;
    let hold = waiting.await.unwrap();
    release(&store, &big, &hold).await;
    assert!(try_once(&store, &claim(Kind::Semaphore, "x", 1, 3)).await.unwrap().is_some());
}

#[tokio::test]
async fn waiters_that_fit_together_are_served_together() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    let writer = claim(Kind::RwLock, "x", WRITER_WEIGHT, WRITER_WEIGHT);
    let hold = acquire(&store, &writer).await;
    let mut readers = Vec::new();
    for count in 1..=4 {
        let store = store.clone();
        let reader = claim(Kind::RwLock, "x", 1, WRITER_WEIGHT);
        readers.push(tokio::spawn(async move { acquire(&store, &reader).await }));
        until("it waits", async || slots(dir.path(), "queue") == count).await;
    }
    release(&store, &writer, &hold).await;
    for reader in readers {
        // No reader releases: each is served beside the others.
        reader.await.unwrap();
    }
    assert_eq!(slots(dir.path(), "hold"), 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_is_not_starved_by_a_stream_of_readers() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    let stop = Arc::new(AtomicBool::new(false));
    let mut readers = Vec::new();
    for _ in 0..3 {
        let (store, stop) = (store.clone(), Arc::clone(&stop));
        readers.push(tokio::spawn(async move {
            let mut before: Option<(distlock_core::store::Claim, distlock_core::store::SessionHold)> = None;
            let mut reads = 0_u32;
            while !stop.load(Ordering::SeqCst) {
                // The next read begins before the last one ends: there is always a reader.
                let claim = claim(Kind::RwLock, "x", 1, WRITER_WEIGHT);
                let withdraw = CancellationToken::new();
                let hold = tokio::select! {
                    hold = store.acquire(&claim, &withdraw) => hold.unwrap().unwrap(),
                    () = tokio::time::sleep(std::time::Duration::from_millis(5)), if before.is_some() => {
                        // A writer is before us. Release the last read, as every reader does in the end.
                        let (claim, hold) = before.take().unwrap();
                        release(&store, &claim, &hold).await;
                        continue;
                    }
                };
                if let Some((claim, hold)) = before.replace((claim, hold)) {
                    release(&store, &claim, &hold).await;
                }
                reads += 1;
            }
            if let Some((claim, hold)) = before {
                release(&store, &claim, &hold).await;
            }
            reads
        }));
    }
    for _ in 0..10 {
        let writer = claim(Kind::RwLock, "x", WRITER_WEIGHT, WRITER_WEIGHT);
        let hold = acquire(&store, &writer).await;
        assert!(try_once(&store, &claim(Kind::RwLock, "x", 1, WRITER_WEIGHT)).await.unwrap().is_none());
        release(&store, &writer, &hold).await;
    }
    stop.store(true, Ordering::SeqCst);
    for reader in readers {
        assert!(reader.await.unwrap() > 0);
    }
}

#[tokio::test]
async fn another_capacity_is_refused_while_the_first_is_in_use() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    let held = claim(Kind::Semaphore, "x", 1, 3);
    let hold = acquire(&store, &held).await;
    for other in [2, 4] {
        let error = try_once(&store, &claim(Kind::Semaphore, "x", 1, other)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Mismatch);
        let text = error.to_string();
        assert!(text.contains("capacity of 3") && text.contains(&format!("and {other}")), "{text}");
    }
    release(&store, &held, &hold).await;
    let other = claim(Kind::Semaphore, "x", 1, 4);
    let hold = try_once(&store, &other).await.unwrap().expect("no holder is left");
    release(&store, &other, &hold).await;
    // A dead holder does not count.
    let mut agent = Agent::start(dir.path());
    agent.acquire(1, &spell(Kind::Semaphore, "x", 1, 5));
    assert!(try_once(&store, &claim(Kind::Semaphore, "x", 1, 4)).await.is_err());
    agent.kill();
    assert!(try_once(&store, &claim(Kind::Semaphore, "x", 1, 4)).await.unwrap().is_some());
}

#[tokio::test]
async fn a_withdrawn_claim_leaves_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    let claims = [mutex("x"), claim(Kind::Semaphore, "x", 1, 1), claim(Kind::RwLock, "x", 1, 1)];
    for held in &claims {
        let hold = acquire(&store, held).await;
        let before = tree(dir.path());
        let wanted = claim(held.resource.kind(), "x", 1, 1);
        assert!(try_once(&store, &wanted).await.unwrap().is_none());
        assert_eq!(tree(dir.path()), before);
        let withdraw = CancellationToken::new();
        let waiting = {
            let (store, wanted, withdraw) = (store.clone(), wanted.clone(), withdraw.clone());
            tokio::spawn(async move { store.acquire(&wanted, &withdraw).await })
        };
        until("it waits", async || tree(dir.path()).len() > before.len()).await;
        withdraw.cancel();
        assert!(waiting.await.unwrap().unwrap().is_none());
        assert_eq!(tree(dir.path()), before);
        release(&store, held, &hold).await;
    }
}

#[tokio::test]
async fn a_release_leaves_only_the_counter() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    for kind in [Kind::Mutex, Kind::Semaphore] {
        let claim = claim(kind, "x", 1, 1);
        let hold = acquire(&store, &claim).await;
        release(&store, &claim, &hold).await;
    }
    let left: Vec<String> =
        tree(dir.path()).into_iter().filter(|path| dir.path().join(path).is_file()).collect();
    assert_eq!(left, ["mutex/x.lock", "semaphore/x/gate"]);
}
