//! An application with the MongoDB driver and a `bson` of its own. Its argument is the URL of a server.

use bson::{Document, doc};
use distlock::Locks;
use distlock::mongodb::{MongoConfig, MongoStore};
use distlock::store::Backend;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Of the stores this application has one.
    let disabled =
        distlock::connect("redis://user:secret@localhost").await.expect_err("the feature is off").to_string();
    assert!(disabled.contains("enable the feature `redis`") && !disabled.contains("secret"), "{disabled}");

    let url = std::env::args().nth(1).ok_or("the argument is missing: the URL of a MongoDB server")?;
    let client = mongodb::Client::with_uri_str(url).await?;
    let store = MongoStore::with_client(client.clone(), MongoConfig::default()).await?;
    let locks = Locks::new(Backend::lease(store))?;
    let guard = locks.mutex("clash").acquire().await?;

    // The document is of the application's crate, and the collection of the driver's.
    let orders = client.database("clash").collection::<Document>("orders");
    orders.insert_one(doc! { "_id": "order", "token": guard.token() }).await?;
    let stored: Document = orders.find_one(doc! { "_id": "order" }).await?.ok_or("the order is gone")?;
    let token = stored.get_i64("token")?;
    guard.release().await?;
    locks.shutdown().await?;
    println!("token {token} stored as a 64-bit integer");
    Ok(())
}
