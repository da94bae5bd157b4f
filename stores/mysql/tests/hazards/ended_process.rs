//! `GET_LOCK`: the lock of a killed process is granted at once, that of a living process whose sessions ended only when its guard is
//! lost.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use crate::common::{PATIENCE, SECOND, database_on, eventually, server, session_locks};
use distlock_core::store::{Query, StoreUrl};
use distlock_core::{Guard, Kind, Locks};
use distlock_mysql::SESSION_DRIVER;
use distlock_testkit::actors::{Actor, ActorConfig, TestOptions, run_if_actor};
use distlock_testkit::history::{LockSpec, Recorder};
use distlock_testkit::proxy::Proxy;
use distlock_testkit::servers::MysqlServer;

/// Longer than the tests wait for anything.
const LONG: &str = "distlock.heartbeat_timeout=60s";
const SHORT: &str = "distlock.heartbeat_timeout=2s";

/// The entry point of other processes.
#[test]
fn actor_entry() {
    run_if_actor(|url| async move { SESSION_DRIVER.connect(StoreUrl::parse(&url).unwrap()).await.unwrap() });
}

const KEPT: &str = "DISTLOCK_TEST_KEPT";

/// The entry point of a holder that leaves the descriptor of its lock to another process, as `distlock run` does to its watchdog.
#[test]
fn kept_holder_entry() {
    let Ok(url) = std::env::var(KEPT) else { return };
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let guard = session_locks(&url).await.mutex("a").acquire().await.unwrap();
        let copy = guard.descriptor().map_or_else(Stdio::null, Stdio::from);
        let mut keeper = Command::new("sleep").arg("60").stdin(copy).stdout(Stdio::null()).spawn().unwrap();
        println!("keeper {}", keeper.id());
        // This process is killed before it.
        keeper.wait().unwrap();
    });
}

fn spec() -> LockSpec {
    LockSpec::mutex("a")
}

/// A database, and other processes that use it.
struct Fleet<'s> {
    server: &'s MysqlServer,
    url: String,
    database: String,
    proxy: Proxy,
    logs: PathBuf,
    log: Arc<Recorder>,
}

impl Fleet<'static> {
    fn new(timeout: &str) -> Self {
        Fleet::on(server(), timeout)
    }
}

impl<'s> Fleet<'s> {
    fn on(server: &'s MysqlServer, timeout: &str) -> Self {
        let database = database_on(server);
        let logs = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(&database);
        std::fs::create_dir_all(&logs).unwrap();
        let log = Recorder::create(&logs, "test");
        let url = format!("{}?{timeout}", server.url_of("mysql+session", &database));
        Fleet { server, url, database, proxy: Proxy::start(server.addr()), logs, log }
    }

    /// A process whose connections lead through the proxy.
    fn process(&self) -> Actor {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let config = ActorConfig {
            name: format!("process-{}", NEXT.fetch_add(1, Ordering::Relaxed)),
            logs: self.logs.clone(),
            options: TestOptions::with_expiry(60 * SECOND),
            address: Some(self.proxy.through(&self.url)),
        };
        Actor::spawn_process("ended_process::actor_entry", &config, &self.log)
    }

    /// A process that holds the lock.
    async fn holder(&self) -> Actor {
        let holder = self.process();
        holder.acquire(1, &spec()).await;
        holder
    }

    async fn locks(&self) -> Locks {
        session_locks(&self.url).await
    }

    /// In this process.
    async fn acquire(&self) -> Guard {
        self.locks().await.mutex("a").acquire().timeout(PATIENCE).await.unwrap()
    }

    fn column(&self, column: &str) -> String {
        let table = format!("{}.distribute_lock_session", self.database);
        self.server.value(&format!("SELECT {column} FROM {table} WHERE name = 'a'"))
    }

    /// The sessions of all clients of this database, and of those that wait for a lock.
    fn sessions(&self, condition: &str) -> Vec<String> {
        let table = "information_schema.processlist";
        let sql = format!("SELECT id FROM {table} WHERE db = '{}' AND {condition}", self.database);
        self.server.sql(&sql).into_iter().flatten().flatten().collect()
    }

