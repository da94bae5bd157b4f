//! Real nodes of Galera: locks hold across nodes, what a node cannot do is refused, and what it refuses is explained.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crate::common::{
    Claims, MS, PATIENCE, SECOND, attempt, config, eventually, granted, lease_store, release,
};
use distlock_core::ErrorKind;
use distlock_core::store::{Attempt, Lease, LeaseStore, Renewal};
use distlock_mysql::MysqlSessionStore;
use distlock_testkit::proxy::{AfterLoss, Proxy};
use distlock_testkit::servers::GaleraCluster;
use futures_util::future::join_all;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_without_a_quorum_is_explained_and_get_lock_is_refused_there() {
    let cluster = GaleraCluster::start(1);
    let server = &cluster[0];
    assert_eq!(server.value("SELECT @@wsrep_on"), "1");
    let store = lease_store(&server.url()).await;
    let claims = Claims::new("galera");
    let claim = claims.mutex("a");
    granted(&store, &claim).await;
    let error = MysqlSessionStore::connect(config(&server.url_of("mysql+session", "app"))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("mysql://"), "{error}");
    // As a node answers that lost its cluster.
    let mut admin = server.connect().unwrap();
    admin.query("SET GLOBAL wsrep_reject_queries = ALL").unwrap();
    let error = attempt(&store, &claims.mutex("b")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("Galera") && !error.is_outcome_unknown(), "{error}");
    admin.query("SET GLOBAL wsrep_reject_queries = NONE").unwrap();
    release(&store, &claim).await.unwrap();
    granted(&store, &claims.mutex("a").with_expiry(SECOND)).await;
}

/// Statements go one by one there, so a client may stall while it keeps a row locked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_stalls_between_two_statements_keeps_its_row_locked_for_a_moment_only() {
    let cluster = GaleraCluster::start(1);
    let proxy = Proxy::start(cluster[0].addr());
    let [stalled, other] =
        [lease_store(&proxy.through(&cluster[0].url())).await, lease_store(&cluster[0].url()).await];
    let claims = Claims::new("galera");
    let claim = claims.mutex("a");
    granted(&stalled, &claim).await;
    release(&stalled, &claim).await.unwrap();
    proxy.lose_reply_to("SET @distlock_now", AfterLoss::Hang);
    let stalling = tokio::spawn({
        let claim = claims.mutex("a");
        async move { attempt(&stalled, &claim).await }
    });
    let free_rows = "SELECT k FROM app.distribute_lock FOR UPDATE SKIP LOCKED";
    eventually("its row is locked", async || cluster[0].sql(free_rows).is_empty()).await;
    let begun = Instant::now();
    let wanted = claims.mutex("a");
    eventually("the row is free", async || {
        matches!(attempt(&other, &wanted).await, Ok(Attempt::Granted { .. }))
    })
    .await;
    // After ten it gives up by itself.
    assert!(begun.elapsed() < 6 * SECOND, "{:?}", begun.elapsed());
    stalling.await.unwrap().expect_err("its transaction was ended");
    release(&other, &wanted).await.unwrap();
}

/// Each node decides by the rows that it has, and another one may decide by the same rows. When what they wrote is certified, one of
/// the two transactions is ended, in the middle of its statements or at its end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_two_nodes_decide_at_once_is_granted_by_one_and_stays_granted() {
    const CONFLICTS: u64 = 1500;
    const NAMES: u32 = 4;
    let cluster = GaleraCluster::start(2);
    let nodes = [lease_store(&cluster[0].url()).await, lease_store(&cluster[1].url()).await];
    let is_enough = AtomicBool::new(false);
    let names = (0..NAMES).map(async |name| {
        let claims = Claims::new(&format!("galera-{name}"));
        let (mut last, mut granted) = (0, 0);
        while !is_enough.load(Ordering::Relaxed) {
            let is_pool = name % 2 == 0;
            let claim = || {
                if is_pool {
                    claims.permit(&format!("p{name}"), 1)
                } else {
                    claims.mutex(&format!("m{name}"))
                }
            };
            let asked = [claim(), claim()];
            let answers = tokio::join!(attempt(&nodes[0], &asked[0]), attempt(&nodes[1], &asked[1]));
            let answers = [answers.0, answers.1].map(|answer| answer.expect("a conflict is no error"));
            let mut holders = 0;
            for ((node, claim), answer) in nodes.iter().zip(&asked).zip(&answers) {
                let Attempt::Granted { token, .. } = answer else { continue };
                holders += 1;
                assert!(token.get() > last, "{token:?} after {last}");
                last = token.get();
                let renewed = node.renew(&[Lease::of(claim, *token)]).await.unwrap().pop().unwrap();
                assert_eq!(renewed.unwrap(), Renewal::Renewed, "it was granted and not written: {claim:?}");
                release(node, claim).await.unwrap();
            }
            assert!(holders <= 1, "two holders: {answers:?}");
            granted += holders;
        }
        granted
    });
    let begun = Instant::now();
    let watch = async {
        while cluster.conflicts() < CONFLICTS {
            assert!(begun.elapsed() < 2 * PATIENCE, "{} conflicts only", cluster.conflicts());
            tokio::time::sleep(100 * MS).await;
        }
        is_enough.store(true, Ordering::Relaxed);
    };
    let (granted, ()) = tokio::join!(join_all(names), watch);
    println!("{} conflicts, {granted:?} grants in {:?}", cluster.conflicts(), begun.elapsed());
    assert!(granted.iter().all(|granted| *granted > 0), "{granted:?}");
}
