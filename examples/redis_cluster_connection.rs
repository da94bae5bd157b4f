//! A service with a Cluster connection of the `redis` crate: locks on that Cluster.
//!
//! `cargo run --example redis_cluster_connection --features redis-cluster-async -- redis://127.0.0.1:7000/`

use distlock::Locks;
use distlock::redis::{RedisConfig, RedisStore};
use distlock::store::Backend;
use redis::AsyncCommands;
use redis::cluster::ClusterClient;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let nodes: Vec<String> = std::env::args().skip(1).collect();
    let mut connection = ClusterClient::new(nodes)?.get_async_connection().await?;

    // The store asks the connection for the nodes, and opens a connection of its own to each master.
    let store = RedisStore::with_cluster_connection(connection.clone(), RedisConfig::default()).await?;
    let locks = Locks::new(Backend::lease(store))?;

    let guard = locks.mutex("orders/42").acquire().await?;
    let count: i64 = connection.incr("orders/42/count", 1).await?;
    println!("order {count} with token {}", guard.token());
    guard.release().await?;
    locks.shutdown().await?;
    Ok(())
}
