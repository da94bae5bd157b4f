//! Mutexes that the shared session holds: many tasks in one statement.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{TestSchema, advisory_store, eventually, locks, server, within};
use distlock_core::store::{Backend, Claim, Lease, LossReason, Query, SessionStore};
use distlock_core::{ErrorKind, Guard, Kind, Locks, Options};
use distlock_testkit::proxy::{AfterLoss, Direction, Proxy};
use distlock_testkit::servers::PostgresServer;
use futures_util::future::join_all;

const LIMIT: Duration = Duration::from_secs(25);

fn url(test_schema: &TestSchema) -> String {
    test_schema.url("postgres+advisory", &server().url())
}

/// Acquires mutexes of these numbers at once.
async fn acquire_all(locks: &Locks, numbers: std::ops::Range<usize>) -> Vec<distlock_core::Result<Guard>> {
    let one = |n| tokio::spawn(locks.mutex(format!("m/{n}")).acquire().into_future());
    join_all(numbers.map(one).collect::<Vec<_>>()).await.into_iter().map(Result::unwrap).collect()
}

async fn release_all(guards: Vec<Guard>) {
    let released = join_all(guards.into_iter().map(|guard| tokio::spawn(guard.release()))).await;
    assert!(released.into_iter().all(|released| released.unwrap().is_ok()));
}

fn lease(guard: &Guard) -> Lease {
    Lease::of(&Claim::new(guard.resource().clone(), guard.lock_id().clone(), LIMIT), guard.token())
}

/// How many advisory locks in exclusive mode the sessions of a schema hold. Each has its session lock.
fn held(server: &PostgresServer, test_schema: &TestSchema) -> usize {
    let count = format!(
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted AND mode = 'ExclusiveLock'
         AND pid IN (SELECT pid FROM pg_stat_activity WHERE application_name = '{}')",
        test_schema.name
    );
    server.value(&count).parse().unwrap()
}

/// The server grants a session a lock again that it holds. Two engines on one store share its session.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_tasks_of_one_session_never_hold_one_key() {
    let test_schema = TestSchema::new();
    let store = advisory_store(&url(&test_schema)).await;
    let engines: Vec<Locks> = (0..2).map(|_| Locks::new(Backend::session(store.clone())).unwrap()).collect();
    let inside: Arc<Vec<AtomicBool>> = Arc::new((0..8).map(|_| AtomicBool::new(false)).collect());
    let tasks = (0..48).map(|n: usize| {
        let (locks, inside) = (engines[n % 2].clone(), Arc::clone(&inside));
        tokio::spawn(async move {
            let mut tokens = Vec::new();
            for round in 0..12 {
                let name = (n + round) % inside.len();
                let guard = match round % 3 {
                    0 => match locks.mutex(format!("m/{name}")).try_acquire().await.unwrap() {
                        Some(guard) => guard,
                        None => continue,
                    },
                    _ => locks.mutex(format!("m/{name}")).acquire().await.unwrap(),
                };
                assert!(!inside[name].swap(true, Ordering::SeqCst), "two holders of m/{name}");
                tokens.push((name, guard.token()));
                tokio::task::yield_now().await;
                inside[name].store(false, Ordering::SeqCst);
                guard.release().await.unwrap();
            }
            tokens
        })
    });
    let mut tokens: HashMap<usize, Vec<_>> = HashMap::new();
    for (name, token) in
        within("all tasks", 4 * LIMIT, join_all(tasks)).await.into_iter().flat_map(Result::unwrap)
    {
        tokens.entry(name).or_default().push(token);
    }
    for (name, mut tokens) in tokens {
        let count = tokens.len();
        tokens.sort_unstable();
        tokens.dedup();
        assert_eq!(tokens.len(), count, "two grants of m/{name} have one token");
    }
}

