//! Advisory locks when sessions end, stall or are cut off.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::future::IntoFuture;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{TestSchema, backend, eventually, locks, server, within};
use distlock_core::store::{LossReason, Query};
use distlock_core::{ErrorKind, Kind, Locks, Options, VirtualClock};
use distlock_testkit::proxy::{Direction, Proxy};
use distlock_testkit::servers::{PostgresPair, PostgresServer};

const LIMIT: Duration = Duration::from_secs(25);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_terminated_session_loses_its_guards_at_once_and_frees_its_locks() {
    let test_schema = TestSchema::new();
    let url = test_schema.url("postgres+advisory", &server().url());
    let (holder, other) = (locks(&url).await, locks(&url).await);
    let guards = [
        holder.mutex("m").acquire().await.unwrap(),
        holder.rw_lock("r").read().await.unwrap(),
        holder.semaphore("s", 2).acquire_many(2).await.unwrap(),
    ];
    let started = Instant::now();
    test_schema.cut(server());
    for guard in &guards {
        let reason = within("the loss", LIMIT, guard.lost()).await;
        assert!(matches!(reason, LossReason::SessionEnded(_)), "{reason:?}");
    }
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    // The next claim opens a new session without an error.
    for (kind, guard) in [(Kind::Mutex, "m"), (Kind::RwLock, "r"), (Kind::Semaphore, "s")] {
        let taken = match kind {
            Kind::Mutex => other.mutex(guard).acquire().await,
            Kind::RwLock => other.rw_lock(guard).write().await,
            _ => other.semaphore(guard, 2).acquire_many(2).await,
        };
        taken.unwrap().release().await.unwrap();
    }
    for guard in guards {
        assert!(guard.release().await.is_err());
    }
    holder.mutex("m").acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_server_frees_all_locks_and_tokens_still_rise() {
    let own = PostgresServer::start();
    let url = TestSchema::new().url("postgres+advisory", &own.url());
    let holder = locks(&url).await;
    let held = holder.mutex("m").acquire().await.unwrap();
    let permit = holder.semaphore("s", 1).acquire().await.unwrap();
    own.kill();
    within("the loss", LIMIT, held.lost()).await;
    within("the loss", LIMIT, permit.lost()).await;
    let error = holder.mutex("m").acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    own.start_again();
    let again = holder.mutex("m").acquire().await.unwrap();
    assert!(again.token() > held.token());
    let permit_again = holder.semaphore("s", 1).acquire().await.unwrap();
    assert!(permit_again.token() > permit.token());
}

/// Advisory locks are not replicated: the guards of the old primary's locks are lost. Tokens continue to rise.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promoted_replica_has_no_locks_but_continues_the_tokens() {
    let pair = PostgresPair::start();
    let (one, other) = (pair.primary.port(), pair.replica.port());
    let url =
        format!("postgres+advisory://postgres@127.0.0.1:{one},127.0.0.1:{other}/postgres?connect_timeout=1");
    let holder = locks(&url).await;
    let mut last = 0;
    for _ in 0..50 {
        let guard = holder.mutex("m").acquire().await.unwrap();
        last = guard.token().get();
        guard.release().await.unwrap();
    }
    let held = holder.mutex("m").acquire().await.unwrap();
    assert!(held.token().get() > last);
    // The replica is asynchronous: it has the tables, and may lack the last tokens.
    pair.wait_replayed();
    pair.primary.kill();
    within("the loss", LIMIT, held.lost()).await;
    pair.promote();
    let again = within("a grant", LIMIT, async {
        loop {
            match holder.mutex("m").acquire().await {
                Ok(guard) => return guard,
                Err(error) => assert!(error.can_retry(), "{error}"),
            }
        }
    })
    .await;
    assert!(again.token() > held.token(), "{} after {}", again.token(), held.token());
}

/// The network is cut: the guard is lost before the server ends the session and frees the lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_is_cut_off_is_lost_before_another_client_holds_the_lock() {
    let test_schema = TestSchema::new();
    let proxy = Proxy::start(server().addr());
    let short = |url: String| format!("{url}&distlock.session_timeout=2s");
    let cut_off = locks(&short(test_schema.url("postgres+advisory", &proxy.through(&server().url())))).await;
    let other = locks(&short(test_schema.url("postgres+advisory", &server().url()))).await;
    let held = cut_off.mutex("m").acquire().await.unwrap();
    let permit = cut_off.semaphore("s", 1).acquire().await.unwrap();
    let next = tokio::spawn({
        let other = other.clone();
        async move {
            let mutex = other.mutex("m").acquire().await.unwrap();
            (mutex, Instant::now())
        }
    });
    proxy.pause();
    let lost = async {
        held.lost().await;
        permit.lost().await;
        Instant::now()
    };
    let lost = within("the loss", LIMIT, lost).await;
    let (mutex, granted) = within("the next holder", LIMIT, next).await.unwrap();
    assert!(granted >= lost, "two holders for {:?}", lost - granted);
    assert!(mutex.token() > held.token());
    drop(within("the permit", LIMIT, other.semaphore("s", 1).acquire().into_future()).await.unwrap());
    proxy.resume();
}

