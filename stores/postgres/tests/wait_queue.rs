//! The wait queue in the row of a mutex: its order, expired waiters, and notifications. A lone claim and a batch are two
//! statements, so every test sends claims alone and in a batch.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::time::Duration;

use common::{TestSchema, postgres_store, server, within};
use distlock_core::store::{Attempt, Claim, Inbox, Lease, LeaseStore, Query, Released, Store, Waiting};
use distlock_core::{Error, FencingToken, Kind, LockId, LockIds, Resource};
use distlock_postgres::PostgresStore;
use distlock_testkit::servers::PostgresServer;

const LIMIT: Duration = Duration::from_secs(25);

/// Ids that could be mistaken for JSON around them.
const ODD_IDS: [&str; 5] = [
    "plain",
    r#"{"id": "plain"}"#,
    r#"quote" and \ backslash"#,
    r#"[{\"id\": \"x\"}, "#,
    "ünï $now @.id ' --",
];

fn claim(name: &str, id: &str) -> Claim {
    Claim::new(Resource::new(Kind::Mutex, name).unwrap(), LockId::from_stored(id), Duration::from_secs(60))
}

fn waits(name: &str, id: &str) -> Claim {
    let waiting = Waiting::new(Inbox::new(format!("inbox of {id}")), Duration::from_secs(60), 1);
    claim(name, id).with_waiting(waiting)
}

fn lease(name: &str, id: &str) -> Lease {
    Lease::of(&claim(name, id), FencingToken::new(1))
}

/// A store to which claims are sent alone or in a batch.
struct Sender {
    store: PostgresStore,
    test_schema: TestSchema,
    in_batch: bool,
    ids: LockIds,
}

impl Sender {
    async fn all() -> Vec<Sender> {
        let mut all = Vec::new();
        for in_batch in [false, true] {
            let test_schema = TestSchema::new();
            let store = postgres_store(&test_schema.url("postgres", &server().url())).await;
            all.push(Sender { store, test_schema, in_batch, ids: LockIds::new("queue") });
        }
        all
    }

    fn table(&self) -> String {
        format!("{}.distribute_lock", self.test_schema.name)
    }

    async fn send(&self, claimed: Claim) -> Attempt {
        let mut claims = vec![claimed];
        if self.in_batch {
            claims.push(claim("other", self.ids.next().as_str()));
        }
        self.store.try_acquire(&claims).await.unwrap().swap_remove(0).unwrap()
    }

    async fn release(&self, released: Lease) -> Released {
        let mut leases = vec![released];
        if self.in_batch {
            leases.push(lease("other", self.ids.next().as_str()));
        }
        self.store.release(&leases).await.unwrap().swap_remove(0).unwrap()
    }

    /// The holders and the waiters of a lock.
    async fn state(&self, name: &str) -> (Vec<String>, Vec<String>) {
        let found = self.store.inspect(&Query::named(name)).await.unwrap();
        let text = |id: &LockId| id.as_str().to_owned();
        let holders = found.iter().flat_map(|record| &record.holders).map(|holder| text(&holder.lock_id));
        let waiters = found.iter().flat_map(|record| &record.waiters).map(|waiter| text(&waiter.lock_id));
        (holders.collect(), waiters.collect())
    }

    async fn assert(&self, name: &str, holder: &[&str], waiters: &[&str]) {
        let (holders, queue) = self.state(name).await;
        assert_eq!(
            (holders, queue),
            (owned(holder), owned(waiters)),
            "{name}, in a batch: {}",
            self.in_batch
        );
    }

    /// Changes the row of a lock.
    fn change(&self, name: &str, what: &str) {
        server().sql(&format!("UPDATE {} SET {what} WHERE key = '{name}'", self.table()));
    }
}

fn owned(ids: &[&str]) -> Vec<String> {
    ids.iter().map(|id| (*id).to_owned()).collect()
}

fn granted(answer: &Attempt) -> FencingToken {
    match answer {
        Attempt::Granted { token, .. } => *token,
        busy => panic!("{busy:?}"),
    }
}

