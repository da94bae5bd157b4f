//! Three replicas of the service on a real store: one is killed, one is paused for longer than the expiry of its locks, and all are
//! asked to stop. No deposit is lost, and the job runs once in a period.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use distlock_testkit::servers::{PostgresServer, RedisServer, wait_for};
use rustix::process::{Pid, Signal, kill_process};

/// The period of the service's cron job.
const PERIOD: Duration = Duration::from_millis(500);
const LIMIT: Duration = Duration::from_secs(60);

/// A process of the service.
struct Replica {
    child: Child,
    address: String,
}

impl Replica {
    fn start(database: &str, store: &str) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_distlock-example-service"))
            .env("DATABASE_URL", database)
            .env("STORE", store)
            .env("LISTEN", "127.0.0.1:0")
            .env("RUST_LOG", "error")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening on ").expect("the service starts").to_owned();
        Replica { child, address }
    }

    fn send(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Asks it to stop, and waits until it has.
    fn stop(mut self) {
        self.send(Signal::TERM);
        let status = wait_for("the replica stops", LIMIT, || self.child.try_wait().unwrap());
        assert!(status.success(), "{status}");
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The status and the text of a reply.
fn request(address: &str, method: &str, path: &str) -> std::io::Result<(u16, String)> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(8)))?;
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: service\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    )?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply)?;
    let status = reply.get(9..12).and_then(|status| status.parse().ok());
    Ok((status.ok_or(std::io::ErrorKind::InvalidData)?, reply))
}

/// What the clients of a run saw, and what the database has.
#[derive(Debug)]
struct Outcome {
    /// Deposits that the service confirmed.
    confirmed: u64,
    /// The sum of all deposits that were written.
    deposited: u64,
    /// The sum of all balances.
    balance: u64,
    reports: u64,
    /// How often the job may have run.
    periods: u64,
}

/// Replicas that share a store under load, while one is killed and one is paused.
fn run(database: &PostgresServer, store: &str) -> Outcome {
    let start = Instant::now();
    let url = database.url();
    let starting: Vec<_> = (0..3)
        .map(|_| {
            let (url, store) = (url.clone(), store.to_owned());
            // At the same time: all of them want to migrate.
            thread::spawn(move || Replica::start(&url, &store))
        })
        .collect();
    let mut replicas: Vec<Replica> = starting.into_iter().map(|replica| replica.join().unwrap()).collect();
    let addresses = Arc::new(Mutex::new(replicas.iter().map(|r| r.address.clone()).collect::<Vec<_>>()));
    let (stop, confirmed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let clients: Vec<_> = (0..6)
        .map(|client: usize| {
            let (addresses, stop, confirmed) =
                (Arc::clone(&addresses), Arc::clone(&stop), Arc::clone(&confirmed));
            thread::spawn(move || {
                for round in client.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let address = addresses.lock().unwrap()[round % 3].clone();
                    let path = format!("/accounts/{}/deposit?amount=1", ["ada", "bob"][client % 2]);
                    if let Ok((200, _)) = request(&address, "POST", &path) {
                        confirmed.fetch_add(1, Ordering::Relaxed);
                    }
                }
            })
        })
        .collect();
    let until_confirmed = |count: u64| {
        let wanted = confirmed.load(Ordering::Relaxed) + count;
        wait_for("deposits", LIMIT, || (confirmed.load(Ordering::Relaxed) >= wanted).then_some(()));
    };

    until_confirmed(20);
    replicas[0].send(Signal::KILL);
    replicas[0] = Replica::start(&url, store);
    addresses.lock().unwrap()[0].clone_from(&replicas[0].address);
    until_confirmed(20);
    replicas[1].send(Signal::STOP);
    // Longer than the expiry of its locks.
    thread::sleep(Duration::from_millis(2500));
    replicas[1].send(Signal::CONT);
    until_confirmed(20);

    let (health, metrics) =
        (request(&replicas[2].address, "GET", "/health"), request(&replicas[2].address, "GET", "/metrics"));
    assert_eq!(health.unwrap().0, 200);
    let metrics = metrics.unwrap().1;
    assert!(metrics.contains("distlock_acquired_total"), "{metrics}");
    stop.store(true, Ordering::Relaxed);
    for client in clients {
        client.join().unwrap();
    }
    replicas.into_iter().for_each(Replica::stop);
    let number = |sql: &str| database.value(sql).parse().unwrap();
    Outcome {
        confirmed: confirmed.load(Ordering::Relaxed),
        deposited: number("SELECT coalesce(sum(amount), 0) FROM deposits"),
        balance: number("SELECT coalesce(sum(balance), 0) FROM accounts"),
        reports: number("SELECT count(*) FROM reports"),
        periods: u64::try_from(start.elapsed().as_millis() / PERIOD.as_millis()).unwrap() + 1,
    }
}

fn check(outcome: &Outcome) {
    assert_eq!(outcome.balance, outcome.deposited, "a write was lost: {outcome:?}");
    assert!(outcome.deposited >= outcome.confirmed, "a confirmed deposit is missing: {outcome:?}");
    assert!((1..=outcome.periods).contains(&outcome.reports), "the job ran too often: {outcome:?}");
}

#[test]
fn replicas_on_redis_lose_no_deposit_and_report_once_in_a_period() {
    let (database, store) = (PostgresServer::start(), RedisServer::start());
    check(&run(&database, &format!("{}?distlock.expiry=1s", store.url())));
}

#[test]
fn replicas_on_postgres_lose_no_deposit_and_report_once_in_a_period() {
    let database = PostgresServer::start();
    check(&run(&database, &format!("{}?distlock.expiry=1s", database.url())));
}

/// Shows that the checks above can fail: each of these replicas has locks of its own.
#[test]
fn replicas_without_a_shared_store_report_too_often() {
    let database = PostgresServer::start();
    // The tables are there: without a common lock the replicas cannot even migrate at the same time.
    let first = Replica::start(&database.url(), "memory:");
    first.stop();
    let outcome = run(&database, "memory:");
    assert!(outcome.reports > outcome.periods, "{outcome:?}");
}