/// The network is cut in one direction only.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_whose_replies_are_lost_loses_its_guards() {
    let test_schema = TestSchema::new();
    let proxy = Proxy::start(server().addr());
    let url = format!(
        "{}&distlock.session_timeout=2s",
        test_schema.url("postgres+advisory", &proxy.through(&server().url()))
    );
    let through = locks(&url).await;
    let held = through.mutex("m").acquire().await.unwrap();
    proxy.black_hole(Direction::ToClient);
    within("the loss", LIMIT, held.lost()).await;
    proxy.heal();
    let direct = locks(&test_schema.url("postgres+advisory", &server().url())).await;
    drop(within("the lock", LIMIT, direct.mutex("m").acquire().into_future()).await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn time_outs_of_the_role_end_neither_holds_nor_waits() {
    let test_schema = TestSchema::new();
    // A session has this long to change its settings; a busy machine may use some of it.
    let limits = ["idle_session_timeout", "statement_timeout", "lock_timeout"].map(|name| (name, "1000"));
    let url = test_schema.as_role_with(&limits, &test_schema.url("postgres+advisory", &server().url()));
    let (holder, other) = (locks(&url).await, locks(&url).await);
    let held = holder.mutex("m").acquire().await.unwrap();
    let waiting = tokio::spawn(async move { other.mutex("m").acquire().await });
    tokio::time::sleep(Duration::from_millis(2500)).await;
    assert!(!held.is_lost() && !waiting.is_finished());
    held.release().await.unwrap();
    drop(within("the waiter's grant", LIMIT, waiting).await.unwrap().unwrap());
}

/// A waiter learns of a dead holder of permits without polling.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_for_permits_learns_that_the_only_holder_died() {
    let test_schema = TestSchema::new();
    let url = test_schema.url("postgres+advisory", &server().url());
    let holder_url = url.replace("application_name=", "application_name=holder_");
    let (holder, waiter) = (locks(&holder_url).await, locks(&url).await);
    let held = holder.semaphore("s", 1).acquire().await.unwrap();
    let waiting =
        tokio::spawn(
            async move { (waiter.semaphore("s", 1).acquire().await.unwrap().token(), Instant::now()) },
        );
    eventually("it waits and watches", async || test_schema.sessions(server()) == 2).await;
    let watching = format!(
        "SELECT count(*) FROM pg_locks WHERE NOT granted AND mode = 'ShareLock' AND pid IN
         (SELECT pid FROM pg_stat_activity WHERE application_name = '{}')",
        test_schema.name
    );
    eventually("it watches", async || server().value(&watching) == "1").await;
    let killed = Instant::now();
    server().sql(&format!(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'holder_{}'",
        test_schema.name
    ));
    let (token, granted) = within("the waiter's grant", LIMIT, waiting).await.unwrap();
    assert!(granted - killed < Duration::from_millis(800), "{:?}", granted - killed);
    assert!(token > held.token());
}

