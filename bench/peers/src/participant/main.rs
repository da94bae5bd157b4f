//! One who takes part: obeys orders on standard input, for the library that it was told to be.

#[path = "../protocol.rs"]
mod protocol;

mod peers;
mod scenarios;

use std::io::{BufRead, Write};

use protocol::{Answer, Order};
use scenarios::Peer;

fn main() {
    let Some(who) = std::env::args().nth(1) else {
        eprintln!("usage: participant NAME");
        std::process::exit(64);
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("no runtime: {error}");
            std::process::exit(1);
        }
    };
    runtime.block_on(async {
        match who.as_str() {
            #[cfg(feature = "field")]
            "distlock" => obey::<peers::ours::Ours>().await,
            #[cfg(feature = "field")]
            "raw" => obey::<peers::ours::Raw>().await,
            #[cfg(feature = "field")]
            "rslock" => obey::<peers::rslock_crate::Rslock>().await,
            #[cfg(feature = "field")]
            "redsync" => obey::<peers::redsync_crate::RedsyncPeer>().await,
            #[cfg(feature = "apart")]
            "mongodb-lock" => obey::<peers::mongodb_lock_crate::MongodbLock>().await,
            #[cfg(feature = "field")]
            "distributed-lock-redis" => obey::<peers::distributed::Redis>().await,
            #[cfg(feature = "field")]
            "distributed-lock-postgres" => obey::<peers::distributed::Postgres>().await,
            #[cfg(feature = "apart")]
            "distributed-lock-mongo" => obey::<peers::distributed_mongo::Mongo>().await,
            #[cfg(feature = "field")]
            "distributed-lock-file" => obey::<peers::distributed::Files>().await,
            other => tell(&Answer { error: format!("there is no {other} here"), ..Answer::default() }),
        }
    });
}

async fn obey<P: Peer>() {
    let mut url = String::new();
    loop {
        let line = tokio::task::spawn_blocking(|| {
            let mut line = String::new();
            std::io::stdin().lock().read_line(&mut line).map(|_| line)
        });
        let Ok(Ok(line)) = line.await else { return };
        if line.trim().is_empty() {
            return;
        }
        let answer = match serde_json::from_str::<Order>(&line) {
            Err(error) => Err(error.to_string()),
            Ok(Order::Open { url: place }) => {
                url = place;
                P::connect(&url, None).await.map(|_| Answer::default())
            }
            Ok(order) => scenarios::run::<P>(&url, &order).await,
        };
        tell(&answer.unwrap_or_else(|error| Answer { error, ..Answer::default() }));
    }
}

fn tell(answer: &Answer) {
    let mut line = serde_json::to_string(answer).unwrap_or_default();
    line.push('\n');
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(line.as_bytes()).and_then(|()| out.flush());
}
