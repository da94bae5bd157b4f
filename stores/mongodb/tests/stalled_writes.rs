//! Stalled writes. The server reads `$$NOW` before a command waits, so the command that is applied last may have the oldest
//! reading.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use common::bare_store::BareStore;
use common::{MS, SECOND, TestDatabase, commands, eventually, until_indexed, within};
use distlock_core::store::{Attempt, Claim, Inbox, Lease, LeaseStore, Renewal, Wake};
use distlock_core::{FencingToken, Kind};
use distlock_testkit::servers::{MongoReplicaSet, MongoServer};
use mongodb::Database;
use mongodb::bson::{Document, doc};
use tokio::task::JoinHandle;

/// How much older the clock reading of the stalled write is.
const OLDER: Duration = Duration::from_millis(700);

/// A server that stalls commands on demand and has no TTL monitor.
fn stalling() -> MongoReplicaSet {
    let args = ["--setParameter", "enableTestCommands=1", "--setParameter", "ttlMonitorEnabled=false"];
    MongoReplicaSet::start_with(1, || MongoServer::configure().args(args))
}

/// Which commands are stalled: those of single claims and leases, or those of batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stalled {
    FindAndModify,
    Update,
}

const TRIES: usize = 20;
const BATCHES: &str = "hangDuringBatchUpdate";

/// How long a `findAndModify` is stalled: its fail point has a fixed duration.
const FOR_THE_COLLECTION: Duration = Duration::from_secs(5);

/// A command that the server stalls between its clock reading and its first document.
struct Stall {
    admin: Database,
    which: Stalled,
    command: JoinHandle<()>,
}

impl Stall {
    /// Sends a command about a hold and stalls it. On return its clock reading is `OLDER`.
    async fn of<F>(test_db: &TestDatabase, which: Stalled, hold: &Claim, command: impl Fn() -> F) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        for _ in 0..TRIES {
            if let Some(stall) = Stall::once(test_db, which, hold, command()).await {
                return stall;
            }
        }
        panic!("the server does not stall {which:?}");
    }

    /// `None`: it was applied, because an internal thread of the server reached the fail point first.
    async fn once(
        test_db: &TestDatabase,
        which: Stalled,
        hold: &Claim,
        command: impl Future<Output = ()> + Send + 'static,
    ) -> Option<Self> {
        let admin = test_db.database().await.client().database("admin");
        let fail_point = match which {
            Stalled::FindAndModify => doc! {
                "configureFailPoint": "setAutoGetCollectionWait",
                "mode": { "times": 1 },
                "data": { "waitForMillis": i64::try_from(FOR_THE_COLLECTION.as_millis()).unwrap() },
            },
            Stalled::Update => doc! { "configureFailPoint": BATCHES, "mode": "alwaysOn" },
        };
        let before = ends(test_db, hold).await;
        admin.run_command(fail_point).await.unwrap();
        let command = tokio::spawn(command);
        tokio::time::sleep(OLDER).await;
        if ends(test_db, hold).await == before {
            return Some(Stall { admin, which, command });
        }
        within("the command", command).await.unwrap();
        None
    }

    /// Resumes the command and waits for its reply.
    async fn end(self) {
        assert!(!self.command.is_finished(), "it was not stalled for long enough");
        if self.which == Stalled::Update {
            self.admin.run_command(doc! { "configureFailPoint": BATCHES, "mode": "off" }).await.unwrap();
        }
        within("the stalled command", self.command).await.unwrap();
    }
}

/// A database whose indexes exist, so that nothing runs in the background.
async fn ready(set: &MongoReplicaSet) -> (TestDatabase, BareStore) {
    let test_db = TestDatabase::on(&set.url());
    let bare = BareStore::new(&test_db).await;
    assert!(matches!(bare.ask(&bare.claim(Kind::Mutex, "first", SECOND)).await, Attempt::Granted { .. }));
    until_indexed(&test_db.database().await).await;
    (test_db, bare)
}

fn collection(kind: Kind) -> &'static str {
    if kind == Kind::Mutex { "distributed.locks" } else { "distributed.locks.queues" }
}

/// The expiry of a hold in its document.
async fn ends(test_db: &TestDatabase, claim: &Claim) -> i64 {
    let (kind, name) = (claim.resource.kind(), claim.resource.name());
    let id = if kind == Kind::Mutex { name.to_owned() } else { format!("{kind}:{name}") };
    let found = test_db.database().await.collection::<Document>(collection(kind));
    let found = found.find_one(doc! { "_id": id }).await.unwrap().expect("a document");
    let ours = match found.get_array("holders") {
        Ok(holders) => holders[0].as_document().unwrap().clone(),
        Err(_) => found,
    };
    assert_eq!(ours.get_str("lockId").unwrap(), claim.lock_id.as_str());
    ours.get_datetime("expiresAt").unwrap().timestamp_millis()
}

/// The verbs that renew the expiry of a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verb {
    Renew,
    AcquireAgain,
}