const ALL_EXPIRED: &str =
    "waiters = (SELECT jsonb_agg(e || '{\"until\": 1}') FROM jsonb_array_elements(waiters) e)";

#[tokio::test]
async fn a_repeated_claim_keeps_its_place_whatever_its_id() {
    for sender in Sender::all().await {
        let first = granted(&sender.send(claim("m", "holder")).await);
        for id in ODD_IDS {
            assert!(matches!(sender.send(waits("m", id)).await, Attempt::Busy { .. }));
        }
        for id in ODD_IDS.into_iter().rev() {
            assert!(matches!(sender.send(waits("m", id)).await, Attempt::Busy { .. }));
        }
        sender.assert("m", &["holder"], &ODD_IDS).await;
        // A waiter that withdraws leaves the queue, and no other does.
        assert_eq!(sender.release(lease("m", ODD_IDS[2])).await, Released::Done { woke: false });
        assert_eq!(sender.release(lease("m", ODD_IDS[2])).await, Released::NotYours);
        sender.assert("m", &["holder"], &[ODD_IDS[0], ODD_IDS[1], ODD_IDS[3], ODD_IDS[4]]).await;

        let mut before = first;
        let mut holder = "holder";
        for next in [ODD_IDS[0], ODD_IDS[1], ODD_IDS[3], ODD_IDS[4]] {
            assert_eq!(sender.release(lease("m", holder)).await, Released::Done { woke: true });
            let (holders, _) = sender.state("m").await;
            assert_eq!(holders, [next]);
            let token = granted(&sender.send(waits("m", next)).await);
            assert!(token > before, "{token} after {before}");
            (before, holder) = (token, next);
        }
        assert_eq!(sender.release(lease("m", holder)).await, Released::Done { woke: false });
        sender.assert("m", &[], &[]).await;
    }
}

#[tokio::test]
async fn expired_waiters_are_skipped() {
    for sender in Sender::all().await {
        granted(&sender.send(claim("m", "holder")).await);
        sender.send(waits("m", "gone")).await;
        sender.send(waits("m", "gone too")).await;
        sender.change("m", ALL_EXPIRED);
        sender.send(waits("m", "alive")).await;
        assert_eq!(sender.release(lease("m", "holder")).await, Released::Done { woke: true });
        sender.assert("m", &["alive"], &[]).await;
        assert_eq!(sender.release(lease("m", "gone")).await, Released::NotYours);

        // Without a live waiter the lock is free.
        sender.send(waits("m", "gone")).await;
        sender.change("m", ALL_EXPIRED);
        assert_eq!(sender.release(lease("m", "alive")).await, Released::Done { woke: false });
        sender.assert("m", &[], &[]).await;
    }
}

#[tokio::test]
async fn a_claim_without_overtaking_queues_behind_live_waiters_only() {
    for sender in Sender::all().await {
        let no_overtaking = |id: &str| waits("m", id).with_no_overtaking(true);
        granted(&sender.send(claim("m", "holder")).await);
        sender.send(waits("m", "gone")).await;
        sender.change("m", ALL_EXPIRED);
        sender.send(waits("m", "first")).await;
        sender.change("m", "expire_time = now() - interval '1 second'");
        // Free, but not for a claim without overtaking: it gets the time left to the queue head, and joins the queue.
        let Attempt::Busy { retry_after, .. } = sender.send(no_overtaking("second")).await else {
            panic!("overtook the first waiter")
        };
        let left = retry_after.unwrap();
        assert!(left > Duration::from_secs(30) && left <= Duration::from_secs(60), "{left:?}");
        sender.assert("m", &[], &["first", "second"]).await;
        let one_attempt = claim("m", "one attempt").with_no_overtaking(true);
        assert!(matches!(sender.send(one_attempt).await, Attempt::Busy { .. }));
        sender.assert("m", &[], &["first", "second"]).await;
        granted(&sender.send(no_overtaking("first")).await);
        sender.assert("m", &["first"], &["second"]).await;
        // A late release of an expired lease still hands the free lock to the next waiter.
        sender.change("m", "expire_time = now() - interval '1 second'");
        assert_eq!(sender.release(lease("m", "first")).await, Released::NotYours);
        sender.assert("m", &["second"], &[]).await;
    }
}

