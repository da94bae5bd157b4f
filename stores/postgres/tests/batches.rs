//! A batch of which a part fails: locks and pools are two statements, and each item gets its own answer.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::time::Duration;

use common::{TestSchema, postgres_store, server, within};
use distlock_core::store::{Attempt, Backend, Claim, Lease, LeaseStore, Query, Released, Renewal, Store};
use distlock_core::{ErrorKind, Kind, LockIds, Locks, Resource};
use distlock_postgres::PostgresStore;

const LIMIT: Duration = Duration::from_secs(25);
const EXPIRY: Duration = Duration::from_secs(60);

fn claim(ids: &LockIds, kind: Kind, name: &str) -> Claim {
    Claim::new(Resource::new(kind, name).unwrap(), ids.next(), EXPIRY)
}

/// Two locks and two pools, mixed.
fn mixed(ids: &LockIds) -> Vec<Claim> {
    let kinds = [Kind::Mutex, Kind::Semaphore, Kind::RwLock, Kind::Mutex];
    kinds.into_iter().enumerate().map(|(n, kind)| claim(ids, kind, &format!("mixed/{n}"))).collect()
}

fn is_lock(resource: &Resource) -> bool {
    resource.kind() == Kind::Mutex
}

/// The names of the locks that the server shows as held.
async fn held(store: &PostgresStore) -> Vec<String> {
    let records = store.inspect(&Query::default()).await.unwrap();
    let mut names: Vec<String> = records
        .into_iter()
        .filter(|record| !record.holders.is_empty())
        .map(|record| record.name.unwrap())
        .collect();
    names.sort();
    names
}

/// A role whose right to write one of the two tables can be revoked.
struct Rights {
    test_schema: TestSchema,
}

impl Rights {
    async fn new() -> (Self, PostgresStore) {
        let test_schema = TestSchema::new();
        let url = test_schema.url("postgres", &server().url());
        // The owner creates the tables.
        drop(postgres_store(&url).await);
        let schema = &test_schema.name;
        server().sql(&format!(
            "CREATE ROLE {schema} LOGIN; GRANT USAGE ON SCHEMA {schema} TO {schema};
             GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {schema}"
        ));
        let store = postgres_store(&url.replace("//postgres@", &format!("//{schema}@"))).await;
        (Rights { test_schema }, store)
    }

    fn table(&self, locks: bool) -> String {
        format!("{}.distribute_lock{}", self.test_schema.name, if locks { "" } else { "_pool" })
    }

    fn revoke(&self, locks: bool) {
        let (table, role) = (self.table(locks), &self.test_schema.name);
        server().sql(&format!("REVOKE INSERT, UPDATE ON {table} FROM {role}"));
    }

    fn grant(&self, locks: bool) {
        let (table, role) = (self.table(locks), &self.test_schema.name);
        server().sql(&format!("GRANT INSERT, UPDATE ON {table} TO {role}"));
    }
}

