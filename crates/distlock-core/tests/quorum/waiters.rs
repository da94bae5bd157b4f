//! Waiters of a quorum: their queue entries, when they ask again, and what operators see of them.

use crate::support::*;
use distlock_core::faults::{Fault, Verb};
use distlock_core::store::{Claim, Inbox, LeaseStore, Query, Store, Waiting};
use distlock_core::{Kind, Resource, WRITER_WEIGHT};

fn waiting(id: &str) -> Claim {
    claim(id).with_waiting(Waiting::new(Inbox::new("box"), 600 * SECOND, 1))
}

fn writer(id: &str) -> Claim {
    let resource = Resource::new(Kind::RwLock, "m").unwrap();
    waiting(id).with_resource(resource).with_weight(WRITER_WEIGHT).with_capacity(WRITER_WEIGHT)
}

async fn waiters(fleet: &Fleet) -> usize {
    let mut waiters = 0;
    for node in &fleet.nodes {
        let records = node.inspect(&Query::default()).await.unwrap();
        waiters += records.iter().map(|record| record.waiters.len()).sum::<usize>();
    }
    waiters
}

#[tokio::test(start_paused = true)]
async fn a_withdrawn_waiter_leaves_no_entry_on_any_node_under_any_generation() {
    let fleet = Fleet::new(3);
    let quorum = fleet.quorum();
    granted(&quorum, "holder").await;
    for attempts in 1..4 {
        for _ in 0..attempts {
            // The answer of one node is still in flight when the next attempt or the withdrawal begins.
            fleet.faults[2].next(Verb::Acquire, 1, Fault::none().delay_after(20 * MS));
            assert!(ask(&quorum, waiting("waiter")).await.is_ok());
        }
        release(&quorum, "waiter").await.unwrap();
        rest(SECOND).await;
        assert_eq!(waiters(&fleet).await, 0, "after {attempts} attempts");
    }
}

#[tokio::test(start_paused = true)]
async fn a_queue_entry_that_is_created_after_the_withdrawal_is_removed() {
    let fleet = Fleet::new(3);
    let quorum = fleet.quorum();
    granted(&quorum, "holder").await;
    fleet.faults[2].next(Verb::Acquire, 1, Fault::none().delay_before(20 * MS));
    assert!(ask(&quorum, waiting("waiter")).await.is_ok());
    release(&quorum, "waiter").await.unwrap();
    rest(SECOND).await;
    assert_eq!(waiters(&fleet).await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_release_that_overtakes_its_attempt_on_every_node_leaves_no_entry() {
    let fleet = Fleet::new(3);
    let quorum = fleet.quorum();
    granted(&quorum, "holder").await;
    for faults in &fleet.faults {
        faults.next(Verb::Acquire, 1, Fault::none().delay_before(20 * MS));
    }
    let (asked, released) = tokio::join!(ask(&quorum, waiting("waiter")), release(&quorum, "waiter"));
    assert!(asked.is_ok() && released.is_ok());
    rest(SECOND).await;
    assert_eq!(waiters(&fleet).await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_withdrew_while_a_node_was_down_is_removed_when_the_node_is_back() {
    let fleet = Fleet::new(3);
    let quorum = fleet.quorum();
    granted(&quorum, "holder").await;
    let short = waiting("waiter").with_expiry(200 * MS);
    assert!(ask(&quorum, short.clone()).await.is_ok());
    fleet.faults[2].always(Verb::Release, Fault::fail());
    let lease = distlock_core::store::Lease::of(&short, distlock_core::FencingToken::new(0));
    quorum.release(&[lease]).await.unwrap().remove(0).unwrap();
    rest(50 * SECOND).await;
    assert_eq!(waiters(&fleet).await, 1);
    fleet.up(&[2]);
    rest(2 * SECOND).await;
    assert_eq!(waiters(&fleet).await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_without_a_queue_entry_asks_again_soon() {
    let fleet = Fleet::new(3);
    let quorum = fleet.quorum();
    ask(&quorum, writer("holder")).await.unwrap();
    let answer = ask(&quorum, writer("waiter")).await.unwrap();
    let distlock_core::store::Attempt::Busy { retry_after, .. } = answer else { panic!("{answer:?}") };
    assert!(retry_after.is_some_and(|after| after <= SECOND / 5), "no node will wake it: {retry_after:?}");
    assert!(!quorum.capabilities().shows_waiters, "waiters without a queue entry are not shown");
}

#[tokio::test(start_paused = true)]
async fn operators_see_the_holders_token_even_if_a_late_node_has_a_larger_one() {
    let fleet = Fleet::new(3);
    let quorum = fleet.quorum();
    // One node's clock is ahead, and it answers after the lock was granted without it.
    for n in 0..3 {
        granted(&fleet.nodes[2], &format!("alone-{n}")).await;
        release(&fleet.nodes[2], &format!("alone-{n}")).await.unwrap();
    }
    fleet.faults[2].next(Verb::Acquire, 1, Fault::none().delay_after(20 * MS));
    let token = granted(&quorum, "a").await;
    rest(SECOND).await;
    let seen = quorum.inspect(&Query::default()).await.unwrap();
    assert_eq!(seen[0].holders[0].token, Some(token));
}
