//! A holder that stood still beyond its lease, and the ledger that refuses what it writes then.
//!
//! ```console
//! $ cargo run -p distlock-postgres --example fenced_ledger -- postgres://postgres@127.0.0.1/postgres
//! ```

use std::str::FromStr;
use std::time::Duration;

use distlock_core::{ErrorKind, Guard, Options};
use distlock_postgres::{Fence, LeaseTable, PostgresConfig};
use tokio_postgres::{Client, NoTls};

type Anything = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Anything> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "postgres://postgres@127.0.0.1/postgres".to_owned());
    let config = PostgresConfig::from_url(&url)?;
    let fence = Fence::new(&config);
    let mut client = connect(&url).await?;
    client.batch_execute(&fence.commands()).await?;
    client
        .batch_execute(
            "CREATE TABLE IF NOT EXISTS ledger (number bigserial PRIMARY KEY, entry text NOT NULL)",
        )
        .await?;

    let locks = LeaseTable::connect(config).await?.locks()?;
    // A plain lease of a second, which nobody extends: what is left of one whose process stands still.
    let short = Options::new().expiry(Duration::from_secs(1))?.auto_extend(false);
    let paused = locks.mutex("ledger/7").options(short).acquire().await?;
    println!("the first holder has token {}, and stands still", paused.token());
    tokio::time::sleep(Duration::from_millis(1500)).await;

    let next = locks.mutex("ledger/7").acquire().await?;
    println!("the second holder has token {}", next.token());
    write(&mut client, &fence, &next, "by the second holder").await?;
    println!("the second holder's entry is in the ledger");

    // The first one goes on as if nothing had happened, without a look at its guard.
    match write(&mut client, &fence, &paused, "by the first holder, too late").await {
        Err(error)
            if error.downcast_ref::<distlock_core::Error>().is_some_and(|e| e.kind() == ErrorKind::Lost) =>
        {
            println!("the first holder's entry was refused: {error}");
        }
        Err(error) => return Err(error),
        Ok(()) => return Err("a stale entry came into the ledger".into()),
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
