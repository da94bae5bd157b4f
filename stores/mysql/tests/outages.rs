//! The server killed, frozen and restarted, connections killed, replies lost, clocks moved.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use common::{
    Claims, MS, PATIENCE, SECOND, attempt, database_on, eventually, granted, lease_locks, lease_store,
    release, server, session_locks,
};
use distlock_core::store::{Driver, LeaseStore};
use distlock_core::{ErrorKind, FencingToken};
use distlock_mysql::{DRIVER, SESSION_DRIVER};
use distlock_testkit::conformance::Fixture;
use distlock_testkit::proxy::{AfterLoss, Direction, Proxy};
use distlock_testkit::servers::MysqlServer;

/// A server that no other test uses at the same time, with a database of its own. The next test uses it again.
struct OwnServer<const SESSION: bool> {
    server: Option<MysqlServer>,
    database: String,
}

/// Servers that no test uses.
static IDLE: Mutex<Vec<MysqlServer>> = Mutex::new(Vec::new());

impl<const SESSION: bool> OwnServer<SESSION> {
    fn take() -> Self {
        let idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let server = idle.unwrap_or_else(|| MysqlServer::configure().movable_clock().start());
        let database = database_on(&server);
        OwnServer { server: Some(server), database }
    }

    fn server(&self) -> &MysqlServer {
        self.server.as_ref().expect("it is there until it is dropped")
    }
}

impl<const SESSION: bool> Drop for OwnServer<SESSION> {
    fn drop(&mut self) {
        // After a failure it may be in any state.
        if let (Some(server), false) = (self.server.take(), std::thread::panicking()) {
            server.move_clock(0);
            IDLE.lock().unwrap_or_else(PoisonError::into_inner).push(server);
        }
    }
}

impl<const SESSION: bool> Fixture for OwnServer<SESSION> {
    async fn open() -> Self {
        OwnServer::take()
    }

    fn driver() -> &'static Driver {
        if SESSION { &SESSION_DRIVER } else { &DRIVER }
    }

    fn url(&self) -> String {
        self.server().url_of(Self::driver().schemes()[0], &self.database)
    }

    async fn cut_connections(&self) {
        kill_sessions(self.server());
    }

    async fn restart(&self) {
        self.server().kill();
        self.server().start_again();
    }

    async fn move_clock(&self, seconds: i64) {
        self.server().move_clock(seconds);
    }
}

/// Kills every session but the one that does it.
fn kill_sessions(server: &MysqlServer) {
    let mut admin = server.connect().unwrap();
    let rows = admin
        .query("SELECT id FROM information_schema.processlist WHERE id <> CONNECTION_ID() AND user = 'root'")
        .unwrap();
    for id in rows.into_iter().flatten().flatten() {
        // It may be gone.
        let _ = admin.query(&format!("KILL {id}"));
    }
}

/// The faults alone: `conformance.rs` has the other cases.
macro_rules! faults {
    ($module:ident, $session:literal) => {
        mod $module {
            use super::*;
            use distlock_testkit::conformance::{cases, run, run_if_actor};

            const ENTRY: &str = concat!(module_path!(), "::actor_entry");

            #[test]
            fn actor_entry() {
                run_if_actor::<OwnServer<$session>>();
            }

            #[test]
            fn killed_connections() {
                run::<OwnServer<$session>, _, _>(ENTRY, cases::faults::cut_connections);
            }

            #[test]
            fn a_killed_and_restarted_server() {
                run::<OwnServer<$session>, _, _>(ENTRY, cases::faults::restart);
            }

            #[test]
            fn a_clock_that_is_set_back_and_forward() {
                run::<OwnServer<$session>, _, _>(ENTRY, cases::faults::move_clock);
            }
        }
    };
}

