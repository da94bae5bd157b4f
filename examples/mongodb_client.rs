//! A service with a MongoDB client: locks over that client, and a conditional write that refuses a stale token.
//!
//! `cargo run --example mongodb_client --features bson-2,mongodb,tls-ring -- mongodb://127.0.0.1/app`

use distlock::Locks;
use distlock::mongodb::{MongoConfig, MongoStore};
use distlock::store::Backend;
use mongodb::Client;
use mongodb::bson::{Document, doc};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).ok_or("the URL of a server is missing")?;
    let client = Client::with_uri_str(url).await?;
    let store = MongoStore::with_client(client.clone(), MongoConfig::default()).await?;
    let locks = Locks::new(Backend::lease(store))?;

    let accounts = client.database("app").collection::<Document>("accounts");
    accounts.update_one(doc! { "_id": 42 }, doc! { "$setOnInsert": { "token": 0_i64 } }).upsert(true).await?;

    let guard = locks.mutex("account/42").acquire().await?;
    // A token is an Int64. If a later holder has written, its token is higher and nothing matches.
    let current = doc! { "_id": 42, "token": { "$lte": guard.token() } };
    let change = doc! { "$set": { "balance": 10, "token": guard.token() } };
    let changed = accounts.update_one(current, change).await?.matched_count;
    println!("changed {changed} account with token {}", guard.token());
    guard.release().await?;
    locks.shutdown().await?;
    Ok(())
}
