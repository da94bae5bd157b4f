//! A holder that stalls beyond its lease, and the ledger that refuses its late write.
//!
//! ```console
//! $ cargo run -p distlock-postgres --example fenced_ledger -- postgres://postgres@127.0.0.1/postgres
//! ```

use std::str::FromStr;
use std::time::Duration;

use distlock_core::store::{Backend, StoreUrl};
use distlock_core::{ErrorKind, Guard, Locks, Options};
use distlock_postgres::{Fence, PostgresConfig, PostgresStore};
use tokio_postgres::{Client, NoTls};

type Anything = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Anything> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "postgres://postgres@127.0.0.1/postgres".to_owned());
    let config = PostgresConfig::from_url(&StoreUrl::parse(&url)?)?;
    let fence = Fence::new(&config);
    let mut client = connect(&url).await?;
    client.batch_execute(&fence.commands()).await?;
    client
        .batch_execute(
            "CREATE TABLE IF NOT EXISTS ledger (number bigserial PRIMARY KEY, entry text NOT NULL)",
        )
        .await?;

    let locks = Locks::new(Backend::lease(PostgresStore::connect(config).await?))?;
    // A lease of one second that is not renewed: as if the process of its holder were stalled.
    let short = Options::new().expiry(Duration::from_secs(1))?.auto_extend(false);
    let paused = locks.mutex("ledger/7").options(short).acquire().await?;
    println!("the first holder has token {}, and stalls", paused.token());
    tokio::time::sleep(Duration::from_millis(1500)).await;

    let next = locks.mutex("ledger/7").acquire().await?;
    println!("the second holder has token {}", next.token());
    write(&mut client, &fence, &next, "by the second holder").await?;
    println!("the second holder's entry is in the ledger");

    // The first holder resumes and writes without checking its guard.
    match write(&mut client, &fence, &paused, "by the first holder, too late").await {
        Err(error)
            if error.downcast_ref::<distlock_core::Error>().is_some_and(|e| e.kind() == ErrorKind::Lost) =>
        {
            println!("the first holder's entry was refused: {error}");
        }
        Err(error) => return Err(error),
        Ok(()) => return Err("a stale entry was written to the ledger".into()),
    }
    next.release().await?;
    Ok(())
}

/// Check and entry in one transaction: both or neither.
async fn write(client: &mut Client, fence: &Fence, guard: &Guard, entry: &str) -> Result<(), Anything> {
    let transaction = client.transaction().await?;
    fence.admit(&transaction, "ledger/7", guard.token()).await?;
    transaction.execute("INSERT INTO ledger (entry) VALUES ($1)", &[&entry]).await?;
    transaction.commit().await?;
    Ok(())
}

async fn connect(url: &str) -> Result<Client, Anything> {
    let (client, connection) = tokio_postgres::Config::from_str(url)?.connect(NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}