/// Renews the claim alone, or in a batch with another name.
async fn renew_by(store: &Arc<dyn LeaseStore>, verb: Verb, how: Stalled, claim: Claim, other: Claim) {
    let claims = match how {
        Stalled::FindAndModify => vec![claim],
        Stalled::Update => vec![claim, other],
    };
    match verb {
        Verb::Renew => {
            let leases: Vec<Lease> =
                claims.iter().map(|claim| Lease::of(claim, FencingToken::new(0))).collect();
            let answers = store.renew(&leases).await.unwrap();
            assert!(answers.into_iter().all(|answer| answer.unwrap() == Renewal::Renewed));
        }
        Verb::AcquireAgain => {
            let answers = store.try_acquire(&claims).await.unwrap();
            assert!(answers.into_iter().all(|answer| matches!(answer.unwrap(), Attempt::Granted { .. })));
        }
    }
}

/// The engine retries a renewal after its request timeout while the first one is in flight. The first one has the older
/// clock reading. If it is applied last, the lease must not become shorter than the answer of the second one said.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_write_that_is_applied_last_does_not_move_the_expiry_back() {
    // A fail point affects the whole server.
    let set = stalling();
    let (test_db, bare) = ready(&set).await;
    for kind in [Kind::Mutex, Kind::RwLock] {
        for verb in [Verb::Renew, Verb::AcquireAgain] {
            for (older, newer) in
                [(Stalled::FindAndModify, Stalled::Update), (Stalled::Update, Stalled::FindAndModify)]
            {
                let name = format!("{kind} {verb:?} {older:?}");
                let (claim, other) = (
                    bare.claim(kind, &name, 60 * SECOND),
                    bare.claim(kind, &format!("{name}, other"), 60 * SECOND),
                );
                for claim in [&claim, &other] {
                    assert!(matches!(bare.ask(claim).await, Attempt::Granted { .. }));
                }
                let before = ends(&test_db, &claim).await;
                let stall = Stall::of(&test_db, older, &claim, || {
                    let (store, first, second) = (Arc::clone(&bare.store), claim.clone(), other.clone());
                    async move { renew_by(&store, verb, older, first, second).await }
                });
                let stall = stall.await;
                let in_time = renew_by(&bare.store, Verb::Renew, newer, claim.clone(), other.clone());
                within("the newer write", in_time).await;
                let promised = ends(&test_db, &claim).await;
                assert!(promised > before, "{name}: the newer write changed nothing");
                stall.end().await;
                let left = ends(&test_db, &claim).await;
                assert!(left >= promised, "{name}: the expiry moved back by {} ms", promised - left);
            }
        }
    }
}

/// One renewal of a batch is too late, while an older renewal of the same lease is stalled. If the older one is applied
/// before the batch reads the documents, the lease is ours again, but for less time than the batch asked for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_in_a_batch_is_not_answered_by_an_older_one() {
    // A fail point affects the whole server.
    let set = stalling();
    let (test_db, bare) = ready(&set).await;
    let mut stalled = None;
    for n in 0..TRIES {
        let short = bare.claim(Kind::Mutex, &format!("late {n}"), 1500 * MS);
        assert!(matches!(bare.ask(&short).await, Attempt::Granted { .. }));
        let claim = short.with_expiry(60 * SECOND);
        let (store, late) = (Arc::clone(&bare.store), claim.clone());
        // It reads the clock before the lease ends and is applied after that.
        let renewal =
            async move { renew_by(&store, Verb::Renew, Stalled::FindAndModify, claim.clone(), claim).await };
        if let Some(stall) = Stall::once(&test_db, Stalled::FindAndModify, &late, renewal).await {
            stalled = Some((late, stall));
            break;
        }
    }
    let (late, stall) = stalled.expect("the server stalls a renewal");
    let other = bare.claim(Kind::Mutex, "in time", 60 * SECOND);
    assert!(matches!(bare.ask(&other).await, Attempt::Granted { .. }));
    let database = test_db.database().await;
    let now = || async {
        let hello = database.run_command(doc! { "hello": 1 }).await.unwrap();
        hello.get_datetime("localTime").unwrap().timestamp_millis()
    };
    let until = ends(&test_db, &late).await;
    eventually("the lease is over", || async { now().await > until }).await;
    let finds = |mode: &str| {
        let command = doc! { "configureFailPoint": "waitInFindBeforeMakingBatch", "mode": mode };
        let admin = database.client().database("admin");
        async move { admin.run_command(command).await.unwrap() }
    };
    finds("alwaysOn").await;
    let sent = now().await;
    let (store, leases) =
        (Arc::clone(&bare.store), [&late, &other].map(|claim| Lease::of(claim, FencingToken::new(0))));
    let batch = tokio::spawn(async move { store.renew(&leases).await.unwrap() });
    stall.end().await;
    assert!(!batch.is_finished(), "the batch did not read the documents");
    finds("off").await;
    let answers = within("the batch", batch).await.unwrap();
    assert!(matches!(answers[1], Ok(Renewal::Renewed)), "{answers:?}");
    if matches!(answers[0], Ok(Renewal::Renewed)) {
        let short = sent + 60_000 - ends(&test_db, &late).await;
        assert!(short <= 0, "the answer promised {short} ms more than the lease has");
    }
}

