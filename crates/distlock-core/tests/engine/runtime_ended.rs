//! The engine's runtime ends while its locks are used on another one: guards are lost at once with the reason, and waiters
//! get an error. In real time, with limits for a busy machine and leases that last longer than those.

use std::future::IntoFuture;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::sessions::SessionServer;
use crate::common::{MS, SECOND, begin};
use distlock_core::faults::{Fault, Faults, FaultyStore, Verb};
use distlock_core::memory::MemoryStore;
use distlock_core::store::{Backend, Query, Store};
use distlock_core::{Acquire, ErrorKind, Guard, Locks, LossReason, Options, ReleaseError, Result};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

/// The limit for what must happen at once.
const PROMPT: Duration = Duration::from_secs(20);
/// So long that no lease expires during a test.
const EXPIRY: Duration = Duration::from_secs(600);

fn runtimes() -> [(&'static str, Runtime); 2] {
    let many = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let one = Builder::new_current_thread().enable_all().build().unwrap();
    [("multi-thread", many), ("current-thread", one)]
}

fn ours() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

fn options() -> Options {
    Options::new().expiry(EXPIRY).unwrap().request_timeout(120 * SECOND).unwrap()
}

/// An engine on a runtime, with the faults of its connection.
fn engine_on(runtime: &Runtime, store: &MemoryStore) -> (Locks, Faults) {
    let (store, faults) = FaultyStore::new(Arc::new(store.clone()));
    let store = store.max_batch(1);
    let locks =
        runtime.block_on(async { Locks::builder(Backend::lease(store)).options(options()).build().unwrap() });
    (locks, faults)
}

fn session_engine_on(runtime: &Runtime, server: &SessionServer) -> Locks {
    let backend = Backend::session(server.clone());
    runtime.block_on(async { Locks::builder(backend).options(options()).build().unwrap() })
}

/// A task on a runtime that has begun to wait.
fn spawn_waiting(runtime: &Runtime, asking: Acquire) -> JoinHandle<Result<Guard>> {
    let (begun, waits) = std::sync::mpsc::channel();
    let task = runtime.spawn(async move {
        let mut asking = asking.into_future();
        assert!(!begin(&mut asking).await);
        begun.send(()).unwrap();
        asking.await
    });
    waits.recv().unwrap();
    task
}

/// Waits, in real time, until a condition holds.
fn until(what: &str, condition: impl Fn() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < PROMPT, "{what}");
        std::thread::sleep(MS);
    }
}

fn assert_ended(result: Result<Guard>) {
    let error = result.expect_err("granted by an engine that has ended");
    assert_eq!(error.kind(), ErrorKind::ShutDown, "{error}");
    assert!(error.to_string().contains("runtime"), "{error}");
}

/// Every waiter gets its error in time.
fn assert_all_ended(ours: &Runtime, waiters: Vec<JoinHandle<Result<Guard>>>) {
    ours.block_on(async {
        for (number, waiter) in waiters.into_iter().enumerate() {
            let outcome = tokio::time::timeout(PROMPT, waiter).await;
            assert_ended(outcome.unwrap_or_else(|_| panic!("waiter {number} was left waiting")).unwrap());
        }
    });
}

fn assert_lost(ours: &Runtime, case: &str, guard: Guard) {
    let token = guard.cancellation_token();
    ours.block_on(async {
        tokio::time::timeout(PROMPT, token.cancelled()).await.unwrap_or_else(|_| panic!("{case}: no token"));
        assert!(guard.is_lost() && guard.time_left() == Some(Duration::ZERO), "{case}");
        let reason = tokio::time::timeout(PROMPT, guard.lost()).await.unwrap();
        assert_eq!(reason, LossReason::RuntimeGone, "{case}");
        assert!(reason.to_string().contains("runtime"), "{reason}");
        let error = guard.run(std::future::pending::<()>()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Lost);
        assert!(matches!(guard.release().await, Err(ReleaseError::Lost { .. })));
    });
}

#[test]
fn guards_that_outlive_the_engines_runtime_are_lost_with_the_reason() {
    let ours = ours();
    for (case, engines) in runtimes() {
        let (locks, _faults) = engine_on(&engines, &MemoryStore::new());
        // One acquired there, one here, a fair one with its queue place, and a lease without renewal.
        let there = engines.block_on(locks.mutex("a").acquire().into_future()).unwrap();
        let here = ours.block_on(locks.semaphore("b", 2).acquire().into_future()).unwrap();
        let plain = locks.mutex("c").options(options().auto_extend(false)).acquire();
        let plain = ours.block_on(plain.into_future()).unwrap();
        // Its place in the fair queue is acquired on a runtime that is driven.
        let fair = engines.block_on(locks.mutex("d").fair().acquire().into_future()).unwrap();
        let token = there.cancellation_token();
        let waits = ours.spawn(async move { token.cancelled().await });
        drop(engines);
        ours.block_on(async { tokio::time::timeout(PROMPT, waits).await.expect(case).unwrap() });
        for guard in [there, here, plain, fair] {
            assert_lost(&ours, case, guard);
        }
        let after = ours.block_on(locks.mutex("e").acquire().into_future());
        assert_ended(after);
    }
}

#[test]
fn a_guard_whose_renewal_was_in_flight_when_the_runtime_ended_is_lost_too() {
    let ours = ours();
    let engines = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let store = MemoryStore::new();
    let (locks, faults) = engine_on(&engines, &store);
    // The store renews it, and the answer never arrives.
    faults.always(Verb::Renew, Fault::hang_after());
    let often = options().extension_cadence(SECOND).unwrap();
    let guard = engines.block_on(locks.mutex("a").options(often).acquire().into_future()).unwrap();
    until("not renewed", || store.stats().renew.requests == 1);
    drop(engines);
    assert_lost(&ours, "in flight", guard);
}

