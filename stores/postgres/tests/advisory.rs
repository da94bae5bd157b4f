//! Advisory locks when sessions die, stand still, or are shared by many.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::{Corner, advisory_locks, eventually, locks, server, within};
use distlock_core::store::{Backend, LossReason, Query};
use distlock_core::{ErrorKind, Kind, Locks};
use distlock_postgres::{AdvisoryKey, AdvisoryLocks, PostgresConfig};
use distlock_testkit::proxy::{Direction, Proxy};
use distlock_testkit::servers::{PostgresPair, PostgresServer};

const LIMIT: Duration = Duration::from_secs(25);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_is_ended_turns_its_guards_lost_at_once_and_frees_everything() {
    let corner = Corner::new();
    let url = corner.url("postgres+advisory", &server().url());
    let (holder, other) = (locks(&url).await, locks(&url).await);
    let guards = [
        holder.mutex("m").acquire().await.unwrap(),
        holder.rw_lock("r").read().await.unwrap(),
        holder.semaphore("s", 2).acquire_many(2).await.unwrap(),
    ];
    let begun = Instant::now();
    corner.cut(server());
    for guard in &guards {
        let reason = within("the loss", LIMIT, guard.lost()).await;
        assert!(matches!(reason, LossReason::SessionEnded(_)), "{reason:?}");
    }
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    // Whoever asks next is given a new session, unnoticed.
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
async fn a_server_killed_in_the_middle_frees_everything_and_tokens_rise_all_the_same() {
    let own = PostgresServer::start();
    let url = Corner::new().url("postgres+advisory", &own.url());
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

/// Advisory locks are not replicated: those of the old primary are gone with it, and their guards lost. The tokens go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promoted_replica_knows_no_locks_but_goes_on_with_the_tokens() {
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
    // The replica has the tables, and perhaps not the last tokens: it follows asynchronously.
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

/// The cable is pulled: the guard is lost before the server ends the session and gives the lock away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_is_cut_off_is_lost_before_somebody_else_has_the_lock() {
    let corner = Corner::new();
    let proxy = Proxy::start(server().addr());
    let short = |url: String| format!("{url}&distlock.session_timeout=2");
    let cut_off = locks(&short(corner.url("postgres+advisory", &proxy.through(&server().url())))).await;
    let other = locks(&short(corner.url("postgres+advisory", &server().url()))).await;
    let held = cut_off.mutex("m").acquire().await.unwrap();
    let permit = cut_off.semaphore("s", 1).acquire().await.unwrap();
    let heir = tokio::spawn({
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
    let (mutex, granted) = within("the heir", LIMIT, heir).await.unwrap();
    assert!(granted >= lost, "two holders for {:?}", lost - granted);
    assert!(mutex.token() > held.token());
    drop(within("the permit", LIMIT, other.semaphore("s", 1).acquire().into_future()).await.unwrap());
    proxy.resume();
}

/// A session that falls silent in one direction only.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_whose_answers_are_lost_turns_the_guards_lost() {
    let corner = Corner::new();
    let proxy = Proxy::start(server().addr());
    let url = format!(
        "{}&distlock.session_timeout=2",
        corner.url("postgres+advisory", &proxy.through(&server().url()))
    );
    let through = locks(&url).await;
    let held = through.mutex("m").acquire().await.unwrap();
    proxy.black_hole(Direction::ToClient);
    within("the loss", LIMIT, held.lost()).await;
    proxy.heal();
    let direct = locks(&corner.url("postgres+advisory", &server().url())).await;
    drop(within("the lock", LIMIT, direct.mutex("m").acquire().into_future()).await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settings_of_the_role_that_end_sessions_and_statements_end_neither_holds_nor_waits() {
    let corner = Corner::new();
    // A session has so long to say that they do not hold for it; a busy machine may take some of that.
    let limits = ["idle_session_timeout", "statement_timeout", "lock_timeout"].map(|name| (name, "1000"));
    let url = corner.as_role_with(&limits, &corner.url("postgres+advisory", &server().url()));
    let (holder, other) = (locks(&url).await, locks(&url).await);
    let held = holder.mutex("m").acquire().await.unwrap();
    let waiting = tokio::spawn(async move { other.mutex("m").acquire().await });
    tokio::time::sleep(Duration::from_millis(2500)).await;
    assert!(!held.is_lost() && !waiting.is_finished());
    held.release().await.unwrap();
    drop(within("the waiter's turn", LIMIT, waiting).await.unwrap().unwrap());
}

/// Locks that can be had at once share one connection; who has to wait gets one, and gives it back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_locks_share_one_connection() {
    let corner = Corner::new();
    let url = corner.url("postgres+advisory", &server().url());
    let holder = locks(&url).await;
    let mut guards = Vec::new();
    for n in 0..500 {
        guards.push(holder.mutex(format!("m/{n}")).acquire().await.unwrap());
        guards.push(holder.rw_lock("read by many").read().await.unwrap());
    }
    assert_eq!(corner.sessions(server()), 1);
    let other = locks(&url).await;
    assert!(other.mutex("m/7").try_acquire().await.unwrap().is_none());
    assert!(other.rw_lock("read by many").try_write().await.unwrap().is_none());
    for guard in guards {
        guard.release().await.unwrap();
    }
    other.rw_lock("read by many").write().await.unwrap().release().await.unwrap();
    assert_eq!(
        server().value(&format!("SELECT count(*) FROM {}.distribute_lock_session", corner.schema)),
        "0"
    );
    // Sixteen wait, one after the other gets it, and few connections are left.
    let held = holder.mutex("contended").acquire().await.unwrap();
    let mut waiters = tokio::task::JoinSet::new();
    for n in 0..16 {
        let other = other.clone();
        waiters.spawn(async move {
            let name = if n % 2 == 0 { "contended" } else { "read by many" };
            match n % 2 {
                0 => drop(other.mutex(name).acquire().await.unwrap()),
                _ => drop(other.rw_lock(name).write().await.unwrap()),
            }
        });
    }
    held.release().await.unwrap();
    within("all of them", LIMIT, waiters.join_all()).await;
    eventually("few are left", async || corner.sessions(server()) <= 4).await;
}

/// A writer waits; readers of the same process, on the connection that has the lock already, do not pass it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_that_share_a_connection_do_not_starve_a_writer() {
    let corner = Corner::new();
    let url = corner.url("postgres+advisory", &server().url());
    let (readers, writer) = (locks(&url).await, locks(&url).await);
    let first = readers.rw_lock("r").read().await.unwrap();
    let writing = tokio::spawn(async move { writer.rw_lock("r").write().await.unwrap().token() });
    eventually("the writer waits", async || {
        let found = readers.inspect(&Query::named("r")).await.unwrap();
        found.first().is_some_and(|record| record.waiters.len() == 1)
    })
    .await;
    assert!(readers.rw_lock("r").try_read().await.unwrap().is_none(), "a reader passed the writer");
    let late = tokio::spawn({
        let readers = readers.clone();
        async move { readers.rw_lock("r").read().await.unwrap().token() }
    });
    first.release().await.unwrap();
    let (written, read) = (writing.await.unwrap(), within("the late reader", LIMIT, late).await.unwrap());
    assert!(read > written);
}

/// Waits that are given up leave neither a session that waits nor a lock that nobody has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waits_that_are_given_up_leave_nothing_on_the_server() {
    let corner = Corner::new();
    let url = corner.url("postgres+advisory", &server().url());
    let (holder, other) = (locks(&url).await, locks(&url).await);
    let held = holder.mutex("m").acquire().await.unwrap();
    let permits = holder.semaphore("s", 1).acquire().await.unwrap();
    for round in 0..30_u64 {
        let limit = Duration::from_millis(round % 10);
        let error = other.mutex("m").acquire().timeout(limit).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
        let _ = tokio::time::timeout(limit, other.semaphore("s", 1).acquire().into_future()).await;
    }
    for name in ["m", "s"] {
        eventually("nobody waits", async || {
            let found = holder.inspect(&Query::named(name)).await.unwrap();
            found.iter().all(|record| record.waiters.is_empty())
        })
        .await;
    }
    let waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND pid IN
                   (SELECT pid FROM pg_stat_activity WHERE application_name = '{}')";
    let waiting = waiting.replace("{}", &corner.schema);
    eventually("no session waits", async || server().value(&waiting) == "0").await;
    held.release().await.unwrap();
    permits.release().await.unwrap();
    other.mutex("m").acquire().await.unwrap().release().await.unwrap();
    other.semaphore("s", 1).acquire().await.unwrap().release().await.unwrap();
}

/// Keys that other programs use: they exclude us, and `show` says who it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn raw_keys_are_those_of_other_programs() {
    let corner = Corner::new();
    let url = format!("{}&distlock.keys=raw", corner.url("postgres+advisory", &server().url()));
    let through = locks(&url).await;
    for (name, call) in [("4711", "pg_advisory_lock(4711)"), ("7,-9", "pg_advisory_lock(7, -9)")] {
        let mut theirs = server().connect().unwrap();
        theirs.query("SET application_name = 'their_program'").unwrap();
        theirs.query(&format!("SELECT {call}")).unwrap();
        assert!(through.mutex(name).try_acquire().await.unwrap().is_none(), "{name}");
        let found = through.inspect(&Query::named(name)).await.unwrap();
        let holder = found[0].holders[0].lock_id.as_str();
        assert!(holder.contains("their_program"), "{holder}");
        let ours = tokio::spawn({
            let through = through.clone();
            async move { through.mutex(name).acquire().await.unwrap() }
        });
        theirs.query(&format!("SELECT {}", call.replace("lock(", "unlock("))).unwrap();
        let guard = within("our turn", LIMIT, ours).await.unwrap();
        let tried = format!("SELECT {}", call.replace("pg_", "pg_try_"));
        assert_eq!(theirs.query(&tried).unwrap(), [[Some("f".to_owned())]]);
        guard.release().await.unwrap();
    }
    let error = through.mutex("not a number").acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
}

