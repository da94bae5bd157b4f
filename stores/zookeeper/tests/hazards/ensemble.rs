//! An ensemble of three: the leader dies or freezes, and the network splits.

use std::time::Instant;

use distlock_core::{Guard, Locks, LossReason};
use distlock_testkit::servers::ZookeeperEnsemble;
use tokio::task::JoinHandle;

use crate::support::{LIMIT, locks, loss_of, ms, until_waiting};

fn wait_for_lock(locks: &Locks, name: &'static str) -> JoinHandle<(Guard, Instant)> {
    let locks = locks.clone();
    tokio::spawn(async move {
        loop {
            match locks.mutex(name).acquire().timeout(LIMIT).await {
                Ok(guard) => return (guard, Instant::now()),
                Err(error) => assert!(error.can_retry(), "{error}"),
            }
        }
    })
}

/// A lock is held and wanted while something happens to the leader. The holder keeps it, and the waiter gets it next.
async fn survive(fault: impl AsyncFn(&ZookeeperEnsemble, usize)) {
    let ensemble = ZookeeperEnsemble::start();
    let (holder, waiter) =
        (locks(&ensemble.url(), ms(20_000)).await, locks(&ensemble.url(), ms(20_000)).await);
    let guard = holder.mutex("m").acquire().await.unwrap();
    let readers = holder.rw_lock("r").read().await.unwrap();
    let waiting = wait_for_lock(&waiter, "m");
    until_waiting(&holder, "m", 1).await;
    let leader = ensemble.leader();
    fault(&ensemble, leader).await;
    // The ensemble works again: a lock of another name is granted.
    let (other, _) = wait_for_lock(&holder, "other").await.unwrap();
    other.release().await.unwrap();
    assert!(!guard.is_lost() && !readers.is_lost(), "{:?} {:?}", guard.loss(), readers.loss());
    assert!(!waiting.is_finished(), "two holders");
    let token = guard.token();
    guard.release().await.unwrap();
    let (next, _) = waiting.await.unwrap();
    assert!(next.token() > token);
    next.release().await.unwrap();
    readers.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_survives_the_death_of_the_leader() {
    survive(async |ensemble, leader| ensemble.nodes()[leader].kill()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_survives_a_frozen_leader_and_its_return() {
    survive(async |ensemble, leader| {
        let node = &ensemble.nodes()[leader];
        node.pause();
        let begun = Instant::now();
        while ensemble.nodes().iter().enumerate().all(|(n, node)| n == leader || node.mode() != "leader") {
            assert!(begun.elapsed() < LIMIT, "no other leader");
            tokio::time::sleep(ms(20)).await;
        }
        node.resume();
    })
    .await;
}

/// A client can reach one node only, and that node is cut off from the majority, but still answers. Its session there must not
/// outlive the one that the majority ends.
async fn lose_with(role: impl Fn(&ZookeeperEnsemble) -> usize) {
    // Shorter than the time after which the node notices that it is alone: two seconds.
    let expiry = ms(1600);
    let ensemble = ZookeeperEnsemble::start();
    let node = role(&ensemble);
    let was_leader = node == ensemble.leader();
    let cut_off = locks(&ensemble.nodes()[node].url(), expiry).await;
    let majority = [&ensemble.nodes()[(node + 1) % 3], &ensemble.nodes()[(node + 2) % 3]];
    let other = locks(&format!("{},{}", majority[0].url(), majority[1].addr()), expiry).await;
    let guard = cut_off.mutex("m").acquire().await.unwrap();
    let waiting = wait_for_lock(&other, "m");
    until_waiting(&other, "m", 1).await;
    let begun = Instant::now();
    ensemble.isolate(node);
    let reason = loss_of(&guard).await;
    let lost = Instant::now();
    assert!(matches!(reason, LossReason::SessionEnded(_)), "{reason:?}");
    assert_ne!(ensemble.nodes()[node].mode(), "", "the node noticed before the client did");
    if was_leader {
        ensemble.nodes()[node].pause();
    }
    let (next, granted) = waiting.await.unwrap();
    println!("lost after {:?}, granted to the majority after {:?}", lost - begun, granted - begun);
    assert!(lost < granted, "two holders for {:?}", lost.duration_since(granted));
    assert!(next.token() > guard.token());
    // The minority grants nothing.
    assert!(cut_off.mutex("m").acquire().timeout(ms(500)).await.is_err());
    ensemble.nodes()[node].resume();
    ensemble.rejoin(node);
    let token = next.token();
    next.release().await.unwrap();
    let (again, _) = wait_for_lock(&cut_off, "m").await.unwrap();
    assert!(again.token() > token);
    again.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_client_of_a_follower_in_a_minority_loses_its_lock_before_the_majority_grants_it() {
    lose_with(ZookeeperEnsemble::follower).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_client_of_a_leader_in_a_minority_loses_its_lock_before_the_majority_grants_it() {
    lose_with(ZookeeperEnsemble::leader).await;
}