#[test]
fn waiters_on_another_runtime_get_an_error_when_the_engines_runtime_ends() {
    let ours = ours();
    for (case, engines) in runtimes() {
        let store = MemoryStore::new();
        let (locks, faults) = engine_on(&engines, &store);
        let (theirs, _) = engine_on(&ours, &store);
        let _blockers = ours.block_on(async {
            (theirs.mutex("a").acquire().await.unwrap(), theirs.rw_lock("b").write().await.unwrap())
        });
        let own = ours.block_on(locks.mutex("c").acquire().into_future()).unwrap();
        let spawn = |asking: Acquire| spawn_waiting(&ours, asking);
        // The first waits for a wake-up, the others in the local queue behind it or behind our own guard.
        let mut waiters: Vec<_> = (0..3).map(|_| spawn(locks.mutex("a").acquire())).collect();
        waiters.extend((0..3).map(|_| spawn(locks.mutex("c").acquire())));
        waiters.push(spawn(locks.mutex("c").acquire().timeout(EXPIRY)));
        waiters.push(spawn(locks.rw_lock("b").write()));
        waiters.push(spawn(locks.mutex("c").fair().acquire()));
        until("no waiter in the queue", || {
            let found = ours.block_on(store.inspect(&Query::named("b"))).unwrap();
            found.iter().any(|record| !record.waiters.is_empty())
        });
        // And requests that are never answered: one lone request, and others that wait for its slot.
        faults.always(Verb::Acquire, Fault::hang_before());
        waiters.extend((0..5).map(|n| spawn(locks.mutex(format!("hangs/{n}")).acquire())));
        drop(engines);
        assert_all_ended(&ours, waiters);
        assert_lost(&ours, case, own);
    }
}

/// The lost guard passes the head of the local queue on. The next waiter must not acquire what nothing would release.
#[test]
fn no_claim_is_sent_after_the_runtime_ended() {
    let ours = ours();
    for (_, engines) in runtimes() {
        let store = MemoryStore::new();
        let (locks, _faults) = engine_on(&engines, &store);
        let own = ours.block_on(locks.mutex("a").acquire().into_future()).unwrap();
        let waiters = [(); 3].map(|()| spawn_waiting(&ours, locks.mutex("a").acquire()));
        drop(engines);
        assert_all_ended(&ours, waiters.into());
        assert_eq!(store.stats().acquire.requests, 1);
        drop(own);
    }
}

#[test]
fn session_holders_and_waiters_get_an_error_when_the_runtime_ends() {
    let ours = ours();
    for (case, engines) in runtimes() {
        let server = SessionServer::default();
        let locks = session_engine_on(&engines, &server);
        let theirs = session_engine_on(&ours, &server);
        let blocker = ours.block_on(theirs.mutex("a").acquire().into_future()).unwrap();
        let own = engines.block_on(locks.mutex("b").acquire().into_future()).unwrap();
        let waiters = ["a", "a", "b", "b"].map(|name| spawn_waiting(&ours, locks.mutex(name).acquire()));
        drop(engines);
        assert_all_ended(&ours, waiters.into());
        assert_lost(&ours, case, own);
        assert!(!blocker.is_lost());
    }
}

/// The request is driven by its caller's task, on a runtime that goes on. The engine has ended when the store grants it.
#[test]
fn a_grant_that_arrives_after_the_runtime_ended_is_not_held() {
    let ours = ours();
    for (_, engines) in runtimes() {
        let (locks, faults) = engine_on(&engines, &MemoryStore::new());
        faults.next(Verb::Acquire, 1, Fault::none().delay_after(300 * MS));
        let asking = spawn_waiting(&ours, locks.mutex("a").acquire());
        drop(engines);
        assert_all_ended(&ours, vec![asking]);
    }
}

/// On a stack that is too small for a recursion over many items.
fn drop_with_a_small_stack(runtime: Runtime) {
    let thread = std::thread::Builder::new().stack_size(256 * 1024);
    thread.spawn(move || drop(runtime)).unwrap().join().unwrap();
}

#[test]
fn very_many_pending_requests_fail_without_recursion_when_the_runtime_ends() {
    const MANY: usize = 20_000;
    let ours = ours();
    for (_, engines) in runtimes() {
        let (locks, faults) = engine_on(&engines, &MemoryStore::new());
        faults.always(Verb::Acquire, Fault::hang_before());
        let waiting = ours.block_on(async {
            let mut waiting: Vec<_> =
                (0..MANY).map(|n| locks.mutex(format!("{n}")).acquire().into_future()).collect();
            for one in &mut waiting {
                assert!(!begin(one).await);
            }
            waiting
        });
        // The first caller is cancelled, so that a batch is in flight and the others wait behind it.
        let waiting: Vec<_> = waiting.into_iter().skip(1).collect();
        engines.block_on(async { tokio::time::sleep(100 * MS).await });
        drop_with_a_small_stack(engines);
        ours.block_on(async {
            for one in waiting {
                assert_ended(tokio::time::timeout(PROMPT, one).await.expect("left waiting"));
            }
        });
    }
}

/// The waiting tasks are dropped with the same runtime.
#[test]
fn very_many_waiting_tasks_are_dropped_without_recursion_with_the_runtime() {
    const MANY: usize = 20_000;
    for (_, engines) in runtimes() {
        let (locks, faults) = engine_on(&engines, &MemoryStore::new());
        faults.always(Verb::Acquire, Fault::hang_before());
        engines.block_on(async {
            for n in 0..MANY {
                tokio::spawn(locks.mutex(format!("{n}")).acquire().into_future());
            }
            tokio::time::sleep(100 * MS).await;
        });
        drop_with_a_small_stack(engines);
        drop(locks);
    }
}
