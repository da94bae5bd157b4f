//! Those who wait for a mutex, in its row: their order, who is passed over, and who is told. A lone claim and a batch are
//! two statements, so everything here is tried alone and in company.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::time::Duration;

use common::{TestSchema, postgres_store, server, within};
use distlock_core::store::{Attempt, Claim, Inbox, Lease, LeaseStore, Query, Released, Store, Waiting};
use distlock_core::{Error, FencingToken, Kind, LockId, LockIds, Resource};
use distlock_postgres::PostgresStore;
use distlock_testkit::servers::PostgresServer;

const LIMIT: Duration = Duration::from_secs(25);

/// Ids that could be mistaken for what stands around them.
const ODD: [&str; 5] = [
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

/// A store of its own test_schema, asked alone or in company.
struct Asked {
    store: PostgresStore,
    test_schema: TestSchema,
    company: bool,
    ids: LockIds,
}

impl Asked {
    async fn all() -> Vec<Asked> {
        let mut all = Vec::new();
        for company in [false, true] {
            let test_schema = TestSchema::new();
            let store = postgres_store(&test_schema.url("postgres", &server().url())).await;
            all.push(Asked { store, test_schema, company, ids: LockIds::new("line") });
        }
        all
    }

    fn table(&self) -> String {
        format!("{}.distribute_lock", self.test_schema.name)
    }

    async fn ask(&self, asked: Claim) -> Attempt {
        let mut claims = vec![asked];
        if self.company {
            claims.push(claim("company", self.ids.next().as_str()));
        }
        self.store.try_acquire(&claims).await.unwrap().swap_remove(0).unwrap()
    }

    async fn end(&self, ended: Lease) -> Released {
        let mut leases = vec![ended];
        if self.company {
            leases.push(lease("company", self.ids.next().as_str()));
        }
        self.store.release(&leases).await.unwrap().swap_remove(0).unwrap()
    }

    /// Who holds a lock and who waits for it.
    async fn who(&self, name: &str) -> (Vec<String>, Vec<String>) {
        let found = self.store.inspect(&Query::named(name)).await.unwrap();
        let text = |id: &LockId| id.as_str().to_owned();
        let holders = found.iter().flat_map(|record| &record.holders).map(|holder| text(&holder.lock_id));
        let waiters = found.iter().flat_map(|record| &record.waiters).map(|waiter| text(&waiter.lock_id));
        (holders.collect(), waiters.collect())
    }

    async fn assert(&self, name: &str, holder: &[&str], waiters: &[&str]) {
        let (holds, wait) = self.who(name).await;
        assert_eq!((holds, wait), (owned(holder), owned(waiters)), "{name}, in company: {}", self.company);
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

const NOBODY_IS_ALIVE: &str =
    "waiters = (SELECT jsonb_agg(e || '{\"until\": 1}') FROM jsonb_array_elements(waiters) e)";

#[tokio::test]
async fn who_asks_again_keeps_the_place_whatever_the_id_looks_like() {
    for asked in Asked::all().await {
        let first = granted(&asked.ask(claim("m", "holder")).await);
        for id in ODD {
            assert!(matches!(asked.ask(waits("m", id)).await, Attempt::Busy { .. }));
        }
        for id in ODD.into_iter().rev() {
            assert!(matches!(asked.ask(waits("m", id)).await, Attempt::Busy { .. }));
        }
        asked.assert("m", &["holder"], &ODD).await;
        // Who gives up is gone, and nobody else is.
        assert_eq!(asked.end(lease("m", ODD[2])).await, Released::Done { woke: false });
        assert_eq!(asked.end(lease("m", ODD[2])).await, Released::NotYours);
        asked.assert("m", &["holder"], &[ODD[0], ODD[1], ODD[3], ODD[4]]).await;

        let mut before = first;
        let mut holder = "holder";
        for next in [ODD[0], ODD[1], ODD[3], ODD[4]] {
            assert_eq!(asked.end(lease("m", holder)).await, Released::Done { woke: true });
            let (holds, _) = asked.who("m").await;
            assert_eq!(holds, [next]);
            let token = granted(&asked.ask(waits("m", next)).await);
            assert!(token > before, "{token} after {before}");
            (before, holder) = (token, next);
        }
        assert_eq!(asked.end(lease("m", holder)).await, Released::Done { woke: false });
        asked.assert("m", &[], &[]).await;
    }
}

#[tokio::test]
async fn those_who_were_not_heard_of_for_too_long_are_passed_over() {
    for asked in Asked::all().await {
        granted(&asked.ask(claim("m", "holder")).await);
        asked.ask(waits("m", "gone")).await;
        asked.ask(waits("m", "gone too")).await;
        asked.change("m", NOBODY_IS_ALIVE);
        asked.ask(waits("m", "alive")).await;
        assert_eq!(asked.end(lease("m", "holder")).await, Released::Done { woke: true });
        asked.assert("m", &["alive"], &[]).await;
        assert_eq!(asked.end(lease("m", "gone")).await, Released::NotYours);

        // Nobody is left to be told: the lock is free.
        asked.ask(waits("m", "gone")).await;
        asked.change("m", NOBODY_IS_ALIVE);
        assert_eq!(asked.end(lease("m", "alive")).await, Released::Done { woke: false });
        asked.assert("m", &[], &[]).await;
    }
}

#[tokio::test]
async fn who_asks_in_turn_stands_behind_those_who_are_alive_and_nobody_else() {
    for asked in Asked::all().await {
        let no_overtaking = |id: &str| waits("m", id).with_no_overtaking(true);
        granted(&asked.ask(claim("m", "holder")).await);
        asked.ask(waits("m", "gone")).await;
        asked.change("m", NOBODY_IS_ALIVE);
        asked.ask(waits("m", "first")).await;
        asked.change("m", "expire_time = now() - interval '1 second'");
        // Free, but not for whoever comes in turn: that one is told how long the first has, and joins.
        let Attempt::Busy { retry_after, .. } = asked.ask(no_overtaking("second")).await else {
            panic!("first was before")
        };
        let left = retry_after.unwrap();
        assert!(left > Duration::from_secs(30) && left <= Duration::from_secs(60), "{left:?}");
        asked.assert("m", &[], &["first", "second"]).await;
        let one_attempt = claim("m", "one attempt").with_no_overtaking(true);
        assert!(matches!(asked.ask(one_attempt).await, Attempt::Busy { .. }));
        asked.assert("m", &[], &["first", "second"]).await;
        granted(&asked.ask(no_overtaking("first")).await);
        asked.assert("m", &["first"], &["second"]).await;
        // Late, and not the holder any more: what it finds free goes to who is next all the same.
        asked.change("m", "expire_time = now() - interval '1 second'");
        assert_eq!(asked.end(lease("m", "first")).await, Released::NotYours);
        asked.assert("m", &["second"], &[]).await;
    }
}

#[tokio::test]
async fn a_line_of_the_dead_does_not_grow_for_ever() {
    for asked in Asked::all().await {
        granted(&asked.ask(claim("m", "holder")).await);
        for n in 0..110 {
            asked.ask(waits("m", &format!("gone {n}"))).await;
        }
        asked.change("m", NOBODY_IS_ALIVE);
        asked.ask(waits("m", "alive")).await;
        let length = format!("SELECT jsonb_array_length(waiters) FROM {} WHERE key = 'm'", asked.table());
        assert_eq!(server().value(&length), "1");
        asked.assert("m", &["holder"], &["alive"]).await;
    }
}

#[tokio::test]
async fn leases_of_one_lock_in_one_batch_have_their_own_answers() {
    let test_schema = TestSchema::new();
    let store = postgres_store(&test_schema.url("postgres", &server().url())).await;
    let asked = Asked { store, test_schema, company: true, ids: LockIds::new("line") };
    granted(&asked.ask(claim("m", "holder")).await);
    for id in ["a", "b", "c"] {
        asked.ask(waits("m", id)).await;
    }
    let leases = ["holder", "a", "stranger", "c"].map(|id| lease("m", id));
    let answers: Result<Vec<Released>, Error> =
        asked.store.release(&leases).await.unwrap().into_iter().collect();
    let done = Released::Done { woke: true };
    assert_eq!(answers.unwrap(), [done, done, Released::NotYours, done]);
    asked.assert("m", &["b"], &[]).await;
}

/// The statement sees the table as it was before it waited for the row. Who came to the row meanwhile counts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_joined_while_a_release_waited_for_the_row_is_not_forgotten() {
    for asked in Asked::all().await {
        let before = granted(&asked.ask(claim("m", "holder")).await);
        let (table, company) = (asked.table(), asked.company);
        let entry = r#"[{"id": "late", "inbox": "dl_late", "expiry": 60000000, "asked": 1, "until": 9000000000000000}]"#;
        let join = format!("UPDATE {table} SET waiters = '{entry}' WHERE key = 'm'");
        let joined = asked.test_schema.lock_until_waited_for(&join, "NULL").await;
        let mut leases = vec![lease("m", "holder")];
        leases.extend(company.then(|| lease("company", "nobody")));
        let answers = within("the release", LIMIT, asked.store.release(&leases)).await;
        let answer = answers.unwrap().swap_remove(0).unwrap();
        joined.await.unwrap();
        assert_eq!(answer, Released::Done { woke: true }, "in company: {company}");
        asked.assert("m", &["late"], &[]).await;
        let found = asked.store.inspect(&Query::named("m")).await.unwrap();
        assert!(found[0].holders[0].token.unwrap() > before);
    }
}

/// A batch in which one lock is handed on waits for the disk, wherever that one stands in it; a batch in which none is does
/// not wait.
#[tokio::test]
async fn a_batch_is_on_the_disk_if_anybody_was_granted_anything() {
    // The log is on the disk when somebody waits for it, and hardly before.
    let own = PostgresServer::configure().setting("wal_writer_delay", "10s").start();
    for (at, handed_on) in [Some("a"), Some("b"), Some("c"), None].into_iter().enumerate() {
        let store = postgres_store(&own.url()).await;
        let names = ["a", "b", "c"].map(|name| format!("{at}/{name}"));
        let claims: Vec<Claim> = names.iter().map(|name| claim(name, "holder")).collect();
        for answer in store.try_acquire(&claims).await.unwrap() {
            granted(&answer.unwrap());
        }
        if let Some(name) = handed_on {
            let busy = store.try_acquire(&[waits(&format!("{at}/{name}"), "heir")]).await.unwrap().remove(0);
            assert!(matches!(busy.unwrap(), Attempt::Busy { .. }));
        }
        let leases: Vec<Lease> = names.iter().map(|name| lease(name, "holder")).collect();
        for (answer, name) in store.release(&leases).await.unwrap().into_iter().zip(["a", "b", "c"]) {
            assert_eq!(answer.unwrap(), Released::Done { woke: handed_on == Some(name) });
        }
        own.kill();
        own.start_again();
        let held = "SELECT string_agg(value, ' ' ORDER BY key) FROM distribute_lock WHERE value <> ''";
        let held = own.value(&format!("{held} AND key LIKE '{at}/%'"));
        let expected = if handed_on.is_some() { "heir" } else { "holder holder holder" };
        assert_eq!(held, expected, "{handed_on:?} was handed on");
    }
}
