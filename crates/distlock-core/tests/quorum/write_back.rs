//! A majority knows the token before the grant is returned, and no single node can prevent that.

use distlock_core::faults::{Fault, Verb};
use tokio::time::Instant;

use crate::support::*;

/// Nodes 1 and 2 grant first, with different tokens, so node 1 must get the larger one. Node 0 grants a little later.
fn one_behind() -> Fleet {
    let fleet = Fleet::new(3);
    fleet.clocks[2].jump(SECOND);
    fleet.faults[0].next(Verb::Acquire, 1, Fault::none().delay_after(5 * MS));
    fleet
}

#[tokio::test(start_paused = true)]
async fn a_node_that_does_not_get_the_token_does_not_fail_an_attempt_that_a_third_node_granted() {
    for fault in [Fault::fail(), Fault::lost_reply(), Fault::hang_before(), Fault::hang_after()] {
        let fleet = one_behind();
        let quorum = fleet.quorum();
        fleet.faults[1].always(Verb::Renew, fault);
        let start = Instant::now();
        let token = granted(&quorum, "a").await;
        assert!(start.elapsed() <= 2 * TIMEOUT, "{fault:?}: {:?}", start.elapsed());
        fleet.faults[1].heal();
        release(&quorum, "a").await.unwrap();
        // The majority that knows it grants a higher one next time, also without the node whose clock is ahead.
        fleet.down(&[2]);
        assert!(granted(&quorum, "b").await > token, "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_token_that_no_majority_can_get_is_an_error_and_leaves_no_vote() {
    let fleet = one_behind();
    let quorum = fleet.quorum();
    for node in [0, 1] {
        fleet.faults[node].always(Verb::Renew, Fault::fail());
    }
    ask(&quorum, claim("a")).await.unwrap_err();
    rest(SECOND).await;
    assert_eq!(fleet.votes("a").await, 0);
}