#[tokio::test]
async fn a_queue_of_expired_waiters_does_not_grow_forever() {
    for sender in Sender::all().await {
        granted(&sender.send(claim("m", "holder")).await);
        for n in 0..110 {
            sender.send(waits("m", &format!("gone {n}"))).await;
        }
        sender.change("m", ALL_EXPIRED);
        sender.send(waits("m", "alive")).await;
        let length = format!("SELECT jsonb_array_length(waiters) FROM {} WHERE key = 'm'", sender.table());
        assert_eq!(server().value(&length), "1");
        sender.assert("m", &["holder"], &["alive"]).await;
    }
}

#[tokio::test]
async fn leases_of_one_lock_in_one_batch_have_their_own_answers() {
    let test_schema = TestSchema::new();
    let store = postgres_store(&test_schema.url("postgres", &server().url())).await;
    let sender = Sender { store, test_schema, in_batch: true, ids: LockIds::new("queue") };
    granted(&sender.send(claim("m", "holder")).await);
    for id in ["a", "b", "c"] {
        sender.send(waits("m", id)).await;
    }
    let leases = ["holder", "a", "stranger", "c"].map(|id| lease("m", id));
    let answers: Result<Vec<Released>, Error> =
        sender.store.release(&leases).await.unwrap().into_iter().collect();
    let done = Released::Done { woke: true };
    assert_eq!(answers.unwrap(), [done, done, Released::NotYours, done]);
    sender.assert("m", &["b"], &[]).await;
}

/// The statement sees the table as it was before it waited for the row. A waiter that joined during the wait counts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_joins_while_a_release_waits_for_the_row_is_granted() {
    for sender in Sender::all().await {
        let before = granted(&sender.send(claim("m", "holder")).await);
        let (table, in_batch) = (sender.table(), sender.in_batch);
        let entry = r#"[{"id": "late", "inbox": "dl_late", "expiry": 60000000, "asked": 1, "until": 9000000000000000}]"#;
        let join = format!("UPDATE {table} SET waiters = '{entry}' WHERE key = 'm'");
        let joined = sender.test_schema.lock_until_waited_for(&join, "NULL").await;
        let mut leases = vec![lease("m", "holder")];
        leases.extend(in_batch.then(|| lease("other", "unknown")));
        let answers = within("the release", LIMIT, sender.store.release(&leases)).await;
        let answer = answers.unwrap().swap_remove(0).unwrap();
        joined.await.unwrap();
        assert_eq!(answer, Released::Done { woke: true }, "in a batch: {in_batch}");
        sender.assert("m", &["late"], &[]).await;
        let found = sender.store.inspect(&Query::named("m")).await.unwrap();
        assert!(found[0].holders[0].token.unwrap() > before);
    }
}

/// A batch with a handoff waits for the disk, wherever in the batch it is. A batch without one does not wait.
#[tokio::test]
async fn a_batch_with_a_handoff_is_on_the_disk() {
    // The server writes its log to the disk when a commit waits for it, and hardly before.
    let own = PostgresServer::configure().setting("wal_writer_delay", "10s").start();
    for (at, handed_off) in [Some("a"), Some("b"), Some("c"), None].into_iter().enumerate() {
        let store = postgres_store(&own.url()).await;
        let names = ["a", "b", "c"].map(|name| format!("{at}/{name}"));
        let claims: Vec<Claim> = names.iter().map(|name| claim(name, "holder")).collect();
        for answer in store.try_acquire(&claims).await.unwrap() {
            granted(&answer.unwrap());
        }
        if let Some(name) = handed_off {
            let busy =
                store.try_acquire(&[waits(&format!("{at}/{name}"), "waiter")]).await.unwrap().remove(0);
            assert!(matches!(busy.unwrap(), Attempt::Busy { .. }));
        }
        let leases: Vec<Lease> = names.iter().map(|name| lease(name, "holder")).collect();
        for (answer, name) in store.release(&leases).await.unwrap().into_iter().zip(["a", "b", "c"]) {
            assert_eq!(answer.unwrap(), Released::Done { woke: handed_off == Some(name) });
        }
        own.kill();
        own.start_again();
        let held = "SELECT string_agg(value, ' ' ORDER BY key) FROM distribute_lock WHERE value <> ''";
        let held = own.value(&format!("{held} AND key LIKE '{at}/%'"));
        let expected = if handed_off.is_some() { "waiter" } else { "holder holder holder" };
        assert_eq!(held, expected, "{handed_off:?} was handed off");
    }
}

