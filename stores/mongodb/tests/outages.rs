//! Network faults: lost replies, connections that break or fall silent, requests that are given up. Unknown outcomes are
//! resolved by lock id.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::time::{Duration, Instant};

use common::bare_store::BareStore;
use common::{MS, SECOND, TestDatabase, eventually, expiring, records, replica_set, until_waiting, within};
use distlock_core::store::{Attempt, Claim, Lease, Released};
use distlock_core::{FencingToken, Kind, Locks, Options};
use distlock_testkit::proxy::{AfterLoss, Direction, Proxy};

/// A database, reached directly and through a proxy.
struct ProxiedDatabase {
    proxy: Proxy,
    direct: TestDatabase,
    through: String,
}

impl ProxiedDatabase {
    fn new() -> Self {
        let member = &replica_set().members()[0];
        let direct = TestDatabase::on(&member.url());
        let proxy = Proxy::start(member.addr());
        let through = proxy.through(&direct.url);
        ProxiedDatabase { proxy, direct, through }
    }

    /// An engine whose requests go through the proxy.
    async fn locks(&self, options: Options) -> Locks {
        let backend = common::connect(&self.through).await.unwrap();
        Locks::builder(backend).options(options).build().unwrap()
    }
}

fn short_request_timeout() -> Options {
    Options::new().request_timeout(500 * MS).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_whose_reply_was_lost_is_recognised() {
    let proxied = ProxiedDatabase::new();
    let locks = proxied.locks(Options::new()).await;
    for after in [AfterLoss::Close, AfterLoss::Hang] {
        let options = if after == AfterLoss::Hang { short_request_timeout() } else { Options::new() };
        let locks = locks.with_options(options);
        locks.mutex("lost").acquire().await.unwrap().release().await.unwrap();
        proxied.proxy.lose_reply_to("findAndModify", after);
        let held = within("a grant", locks.mutex("lost").acquire()).await.unwrap();
        let document = proxied.direct.lock("lost").await.unwrap();
        assert_eq!(document.get_str("lockId").unwrap(), held.lock_id().as_str());
        proxied.proxy.heal();
        // The driver may still use the broken connection. The outcome is then unknown, and the engine completes the release.
        let _ = held.release().await;
        let other = proxied.direct.locks().await;
        let next = within("a grant", other.mutex("lost").acquire()).await.unwrap();
        next.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_whose_reply_was_lost_is_completed() {
    let proxied = ProxiedDatabase::new();
    let (locks, other) = (proxied.locks(Options::new()).await, proxied.direct.locks().await);
    let held = locks.mutex("lost").acquire().await.unwrap();
    let permit = locks.semaphore("lost", 1).acquire().await.unwrap();
    for release in [held.release(), permit.release()] {
        proxied.proxy.lose_reply_to("findAndModify", AfterLoss::Close);
        // The outcome may be unknown; the engine completes the release.
        let _ = release.await;
    }
    eventually("both are free", || async { records(&other, "lost").await.is_empty() }).await;
}

/// A batch is an update and a read that shows who won. Either may be applied without a reply. A second batch with the same
/// lock ids is recognised.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_whose_update_or_read_had_no_reply_is_recognised() {
    let proxied = ProxiedDatabase::new();
    let (bare, other) = (BareStore::at(&proxied.through).await, BareStore::new(&proxied.direct).await);
    for kind in [Kind::Mutex, Kind::Semaphore] {
        for lost in ["updates", "singleBatch"] {
            let name = |n: u32| format!("{lost}-{n}");
            let claims: Vec<Claim> = (0..5).map(|n| bare.claim(kind, &name(n), 60 * SECOND)).collect();
            let all = |claim: Claim| {
                let capacity = claim.capacity;
                claim.with_weight(capacity)
            };
            let claims: Vec<Claim> = claims.into_iter().map(all).collect();
            proxied.proxy.lose_reply_to(lost, AfterLoss::Close);
            let told = bare.store.try_acquire(&claims).await;
            let told = told.unwrap_or_else(|error| vec![Err(error); claims.len()]);
            for answer in told {
                let error = answer.expect_err("the reply was lost");
                assert!(error.is_outcome_unknown(), "{kind}, {lost}: {error}");
            }
            proxied.proxy.heal();
            // The update was applied: other clients find the locks held.
            for n in 0..5 {
                let attempt = other.ask(&all(other.claim(kind, &name(n), SECOND))).await;
                assert!(matches!(attempt, Attempt::Busy { .. }), "{kind}, {lost}: {attempt:?}");
            }
            let mut again = Vec::new();
            // The driver may take a moment to reconnect.
            eventually("they are recognised", || async {
                bare.store.try_acquire(&claims).await.is_ok_and(|told| told.iter().all(Result::is_ok))
            })
            .await;
            for answer in bare.store.try_acquire(&claims).await.unwrap() {
                match answer.unwrap() {
                    Attempt::Granted { token, .. } => again.push(token),
                    busy => panic!("{kind}, {lost}: {busy:?}"),
                }
            }
            let held: Vec<Lease> =
                claims.iter().zip(again).map(|(claim, token)| Lease::of(claim, token)).collect();
            assert!(held.iter().all(|lease| lease.token > FencingToken::new(0)));
            for answer in bare.store.release(&held).await.unwrap() {
                assert!(matches!(answer.unwrap(), Released::Done { .. }));
            }
        }
    }
}

/// The future is dropped while its request is in flight.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_acquire_leaves_nothing_behind() {
    let proxied = ProxiedDatabase::new();
    let (locks, other) = (proxied.locks(Options::new()).await, proxied.direct.locks().await);
    locks.mutex("dropped").acquire().await.unwrap().release().await.unwrap();
    for delay in [0, 1, 3, 10, 30] {
        proxied.proxy.set_delay(Direction::ToServer, 5 * MS);
        proxied.proxy.set_delay(Direction::ToClient, 5 * MS);
        let (mutex, permit) = (locks.mutex("dropped"), locks.semaphore("dropped", 1));
        let acquiring = async { tokio::join!(mutex.acquire().into_future(), permit.acquire().into_future()) };
        let acquired = tokio::time::timeout(Duration::from_millis(delay), acquiring).await;
        drop(acquired);
        proxied.proxy.heal();
        let (mutex, permit) = (other.mutex("dropped"), other.semaphore("dropped", 1));
        let held = within("the mutex", mutex.acquire()).await.unwrap();
        let permit = within("the permit", permit.acquire()).await.unwrap();
        held.release().await.unwrap();
        permit.release().await.unwrap();
    }
    eventually("nothing is left", || async { records(&other, "dropped").await.is_empty() }).await;
}

/// The change stream breaks during a wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_change_stream_broke_is_served() {
    let proxied = ProxiedDatabase::new();
    let (locks, holder) = (proxied.locks(Options::new()).await, proxied.direct.locks().await);
    for break_stream in [ProxiedDatabase::cut, ProxiedDatabase::silence] {
        for name in ["mutex", "permit"] {
            let held = match name {
                "mutex" => holder.mutex("waited").acquire().await.unwrap(),
                _ => holder.semaphore("waited", 1).acquire().await.unwrap(),
            };
            let waiting = {
                let locks = locks.clone();
                tokio::spawn(async move {
                    match name {
                        "mutex" => locks.mutex("waited").acquire().await.unwrap(),
                        _ => locks.semaphore("waited", 1).acquire().await.unwrap(),
                    }
                })
            };
            until_waiting(&holder, "waited", 1).await;
            break_stream(&proxied);
            held.release().await.unwrap();
            proxied.proxy.heal();
            within("the waiter is granted", waiting).await.unwrap().release().await.unwrap();
        }
    }
}

