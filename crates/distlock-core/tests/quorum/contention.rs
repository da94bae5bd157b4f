//! Many processes that contend over a quorum: all of them make progress.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use distlock_core::faults::{Fault, FaultyStore};
use distlock_core::memory::MemoryStore;
use distlock_core::quorum::{Quorum, QuorumOptions};
use distlock_core::store::{Backend, LeaseStore};
use distlock_core::{Clock, Locks, VirtualClock};
use tokio::time::{Instant, sleep};

const MS: Duration = Duration::from_millis(1);
const LENGTH: Duration = Duration::from_secs(1);

struct Nodes(Vec<MemoryStore>);

impl Nodes {
    fn new(count: usize) -> Self {
        Nodes((0..count).map(|_| MemoryStore::with_clock(Arc::new(VirtualClock::new()))).collect())
    }

    /// A process whose latency to the nodes varies.
    fn process(&self, rng: &mut fastrand::Rng, broken: &[Fault]) -> Locks {
        let clock: Arc<dyn Clock> = Arc::new(VirtualClock::new());
        let stores = self.0.iter().enumerate().map(|(at, node)| {
            let (store, faults) = FaultyStore::new(Arc::new(node.clone()));
            if let Some(fault) = broken.get(at) {
                faults.always_all(*fault);
                return Arc::new(store) as Arc<dyn LeaseStore>;
            }
            let mut rng = rng.fork();
            tokio::spawn(async move {
                loop {
                    let (there, back) = (rng.u32(0..3) * MS, rng.u32(0..3) * MS);
                    faults.always_all(Fault::none().delay_before(there).delay_after(back));
                    sleep(rng.u32(1..20) * MS).await;
                }
            });
            Arc::new(store) as Arc<dyn LeaseStore>
        });
        let options = QuorumOptions::new().clock(clock.clone());
        let quorum = Quorum::with_options(stores.collect(), options).unwrap();
        Locks::builder(Backend::lease(quorum)).clock(clock).build().unwrap()
    }

    fn attempts(&self) -> u64 {
        self.0.iter().map(|node| node.stats().acquire.requests).max().unwrap()
    }
}

/// Runs `tasks` in each of `processes` for a while, with the first nodes faulty. Returns how often each process acquired
/// the lock, and the average number of attempts.
async fn contend(processes: usize, tasks: usize, broken: &[Fault]) -> (Vec<u64>, f64) {
    let mut rng = fastrand::Rng::with_seed(7);
    fastrand::seed(7);
    let nodes = Nodes::new(5);
    let inside = Arc::new(AtomicBool::new(false));
    let counts: Vec<Arc<AtomicU64>> = (0..processes).map(|_| Arc::default()).collect();
    let mut running = Vec::new();
    let mut all = Vec::new();
    for count in &counts {
        let locks = nodes.process(&mut rng, broken);
        for _ in 0..tasks {
            let (locks, inside, count) = (locks.clone(), inside.clone(), count.clone());
            running.push(tokio::spawn(async move {
                let start = Instant::now();
                let mut last = None;
                while start.elapsed() < LENGTH {
                    let guard = locks.mutex("m").acquire().await.unwrap();
                    assert!(!inside.swap(true, Ordering::SeqCst), "two hold");
                    assert!(last < Some(guard.token()));
                    last = Some(guard.token());
                    sleep(MS).await;
                    inside.store(false, Ordering::SeqCst);
                    guard.release().await.unwrap();
                    count.fetch_add(1, Ordering::SeqCst);
                    sleep(MS).await;
                }
            }));
        }
        all.push(locks);
    }
    for task in running {
        task.await.unwrap();
    }
    let counts: Vec<u64> = counts.iter().map(|count| count.load(Ordering::SeqCst)).collect();
    let total: u64 = counts.iter().sum();
    (counts, nodes.attempts() as f64 / total as f64)
}

#[tokio::test(start_paused = true)]
async fn contending_processes_all_acquire_the_lock_with_few_attempts() {
    for (processes, tasks) in [(2, 4), (8, 1), (16, 1)] {
        let (counts, attempts) = contend(processes, tasks, &[]).await;
        let total: u64 = counts.iter().sum();
        println!("{processes} × {tasks}: {total} in {LENGTH:?}, {attempts:.1} attempts each, {counts:?}");
        assert!(attempts < 8.0, "{attempts} attempts for each acquisition");
        assert!(total > 100, "{total}");
        // The nodes do not agree on an order, so the only guarantee is that no process starves.
        assert!(counts.iter().all(|count| *count > 0), "a process starves: {counts:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_node_and_a_hanging_node_do_not_slow_the_quorum_down() {
    let faults = [Fault::fail(), Fault::hang_before()];
    let (counts, attempts) = contend(4, 2, &faults).await;
    let total: u64 = counts.iter().sum();
    println!("{total} in {LENGTH:?}, {attempts:.1} attempts each, {counts:?}");
    assert!(total > 60, "{total}");
}
