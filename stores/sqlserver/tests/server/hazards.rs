//! What can go wrong with sessions of the server.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use distlock_core::store::StoreUrl;
use distlock_core::{ErrorKind, Kind, Resource};
use distlock_sqlserver::{SqlServerStore, TransactionLocks};
use distlock_testkit::proxy::Direction;
use tiberius::{AuthMethod, Client, Config, EncryptionLevel};
use tokio::net::TcpStream;
use tokio_util::compat::{Compat, TokioAsyncWriteCompatExt};

use crate::{PATIENCE, config, locks, own_url, proxy};

/// A client of the application's own.
async fn client() -> Client<Compat<TcpStream>> {
    let url = StoreUrl::parse(&std::env::var("DISTLOCK_SQLSERVER_URL").unwrap()).unwrap();
    let authority = url.authority().unwrap();
    let login = authority.login.as_ref().unwrap();
    let distlock_core::store::url::Host::Name(host) = &authority.servers[0].host else { panic!("a host") };
    let mut options = Config::new();
    options.host(host);
    options.port(authority.servers[0].port.unwrap_or(1433));
    options.database(url.path().unwrap().trim_start_matches('/'));
    options.authentication(AuthMethod::sql_server(
        login.user().unwrap(),
        String::from_utf8_lossy(login.password().unwrap_or_default()),
    ));
    let parameters: Vec<(&str, &str)> = url.driver_parameters().collect();
    if parameters.contains(&("encrypt", "danger_plaintext")) {
        options.encryption(EncryptionLevel::NotSupported);
    }
    if parameters.contains(&("trustservercertificate", "true")) {
        options.trust_cert();
    }
    if let Some((_, authority)) = parameters.iter().find(|(name, _)| *name == "trustservercertificateca") {
        options.trust_cert_ca(authority);
    }
    let socket = TcpStream::connect(options.get_addr()).await.unwrap();
    Client::connect(options, socket.compat_write()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_ends_in_time_although_its_session_is_still_being_opened() {
    let url = own_url();
    let (proxy, through) = proxy(&url).await;
    let (holder, waiter) = (locks(&url).await, locks(&through).await);
    let _held = holder.mutex("held").acquire().await.unwrap();
    assert!(waiter.mutex("held").try_acquire().await.unwrap().is_none());
    // To open a session takes several round trips, and an attempt one.
    proxy.set_delay(Direction::ToServer, Duration::from_secs(1));
    let error = waiter.mutex("held").acquire().timeout(Duration::from_secs(3)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_of_an_ended_session_count_also_beyond_a_smaller_capacity() {
    let url = own_url();
    let (holder, operator) = (locks(&url).await, locks(&url).await);
    let both = holder.semaphore("shrunk", 2).acquire_many(2).await.unwrap();
    operator.break_lock(Kind::Semaphore, "shrunk").await.unwrap();
    let only = operator.semaphore("shrunk", 1).acquire().timeout(PATIENCE).await.unwrap();
    assert!(both.is_lost() && only.token() > both.token());
    assert!(operator.semaphore("shrunk", 1).try_acquire().await.unwrap().is_none());
    only.release().await.unwrap();
    // Nothing of the ended session is left.
    assert_eq!(SqlServerStore::connect(config(&url)).await.unwrap().sweep().await.unwrap(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_whose_rows_cannot_be_written_are_not_kept() {
    let url = own_url();
    let (ours, other) = (locks(&url).await, locks(&url).await);
    let guard = ours.mutex("beside it").acquire().await.unwrap();
    let table = url.rsplit('=').next().unwrap().to_owned();
    let mut client = client().await;
    let deny = format!("ALTER TABLE dbo.{table}_holder ADD CONSTRAINT {table}_few CHECK (slot < 1)");
    client.simple_query(deny).await.unwrap().into_results().await.unwrap();
    ours.semaphore("s", 3).acquire_many(3).await.unwrap_err();
    assert!(!guard.is_lost(), "other locks of the session stay");
    let allow = format!("ALTER TABLE dbo.{table}_holder DROP CONSTRAINT {table}_few");
    client.simple_query(allow).await.unwrap().into_results().await.unwrap();
    other.semaphore("s", 3).acquire_many(3).timeout(PATIENCE).await.unwrap().release().await.unwrap();
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_of_one_name_never_go_back_whoever_draws_them() {
    const CLIENTS: u64 = 4;
    const GRANTS: u64 = 60;
    let url = own_url();
    let (last, grants) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let mut tasks = Vec::new();
    for _ in 0..CLIENTS {
        let (url, last, grants) = (url.clone(), Arc::clone(&last), Arc::clone(&grants));
        tasks.push(tokio::spawn(async move {
            let locks = locks(&url).await;
            while grants.fetch_add(1, Ordering::SeqCst) < GRANTS {
                let guard = locks.mutex("one").acquire().await.unwrap();
                let before = last.swap(guard.token().get(), Ordering::SeqCst);
                assert!(before < guard.token().get(), "token {} after {before}", guard.token());
                guard.release().await.unwrap();
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_of_a_transaction_excludes_the_store_until_it_ends() {
    let url = own_url();
    let (config, locks) = (config(&url), locks(&url).await);
    let account = Resource::new(Kind::Mutex, "account/42").unwrap();
    let mut client = client().await;
    let refused = TransactionLocks::of(&mut client, &config).lock(&account, None).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{refused}");
    client.simple_query("BEGIN TRANSACTION").await.unwrap().into_results().await.unwrap();
    TransactionLocks::of(&mut client, &config).lock(&account, None).await.unwrap();
    assert!(locks.mutex("account/42").try_acquire().await.unwrap().is_none());
    client.simple_query("COMMIT").await.unwrap().into_results().await.unwrap();
    let guard = locks.mutex("account/42").acquire().timeout(PATIENCE).await.unwrap();
    client.simple_query("BEGIN TRANSACTION").await.unwrap().into_results().await.unwrap();
    assert!(!TransactionLocks::of(&mut client, &config).try_lock(&account).await.unwrap());
    guard.release().await.unwrap();
    assert!(TransactionLocks::of(&mut client, &config).try_lock(&account).await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_tokens_there_is_exclusion_and_nothing_else_is_promised() {
    let url = format!("{}&distlock.tokens=off", own_url());
    let (one, other) = (locks(&url).await, locks(&url).await);
    let guard = one.mutex("bare").acquire().await.unwrap();
    assert_eq!(guard.token().get(), 0);
    assert!(other.mutex("bare").try_acquire().await.unwrap().is_none());
    let waiter = tokio::spawn({
        let other = other.clone();
        async move { other.mutex("bare").acquire().timeout(PATIENCE).await }
    });
    guard.release().await.unwrap();
    waiter.await.unwrap().unwrap().release().await.unwrap();
    let refused = one.semaphore("bare", 2).acquire().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_that_a_collation_would_fold_are_different_locks() {
    let locks = locks(&own_url()).await;
    let long = "x".repeat(4000);
    let longer = format!("{}y", "x".repeat(3999));
    let mut held = Vec::new();
    for name in ["a", "A", "a ", "ä", "Ä", &long, &longer] {
        held.push(locks.mutex(name).try_acquire().await.unwrap().unwrap_or_else(|| panic!("{name} is free")));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_with_another_certificate_is_refused() {
    let url = own_url();
    let (before, _) = url.split_once('?').unwrap();
    // Encryption is on by default.
    let config = config(&format!("{before}?hostnameincertificate=another.invalid"));
    let error = SqlServerStore::connect(config).await.unwrap_err();
    assert!(error.to_string().contains("TLS") && error.kind() == ErrorKind::Denied, "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_of_more_than_30_seconds_is_not_cut_off() {
    let url = own_url();
    let (holder, waiter) = (locks(&url).await, locks(&url).await);
    let held = holder.mutex("long").acquire().await.unwrap();
    let waiting = tokio::spawn(async move { waiter.mutex("long").acquire().timeout(2 * PATIENCE).await });
    // The driver's own limit, and a little more.
    tokio::time::sleep(Duration::from_secs(33)).await;
    assert!(!waiting.is_finished() && !held.is_lost());
    held.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_named_principal_excludes_its_own_clients() {
    let url = format!("{}&distlock.principal=dbo", own_url());
    let (one, other) = (locks(&url).await, locks(&url).await);
    let held = one.mutex("m").acquire().await.unwrap();
    assert!(other.mutex("m").try_acquire().await.unwrap().is_none());
    held.release().await.unwrap();
    other.mutex("m").acquire().timeout(PATIENCE).await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_login_without_rights_is_told_what_to_grant_and_can_go_without_tokens() {
    let url = own_url();
    let mut client = client().await;
    let login = format!("poor_{}", std::process::id());
    let create = format!("CREATE LOGIN {login} WITH PASSWORD = 'Dist-l0ck-poor'");
    client.simple_query(create).await.unwrap().into_results().await.unwrap();
    // A database may have no guests.
    if let Ok(created) = client.simple_query(format!("CREATE USER {login} FOR LOGIN {login}")).await {
        let _ = created.into_results().await;
    }
    let (before, after) = url.split_once("://").unwrap();
    let (_, host) = after.split_once('@').unwrap();
    let poor = format!("{before}://{login}:Dist-l0ck-poor@{host}");
    let error = SqlServerStore::connect(config(&poor)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(
        error.to_string().contains("distlock schema") && error.to_string().contains("tokens=off"),
        "{error}"
    );
    let bare = locks(&format!("{poor}&distlock.tokens=off")).await;
    let guard = bare.mutex("m").acquire().await.unwrap();
    assert_eq!(guard.token().get(), 0);
    guard.release().await.unwrap();
}