/// The documented key of a name is the key that is locked; and a schema is a world of its own.
#[tokio::test]
async fn the_key_of_a_name_is_the_one_that_is_documented() {
    const NAME: &str = "größe/42";
    let corner = Corner::new();
    let ours = corner.url("postgres+advisory", &server().url());
    let usual = server().url().replacen("postgres", "postgres+advisory", 1);
    let (ours, usual) = (PostgresConfig::from_url(&ours).unwrap(), PostgresConfig::from_url(&usual).unwrap());
    let mut guards = Vec::new();
    for (config, within) in [(ours, format!("{}.distribute_lock:", corner.schema)), (usual, String::new())] {
        let AdvisoryKey::One(key) = AdvisoryKey::within(&config, Kind::Mutex, NAME) else {
            panic!("one number")
        };
        let computed = format!(
            "SELECT ('x' || left(encode(sha256(convert_to('distlock:{within}mutex:{NAME}', 'UTF8')), 'hex'), 16))::bit(64)::bigint"
        );
        assert_eq!(server().value(&computed), key.to_string());
        let through = Locks::new(Backend::session(AdvisoryLocks::connect(config).await.unwrap())).unwrap();
        let guard = through.mutex(NAME).try_acquire().await.unwrap().expect("another world");
        assert_eq!(server().value(&format!("SELECT pg_try_advisory_lock({key})")), "f");
        guards.push((key, guard));
    }
    for (key, guard) in guards {
        guard.release().await.unwrap();
        assert_eq!(server().value(&format!("SELECT pg_try_advisory_lock({key})")), "t");
    }
}

