//! One participant: executes commands from standard input with the library named in its argument.

#[path = "../protocol.rs"]
mod protocol;

mod peers;
mod scenarios;

use std::io::{BufRead, Write};

use protocol::{Command, Reply};
use scenarios::Peer;

/// Executes commands with the participant of this name, if this build has it.
macro_rules! participants {
    ($name:ident; $($feature:literal: $participant:literal => $peer:ty,)*) => {
        match $name.as_str() {
            $(#[cfg(feature = $feature)]
            $participant => execute::<$peer>().await,)*
            other => send(&Reply { error: format!("this build has no {other}"), ..Reply::default() }),
        }
    };
}

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
        participants! { who;
            "main": "distlock" => peers::distlock_peer::Distlock,
            "main": "baseline" => peers::distlock_peer::BaselinePeer,
            "main": "rslock" => peers::rslock_crate::Rslock,
            "main": "redsync" => peers::redsync_crate::RedsyncPeer,
            "separate": "mongodb-lock" => peers::mongodb_lock_crate::MongodbLock,
            "main": "distributed-lock-redis" => peers::distributed::Redis,
            "main": "distributed-lock-postgres" => peers::distributed::Postgres,
            "separate": "distributed-lock-mongo" => peers::distributed_mongo::Mongo,
            "main": "distributed-lock-file" => peers::distributed::Files,
        }
    });
}

async fn execute<P: Peer>() {
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
        let reply = match serde_json::from_str::<Command>(&line) {
            Err(error) => Err(error.to_string()),
            Ok(Command::Open { url: address }) => {
                url = address;
                P::connect(&url, None).await.map(|_| Reply::default())
            }
            Ok(command) => scenarios::run::<P>(&url, &command).await,
        };
        send(&reply.unwrap_or_else(|error| Reply { error, ..Reply::default() }));
    }
}

fn send(reply: &Reply) {
    let mut line = serde_json::to_string(reply).unwrap_or_default();
    line.push('\n');
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(line.as_bytes()).and_then(|()| out.flush());
}