/// Checks that the items of one table fail, each with its reason, and returns the answers to the others.
fn answers_of_the_other_table<A: std::fmt::Debug>(
    of: &[Resource],
    answers: Vec<distlock_core::Result<A>>,
    locks_fail: bool,
) -> Vec<A> {
    assert_eq!(of.len(), answers.len());
    let mut done = Vec::new();
    for (resource, answer) in of.iter().zip(answers) {
        match answer {
            Err(error) if is_lock(resource) == locks_fail => {
                assert_eq!(error.kind(), ErrorKind::Denied, "{resource}: {error}");
            }
            Ok(answer) if is_lock(resource) != locks_fail => done.push(answer),
            answer => panic!("{resource}: {answer:?}"),
        }
    }
    done
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_table_that_refuses_does_not_hide_what_the_other_did() {
    for locks_fail in [true, false] {
        let (rights, store) = Rights::new().await;
        let ids = LockIds::new("batches");
        let claims = mixed(&ids);
        let resources: Vec<Resource> = claims.iter().map(|claim| claim.resource.clone()).collect();
        let of = |wanted: bool| -> Vec<String> {
            resources.iter().filter(|r| is_lock(r) == wanted).map(|r| r.name().to_owned()).collect()
        };

        rights.revoke(locks_fail);
        let granted =
            answers_of_the_other_table(&resources, store.try_acquire(&claims).await.unwrap(), locks_fail);
        assert!(granted.iter().all(|answer| matches!(answer, Attempt::Granted { .. })), "{granted:?}");
        assert_eq!(held(&store).await, of(!locks_fail), "the answers agree with the server");

        // Repeated claims are recognised, and the others are granted.
        rights.grant(locks_fail);
        let answers = store.try_acquire(&claims).await.unwrap();
        let mut leases = Vec::new();
        for (claim, answer) in claims.iter().zip(answers) {
            let Ok(Attempt::Granted { token, .. }) = answer else { panic!("{claim:?}: {answer:?}") };
            leases.push(Lease::of(claim, token));
        }

        rights.revoke(locks_fail);
        let extended =
            answers_of_the_other_table(&resources, store.renew(&leases).await.unwrap(), locks_fail);
        assert_eq!(extended, [Renewal::Renewed; 2]);
        let released =
            answers_of_the_other_table(&resources, store.release(&leases).await.unwrap(), locks_fail);
        assert_eq!(released, [Released::Done { woke: false }; 2]);
        assert_eq!(held(&store).await, of(locks_fail), "locks that could not be released are still held");

        rights.grant(locks_fail);
        let answers = store.release(&leases).await.unwrap();
        for (lease, answer) in leases.iter().zip(answers) {
            let expected = match is_lock(&lease.resource) == locks_fail {
                true => Released::Done { woke: false },
                false => Released::NotYours,
            };
            assert_eq!(answer.unwrap(), expected, "{}", lease.resource);
        }
        assert_eq!(held(&store).await, Vec::<String>::new());
    }
}

/// The same through the engine, which puts locks and pools of many tasks into one batch.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_whose_locks_were_granted_do_not_get_the_errors_of_others() {
    let (rights, store) = Rights::new().await;
    rights.revoke(false);
    let locks = Locks::new(Backend::lease(store.clone())).unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..40 {
        let locks = locks.clone();
        tasks.spawn(async move {
            match n % 2 {
                0 => Ok(locks.mutex(format!("m/{n}")).acquire().await.unwrap()),
                _ => Err(locks.semaphore(format!("s/{n}"), 2).acquire().await.unwrap_err()),
            }
        });
    }
    let mut guards = Vec::new();
    for ended in within("all of them", LIMIT, tasks.join_all()).await {
        match ended {
            Ok(guard) => guards.push(guard),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Denied, "{error}"),
        }
    }
    assert_eq!(held(&store).await.len(), 20);
    assert!(guards.iter().all(|guard| !guard.is_lost()));
    for guard in guards {
        guard.release().await.unwrap();
    }
    assert_eq!(held(&store).await, Vec::<String>::new());
}

/// A claim is sent again if another client inserted its pool at the same moment. If that fails, the grants of the first
/// round still hold.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_round_that_fails_does_not_undo_the_answers_of_the_first() {
    let test_schema = TestSchema::new();
    let store = postgres_store(&test_schema.url("postgres", &server().url())).await;
    let schema = &test_schema.name;
    server().sql(&format!(
        "CREATE FUNCTION {schema}.refuse() RETURNS trigger LANGUAGE plpgsql
             AS $$ BEGIN RAISE insufficient_privilege USING MESSAGE = 'not this one'; END $$;
         CREATE TRIGGER refuse BEFORE UPDATE ON {schema}.distribute_lock_pool
             FOR EACH ROW WHEN (new.key = 'semaphore:raced') EXECUTE FUNCTION {schema}.refuse()"
    ));
    let insert = format!(
        "INSERT INTO {schema}.distribute_lock_pool (key, capacity, token, holders, queue, used_until)
         VALUES ('semaphore:raced', 1, 1, '[]', '[]', now())"
    );
    let inserted = test_schema.lock_until_waited_for(&insert, "NULL").await;
    let ids = LockIds::new("raced");
    let claims = [claim(&ids, Kind::Semaphore, "quiet"), claim(&ids, Kind::Semaphore, "raced")];
    let answers = within("the replies", LIMIT, store.try_acquire(&claims)).await.unwrap();
    inserted.await.unwrap();
    assert!(matches!(answers[0], Ok(Attempt::Granted { .. })), "{answers:?}");
    let error = answers[1].as_ref().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(!error.is_outcome_unknown(), "{error}");
    assert_eq!(held(&store).await, ["quiet"]);
}
