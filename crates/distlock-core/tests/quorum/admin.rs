//! Inspection, forced release and diagnosis of a quorum, and its wake-ups.

use crate::support::*;
use distlock_core::faults::{Fault, Verb};
use distlock_core::store::{
    Claim, Inbox, LeaseStore, Level, Query, Renewal, Store, Waiting, Wake, WakeStream,
};
use futures_util::{FutureExt, StreamExt};

fn waiting(id: &str) -> Claim {
    claim(id).with_waiting(Waiting::new(Inbox::new("box"), 60 * SECOND, 1))
}

fn woken(stream: &mut WakeStream) -> Vec<String> {
    let mut ids = Vec::new();
    while let Some(Some(wake)) = stream.next().now_or_never() {
        match wake {
            Wake::Retry { lock_id, .. } => ids.push(lock_id.to_string()),
            Wake::Missed => ids.push("*".to_owned()),
            other => panic!("{other:?}"),
        }
    }
    ids
}

#[tokio::test(start_paused = true)]
async fn inspection_shows_holders_with_a_majority_and_no_lone_vote() {
    let fleet = Fleet::new(3);
    let quorum = fleet.quorum();
    granted(&fleet.nodes[0], "lone").await;
    let token = granted(&quorum, "a").await;
    ask(&quorum, waiting("b")).await.unwrap();
    rest(SECOND).await;
    let seen = quorum.inspect(&Query::default()).await.unwrap();
    assert_eq!((seen.len(), seen[0].holders.len()), (1, 1));
    let holder = &seen[0].holders[0];
    assert_eq!((holder.lock_id.as_str(), holder.token), ("a", Some(token)));
    assert_eq!(holder.expires_in, Some(9 * SECOND));
    assert_eq!(seen[0].waiters[0].lock_id.as_str(), "b");
    fleet.down(&[0, 1]);
    assert!(quorum.inspect(&Query::default()).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_broken_lock_is_lost_to_its_holder_and_free_for_others() {
    let fleet = Fleet::new(3);
    let quorum = fleet.quorum();
    let token = granted(&quorum, "a").await;
    fleet.down(&[2]);
    let broken = quorum.break_lock(&claim("a").resource).await.unwrap();
    assert_eq!((broken.len(), broken[0].lock_id.as_str()), (1, "a"));
    assert_eq!(renew(&quorum, "a", token).await.unwrap(), Renewal::NotYours);
    assert!(granted(&quorum, "b").await > token);
}

#[tokio::test(start_paused = true)]
async fn the_doctor_names_the_nodes_and_the_risks() {
    let fleet = Fleet::new(4);
    let quorum = fleet.quorum();
    fleet.down(&[1]);
    let findings = quorum.doctor().await.unwrap();
    let warnings: Vec<_> = findings.iter().filter(|f| f.level == Level::Warning).collect();
    let text = warnings.iter().map(|f| format!("{}\n", f.what)).collect::<String>();
    assert!(text.contains("node 2 (memory)") && text.contains("down"), "{text}");
    assert!(text.contains("a quorum of 4"), "{text}");
    assert!(text.contains("forget"), "{text}");
    assert!(warnings.iter().all(|f| f.advice.is_some()));
    assert!(findings.iter().any(|f| f.level == Level::Ok && f.what.contains("node 1 (memory)")));
    let two = Fleet::new(2);
    assert!(two.quorum().doctor().await.unwrap()[0].what.contains("tolerates no failed node"));
    two.down(&[0, 1]);
    assert!(two.quorum().doctor().await.is_err());
}

#[tokio::test(start_paused = true)]
async fn wake_ups_of_all_nodes_arrive_under_the_callers_lock_id() {
    let fleet = Fleet::new(3);
    let quorum = fleet.quorum();
    granted(&quorum, "a").await;
    let mut stream = quorum.subscribe(&Inbox::new("box")).await.unwrap();
    // A hanging call makes the second attempt use another generation of the id.
    fleet.faults[0].next(Verb::Acquire, 1, Fault::hang_before());
    ask(&quorum, waiting("b")).await.unwrap();
    ask(&quorum, waiting("b")).await.unwrap();
    release(&quorum, "a").await.unwrap();
    rest(MS).await;
    assert_eq!(woken(&mut stream), ["b"], "once, and not by each node");
    rest(SECOND).await;
    assert!(woken(&mut stream).is_empty());
    release(&quorum, "b").await.unwrap();
    // A wake-up from less than a majority is delayed, not lost.
    granted(&quorum, "c").await;
    ask(&fleet.nodes[2], waiting("d")).await.unwrap();
    release(&quorum, "c").await.unwrap();
    rest(MS).await;
    assert!(woken(&mut stream).is_empty());
    rest(TIMEOUT / 10).await;
    assert_eq!(woken(&mut stream), ["d"]);
}

#[tokio::test(start_paused = true)]
async fn a_broken_stream_is_reopened_and_reports_missed_messages() {
    let fleet = Fleet::new(3);
    let quorum = fleet.quorum();
    fleet.down(&[0]);
    let mut stream = quorum.subscribe(&Inbox::new("box")).await.unwrap();
    assert!(woken(&mut stream).is_empty());
    fleet.up(&[0]);
    fleet.faults[1].set_down(true);
    fleet.faults[1].set_down(false);
    assert!(matches!(stream.next().await, Some(Wake::Missed)));
    assert!(matches!(stream.next().await, Some(Wake::Missed)));
    assert!(woken(&mut stream).is_empty());
    drop(stream);
    rest(SECOND).await;
    assert!(fleet.nodes.iter().all(|node| node.listeners() == 0));
    fleet.down(&[0, 1, 2]);
    assert!(quorum.subscribe(&Inbox::new("box")).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn calls_to_a_node_that_never_answers_do_not_accumulate() {
    let fleet = Fleet::new(3);
    let quorum = fleet.quorum();
    fleet.faults[0].always_all(Fault::hang_before());
    for n in 0..1_200 {
        granted(&quorum, &format!("id-{n}")).await;
        release(&quorum, &format!("id-{n}")).await.unwrap();
    }
    let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    assert!(tasks < 2_500, "{tasks} tasks");
}
