//! What `doctor` says of a lease table.

use std::time::Duration;

use distlock_core::Result;
use distlock_core::store::Finding;
use tokio::sync::mpsc::unbounded_channel;

use super::Inner;
use crate::failure;
use crate::names::hex;

/// How long a message to ourselves may take before we say that none will come.
const ECHO: Duration = Duration::from_secs(1);

pub(super) async fn examine(store: &Inner) -> Result<Vec<Finding>> {
    let wire = store.link.wire().await?;
    let tables = store.link.schema().tables();
    let mut found = crate::doctor::examine(wire.client(), &[tables.named(""), tables.named("_pool")]).await?;
    let echo = hears_itself(store).await?;
    found.push(match (wire.server.pooled, store.listens, echo) {
        (false, true, true) => Finding::ok("the connection leads to the server, and waiters are woken by it"),
        (false, false, _) => {
            Finding::warning("waiters poll, because distlock.listen=off", "leave it out: LISTEN works here")
        }
        (_, true, false) => Finding::warning(
            "LISTEN does not work here, so that waiters are woken late",
            "set distlock.listen=off behind a pooler in transaction mode, or connect to the server itself",
        ),
        (true, true, true) => Finding::ok("behind a pooler in session mode; waiters are woken"),
        (true, false, true) => Finding::warning(
            "behind a pooler, so that waiters poll; but LISTEN works here",
            "set distlock.listen=on",
        ),
        (true, false, false) => Finding::warning(
            "behind a pooler in transaction mode (PgBouncer): waiters cannot be woken, and poll",
            "connect to the server itself where hand-over must be fast; all else works",
        ),
    });
    if !store.server.utf8 {
        found.push(Finding::warning(
            "the database is not kept as UTF-8: names beyond ASCII are hashed",
            "use a database with ENCODING 'UTF8' if other programs are to read the lock table",
        ));
    }
    Ok(found)
}

/// Listens on a channel that nobody else knows, and notifies it.
async fn hears_itself(store: &Inner) -> Result<bool> {
    let (mail, mut messages) = unbounded_channel();
    let wire = store.link.listener(mail).await?;
    let channel = format!("dl_echo_{}", hex(&fastrand::u64(..).to_be_bytes()));
    let listening = wire.client().batch_execute(&format!("LISTEN \"{channel}\"")).await;
    listening.map_err(|error| failure::of_statement(&error))?;
    let shared = store.link.wire().await?;
    let notified = shared.client().batch_execute(&format!("NOTIFY \"{channel}\"")).await;
    notified.map_err(|error| failure::of_statement(&error))?;
    let heard = matches!(tokio::time::timeout(ECHO, messages.recv()).await, Ok(Some(_)));
    // Behind a pooler the session stays, and others get it.
    let unlistening = wire.client().batch_execute(&format!("UNLISTEN \"{channel}\"")).await;
    unlistening.map_err(|error| failure::of_statement(&error))?;
    Ok(heard)
}