/// Sixteen clients and one name: tokens are drawn after the lock is granted, so they come in its order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_of_one_name_rise_under_sixteen_clients() {
    let url = Corner::new().url("postgres+advisory", &server().url());
    let (last, granted, inside) =
        (Arc::new(AtomicU64::new(0)), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..16 {
        let locks = Locks::new(Backend::session(advisory_locks(&url).await)).unwrap();
        let (last, granted, inside) = (Arc::clone(&last), Arc::clone(&granted), Arc::clone(&inside));
        clients.spawn(async move {
            while granted.fetch_add(1, Ordering::SeqCst) < 3_000 {
                let guard = locks.mutex("hammered").acquire().await.unwrap();
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two holders");
                let token = guard.token().get();
                let before = last.swap(token, Ordering::SeqCst);
                assert!(token > before, "{token} after {before}");
                inside.fetch_sub(1, Ordering::SeqCst);
                guard.release().await.unwrap();
            }
        });
    }
    within("all grants", Duration::from_secs(60), clients.join_all()).await;
}

/// A killed holder of permits is noticed by those who wait, without anybody asking again and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_for_permits_notices_that_the_only_holder_died() {
    let corner = Corner::new();
    let url = corner.url("postgres+advisory", &server().url());
    let holder_url = url.replace("application_name=", "application_name=holder_");
    let (holder, waiter) = (locks(&holder_url).await, locks(&url).await);
    let held = holder.semaphore("s", 1).acquire().await.unwrap();
    let waiting =
        tokio::spawn(
            async move { (waiter.semaphore("s", 1).acquire().await.unwrap().token(), Instant::now()) },
        );
    eventually("it waits, and watches", async || corner.sessions(server()) == 2).await;
    let watching = format!(
        "SELECT count(*) FROM pg_locks WHERE NOT granted AND mode = 'ShareLock' AND pid IN
         (SELECT pid FROM pg_stat_activity WHERE application_name = '{}')",
        corner.schema
    );
    eventually("it watches", async || server().value(&watching) == "1").await;
    let killed = Instant::now();
    server().sql(&format!(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'holder_{}'",
        corner.schema
    ));
    let (token, granted) = within("the waiter's turn", LIMIT, waiting).await.unwrap();
    assert!(granted - killed < Duration::from_millis(800), "{:?}", granted - killed);
    assert!(token > held.token());
}

/// A program may seed the generator, and a forked child goes on with its parent's numbers.
#[tokio::test]
async fn sessions_of_programs_that_seed_the_random_generator_alike_do_not_meet() {
    let url = Corner::new().url("postgres+advisory", &server().url());
    let mut guards = Vec::new();
    for n in 0..2 {
        fastrand::seed(7);
        let locks = within("a session of its own", Duration::from_secs(8), locks(&url)).await;
        guards.push((locks.semaphore("s", 2).acquire().await.unwrap(), locks, n));
    }
    assert!(guards.iter().all(|(guard, ..)| !guard.is_lost()));
}