/// A process that releases many locks releases some of every batch while it is renewed. The others are renewed by a few
/// commands, not one by one: that takes longer than to release them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_released_during_a_renewal_do_not_make_it_renew_the_others_one_by_one() {
    const COUNT: usize = 200;
    // A fail point affects the whole server.
    let set = stalling();
    let (test_db, bare) = ready(&set).await;
    let database = test_db.database().await;
    let finds = |mode: &str| {
        let command = doc! { "configureFailPoint": "waitInFindBeforeMakingBatch", "mode": mode };
        let admin = database.client().database("admin");
        async move { admin.run_command(command).await.unwrap() }
    };
    for kind in [Kind::Mutex, Kind::Semaphore] {
        let claims: Vec<Claim> =
            (0..COUNT).map(|n| bare.claim(kind, &format!("many {n}"), 60 * SECOND)).collect();
        for answer in bare.store.try_acquire(&claims).await.unwrap() {
            assert!(matches!(answer, Ok(Attempt::Granted { .. })), "{answer:?}");
        }
        let leases: Vec<Lease> = claims.iter().map(|claim| Lease::of(claim, FencingToken::new(0))).collect();
        let (before, during) = (3, 150);
        bare.store.release(&leases[before..=before]).await.unwrap();
        let (read, alone) =
            (commands(&database, &["find"]).await, commands(&database, &["findAndModify"]).await);
        finds("alwaysOn").await;
        let (store, batch) = (Arc::clone(&bare.store), leases.clone());
        let batch = tokio::spawn(async move { store.renew(&batch).await.unwrap() });
        eventually("the batch reads the documents", || async { commands(&database, &["find"]).await > read })
            .await;
        bare.store.release(&leases[during..=during]).await.unwrap();
        finds("off").await;
        let answers = within("the batch", batch).await.unwrap();
        for (n, answer) in answers.into_iter().enumerate() {
            let answer = answer.unwrap();
            match n {
                _ if n == before => assert_eq!(answer, Renewal::NotYours),
                // It was renewed before it was released.
                _ if n == during => {}
                _ => assert_eq!(answer, Renewal::Renewed, "{kind} {n}"),
            }
        }
        let alone = commands(&database, &["findAndModify"]).await - alone;
        assert!(alone < 20, "{alone} commands for single leases of {COUNT} of {kind}");
    }
}

/// A stalled release is applied after an attempt of a waiter. The grant that it makes must last as long as its message
/// says, counted from that attempt.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_by_a_stalled_release_lasts_as_long_as_its_message_says() {
    // A fail point affects the whole server.
    let set = stalling();
    let (test_db, bare) = ready(&set).await;
    // Released in a batch, so that it can be stalled while a single attempt is not.
    let held =
        ["stalled release", "other"].map(|name| bare.claim(Kind::RwLock, name, 60 * SECOND).with_weight(10));
    for claim in &held {
        assert!(matches!(bare.ask(claim).await, Attempt::Granted { .. }));
    }
    let mut wakes = bare.store.subscribe(&Inbox::new(bare.ids.prefix())).await.unwrap();

    let leases = held.clone().map(|claim| Lease::of(&claim, FencingToken::new(0)));
    let stall = Stall::of(&test_db, Stalled::Update, &held[0], || {
        let (store, leases) = (Arc::clone(&bare.store), leases.clone());
        async move { drop(store.release(&leases).await.unwrap()) }
    });
    let stall = stall.await;
    let waiter = bare.waiting(Kind::RwLock, "stalled release", bare.ids.next(), 60 * SECOND);
    assert!(matches!(bare.ask(&waiter).await, Attempt::Busy { .. }));
    let queues = test_db.database().await.collection::<Document>("distributed.locks.queues");
    let found = queues.find_one(doc! { "_id": "rwlock:stalled release" }).await.unwrap().unwrap();
    let decided = found.get_array("queue").unwrap()[0].as_document().unwrap().get_datetime("decidedAt");
    let decided = decided.unwrap().timestamp_millis();
    stall.end().await;

    let next = std::future::poll_fn(|context| wakes.as_mut().poll_next(context));
    let grant = match within("the grant's message", next).await {
        Some(Wake::Granted { lock_id, grant, .. }) if lock_id == waiter.lock_id => grant,
        other => panic!("{other:?}"),
    };
    let said = i64::try_from((grant.after + grant.window).as_millis()).unwrap();
    let lasts = ends(&test_db, &waiter).await - decided;
    assert!(
        lasts >= said,
        "the message says {said} ms after the attempt, and the grant ends after {lasts} ms"
    );
    assert!(grant.window > 500 * MS);
}
