//! A service with a pool of sqlx: locks on its server, a fenced write and an advisory lock in its transactions.
//!
//! `cargo run --example sqlx_postgres --features sqlx-postgres -- postgres://postgres@127.0.0.1/postgres`

use distlock::postgres::{AdvisoryKey, Fence, PostgresConfig, PostgresStore, SqlxTransactionLocks};
use distlock::store::Backend;
use distlock::{FencingToken, Kind, Locks};
use sqlx::PgPool;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).ok_or("the URL of a server is missing")?;
    let pool = PgPool::connect(&url).await?;

    // The store opens connections of its own, with the address and the login of the pool.
    let config = PostgresConfig::default();
    let fence = Fence::new(&config);
    let locks = Locks::new(Backend::lease(PostgresStore::with_sqlx_pool(&pool, config).await?))?;

    sqlx::raw_sql(&fence.commands()).execute(&pool).await?;
    sqlx::raw_sql("CREATE TABLE IF NOT EXISTS sqlx_ledger (token bigint NOT NULL)").execute(&pool).await?;

    let guard = locks.mutex("ledger/sqlx").acquire().await?;
    let mut transaction = pool.begin().await?;
    fence.admit_sqlx(&mut transaction, "ledger/sqlx", guard.token()).await?;
    sqlx::query("INSERT INTO sqlx_ledger VALUES ($1)").bind(guard.token()).execute(&mut *transaction).await?;
    transaction.commit().await?;
    let last: FencingToken =
        sqlx::query_scalar("SELECT max(token) FROM sqlx_ledger").fetch_one(&pool).await?;
    println!("written with token {last}");
    guard.release().await?;

    // A lock that ends with the transaction needs no store and no release.
    let mut transaction = pool.begin().await?;
    SqlxTransactionLocks::of(&mut transaction).lock(AdvisoryKey::of(Kind::Mutex, "account/42")).await?;
    sqlx::query("DELETE FROM sqlx_ledger WHERE token < $1").bind(last).execute(&mut *transaction).await?;
    transaction.commit().await?;
    println!("cleaned up under an advisory lock");
    locks.shutdown().await?;
    Ok(())
}