faults!(lease, false);
faults!(session, true);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_ended_with_its_server_is_lost_before_the_next_grant() {
    let own = OwnServer::<true>::take();
    let (server, url) = (own.server(), own.url());
    let proxy = Proxy::start(server.addr());
    let locks = session_locks(&proxy.through(&url)).await;
    let guard = locks.mutex("a").acquire().await.unwrap();
    // The holder does not see that its connection closed.
    proxy.pause();
    server.kill();
    server.start_again();
    let next = session_locks(&url).await.mutex("a").acquire().timeout(PATIENCE).await.unwrap();
    assert!(guard.is_lost(), "two holders");
    assert!(next.token() > guard.token());
    proxy.heal();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_server_is_an_error_and_a_guard_is_lost_before_its_lease_can_pass() {
    let own = OwnServer::<false>::take();
    let server = own.server();
    let locks = lease_locks(&own.url()).await;
    let options = distlock_core::Options::new().expiry(2 * SECOND).unwrap();
    let short = locks.with_options(options);
    let guard = short.mutex("held").acquire().await.unwrap();
    server.pause();
    let begun = Instant::now();
    let error = locks.mutex("other").try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(begun.elapsed() < PATIENCE, "{:?}", begun.elapsed());
    eventually("the guard is lost", async || guard.is_lost()).await;
    server.resume();
    // What was in flight is rolled back or undone, and nothing stays held.
    for name in ["other", "held"] {
        let guard = locks.mutex(name).acquire().timeout(PATIENCE).await.unwrap();
        guard.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_whose_reply_was_lost_is_recognised() {
    let url = server().url_of("mysql", &database_on(server()));
    let proxy = Proxy::start(server().addr());
    let store = lease_store(&proxy.through(&url)).await;
    let direct = lease_store(&url).await;
    let claims = Claims::new("lost");
    for claim in [claims.mutex("a"), claims.permit("a", 1)] {
        proxy.lose_reply_to("COMMIT", AfterLoss::Hang);
        let error = attempt(&store, &claim).await.unwrap_err();
        assert!(error.is_outcome_unknown(), "{error}");
        // The server executes a request to its end although the client is gone.
        eventually("it was applied", async || !direct_is_free(&direct, &claim).await).await;
        granted(&store, &claim).await;
    }
}

/// Whether the name is free, found without acquiring it.
async fn direct_is_free(store: &dyn LeaseStore, claim: &distlock_core::store::Claim) -> bool {
    let query = distlock_core::store::Query::named(claim.resource.name()).with_kind(claim.resource.kind());
    store.inspect(&query).await.unwrap().is_empty()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_without_a_reply_ends_and_its_connection_is_not_used_again() {
    let url = server().url_of("mysql", &database_on(server()));
    let proxy = Proxy::start(server().addr());
    let store = lease_store(&proxy.through(&url)).await;
    let claims = Claims::new("hole");
    granted(&store, &claims.mutex("before")).await;
    proxy.black_hole(Direction::ToClient);
    let claim = claims.mutex("a");
    let begun = Instant::now();
    let error = attempt(&store, &claim).await.unwrap_err();
    assert!(error.is_outcome_unknown(), "{error}");
    assert!(begun.elapsed() < PATIENCE, "{:?}", begun.elapsed());
    proxy.heal();
    // The late reply of the first request must not be taken for that of the second.
    let mut last = FencingToken::new(0);
    for n in 0..20 {
        let claim = claims.mutex(&format!("after/{n}"));
        let token = granted(&store, &claim).await;
        assert!(token >= last);
        last = token;
    }
    granted(&store, &claim).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_request_closes_its_connection_and_spoils_no_other() {
    let database = database_on(server());
    let url = server().url_of("mysql", &database);
    let opts = mysql_async::Opts::from_url(&url).unwrap();
    let pool = mysql_async::Pool::new(mysql_async::OptsBuilder::from_opts(opts).prefer_socket(false));
    let store = distlock_mysql::MysqlStore::with_client(pool.clone(), distlock_mysql::MysqlConfig::default())
        .await
        .unwrap();
    let claims = Claims::new("dropped");
    for n in 0..60_u64 {
        let claim = claims.mutex(&format!("n{}", n % 7));
        // Dropped at some point, before, while or after it is applied.
        let _ = tokio::time::timeout(Duration::from_micros(n * 60), attempt(&store, &claim)).await;
        let other = claims.mutex(&format!("other/{n}"));
        granted(&store, &other).await;
        release(&store, &other).await.unwrap();
        release(&store, &claim).await.unwrap();
    }
    // The application's own use of the pool is not disturbed, nor are its settings changed.
    for _ in 0..10 {
        use mysql_async::prelude::Queryable;
        let mut conn = pool.get_conn().await.unwrap();
        let (one, wait): (i64, i64) =
            conn.query_first("SELECT 1, @@innodb_lock_wait_timeout").await.unwrap().unwrap();
        assert_eq!((one, wait), (1, 50));
    }
    drop(store);
    let open = format!("SELECT COUNT(*) FROM information_schema.processlist WHERE db = '{database}'");
    pool.disconnect().await.unwrap();
    eventually("no connection is left", async || server().value(&open) == "0").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_renewal_that_is_applied_last_does_not_move_the_expiry_back() {
    let url = server().url_of("mysql", &database_on(server()));
    let store = lease_store(&url).await;
    let claims = Claims::new("renew");
    for claim in [claims.mutex("a"), claims.permit("a", 2)] {
        let token = granted(&store, &claim).await;
        let lease = distlock_core::store::Lease::of(&claim, token);
        store.renew(&[lease.clone().with_expiry(300 * SECOND)]).await.unwrap();
        store.renew(&[lease.with_expiry(MS)]).await.unwrap();
        let query = distlock_core::store::Query::named("a").with_kind(claim.resource.kind());
        let left =
            distlock_core::store::Store::inspect(&store, &query).await.unwrap()[0].holders[0].expires_in;
        assert!(left.unwrap() > 200 * SECOND, "{left:?}");
        release(&store, &claim).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_is_paused_in_the_middle_of_a_sweep_keeps_no_row_locked() {
    let database = database_on(server());
    let url = server().url_of("mysql", &database);
    let proxy = Proxy::start(server().addr());
    let config = common::config(&proxy.through(&url)).retention(SECOND).unwrap();
    let store = distlock_mysql::MysqlStore::connect(config).await.unwrap();
    let claims = Claims::new("sweep");
    let old = claims.mutex("old");
    let token = granted(&store, &old).await;
    release(&store, &old).await.unwrap();
    let now = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', UTC_TIMESTAMP(6))";
    let spent = format!("SELECT COUNT(*) FROM {database}.distribute_lock WHERE expires_at < {now} - 1000000");
    eventually("its retention is over", async || server().value(&spent) == "1").await;
    proxy.lose_reply_to("SKIP LOCKED", AfterLoss::Hang);
    let sweep = tokio::spawn(async move { store.sweep().await });
    let rows = format!("SELECT COUNT(*) FROM {database}.distribute_lock");
    eventually("the row is deleted", async || server().value(&rows) == "0").await;
    let direct = lease_store(&url).await;
    assert!(granted(&direct, &claims.mutex("old")).await > token);
    sweep.abort();
}
