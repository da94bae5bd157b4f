//! A service with a pool of deadpool: locks over a connection of the pool, and a fenced write in a transaction of the pool.
//!
//! `cargo run --example deadpool_postgres --features deadpool-postgres -- postgres://postgres@127.0.0.1/postgres`

use distlock::Locks;
use distlock::postgres::{Fence, PostgresConfig, PostgresStore};
use distlock::store::Backend;
use tokio_postgres::NoTls;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut settings = deadpool_postgres::Config::new();
    settings.url = Some(std::env::args().nth(1).ok_or("the URL of a server is missing")?);
    let pool = settings.create_pool(Some(deadpool_postgres::Runtime::Tokio1), NoTls)?;

    // Statements go over a connection of the pool. While there are waiters, the store listens on one of its own, for which it
    // needs the settings: the pool does not show them.
    let config = PostgresConfig::new(settings.get_pg_config()?);
    let fence = Fence::new(&config);
    let locks = Locks::new(Backend::lease(PostgresStore::with_deadpool(pool.clone(), config).await?))?;

    let mut client = pool.get().await?;
    client.batch_execute(&fence.commands()).await?;
    client.batch_execute("CREATE TABLE IF NOT EXISTS deadpool_ledger (token bigint NOT NULL)").await?;

    let guard = locks.mutex("ledger/deadpool").acquire().await?;
    let transaction = client.transaction().await?;
    fence.admit(&transaction, "ledger/deadpool", guard.token()).await?;
    // A token is a BIGINT.
    transaction.execute("INSERT INTO deadpool_ledger VALUES ($1)", &[&guard.token()]).await?;
    transaction.commit().await?;
    println!("written with token {}", guard.token());
    guard.release().await?;
    locks.shutdown().await?;
    Ok(())
}