/// Of the lock ids of the first engine on a store only the numbers are kept. Those of the second engine have the same numbers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_id_of_the_same_number_of_another_engine_releases_nothing() {
    let test_schema = TestSchema::new();
    let store = advisory_store(&url(&test_schema)).await;
    let engines: Vec<Locks> = (0..2).map(|_| Locks::new(Backend::session(store.clone())).unwrap()).collect();
    let mut guards = Vec::new();
    for (n, engine) in engines.iter().enumerate() {
        guards.push(engine.mutex(format!("m/{n}")).acquire().await.unwrap());
    }
    let number = |guard: &Guard| guard.lock_id().as_str().rsplit_once('-').unwrap().1.to_owned();
    assert_eq!(number(&guards[0]), number(&guards[1]));
    let before = held(server(), &test_schema);
    for (guard, other) in [(&guards[0], &guards[1]), (&guards[1], &guards[0])] {
        let claim = Claim::new(guard.resource().clone(), other.lock_id().clone(), LIMIT);
        let foreign = Lease::of(&claim, other.token());
        for answer in store.release_batch(&[foreign]).await.unwrap() {
            answer.unwrap();
        }
        assert_eq!(held(server(), &test_schema), before);
    }
    release_all(guards).await;
    assert_eq!(held(server(), &test_schema), before - 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_of_each_lock_rise_from_batch_to_batch() {
    let locks = locks(&url(&TestSchema::new())).await;
    let mut last = vec![0; 64];
    for _ in 0..8 {
        let guards: Vec<Guard> = acquire_all(&locks, 0..64).await.into_iter().map(Result::unwrap).collect();
        for (guard, last) in guards.iter().zip(&mut last) {
            assert!(guard.token().get() > *last);
            *last = guard.token().get();
        }
        release_all(guards).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_ends_loses_all_locks_of_its_batches_at_once() {
    let test_schema = TestSchema::new();
    let (holder, other) = (locks(&url(&test_schema)).await, locks(&url(&test_schema)).await);
    let guards: Vec<Guard> = acquire_all(&holder, 0..100).await.into_iter().map(Result::unwrap).collect();
    assert_eq!(test_schema.sessions(server()), 2, "one session holds all of them");
    assert!(acquire_once(&other, 0..100).await.iter().all(|granted| !granted));
    test_schema.cut(server());
    for guard in &guards {
        let reason = within("the loss", LIMIT, guard.lost()).await;
        assert!(matches!(reason, LossReason::SessionEnded(_)), "{reason:?}");
    }
    release_all(acquire_all(&other, 0..100).await.into_iter().map(Result::unwrap).collect()).await;
    for guard in guards {
        assert!(guard.release().await.is_err(), "it was lost");
    }
    // The process that lost them acquires on a new session.
    release_all(acquire_all(&holder, 0..100).await.into_iter().map(Result::unwrap).collect()).await;
}

async fn acquire_once(locks: &Locks, numbers: std::ops::Range<usize>) -> Vec<bool> {
    let one = |n| tokio::spawn(locks.mutex(format!("m/{n}")).try_acquire().into_future());
    let tried = join_all(numbers.map(one).collect::<Vec<_>>()).await;
    tried.into_iter().map(|tried| tried.unwrap().unwrap().is_some()).collect()
}

/// The server has granted the locks, and the replies are not here yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_future_whose_lock_was_granted_in_a_batch_releases_it() {
    let (test_schema, proxy) = (TestSchema::new(), Proxy::start(server().addr()));
    let through = locks(&test_schema.url("postgres+advisory", &proxy.through(&server().url()))).await;
    let kept = through.mutex("kept").acquire().await.unwrap();
    proxy.set_delay(Direction::ToClient, Duration::from_millis(300));
    let asking: Vec<_> =
        (0..20).map(|n| tokio::spawn(through.mutex(format!("m/{n}")).acquire().into_future())).collect();
    // The first is sent alone, the others together after its reply; all of them have session locks beside them.
    eventually("some are granted", async || held(server(), &test_schema) > 2).await;
    for task in &asking {
        task.abort();
    }
    for task in asking {
        drop(task.await);
    }
    proxy.heal();
    eventually("nothing but the kept lock is held", async || held(server(), &test_schema) == 2).await;
    let other = locks(&url(&test_schema)).await;
    release_all(acquire_all(&other, 0..20).await.into_iter().map(Result::unwrap).collect()).await;
    assert!(!kept.is_lost());
    kept.release().await.unwrap();
}

/// The statement was executed. The connection breaks before its reply.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_whose_reply_is_lost_leaves_nothing_held() {
    let (test_schema, proxy) = (TestSchema::new(), Proxy::start(server().addr()));
    let through = locks(&test_schema.url("postgres+advisory", &proxy.through(&server().url()))).await;
    release_all(acquire_all(&through, 0..20).await.into_iter().map(Result::unwrap).collect()).await;
    for round in 1..4 {
        // Attempts are prepared by now: the request has no text. The reply of a later one is lost each time.
        proxy.lose_reply(round, AfterLoss::Close);
        let acquired = within("an answer", LIMIT, acquire_all(&through, 0..20)).await;
        let guards: Vec<Guard> = acquired.into_iter().map(Result::unwrap).collect();
        let alive: Vec<Guard> = guards.into_iter().filter(|guard| !guard.is_lost()).collect();
        proxy.heal();
        release_all(alive).await;
        eventually("nothing is held", async || {
            held(server(), &test_schema) == test_schema.sessions(server())
        })
        .await;
    }
    let other = locks(&url(&test_schema)).await;
    release_all(acquire_all(&other, 0..20).await.into_iter().map(Result::unwrap).collect()).await;
}

/// An administrator drops the table of the rows: the locks do not depend on it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_whose_rows_cannot_be_deleted_are_released() {
    let test_schema = TestSchema::new();
    let holder = locks(&url(&test_schema)).await;
    let kept = holder.mutex("kept").acquire().await.unwrap();
    let guards: Vec<Guard> = acquire_all(&holder, 0..10).await.into_iter().map(Result::unwrap).collect();
    let rows = format!("SELECT count(*) FROM {}.distribute_lock_session", test_schema.name);
    eventually("the rows are written", async || server().value(&rows) == "11").await;
    server().sql(&format!("DROP TABLE {}.distribute_lock_session", test_schema.name));
    release_all(guards).await;
    assert!(!kept.is_lost(), "the other locks of the session stay");
    assert_eq!(held(server(), &test_schema), 2);
    let guards: Vec<Guard> = acquire_all(&holder, 0..10).await.into_iter().map(Result::unwrap).collect();
    tokio::time::sleep(Duration::from_millis(100)).await;
    release_all(guards).await;
    assert!(!kept.is_lost());
    kept.release().await.unwrap();
}

