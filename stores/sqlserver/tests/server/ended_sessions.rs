//! When the locks of a session that ended are granted to the next holder.

use std::time::{Duration, Instant};

use distlock_core::store::{Backend, Query};
use distlock_core::{Kind, Locks, Resource};
use distlock_sqlserver::SqlServerStore;
use distlock_testkit::proxy::{AfterLoss, Direction};

use crate::{PATIENCE, config, locks, own_url, proxy};

/// The longest heartbeat time-out: what is granted before is not granted because of it.
const HEARTBEAT: Duration = Duration::from_secs(20);

fn patient_url() -> String {
    format!("{}&distlock.heartbeat_timeout=20s", own_url())
}

/// As a crash does, leaves a session store without a release: its tasks end, and with them its connections.
async fn crash_holding(url: &str, acquire: impl AsyncFnOnce(Locks) + Send + 'static) {
    let url = url.to_owned();
    let process = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let locks = locks(&url).await;
            acquire(locks.clone()).await;
            std::mem::forget(locks);
        });
    };
    tokio::task::spawn_blocking(process).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_dies_frees_its_locks_before_its_heartbeat_time_out() {
    let url = patient_url();
    let next = locks(&url).await;
    crash_holding(&url, async |locks| {
        std::mem::forget(locks.mutex("m").acquire().await.unwrap());
        std::mem::forget(locks.rw_lock("rw").read().await.unwrap());
        std::mem::forget(locks.semaphore("s", 3).acquire_many(3).await.unwrap());
    })
    .await;
    let begun = Instant::now();
    let mutex = next.mutex("m").acquire().timeout(PATIENCE).await.unwrap();
    let writer = next.rw_lock("rw").write().timeout(PATIENCE).await.unwrap();
    // A smaller capacity: two of the dead permits are beyond it.
    let permit = next.semaphore("s", 1).acquire().timeout(PATIENCE).await.unwrap();
    let took = begun.elapsed();
    assert!(took < HEARTBEAT, "{took:?}");
    println!("three locks of a dead process were granted after {took:?}");
    for guard in [mutex, writer, permit] {
        guard.release().await.unwrap();
    }
    assert_eq!(SqlServerStore::connect(config(&url)).await.unwrap().sweep().await.unwrap(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_session_loses_its_guards_says_so_and_the_next_holder_does_not_wait_for_them() {
    let url = patient_url();
    let (holder, operator) = (locks(&url).await, locks(&url).await);
    let guard = holder.mutex("killed").acquire().await.unwrap();
    let other = holder.rw_lock("beside it").write().await.unwrap();
    let beside = vec![Resource::new(Kind::RwLock, "beside it").unwrap()];
    let shown = operator.inspect(&Query::named("killed").with_also_held()).await.unwrap();
    assert_eq!(shown[0].holders[0].also_held, beside);
    let begun = Instant::now();
    let broken = operator.break_lock(Kind::Mutex, "killed").await.unwrap();
    assert_eq!(broken.len(), 1);
    assert_eq!(broken[0].also_held, beside);
    let next = operator.mutex("killed").acquire().timeout(PATIENCE).await.unwrap();
    let took = begun.elapsed();
    assert!(took < HEARTBEAT, "{took:?}");
    println!("the lock of a killed session was granted after {took:?}");
    assert!(guard.is_lost() && other.is_lost());
    assert!(next.token() > guard.token());
    // Its process goes on with another session.
    holder.rw_lock("beside it").write().timeout(PATIENCE).await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lock_of_a_killed_session_is_not_granted_while_its_unreachable_client_has_a_guard() {
    let url = own_url();
    let (proxy, through) = proxy(&url).await;
    let (holder, operator) = (locks(&through).await, locks(&url).await);
    let guard = holder.mutex("cut off").acquire().await.unwrap();
    // The server does not hear of it, and its client not of the end of the session.
    proxy.black_hole(Direction::ToServer);
    proxy.black_hole(Direction::ToClient);
    assert!(!guard.is_lost());
    operator.break_lock(Kind::Mutex, "cut off").await.unwrap();
    let next = operator.mutex("cut off").acquire().timeout(PATIENCE).await.unwrap();
    assert!(guard.is_lost(), "two guards at once");
    assert!(next.token() > guard.token());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_network_loses_the_guard_by_its_local_deadline() {
    let url = own_url();
    let (proxy, through) = proxy(&url).await;
    let locks = locks(&through).await;
    let guard = locks.mutex("silent").acquire().await.unwrap();
    proxy.black_hole(Direction::ToServer);
    proxy.black_hole(Direction::ToClient);
    let begun = Instant::now();
    tokio::time::timeout(PATIENCE, guard.lost()).await.unwrap();
    println!("the guard was lost {:?} after the network fell silent", begun.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_whose_reply_is_lost_leaves_nothing_held() {
    let url = own_url();
    let (proxy, through) = proxy(&url).await;
    let (holder, next) = (locks(&through).await, locks(&url).await);
    for after in [AfterLoss::Close, AfterLoss::Hang] {
        let guard = holder.mutex("m").acquire().timeout(PATIENCE).await.unwrap();
        let release: Vec<u8> = "sp_releaseapplock".encode_utf16().flat_map(u16::to_le_bytes).collect();
        proxy.lose_reply_to(&release, after);
        // It may say so: the outcome is unknown.
        let _ = guard.release().await;
        next.mutex("m").acquire().timeout(PATIENCE).await.unwrap().release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_goes_on_when_its_connection_is_cut() {
    let url = own_url();
    let (proxy, through) = proxy(&url).await;
    let (holder, waiter) = (locks(&url).await, locks(&through).await);
    let guard = holder.mutex("m").acquire().await.unwrap();
    let waiting = tokio::spawn(async move { waiter.mutex("m").acquire().timeout(2 * PATIENCE).await });
    let waits = async || {
        let shown = holder.inspect(&Query::named("m")).await.unwrap();
        shown.iter().map(|record| record.waiters.len()).sum::<usize>()
    };
    while waits().await == 0 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    proxy.cut();
    // The row of the ended session goes, and that of the next one comes.
    while waits().await != 1 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(!waiting.is_finished());
    guard.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rows_of_ended_sessions_are_swept_and_those_of_live_ones_stay() {
    let url = own_url();
    let stays = locks(&url).await;
    let _live = stays.mutex("live").acquire().await.unwrap();
    crash_holding(&url, async |locks| std::mem::forget(locks.mutex("dead").acquire().await.unwrap())).await;
    let store = SqlServerStore::connect(config(&url)).await.unwrap();
    let operator = Locks::new(Backend::session(store.clone())).unwrap();
    // The server ends the session in its own time.
    while !operator.inspect(&Query::named("dead")).await.unwrap().is_empty() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(store.sweep().await.unwrap(), 1);
    assert_eq!(store.sweep().await.unwrap(), 0);
    assert!(stays.mutex("live").try_acquire().await.unwrap().is_none());
}
