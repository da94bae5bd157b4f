//! What `doctor` reports about the lease table.

use std::time::Duration;

use distlock_core::Result;
use distlock_core::store::Finding;
use tokio::sync::mpsc::unbounded_channel;

use super::store::StoreState;
use crate::error;
use crate::keys::hex;

/// How long a notification to ourselves may take.
const ECHO_TIMEOUT: Duration = Duration::from_secs(1);

pub(super) async fn examine(state: &StoreState) -> Result<Vec<Finding>> {
    let connection = state.shared.get().await?;
    let tables = state.shared.schema.tables();
    let names = [tables.named(""), tables.named("_pool")];
    let mut findings = crate::doctor::examine(connection.client(), &names).await?;
    findings.push(wake_ups(connection.server.pooled, state.listens, receives_own_notification(state).await?));
    if !state.server.utf8 {
        findings.push(Finding::warning(
            "the database's encoding is not UTF-8: names beyond ASCII are hashed",
            "use a database with ENCODING 'UTF8' if other programs read the lock table",
        ));
    }
    Ok(findings)
}

fn wake_ups(pooled: bool, listens: bool, listen_works: bool) -> Finding {
    match (pooled, listens, listen_works) {
        (false, true, true) => Finding::ok("the connection leads to the server, and waiters are woken by it"),
        (false, false, _) => {
            Finding::warning("waiters poll, because distlock.listen=off", "leave it out: LISTEN works here")
        }
        (_, true, false) => Finding::warning(
            "LISTEN does not work here: waiters are woken late",
            "set distlock.listen=off behind a pooler in transaction mode, or connect to the server itself",
        ),
        (true, true, true) => Finding::ok("behind a pooler in session mode; waiters are woken"),
        (true, false, true) => {
            Finding::warning("behind a pooler waiters poll, but LISTEN works here", "set distlock.listen=on")
        }
        (true, false, false) => Finding::warning(
            "behind a pooler in transaction mode (PgBouncer): waiters cannot be woken, and poll",
            "connect to the server itself where handoff must be fast; everything else works",
        ),
    }
}

/// Listens on a channel that no other client knows, and notifies it.
async fn receives_own_notification(state: &StoreState) -> Result<bool> {
    let (sender, mut notifications) = unbounded_channel();
    let listener = state.shared.open_listener(sender).await?;
    let channel = format!("dl_echo_{}", hex(&fastrand::u64(..).to_be_bytes()));
    let listen = format!("LISTEN \"{channel}\"");
    listener.client().batch_execute(&listen).await.map_err(error::from_statement)?;
    let shared = state.shared.get().await?;
    let notify = format!("NOTIFY \"{channel}\"");
    shared.client().batch_execute(&notify).await.map_err(error::from_statement)?;
    let received = matches!(tokio::time::timeout(ECHO_TIMEOUT, notifications.recv()).await, Ok(Some(_)));
    // Behind a pooler the session remains, and other clients get it.
    let unlisten = format!("UNLISTEN \"{channel}\"");
    listener.client().batch_execute(&unlisten).await.map_err(error::from_statement)?;
    Ok(received)
}