fn has_room(answer: &Attempt) -> bool {
    match answer {
        Attempt::Busy { poll_after, .. } => poll_after.is_none(),
        granted => panic!("{granted:?}"),
    }
}

/// A thousand processes that wait for one mutex: each claim would write a queue of a thousand waiters.
#[tokio::test]
async fn a_full_wait_queue_takes_no_new_waiter_and_keeps_its_own() {
    for sender in Sender::all().await {
        granted(&sender.send(claim("m", "holder")).await);
        let mut queued: Vec<String> = (0..64).map(|n| format!("waiter {n}")).collect();
        for id in &queued {
            assert!(has_room(&sender.send(waits("m", id)).await));
        }
        let row = format!("SELECT ctid::text FROM {} WHERE key = 'm'", sender.table());
        for id in ODD_IDS {
            assert!(!has_room(&sender.send(waits("m", id)).await), "{id}");
            assert!(!has_room(&sender.send(claim("m", id)).await), "{id}");
        }
        // It asked once by its claim; afterwards by a read, which changes nothing.
        let before = server().value(&row);
        for id in ODD_IDS {
            assert!(!has_room(&sender.send(waits("m", id)).await), "{id}");
            assert!(!has_room(&sender.send(claim("m", id)).await), "{id}");
        }
        assert_eq!(server().value(&row), before);
        // The attempt of a waiter with an entry is never answered by a read: a grant names the newest one.
        let again = Waiting::new(Inbox::new("inbox"), Duration::from_secs(60), 2);
        let again = claim("m", &queued[0]).with_waiting(again);
        assert!(!has_room(&sender.send(waits("m", "one more")).await));
        assert!(has_room(&sender.send(again).await));
        let attempt = format!("SELECT waiters -> 0 ->> 'attempt' FROM {} WHERE key = 'm'", sender.table());
        assert_eq!(server().value(&attempt), "2");

        assert_eq!(sender.release(lease("m", "holder")).await, Released::Done { woke: true });
        let holder = queued.remove(0);
        // One place is found by few of those that read. With fewer than 48 waiters everybody finds room.
        while queued.len() >= 48 {
            let withdrawn = queued.pop().unwrap();
            assert_eq!(sender.release(lease("m", &withdrawn)).await, Released::Done { woke: false });
        }
        assert!(has_room(&sender.send(waits("m", "late")).await));
        queued.push("late".to_owned());
        let queue: Vec<&str> = queued.iter().map(String::as_str).collect();
        sender.assert("m", &[holder.as_str()], &queue).await;
        // A queue of dead waiters has room.
        sender.change("m", ALL_EXPIRED);
        assert!(has_room(&sender.send(waits("m", "alive")).await));
        sender.assert("m", &[holder.as_str()], &["alive"]).await;
    }
}

/// Also one that remembers that the queue was full.
#[tokio::test]
async fn a_claim_for_a_free_mutex_with_a_full_wait_queue_is_granted() {
    for sender in Sender::all().await {
        granted(&sender.send(claim("m", "holder")).await);
        for n in 0..64 {
            sender.send(waits("m", &format!("waiter {n}"))).await;
        }
        assert!(!has_room(&sender.send(waits("m", "other")).await));
        // The waiters of the queue come first. If none of them takes it, any claim does.
        sender.change("m", "expire_time = now()");
        assert!(!has_room(&sender.send(waits("m", "other")).await));
        sender.change("m", "expire_time = now() - interval '2 seconds'");
        granted(&sender.send(waits("m", "other")).await);
    }
}
