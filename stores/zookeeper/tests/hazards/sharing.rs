//! Mutexes and reader-writer locks that programs with Apache Curator share.

use distlock_core::Kind;
use distlock_testkit::servers::ZookeeperServer;
use zookeeper_client::{Acls, CreateMode};

use crate::support::{LIMIT, client, counts, locks, ms, until, until_waiting};

/// What `InterProcessMutex` and `InterProcessReadWriteLock` name their nodes, with protection.
const CURATOR: &str = "_c_f3a2e0c4-6f0e-4d9b-8d54-1f0a9c1b2d3e";

#[tokio::test(flavor = "multi_thread")]
async fn a_mutex_of_curator_and_ours_exclude_each_other() {
    let server = ZookeeperServer::start();
    let ours = locks(&server.url(), ms(8000)).await;
    let java = client(&server.url()).await;
    ours.mutex("orders").acquire().await.unwrap().release().await.unwrap();
    let parent = "/distlock/mutex/orders";
    let ephemeral = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    // Java holds, we wait.
    let prefix = format!("{parent}/{CURATOR}-lock-");
    let (_, sequence) = java.create(&prefix, b"10.0.0.7", &ephemeral).await.unwrap();
    assert!(ours.mutex("orders").try_acquire().await.unwrap().is_none());
    let waiting = tokio::spawn({
        let ours = ours.clone();
        async move { ours.mutex("orders").acquire().timeout(LIMIT).await.unwrap() }
    });
    until_waiting(&ours, "orders", 1).await;
    let record = &ours.inspect(&distlock_core::store::Query::named("orders")).await.unwrap()[0];
    assert_eq!(record.holders[0].lock_id.label(), "10.0.0.7");
    java.delete(&format!("{prefix}{sequence}"), None).await.unwrap();
    let guard = waiting.await.unwrap();
    // We hold, and Java's node comes after ours by the number behind `lock-`, which is all that Curator looks at.
    let (_, sequence) = java.create(&prefix, b"10.0.0.7", &ephemeral).await.unwrap();
    let mut nodes = java.list_children(parent).await.unwrap();
    nodes.sort_by_key(|node| node.rsplit_once("lock-").unwrap().1.to_owned());
    assert_eq!(nodes[1], format!("{CURATOR}-lock-{sequence}"));
    assert!(nodes[0].starts_with("_c_") && nodes[0].len() == nodes[1].len(), "{nodes:?}");
    guard.release().await.unwrap();
    assert_eq!(java.list_children(parent).await.unwrap(), [nodes[1].clone()]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_writer_lock_of_curator_and_ours_exclude_each_other() {
    let server = ZookeeperServer::start();
    let ours = locks(&server.url(), ms(8000)).await;
    let java = client(&server.url()).await;
    ours.rw_lock("r").read().await.unwrap().release().await.unwrap();
    let ephemeral = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    let prefix = format!("/distlock/rwlock/r/{CURATOR}-__READ__");
    let (_, sequence) = java.create(&prefix, b"java", &ephemeral).await.unwrap();
    let reader = ours.rw_lock("r").try_read().await.unwrap().expect("readers share");
    assert!(ours.rw_lock("r").try_write().await.unwrap().is_none());
    let writing = tokio::spawn({
        let ours = ours.clone();
        async move { ours.rw_lock("r").write().timeout(LIMIT).await.unwrap() }
    });
    until("the writer is queued", async || counts(&ours, Kind::RwLock, "r").await == (2, 1)).await;
    reader.release().await.unwrap();
    assert_eq!(counts(&ours, Kind::RwLock, "r").await, (1, 1));
    java.delete(&format!("{prefix}{sequence}"), None).await.unwrap();
    writing.await.unwrap().release().await.unwrap();
}
