//! Tokens over a quorum: they rise while no majority forgets, whatever the nodes' clocks show.

use crate::support::*;
use distlock_core::ErrorKind;
use distlock_core::faults::{Fault, Verb};
use distlock_core::store::Attempt;

const HOUR: std::time::Duration = std::time::Duration::from_secs(3600);

#[tokio::test(start_paused = true)]
async fn a_majority_knows_the_token_before_the_grant_is_returned() {
    let fleet = Fleet::new(5);
    let quorum = fleet.quorum();
    fleet.clocks[3].jump(HOUR);
    let token = granted(&quorum, "a").await;
    let mut know = 0;
    for node in 0..5 {
        know += usize::from(fleet.holder(node).await.is_some_and(|holder| holder.token == Some(token)));
    }
    assert!(know >= 3, "{know} of 5");
    rest(MS).await;
    for node in 0..5 {
        assert_eq!(fleet.holder(node).await.unwrap().token, Some(token), "the others get it soon after");
    }
}

#[tokio::test(start_paused = true)]
async fn tokens_rise_when_the_node_with_the_largest_is_lost() {
    for lost in 0..5 {
        let mut fleet = Fleet::new(5);
        let quorum = fleet.quorum();
        fleet.clocks[lost].jump(HOUR);
        let mut last = granted(&quorum, "0").await;
        release(&quorum, "0").await.unwrap();
        rest(MS).await;
        fleet.clocks[lost].jump_back(HOUR);
        fleet.forget(lost);
        for id in 1..5 {
            fleet.down(&[(lost + id) % 5]);
            let token = granted(&quorum, &id.to_string()).await;
            assert!(token > last, "{token} after {last}");
            last = token;
            release(&quorum, &id.to_string()).await.unwrap();
            fleet.up(&[(lost + id) % 5]);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_token_that_no_majority_knows_is_not_returned() {
    let fleet = Fleet::new(3);
    let quorum = fleet.quorum();
    fleet.clocks[0].jump(HOUR);
    fleet.faults[1].always(Verb::Renew, Fault::fail());
    fleet.faults[2].always(Verb::Renew, Fault::hang_after());
    let error = ask(&quorum, claim("a")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert_eq!(fleet.votes("a").await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_forgets_between_its_vote_and_the_write_back_does_not_count() {
    let mut fleet = Fleet::new(3);
    let quorum = fleet.quorum();
    fleet.clocks[0].jump(HOUR);
    for node in [1, 2] {
        fleet.faults[node].next(Verb::Renew, 1, Fault::none().delay_before(10 * MS));
    }
    let attempt = tokio::spawn({
        let quorum = quorum.clone();
        async move { ask(&quorum, claim("a")).await }
    });
    rest(MS).await;
    fleet.forget(1);
    fleet.forget(2);
    assert_eq!(attempt.await.unwrap().unwrap(), Attempt::busy(None));
    assert_eq!(fleet.votes("a").await, 0);
}

/// The limit, documented on `Quorum`. The nodes that had the lease know its token. If so many of them forget it, and so
/// many never had it, that a majority knows nothing, only the clocks keep tokens rising, and here they are wrong.
#[tokio::test(start_paused = true)]
async fn not_guaranteed_if_a_majority_forgets_only_the_clocks_keep_tokens_rising() {
    for (liar, rises) in [(false, true), (true, false)] {
        let mut fleet = Fleet::new(5);
        let quorum = fleet.quorum();
        if liar {
            fleet.clocks[0].jump(HOUR);
        }
        fleet.down(&[3, 4]);
        let first = granted(&quorum, "a").await;
        release(&quorum, "a").await.unwrap();
        rest(10 * MS).await;
        fleet.up(&[3, 4]);
        fleet.forget(2);
        fleet.down(&[0, 1]);
        assert_eq!(granted(&quorum, "b").await > first, rises);
    }
}
