//! A service with a connection manager of the `redis` crate: locks over that connection.
//!
//! `cargo run --example redis_connection_manager --features redis-connection-manager -- redis://127.0.0.1/`

use distlock::Locks;
use distlock::redis::{RedisConfig, RedisStore};
use distlock::store::{Backend, StoreUrl};
use redis::AsyncCommands;
use redis::aio::ConnectionManager;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).ok_or("the URL of a server is missing")?;
    let mut manager = ConnectionManager::new(redis::Client::open(url.as_str())?).await?;

    // Messages for waiters need a connection of the store's own, for which it needs the address.
    let config = RedisConfig::from_url(&StoreUrl::parse(&url)?)?;
    let store = RedisStore::with_connection_manager(manager.clone(), config).await?;
    let locks = Locks::new(Backend::lease(store))?;

    let guard = locks.mutex("orders/42").acquire().await?;
    let count: i64 = manager.incr("orders/42/count", 1).await?;
    println!("order {count} with token {}", guard.token());
    guard.release().await?;
    locks.shutdown().await?;
    Ok(())
}