    async fn until_one_waits(&self) {
        eventually("it waits", async || self.sessions("info LIKE 'SELECT GET_LOCK(%'").len() == 1).await;
    }

    fn kill_all_sessions(&self) {
        for session in self.sessions("TRUE") {
            self.server.sql(&format!("KILL {session}"));
        }
    }

    fn kill_holding_session(&self) {
        self.server.sql(&format!("KILL {}", self.column("connection_id")));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lock_of_a_killed_process_is_granted_to_a_waiter_at_once() {
    let fleet = Fleet::new(LONG);
    let locks = fleet.locks().await;
    let holder = fleet.process();
    let token = holder.acquire(1, &spec()).await;
    let waiting = tokio::spawn({
        let locks = locks.clone();
        async move { locks.mutex("a").acquire().timeout(PATIENCE).await }
    });
    fleet.until_one_waits().await;
    let killed = Instant::now();
    holder.kill().await;
    let next = waiting.await.unwrap().expect("a grant long before the time of the killed holder");
    println!("granted {:?} after the kill", killed.elapsed());
    assert!(next.token().get() > token && !next.is_lost());
    assert_eq!((fleet.column("pending_us"), fleet.column("pending_process")), ("0".into(), String::new()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_process_counts_as_living_while_its_watchdog_has_the_descriptor() {
    let fleet = Fleet::new(LONG);
    let mut holder = Command::new(std::env::current_exe().unwrap())
        .args(["ended_process::kept_holder_entry", "--exact", "--nocapture"])
        .env(KEPT, &fleet.url)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(holder.stdout.take().unwrap()).lines().map(Result::unwrap);
    let line = lines.find(|line| line.contains("keeper ")).unwrap();
    let (_, keeper) = line.split_once("keeper ").unwrap();
    let locks = fleet.locks().await;
    let waiting = tokio::spawn(async move { locks.mutex("a").acquire().timeout(PATIENCE).await });
    fleet.until_one_waits().await;
    let first = fleet.column("connection_id");
    holder.kill().unwrap();
    holder.wait().unwrap();
    eventually("its session ended", async || fleet.column("connection_id") != first).await;
    // The kernel is asked every 100 ms at the latest.
    tokio::time::sleep(SECOND).await;
    let is_early = waiting.is_finished();
    assert!(Command::new("kill").args(["-KILL", keeper]).status().unwrap().success());
    assert!(!is_early, "granted while the watchdog ends the work");
    drop(waiting.await.unwrap().expect("a grant when the watchdog has ended"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_that_are_killed_one_after_another_cost_the_next_one_nothing() {
    let fleet = Fleet::new(LONG);
    let mut holder = fleet.holder().await;
    for _ in 0..3 {
        let next = fleet.process();
        let waiting = next.acquire(1, &spec());
        fleet.until_one_waits().await;
        holder.kill().await;
        tokio::time::timeout(PATIENCE, waiting).await.expect("a grant at once");
        holder = next;
    }
    holder.kill().await;
    let locks = fleet.locks().await;
    // The server notices the closed connection a moment later.
    eventually("one attempt is granted", async || locks.mutex("a").try_acquire().await.unwrap().is_some())
        .await;
    eventually("nobody is shown", async || locks.inspect(&Query::named("a")).await.unwrap().is_empty()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_is_killed_alone_lets_no_client_in_before_its_living_process_lost_the_lock() {
    let fleet = Fleet::new(SHORT);
    let holder = fleet.holder().await;
    // The process is not told.
    fleet.proxy.pause();
    fleet.kill_holding_session();
    let next = fleet.acquire().await;
    assert!(holder.is_lost(1).await, "two holders");
    drop(next);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_living_process_all_of_whose_sessions_are_killed_keeps_the_next_client_out_until_it_lost_the_lock()
{
    for is_told in [false, true] {
        let fleet = Fleet::new(SHORT);
        let holder = fleet.holder().await;
        if !is_told {
            fleet.proxy.pause();
        }
        fleet.kill_all_sessions();
        let next = fleet.acquire().await;
        assert!(holder.is_lost(1).await, "two holders");
        drop(next);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proxy_that_closes_all_connections_lets_no_client_in_before_the_living_process_lost_the_lock() {
    let fleet = Fleet::new(SHORT);
    let mut holder = fleet.holder().await;
    // It cannot learn of it.
    holder.pause().await;
    assert!(fleet.proxy.cut() > 0);
    let next = fleet.acquire().await;
    holder.resume();
    assert!(holder.is_lost(1).await, "two holders");
    drop(next);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_process_whose_sessions_were_killed_finds_its_lock_lost_at_its_first_check() {
    let fleet = Fleet::new(SHORT);
    let mut holder = fleet.holder().await;
    holder.pause().await;
    fleet.kill_all_sessions();
    let next = fleet.acquire().await;
    // Nothing could reach it, and its first step is this check.
    fleet.proxy.pause();
    holder.resume();
    assert!(holder.is_lost(1).await, "two holders");
    assert!(!next.is_lost());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forced_release_lets_no_client_in_before_a_living_process_lost_the_lock() {
    let fleet = Fleet::new(SHORT);
    let holder = fleet.process();
    holder.acquire(1, &spec()).await;
    holder.acquire(2, &LockSpec::mutex("b")).await;
    fleet.proxy.pause();
    let locks = fleet.locks().await;
    let broken = locks.break_lock(Kind::Mutex, "a").await.unwrap();
    let also: Vec<&str> = broken[0].also_held.iter().map(|other| other.name()).collect();
    assert_eq!(also, ["b"]);
    let (a, b) = (locks.mutex("a"), locks.mutex("b"));
    let (a, b) = tokio::join!(a.acquire().timeout(PATIENCE), b.acquire().timeout(PATIENCE));
    assert!(holder.is_lost(1).await && holder.is_lost(2).await, "two holders");
    drop((a.unwrap(), b.unwrap()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_process_that_was_not_granted_the_lock_yet_does_not_hide_the_holder_before_it() {
    let fleet = Fleet::new("distlock.heartbeat_timeout=4s");
    let holder = fleet.holder().await;
    let first = fleet.column("connection_id");
    fleet.proxy.pause();
    fleet.kill_holding_session();
    // Through another proxy.
    let between = Fleet { proxy: Proxy::start(fleet.server.addr()), ..fleet };
    let next = between.process();
    let waiting = next.acquire(1, &spec());
    eventually("the row is its own", async || between.column("connection_id") != first).await;
    next.kill().await;
    drop(waiting);
    let next = between.acquire().await;
    assert!(holder.is_lost(1).await, "two holders");
    drop(next);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_process_that_the_kernel_here_cannot_know_is_waited_for() {
    let fleet = Fleet::new(SHORT);
    for other in [
        // Another machine, another network namespace, another address; and a system that cannot tell.
        "CONCAT('0', SUBSTR(process, 2))",
        "REPLACE(process, ':', ':1')",
        "CONCAT(process, '1')",
        "''",
    ] {
        let holder = fleet.holder().await;
        let process = fleet.column("process");
        let table = format!("{}.distribute_lock_session", fleet.database);
        fleet.server.sql(&format!("UPDATE {table} SET process = {other}"));
        if process == fleet.column("process") {
            // The boot id began with a zero.
            fleet.server.sql(&format!("UPDATE {table} SET process = CONCAT('1', SUBSTR(process, 2))"));
        }
        let locks = fleet.locks().await;
        let killed = Instant::now();
        holder.kill().await;
        let guard = locks.mutex("a").acquire().timeout(PATIENCE).await.unwrap();
        assert!(killed.elapsed() >= 2 * SECOND, "{other}: after {:?}", killed.elapsed());
        guard.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_restarts_between_two_holders_makes_the_second_wait_for_a_living_process_alone() {
    let server = MysqlServer::start();
    let fleet = Fleet::on(&server, SHORT);
    let holder = fleet.holder().await;
    fleet.proxy.pause();
    server.kill();
    server.start_again();
    let next = fleet.acquire().await;
    assert!(holder.is_lost(1).await, "two holders");
    next.release().await.unwrap();
    drop(holder);

    let fleet = Fleet::on(&server, LONG);
    let holder = fleet.holder().await;
    server.kill();
    holder.kill().await;
    server.start_again();
    drop(fleet.acquire().await);
}
