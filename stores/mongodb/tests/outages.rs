//! Between us and the server: replies that get lost, connections that break or fall silent, requests that are given
//! up. What is unknown is resolved by lock id.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::time::{Duration, Instant};

use common::bare::Bare;
use common::{MS, Place, SECOND, eventually, expiring, one_node, records, until_waiting, within};
use distlock_core::store::{Attempt, Claim, Lease, Released};
use distlock_core::{FencingToken, Kind, Locks, Options};
use distlock_testkit::proxy::{AfterLoss, Direction, Proxy};

/// A database on the server, and the same through a proxy.
struct LossCause {
    proxy: Proxy,
    direct: Place,
    through: String,
}

impl LossCause {
    fn new() -> Self {
        let member = &one_node().members()[0];
        let direct = Place::on(&member.url());
        let proxy = Proxy::start(member.addr());
        let through = proxy.through(&direct.url);
        LossCause { proxy, direct, through }
    }

    /// An engine whose requests go through the proxy.
    async fn locks(&self, options: Options) -> Locks {
        let backend = common::connect(&self.through).await.unwrap();
        Locks::builder(backend).options(options).build().unwrap()
    }
}

fn quick() -> Options {
    Options::new().request_timeout(500 * MS).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_whose_reply_was_lost_is_recognised() {
    let way = LossCause::new();
    let locks = way.locks(Options::new()).await;
    for after in [AfterLoss::Close, AfterLoss::Hang] {
        let options = if after == AfterLoss::Hang { quick() } else { Options::new() };
        let locks = locks.with_options(options);
        locks.mutex("lost").acquire().await.unwrap().release().await.unwrap();
        way.proxy.lose_reply_to("findAndModify", after);
        let held = within("a grant", locks.mutex("lost").acquire()).await.unwrap();
        let document = way.direct.lock("lost").await.unwrap();
        assert_eq!(document.get_str("lockId").unwrap(), held.lock_id().as_str());
        way.proxy.heal();
        // The driver may still be busy with the broken connection: then it does not know, and sees to it all the same.
        let _ = held.release().await;
        let other = way.direct.locks().await;
        let next = within("a grant", other.mutex("lost").acquire()).await.unwrap();
        next.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_whose_reply_was_lost_is_finished() {
    let way = LossCause::new();
    let (locks, other) = (way.locks(Options::new()).await, way.direct.locks().await);
    let held = locks.mutex("lost").acquire().await.unwrap();
    let permit = locks.semaphore("lost", 1).acquire().await.unwrap();
    for release in [held.release(), permit.release()] {
        way.proxy.lose_reply_to("findAndModify", AfterLoss::Close);
        // It may say that it does not know; it must see to it all the same.
        let _ = release.await;
    }
    eventually("both are free", || async { records(&other, "lost").await.is_empty() }).await;
}

/// A batch is an update and a read that tells who won: either may be carried out and never heard of. Whoever asks again
/// with the same lock ids has them all, and nobody else does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_whose_update_or_read_was_not_answered_is_recognised() {
    let way = LossCause::new();
    let (bare, other) = (Bare::at(&way.through).await, Bare::new(&way.direct).await);
    for kind in [Kind::Mutex, Kind::Semaphore] {
        for lost in ["updates", "singleBatch"] {
            let name = |n: u32| format!("{lost}-{n}");
            let claims: Vec<Claim> = (0..5).map(|n| bare.claim(kind, &name(n), 60 * SECOND)).collect();
            let all = |claim: Claim| {
                let capacity = claim.capacity;
                claim.with_weight(capacity)
            };
            let claims: Vec<Claim> = claims.into_iter().map(all).collect();
            way.proxy.lose_reply_to(lost, AfterLoss::Close);
            let told = bare.store.try_acquire(&claims).await;
            let told = told.unwrap_or_else(|error| vec![Err(error); claims.len()]);
            for answer in told {
                let error = answer.expect_err("a reply that was lost");
                assert!(error.is_outcome_unknown(), "{kind}, {lost}: {error}");
            }
            way.proxy.heal();
            // Carried out all the same: others find them taken.
            for n in 0..5 {
                let attempt = other.ask(&all(other.claim(kind, &name(n), SECOND))).await;
                assert!(matches!(attempt, Attempt::Busy { .. }), "{kind}, {lost}: {attempt:?}");
            }
            let mut again = Vec::new();
            // The driver may need a moment for another connection.
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

/// The request is on the wire when the user drops the future.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_acquire_leaves_nothing_behind() {
    let way = LossCause::new();
    let (locks, other) = (way.locks(Options::new()).await, way.direct.locks().await);
    locks.mutex("dropped").acquire().await.unwrap().release().await.unwrap();
    for delay in [0, 1, 3, 10, 30] {
        way.proxy.set_delay(Direction::ToServer, 5 * MS);
        way.proxy.set_delay(Direction::ToClient, 5 * MS);
        let (mutex, permit) = (locks.mutex("dropped"), locks.semaphore("dropped", 1));
        let asking = async { tokio::join!(mutex.acquire().into_future(), permit.acquire().into_future()) };
        let asked = tokio::time::timeout(Duration::from_millis(delay), asking).await;
        drop(asked);
        way.proxy.heal();
        let (mutex, permit) = (other.mutex("dropped"), other.semaphore("dropped", 1));
        let held = within("the mutex", mutex.acquire()).await.unwrap();
        let permit = within("the permit", permit.acquire()).await.unwrap();
        held.release().await.unwrap();
        permit.release().await.unwrap();
    }
    eventually("nothing is left", || async { records(&other, "dropped").await.is_empty() }).await;
}

/// The stream of wake-ups breaks while somebody waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_stream_broke_gets_its_turn() {
    let way = LossCause::new();
    let (locks, holder) = (way.locks(Options::new()).await, way.direct.locks().await);
    for harm in [LossCause::cut, LossCause::silence] {
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
            harm(&way);
            held.release().await.unwrap();
            way.proxy.heal();
            within("the waiter's turn", waiting).await.unwrap().release().await.unwrap();
        }
    }
}

impl LossCause {
    fn cut(&self) {
        self.proxy.cut();
    }

    fn silence(&self) {
        self.proxy.black_hole(Direction::ToClient);
    }
}

/// Cut off from the server: the guard is lost before the server gives the lock to somebody else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_is_cut_off_is_lost_before_somebody_else_holds() {
    let way = LossCause::new();
    let options = expiring(1500 * MS).request_timeout(300 * MS).unwrap();
    let (locks, other) = (way.locks(options).await, way.direct.locks().await);
    for kind in 0..2 {
        let held = match kind {
            0 => locks.mutex("cut off").acquire().await.unwrap(),
            _ => locks.rw_lock("cut off").write().await.unwrap(),
        };
        way.proxy.black_hole(Direction::ToServer);
        let begun = Instant::now();
        let next = match kind {
            0 => within("the next holder", other.mutex("cut off").acquire()).await.unwrap(),
            _ => within("the next holder", other.rw_lock("cut off").write()).await.unwrap(),
        };
        assert!(held.is_lost(), "two holders");
        assert!(begun.elapsed() < 8 * SECOND, "it took {:?}", begun.elapsed());
        assert!(next.token() > held.token());
        way.proxy.heal();
        next.release().await.unwrap();
    }
}
