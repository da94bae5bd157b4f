//! What needs a server: `DISTLOCK_SQLSERVER_URL=sqlserver://user:password@host/database cargo test --workspace --all-features --test
//! sqlserver_server`. The login must be allowed to create tables and sequences, and to end sessions. `scripts/test` says when it
//! does not run these.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod conformance;
mod ended_sessions;
mod hazards;

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use distlock_core::Locks;
use distlock_core::store::{Backend, StoreUrl};
use distlock_sqlserver::{SqlServerConfig, SqlServerStore};
use distlock_testkit::proxy::Proxy;

/// For what takes a moment, on a server that may be slow.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn config(url: &str) -> SqlServerConfig {
    SqlServerConfig::from_url(&StoreUrl::parse(url).unwrap()).unwrap()
}

pub(crate) async fn locks(url: &str) -> Locks {
    Locks::new(Backend::session(SqlServerStore::connect(config(url)).await.unwrap())).unwrap()
}

/// A proxy in front of the server, and the URL that goes through it.
pub(crate) async fn proxy(url: &str) -> (Proxy, String) {
    let parsed = StoreUrl::parse(url).unwrap();
    let server = &parsed.authority().unwrap().servers[0];
    let distlock_core::store::url::Host::Name(host) = &server.host else { panic!("a host") };
    let target =
        tokio::net::lookup_host((host.as_str(), server.port.unwrap_or(1433))).await.unwrap().next().unwrap();
    let proxy = Proxy::start(target);
    let written = server.port.map_or(format!("@{host}"), |port| format!("@{host}:{port}"));
    let through = url.replacen(&written, &format!("@{}", proxy.addr()), 1);
    (proxy, through)
}

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
