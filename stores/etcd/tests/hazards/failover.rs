//! The leader is killed, frozen, or cut off, while locks are held and wanted.

use std::time::Instant;

use distlock_core::{Guard, Kind, Locks};
use distlock_testkit::servers::EtcdCluster;

use crate::support::{LIMIT, locks, ms, until_waiters};

/// The URL with all members, this one first: requests go there.
fn url_from(cluster: &EtcdCluster, first: usize) -> String {
    let members = cluster.members();
    let hosts: Vec<String> = (0..members.len())
        .map(|number| members[(first + number) % members.len()].addr().to_string())
        .collect();
    format!("etcd://{}?distlock.response_timeout=1s", hosts.join(","))
}

struct Contention {
    held: Vec<Guard>,
    waiting: Vec<tokio::task::JoinHandle<distlock_core::Result<Guard>>>,
}

/// One client holds a lock of each kind, another waits for each.
async fn contend(holder: &Locks, waiter: &Locks, name: &str) -> Contention {
    let held = vec![
        holder.mutex(name).acquire().await.unwrap(),
        holder.rw_lock(name).write().await.unwrap(),
        holder.semaphore(name, 1).acquire().await.unwrap(),
    ];
    let (a, b, c) = (waiter.clone(), waiter.clone(), waiter.clone());
    let (x, y, z) = (name.to_owned(), name.to_owned(), name.to_owned());
    let waiting = vec![
        tokio::spawn(async move { a.mutex(x.as_str()).acquire().timeout(LIMIT).await }),
        tokio::spawn(async move { b.rw_lock(y.as_str()).read().timeout(LIMIT).await }),
        tokio::spawn(async move { c.semaphore(z.as_str(), 1).acquire().timeout(LIMIT).await }),
    ];
    for kind in Kind::VISIBLE {
        until_waiters(holder, kind, name, 1).await;
    }
    Contention { held, waiting }
}

impl Contention {
    /// Held for this long; then the waiters get the locks, with higher tokens.
    async fn survives(self, duration: std::time::Duration) {
        let begun = Instant::now();
        while begun.elapsed() < duration {
            for guard in &self.held {
                assert!(!guard.is_lost(), "{:?}", guard.loss());
            }
            assert!(self.waiting.iter().all(|waiting| !waiting.is_finished()), "two holders");
            tokio::time::sleep(ms(20)).await;
        }
        for (guard, waiting) in self.held.into_iter().zip(self.waiting) {
            let token = guard.token();
            guard.release().await.unwrap();
            let next = waiting.await.unwrap().unwrap();
            assert!(next.token() > token);
            next.release().await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_survive_a_killed_leader_and_a_frozen_one() {
    let cluster = EtcdCluster::start();
    let expiry = LONG;
    for frozen in [false, true] {
        let leader = cluster.leader();
        let holder = locks(&url_from(&cluster, leader), expiry).await;
        let waiter = locks(&url_from(&cluster, leader), expiry).await;
        let contention = contend(&holder, &waiter, &format!("frozen {frozen}")).await;
        let member = &cluster.members()[leader];
        if frozen {
            member.pause()
        } else {
            member.kill()
        }
        contention.survives(expiry + ms(1500)).await;
        let fresh = locks(&url_from(&cluster, leader), expiry).await;
        fresh.mutex("fresh").acquire().timeout(LIMIT).await.unwrap().release().await.unwrap();
        if frozen { member.resume() } else { member.start_again() }
    }
}

/// The expiry of locks that must survive an election. On a machine whose processors have much else to do, one has taken more than
/// two seconds.
const LONG: std::time::Duration = ms(8000);

/// A client that reaches only a member that is cut off loses its locks before the majority gives them to another client. A
/// client that knows all members keeps them.
#[tokio::test(flavor = "multi_thread")]
async fn the_client_of_a_minority_loses_its_locks_in_time_and_tokens_rise() {
    let cluster = EtcdCluster::start();
    for of_leader in [true, false] {
        let leader = cluster.leader();
        let alone = if of_leader { leader } else { (leader + 1) % 3 };
        let elsewhere = (alone + 1) % 3;
        let cut_off = locks(&cluster.members()[alone].url(), ms(3000)).await;
        let roaming = locks(&url_from(&cluster, alone), LONG).await;
        let majority = locks(&url_from(&cluster, elsewhere), LONG).await;
        let name = format!("of leader {of_leader}");
        let lost = cut_off.mutex(name.as_str()).acquire().await.unwrap();
        let kept = roaming.mutex(format!("{name} kept").as_str()).acquire().await.unwrap();
        cluster.cut_off(alone);
        let begun = Instant::now();
        let next = majority.mutex(name.as_str()).acquire().timeout(LIMIT).await.unwrap();
        assert!(lost.is_lost(), "two holders");
        assert!(next.token() > lost.token());
        let error = cut_off.mutex("other").try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), distlock_core::ErrorKind::Unavailable, "{error}");
        // Longer than the expiry: it was renewed meanwhile.
        while begun.elapsed() < LONG {
            assert!(!kept.is_lost(), "{:?}", kept.loss());
            tokio::time::sleep(ms(20)).await;
        }
        cluster.reconnect();
        let after = cut_off.mutex(format!("{name} after").as_str()).acquire().timeout(LIMIT).await;
        after.unwrap().release().await.unwrap();
        for guard in [&next, &kept] {
            assert!(!guard.is_lost(), "{}: {:?}", guard.resource(), guard.loss());
        }
        next.release().await.unwrap();
        kept.release().await.unwrap();
    }
}