/// A program may seed the generator, and a forked child repeats its parent's numbers.
#[tokio::test]
async fn programs_with_one_seed_of_the_random_generator_have_distinct_session_locks() {
    let url = TestSchema::new().url("postgres+advisory", &server().url());
    let mut guards = Vec::new();
    for n in 0..2 {
        fastrand::seed(7);
        let locks = within("a session of its own", Duration::from_secs(8), locks(&url)).await;
        guards.push((locks.semaphore("s", 2).acquire().await.unwrap(), locks, n));
    }
    assert!(guards.iter().all(|(guard, ..)| !guard.is_lost()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_does_not_reply_is_not_contention_for_a_second_attempt_of_the_process() {
    let (test_schema, proxy) = (TestSchema::new(), Proxy::start(server().addr()));
    let url = test_schema.url("postgres+advisory", &proxy.through(&server().url()));
    let short = Options::new().request_timeout(Duration::from_millis(500)).unwrap();
    let locks = locks(&url).await.with_options(short);
    locks.rw_lock("warm").write().await.unwrap().release().await.unwrap();

    proxy.pause();
    // Reader-writer locks have no local wait queue: both attempts reach the store.
    let first = tokio::spawn(locks.rw_lock("a").write().into_future());
    tokio::task::yield_now().await;
    let tried = locks.rw_lock("a").try_write().await;
    let kind = tried.map(|guard| guard.is_some()).map_err(|error| error.kind());
    assert_eq!(kind, Err(ErrorKind::Unavailable));
    proxy.resume();
    drop(first.await);

    let held = locks.rw_lock("a").write().await.unwrap();
    assert!(locks.rw_lock("a").try_write().await.unwrap().is_none(), "held is contention");
    held.release().await.unwrap();
}

/// The server still has the session. The clock says that its time-out has passed: as after a suspend.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guard_is_lost_when_the_injected_clock_passes_the_deadline_of_its_session() {
    let test_schema = TestSchema::new();
    let url =
        format!("{}&distlock.session_timeout=60s", test_schema.url("postgres+advisory", &server().url()));
    let clock = VirtualClock::new();
    let builder = Locks::builder(backend(&url).await.unwrap()).clock(Arc::new(clock.clone()));
    let ours = builder.build().unwrap();
    let guards = [
        ours.mutex("m").acquire().await.unwrap(),
        ours.rw_lock("r").read().await.unwrap(),
        ours.semaphore("s", 1).acquire().await.unwrap(),
    ];
    assert!(guards.iter().all(|guard| !guard.is_lost()), "the deadline is on another clock");
    clock.jump(Duration::from_secs(30));
    assert!(guards.iter().all(|guard| !guard.is_lost()), "lost before the deadline");
    clock.jump(Duration::from_secs(31));
    assert!(guards.iter().all(|guard| guard.is_lost()), "not lost after the deadline");

    // The next claim replaces the session, and the server frees its locks.
    let again = within("the lock", LIMIT, ours.mutex("m").acquire().into_future()).await.unwrap();
    assert!(again.token() > guards[0].token() && !again.is_lost());
    let other = locks(&url).await;
    drop(within("the permit", LIMIT, other.semaphore("s", 1).acquire().into_future()).await.unwrap());
}

/// The reply of a grant is late: by then the server has ended the session of the waiter, and another client holds the lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_that_arrives_after_its_session_has_ended_is_no_hold() {
    let (test_schema, proxy) = (TestSchema::new(), Proxy::start(server().addr()));
    let short = |url: String| format!("{url}&distlock.session_timeout=2s");
    let late = locks(&short(test_schema.url("postgres+advisory", &proxy.through(&server().url())))).await;
    let direct = locks(&test_schema.url("postgres+advisory", &server().url())).await;
    let held = direct.mutex("m").acquire().await.unwrap();
    let waiting = tokio::spawn(late.mutex("m").acquire().into_future());
    common::wait_for_waiters(&direct, "m", 1).await;
    proxy.pause();
    held.release().await.unwrap();
    let next = within("the next holder", LIMIT, direct.mutex("m").acquire().into_future()).await.unwrap();
    proxy.resume();
    common::wait_for_waiters(&direct, "m", 1).await;
    assert!(!waiting.is_finished(), "a hold beside the next holder");
    next.release().await.unwrap();
    let guard = within("the waiter's grant", LIMIT, waiting).await.unwrap().unwrap();
    assert!(!guard.is_lost());
}

/// A wait is longer than the time-out of its session, which sends nothing meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_is_granted_after_a_long_wait_is_held() {
    let test_schema = TestSchema::new();
    let url =
        format!("{}&distlock.session_timeout=60s", test_schema.url("postgres+advisory", &server().url()));
    let clock = VirtualClock::new();
    let builder = Locks::builder(backend(&url).await.unwrap()).clock(Arc::new(clock.clone()));
    let (ours, other) = (builder.build().unwrap(), locks(&url).await);
    for waited in [Duration::from_secs(61), Duration::from_secs(1)] {
        let held = other.mutex("m").acquire().await.unwrap();
        let waiting = tokio::spawn(ours.mutex("m").acquire().into_future());
        common::wait_for_waiters(&other, "m", 1).await;
        clock.jump(waited);
        held.release().await.unwrap();
        let guard = within("the grant", LIMIT, waiting).await.unwrap().unwrap();
        assert!(!guard.is_lost(), "after {waited:?}");
        clock.jump(Duration::from_secs(30));
        assert!(!guard.is_lost(), "lost before the deadline");
        clock.jump(Duration::from_secs(31));
        assert!(guard.is_lost(), "not lost after the deadline");
    }
}

/// The row of a waiter is shown as that of a holder some milliseconds after the grant.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_had_waited_is_shown_at_once() {
    let test_schema = TestSchema::new();
    let url = test_schema.url("postgres+advisory", &server().url());
    let (holder, other) = (locks(&url).await, locks(&url).await);
    let held = holder.mutex("m").acquire().await.unwrap();
    let waiting = tokio::spawn(other.mutex("m").acquire().into_future());
    common::wait_for_waiters(&holder, "m", 1).await;
    held.release().await.unwrap();
    let guard = within("the grant", LIMIT, waiting).await.unwrap().unwrap();
    let found = holder.inspect(&Query::named("m")).await.unwrap();
    let holders: Vec<_> = found.iter().flat_map(|record| &record.holders).collect();
    assert_eq!(holders.len(), 1, "{found:?}");
    assert_eq!((&holders[0].lock_id, holders[0].token), (guard.lock_id(), Some(guard.token())));
    assert!(found.iter().all(|record| record.waiters.is_empty()), "{found:?}");
}
