//! The MySQL and MariaDB stores of distlock, on `mysql_async` with rustls.
//!
//! | | [`MysqlStore`], `mysql://…` | [`MysqlSessionStore`], `mysql+session://…` |
//! | --- | --- | --- |
//! | servers | MySQL 8.0, MariaDB 10.6 and later | MySQL 5.7.5, MariaDB 10.0.2 and later, not Galera; run on MySQL 9.7 and MariaDB 10.11 |
//! | a lock is | rows that expire by the server's clock | a `GET_LOCK` lock of a session |
//! | primitives | all | mutexes |
//! | survives a cut connection, a restart, a fail-over | yes, as the server replicates | no: the guard is lost |
//! | a holder that dies frees it | at its expiry | at once on its machine (Linux), elsewhere after its heartbeat time-out (3 s) |
//! | waiters | ask again: the first one often, the others seldom | are in the server's queue |
//! | connections | one to four | one, and one for each waiter |
//! | an acquire and a release cost | two round trips, two commits | two round trips, two commits |
//!
//! # Lease tables
//! One request, one transaction and one commit for a whole batch of mutexes, and one for a batch of permits. Each transaction
//! locks its rows in the order of their keys, then reads the clock, then decides: nothing is decided by a clock or a row that
//! was read before a wait. It runs under `READ COMMITTED`, whatever the server's default, so that no gap is locked. The victim
//! of a deadlock is sent again, and so is a transaction that failed in Galera's certification.
//!
//! On a node of Galera each statement goes in a message of its own, so an acquire or a release costs seven to fourteen round trips. Galera
//! ends a transaction between two statements if it is in conflict with one of another node, and does not always tell the rest of
//! the same message: a claim was answered as granted, and nothing was written. Leases are measured by the clock of the node that is
//! asked, so the clocks of the nodes must agree. Let all clients write to one node.
//!
//! Names are any bytes: the key is a hash of kind and name, and the name beside it is `VARBINARY`, so no collation folds
//! `A`, `a` and `a `. A released row stays as a tombstone that remembers the last token; a background task deletes rows that
//! were not used for the retention time.
//!
//! A row is waited for for a second, the shortest time that the servers know. If that is not enough, the rows of the request
//! that are locked at that moment are sent one by one, and wait in the queue of their own row until the request is two and a half
//! seconds old; the others are sent again together. So clients that queue for the same rows on a slow disk do not fail, and
//! a row that another session keeps locked is an error for its own lock alone. For ten seconds that name is then looked at
//! without waiting. A renewal waits once: the engine sends it again.
//!
//! # Waiting
//! Neither server has messages between sessions, so waiters of the lease table ask again: the first waiter of each process, and
//! at the latest when the lease in its way ends.
//! - A question is one plain read, which locks nothing. Only a waiter that finds the mutex free, or has no entry in the wait queue,
//!   sends a transaction. Half of the entry's time later one statement keeps the entry.
//! - The first waiter in the queue sleeps for a sixteenth of the time that the holder has held the mutex, at least 10 and at most
//!   400 ms. The n-th sleeps n times as long, within [`Options::busy_wait_sleep`](distlock_core::Options::busy_wait_sleep) (10 to
//!   800 ms): a mutex that is handed from client to client is asked for often, one that is held for long seldom.
//! - A mutex that became free is reserved for the first waiter for 50 ms. A client that releases it and asks again at once does not
//!   overtake the others. A waiter that died costs the next client those 50 ms.
//!
//! A session lock as a wake-up was measured in two forms and left out. Only the session that holds a `GET_LOCK` lock can release
//! it.
//! - *One for each holder*, which all waiters block on: two statements more for each acquisition, also of a mutex that no client waits
//!   for (a fifth to a half of a cycle). One release wakes all of them, and each sends a transaction.
//! - *One for each waiter*: it holds a lock of its own name until it has released the mutex, and blocks on that of the waiter before it.
//!   One release wakes one process, and a cycle without waiters costs nothing more.
//!
//! Processes that hold a mutex for 1 ms and ask again, debug build, a busy machine with two cores; the runs of the first and the second
//! form beside those of questions on the same day:
//!
//! | waiting processes | | handoff, median | statements for each acquisition | acquisitions per second | most / fewest of a process |
//! | --- | --- | --- | --- | --- | --- |
//! | 4 | one for each holder, questions | 2.8 ms, 16 ms | 46, 40 | 170, 51 | 1.2 to 2.1, 1.05 |
//! | 4 | one for each waiter, questions | 6 to 10 ms, 16 to 18 ms | 43, 40 | 64 to 86, 40 to 53 | 1.03, 1.03 |
//! | 64 | one for each holder, questions | 35 ms, 16 ms | 484, 44 | 20, 51 | some had none, 2.0 |
//! | 64 | one for each waiter, questions | 6 to 7 ms, 16 to 17 ms | 48, 52 | 76 to 79, 37 to 41 | 1.1, 1.3 |
//!
//! So the second form halves a handoff between processes that all wait. It was left out for its price: a connection for each name that
//! a process waits for, where questions need none (a server has 151 by default); MariaDB took some of 64 waits for deadlocks and refused
//! them (two a second); and behind a holder that did not wait the first waiter asks as before. Who wants to pay with connections
//! has `mysql+session://`, where the queue of the server is the lock itself.
//!
//! The random pauses between 10 and 800 ms that waiters had before took 200 ms for a handoff, and processes differed by a factor
//! of 24 to 30. Processes that only wait send little: 64 of them 129 statements a second (about 1,700 before). Where a mutex is
//! handed from process to process often, `mysql+session://` is the better choice: a handoff took 5 ms in that build, and 64 waiting
//! processes send 23 statements a second.
//!
//! # `GET_LOCK`
//! Free locks are taken on a session that all tasks of a store share; `GET_LOCK` would grant a session its own lock again, so
//! the store keeps track of what it holds. Each 3,584 locks have a session of their own, because MariaDB looks through all locks of a session
//! for each one that it takes; where the server takes no other session, one gets more of them. A lock that is held is waited for on a session of its own, in the server's queue. A
//! withdrawn wait ends with its session. Tokens are drawn from a row while the lock is held.
//!
//! A session can end without its client: `KILL`, a restart of the server, `wait_timeout`. Its locks are free then, and the client
//! may not see it for a while. So:
//! - A guard is lost a fixed time (`distlock.heartbeat_timeout`, 3 s) after its client *sent* the last heartbeat that its session
//!   answered. Heartbeats are sent four times as often. A heartbeat asks whether the session holds one of its locks, so a proxy
//!   that changed the session does not answer it.
//! - The row of a lock says whether its last holder released it, and that time of the holder. A release is written before the
//!   lock is released.
//! - A client that has the lock after a holder that did not release waits for the holder's time, by its own clock, before it is
//!   granted the lock. The session of the holder had ended before `GET_LOCK` succeeded, and an ended session answers no heartbeat.
//!   Its guard is lost by then. One attempt (`try_acquire`) waits too. A wait with a shorter time limit times out, and counts for
//!   the next client's.
//! - A client on the same machine does not wait if the process of the holder has ended. The row names a socket of that process,
//!   which the kernel closes with it: after a crash or `kill -9` the next client there is granted the lock within milliseconds.
//!
//! On another machine a crash costs the next client that time, and so does a forced release (`break`) everywhere. There is no switch
//! for it. A server sees sessions end, not processes: a proxy, a firewall or an administrator can end all sessions of a process
//! that lives, and it is not told if it is paused just then or the network fails. Further sessions, and marks of the server's run,
//! do not tell these from a crash. Who needs a lock back sooner sets a shorter `distlock.heartbeat_timeout`.
//!
//! The same machine means: Linux, one kernel (by its boot id), one network namespace, and one address as the server sees it. Containers
//! that share the network of a pod are on one machine, others are not. A child that was forked without `exec` counts as its
//! parent, and so does a process that has a copy of its descriptor (`Guard::descriptor`): the watchdog of `distlock run` ends the
//! command of a killed `distlock` before the next client has the lock, if that takes no longer than the heartbeat time-out. Two
//! machines that are resumed from one snapshot of memory, and reach the server from one address, are taken for one: do not use this
//! store there.
//!
//! `break` ends the session of the holder, and with it every other lock of that session. If nothing is heard of a client,
//! its session ends after 15 s (`distlock.session_timeout`, as the session's `wait_timeout`).
//!
//! This rests on the rows. They must not be deleted by hand; the store's own sweep keeps the rule. A server that crashes and loses
//! its last commits (`innodb_flush_log_at_trx_commit = 0`), and a replica that takes over, do not know them: `distlock doctor`
//! warns of the former, and for fail-over the lease table is the right choice. Other programs that call `GET_LOCK` with the same
//! name are excluded, and do not wait for an ended holder.
//!
//! # TLS
//! `ssl-mode` is `DISABLED` (the default), `REQUIRED` or `VERIFY_IDENTITY`, the latter with `ssl-ca` or the system's
//! certificates. `PREFERRED` and `VERIFY_CA` are refused: the driver cannot do what they say. The driver takes the process's
//! default crypto provider of rustls, or the only one that is compiled in: the features `tls-ring` and `tls-aws-lc-rs` add one.
//!
//! # The application's own pool
//! `with_client` takes a `mysql_async::Pool`. Connections that served a store are closed and never go back to it. `with_sqlx_pool`
//! (feature `sqlx`) takes address, login, database and TLS settings of a `sqlx::MySqlPool` of version 0.8, and opens connections of
//! its own.
//!
//! # Rights
//! `SELECT, INSERT, UPDATE, DELETE` on the tables, and `CREATE` unless they exist (`distlock schema`).