/// Locks outlive the statement that fails: those that fit are granted, and none is left without a guard.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_that_does_not_fit_into_the_lock_table_fails_in_part() {
    let own = PostgresServer::configure()
        .setting("max_locks_per_transaction", "10")
        .setting("max_connections", "10")
        .setting("max_prepared_transactions", "0")
        .start();
    let (test_schema, proxy) = (TestSchema::new(), Proxy::start(own.addr()));
    let holder = locks(&test_schema.url("postgres+advisory", &proxy.through(&own.url()))).await;
    let (mut guards, mut errors, mut requests) = (Vec::new(), 0, 0);
    while errors == 0 && guards.len() < 20_000 {
        let before = proxy.counters().to_server.bursts;
        let next = guards.len()..guards.len() + 1000;
        for acquired in within("an answer", 4 * LIMIT, acquire_all(&holder, next)).await {
            match acquired {
                Ok(guard) => guards.push(guard),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Exhausted, "{error}");
                    errors += 1;
                }
            }
        }
        requests = proxy.counters().to_server.bursts - before;
    }
    assert!(requests < 400, "{requests} requests for 1000 locks, {errors} of which do not fit");
    assert!(errors > 0, "the lock table has room for {} locks", guards.len());
    assert!(guards.iter().all(|guard| !guard.is_lost()), "the session lives");
    release_all(guards).await;
    eventually("nothing is held", async || held(&own, &test_schema) == 1).await;
}

/// The row of a holder is written some milliseconds after the grant. `inspect` of another process waits for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_is_shown_at_once_although_its_row_is_written_later() {
    let test_schema = TestSchema::new();
    let (holder, other) = (locks(&url(&test_schema)).await, locks(&url(&test_schema)).await);
    for round in 0..3 {
        let guard = holder.mutex("m").acquire().await.unwrap();
        let query = if round == 0 { Query::default() } else { Query::named("m") };
        let found = other.inspect(&query).await.unwrap();
        let shown =
            found.iter().flat_map(|record| &record.holders).find(|holder| holder.lock_id == *guard.lock_id());
        assert_eq!(shown.and_then(|holder| holder.token), Some(guard.token()), "{found:?}");
        guard.release().await.unwrap();
        let found = other.inspect(&query).await.unwrap();
        assert!(found.iter().all(|record| record.holders.is_empty()), "{found:?}");
    }
}

