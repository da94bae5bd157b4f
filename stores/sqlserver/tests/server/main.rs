//! What needs a server: `DISTLOCK_SQLSERVER_URL=sqlserver://user:password@host/database cargo test --workspace --all-features --test
//! sqlserver_server`. The login must be allowed to create tables and sequences, and to end sessions. `scripts/test` says when it
//! does not run these.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod conformance;
mod hazards;

use std::sync::atomic::{AtomicU32, Ordering};

/// The URL of the server, with a table of its own for this caller.
pub(crate) fn own_url() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let url = std::env::var("DISTLOCK_SQLSERVER_URL")
        .expect("set DISTLOCK_SQLSERVER_URL=sqlserver://user:password@host/database: no package installs a SQL Server");
    let sign = if url.contains('?') { '&' } else { '?' };
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{url}{sign}distlock.table=t{}_{number}_{:08x}", std::process::id(), fastrand())
}

/// Tables stay behind: two runs must not share one.
fn fastrand() -> u32 {
    use std::hash::{BuildHasher, Hasher};
    let hash = std::collections::hash_map::RandomState::new().build_hasher().finish();
    u32::try_from(hash & 0xffff_ffff).unwrap()
}