impl ProxiedDatabase {
    fn cut(&self) {
        self.proxy.cut();
    }

    fn silence(&self) {
        self.proxy.black_hole(Direction::ToClient);
    }
}

/// The guard of a disconnected holder is lost before the server grants the lock to another client.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disconnected_holder_is_lost_before_another_client_holds() {
    let proxied = ProxiedDatabase::new();
    let options = expiring(1500 * MS).request_timeout(300 * MS).unwrap();
    let (locks, other) = (proxied.locks(options).await, proxied.direct.locks().await);
    for kind in 0..2 {
        let held = match kind {
            0 => locks.mutex("cut off").acquire().await.unwrap(),
            _ => locks.rw_lock("cut off").write().await.unwrap(),
        };
        proxied.proxy.black_hole(Direction::ToServer);
        let started = Instant::now();
        let next = match kind {
            0 => within("the next holder", other.mutex("cut off").acquire()).await.unwrap(),
            _ => within("the next holder", other.rw_lock("cut off").write()).await.unwrap(),
        };
        assert!(held.is_lost(), "two holders");
        assert!(started.elapsed() < 8 * SECOND, "it took {:?}", started.elapsed());
        assert!(next.token() > held.token());
        proxied.proxy.heal();
        next.release().await.unwrap();
    }
}