/// A lock that is broken ends the session of its holder, and with it all other locks of that session.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_lock_loses_the_others_of_its_session_and_names_its_holder() {
    let test_schema = TestSchema::new();
    let (holder, other) = (locks(&url(&test_schema)).await, locks(&url(&test_schema)).await);
    let guards: Vec<Guard> = acquire_all(&holder, 0..10).await.into_iter().map(Result::unwrap).collect();
    let broken = other.break_lock(Kind::Mutex, "m/3").await.unwrap();
    assert_eq!(broken.iter().map(|holder| &holder.lock_id).collect::<Vec<_>>(), [guards[3].lock_id()]);
    assert_eq!(broken[0].also_held.len(), 9, "{:?}", broken[0].also_held);
    for guard in &guards {
        within("the loss", LIMIT, guard.lost()).await;
    }
    release_all(acquire_all(&other, 0..10).await.into_iter().map(Result::unwrap).collect()).await;
}

/// A server that does not reply is no contention, for none of the tasks of a batch.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_without_a_reply_is_unavailable_for_every_task() {
    let (test_schema, proxy) = (TestSchema::new(), Proxy::start(server().addr()));
    let short = Options::new().request_timeout(Duration::from_millis(500)).unwrap();
    let through = locks(&test_schema.url("postgres+advisory", &proxy.through(&server().url())))
        .await
        .with_options(short);
    through.mutex("warm").acquire().await.unwrap().release().await.unwrap();
    proxy.pause();
    let tried: Vec<_> =
        (0..20).map(|n| tokio::spawn(through.mutex(format!("m/{n}")).try_acquire().into_future())).collect();
    for tried in within("an answer", LIMIT, join_all(tried)).await {
        let kind = tried.unwrap().map(|guard| guard.is_some()).map_err(|error| error.kind());
        assert_eq!(kind, Err(ErrorKind::Unavailable));
    }
    proxy.resume();
    let guard = within("a lock", LIMIT, through.mutex("m/0").acquire().timeout(LIMIT).into_future()).await;
    guard.unwrap().release().await.unwrap();
}

/// The runtime of one engine ends during a release, and that of the session does not.
#[tokio::test]
async fn a_release_whose_future_is_dropped_ends_the_session() {
    let test_schema = TestSchema::new();
    let store = advisory_store(&url(&test_schema)).await;
    let holder = Locks::new(Backend::session(store.clone())).unwrap();
    let other = locks(&url(&test_schema)).await;
    for is_batched in [true, false] {
        let kept = holder.mutex("kept").acquire().await.unwrap();
        let released = match is_batched {
            true => holder.mutex("released").acquire().await.unwrap(),
            false => holder.rw_lock("released").write().await.unwrap(),
        };
        let leases = [lease(&released)];
        let mut releasing: std::pin::Pin<Box<dyn Future<Output = ()>>> = match is_batched {
            true => Box::pin(async { drop(store.release_batch(&leases).await) }),
            false => Box::pin(async { drop(store.release(&leases[0]).await) }),
        };
        assert!(futures_util::poll!(&mut releasing).is_pending());
        drop(releasing);
        assert!(kept.is_lost() && released.is_lost(), "batched: {is_batched}");
        let acquiring = other.mutex("released").acquire().into_future();
        within("a lock", LIMIT, acquiring).await.unwrap().release().await.unwrap();
        let acquiring = other.rw_lock("released").write().into_future();
        within("a lock", LIMIT, acquiring).await.unwrap().release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_fails_does_not_fail_the_releases_of_another() {
    let (test_schema, proxy) = (TestSchema::new(), Proxy::start(server().addr()));
    let through = test_schema.url("postgres+advisory", &proxy.through(&server().url()));
    let store = advisory_store(&format!("{through}&distlock.session_timeout=60s")).await;
    let holder = Locks::new(Backend::session(store.clone())).unwrap();
    let old = holder.mutex("old").acquire().await.unwrap();
    test_schema.cut(server());
    within("the loss", LIMIT, old.lost()).await;
    // The claim that opens the next session is not part of a batch.
    holder.mutex("new").acquire().await.unwrap().release().await.unwrap();
    let new = holder.mutex("new").acquire().await.unwrap();
    let rows = format!(
        "SELECT count(*) FROM {}.distribute_lock_session WHERE lock_id = '{}'",
        test_schema.name,
        new.lock_id()
    );
    eventually("its row is written", async || server().value(&rows) == "1").await;
    proxy.lose_reply(1, AfterLoss::Close);
    let leases = [lease(&old), lease(&new)];
    let answers = within("an answer", LIMIT, store.release_batch(&leases)).await.unwrap();
    assert_eq!(answers.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false], "{answers:?}");
    assert!(new.is_lost(), "its session ended");
}
