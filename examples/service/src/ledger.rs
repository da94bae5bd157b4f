//! The accounts. Every write carries the fencing token of the lock that it was made under, and the database refuses one
//! that is older than the account's last: a replica that was paused past its expiry cannot overwrite its successor.

use distlock::FencingToken;
use sqlx::PgPool;

/// Why a deposit was not made.
#[derive(Debug)]
pub(crate) enum DepositError {
    /// Another replica has written to the account under a later lock.
    Stale,
    Database(sqlx::Error),
}

impl From<sqlx::Error> for DepositError {
    fn from(error: sqlx::Error) -> Self {
        DepositError::Database(error)
    }
}

/// To be called under the lock `migration`: two replicas that create a table at the same time fail.
pub(crate) async fn create_tables(database: &PgPool) -> Result<(), sqlx::Error> {
    let exists: Option<String> =
        sqlx::query_scalar("SELECT to_regclass('accounts')::text").fetch_one(database).await?;
    if exists.is_some() {
        return Ok(());
    }
    tracing::info!("creating the tables");
    for statement in [
        "CREATE TABLE deposits (account text NOT NULL, amount bigint NOT NULL)",
        "CREATE TABLE reports (at timestamptz NOT NULL DEFAULT clock_timestamp(), token bigint NOT NULL)",
        "CREATE TABLE accounts (id text PRIMARY KEY, balance bigint NOT NULL, token bigint NOT NULL)",
    ] {
        sqlx::query(statement).execute(database).await?;
    }
    Ok(())
}

pub(crate) async fn balance(database: &PgPool, account: &str) -> Result<i64, sqlx::Error> {
    let balance = sqlx::query_scalar("SELECT balance FROM accounts WHERE id = $1").bind(account);
    Ok(balance.fetch_optional(database).await?.unwrap_or(0))
}

/// Adds to the balance. The token comes first, in the same transaction: it locks the row, so what is read after it is what
/// the last writer left. Read before the token, the balance could be that of before a write which a paused replica had
/// begun under an earlier lock, and commits now.
pub(crate) async fn deposit(
    database: &PgPool,
    account: &str,
    amount: i64,
    token: FencingToken,
) -> Result<i64, DepositError> {
    let mut transaction = database.begin().await?;
    let admitted: Option<i64> = sqlx::query_scalar(
        "INSERT INTO accounts AS a (id, balance, token) VALUES ($1, 0, $2)
         ON CONFLICT (id) DO UPDATE SET token = EXCLUDED.token WHERE a.token <= EXCLUDED.token
         RETURNING balance",
    )
    .bind(account)
    .bind(token)
    .fetch_optional(&mut *transaction)
    .await?;
    let Some(balance) = admitted else { return Err(DepositError::Stale) };
    let balance = balance + amount;
    sqlx::query("UPDATE accounts SET balance = $2 WHERE id = $1")
        .bind(account)
        .bind(balance)
        .execute(&mut *transaction)
        .await?;
    sqlx::query("INSERT INTO deposits (account, amount) VALUES ($1, $2)")
        .bind(account)
        .bind(amount)
        .execute(&mut *transaction)
        .await?;
    transaction.commit().await?;
    Ok(balance)
}