#[cfg(feature = "bench")]
mod baseline;
mod batch;
#[cfg(feature = "sqlx")]
mod clients;
mod config;
mod connect;
mod connections;
mod doctor;
mod error;
mod identifier;
mod lease;
mod rows;
mod schema;
mod server;
mod session;

mod sweep;

pub use config::{
    DEFAULT_HEARTBEAT_TIMEOUT, DEFAULT_RETENTION, DEFAULT_SESSION_TIMEOUT, DEFAULT_TABLE, MysqlConfig,
};
pub use lease::MysqlStore;
pub use session::MysqlSessionStore;

use distlock_core::store::{Backend, Driver, StoreUrl};
use schema::Purpose;

/// `mysql://`, the lease tables.
pub static DRIVER: Driver = lease_driver();

/// `mysql+session://`, the locks of `GET_LOCK`.
pub static SESSION_DRIVER: Driver = session_driver();

const fn lease_driver() -> Driver {
    let driver = Driver::new(&["mysql"], "mysql://user@host:3306/database", |url| {
        Box::pin(async move { Ok(Backend::lease(MysqlStore::connect(MysqlConfig::from_url(&url)?).await?)) })
    })
    .with_options(config::LEASE_OPTIONS)
    .with_check(|url| MysqlConfig::from_url(url).map(drop))
    .with_schema(|url| print_schema(url, Purpose::Lease));
    #[cfg(feature = "bench")]
    let driver = driver.with_baseline(|url| Box::pin(baseline::connect_lease(url)));
    driver
}

const fn session_driver() -> Driver {
    let driver = Driver::new(&["mysql+session"], "mysql+session://user@host:3306/database", |url| {
        Box::pin(async move {
            Ok(Backend::session(MysqlSessionStore::connect(MysqlConfig::from_url(&url)?).await?))
        })
    })
    .with_options(config::SESSION_OPTIONS)
    .with_check(|url| MysqlConfig::from_url(url).map(drop))
    .with_schema(|url| print_schema(url, Purpose::Session));
    #[cfg(feature = "bench")]
    let driver = driver.with_baseline(|url| Box::pin(baseline::connect_session(url)));
    driver
}

fn print_schema(url: &StoreUrl, purpose: Purpose) -> distlock_core::Result<String> {
    let config = MysqlConfig::from_url(url)?;
    Ok(schema::print(&config.tables(config.connected_to())?, purpose))
}
