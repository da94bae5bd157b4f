//! `GET_LOCK`: more locks than one session is given. MariaDB takes longer for each lock the more its session holds.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use crate::common::{MS, PATIENCE, database_on, eventually, server, session_locks, session_store};
use distlock_core::store::{Backend, Query};
use distlock_core::{Guard, Kind, Locks};

/// How many locks a session is given.
const MOST: usize = 3584;

fn url() -> (String, String) {
    let database = database_on(server());
    (server().url_of("mysql+session", &database), database)
}

/// Acquires many locks in many tasks, as `n0`, `n1` and so on.
async fn acquire(locks: &Locks, numbers: Range<usize>) -> Vec<(usize, Guard)> {
    const TASKS: usize = 128;
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let (locks, numbers) = (locks.clone(), numbers.clone());
            tokio::spawn(async move {
                let mut guards = Vec::new();
                for number in numbers.skip(task).step_by(TASKS) {
                    guards.push((number, locks.mutex(format!("n{number}")).acquire().await.unwrap()));
                }
                guards
            })
        })
        .collect();
    let mut guards = Vec::new();
    for task in tasks {
        guards.extend(task.await.unwrap());
    }
    guards
}

/// The names that each session holds.
fn held_by_session(database: &str) -> HashMap<String, HashSet<String>> {
    let mut held: HashMap<String, HashSet<String>> = HashMap::new();
    let rows = server().sql(&format!(
        "SELECT connection_id, name FROM {database}.distribute_lock_session WHERE hold_us > 0"
    ));
    for row in rows {
        let [session, name] = <[Option<String>; 2]>::try_from(row).unwrap().map(Option::unwrap);
        held.entry(session).or_default().insert(name);
    }
    held
}

fn connections(database: &str) -> usize {
    let count = format!("SELECT COUNT(*) FROM information_schema.processlist WHERE db = '{database}'");
    server().value(&count).parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_limit_is_reached_while_locks_are_acquired() {
    let (url, database) = url();
    let store = session_store(&url).await;
    let [locks, other] = [0, 1].map(|_| Locks::new(Backend::session(store.clone())).unwrap());
    let guards = acquire(&locks, 0..2 * MOST + 300).await;
    let sizes: Vec<usize> = held_by_session(&database).values().map(HashSet::len).collect();
    assert_eq!((sizes.len(), sizes.iter().sum::<usize>()), (3, guards.len()), "{sizes:?}");
    assert!(sizes.iter().all(|size| *size <= MOST), "{sizes:?}");
    assert!(guards.iter().all(|(_, guard)| !guard.is_lost()));
    // Whichever session of this process has it, no other one is granted it: not the one that takes the next lock either.
    for number in (0..guards.len()).step_by(500) {
        assert!(other.mutex(format!("n{number}")).try_acquire().await.unwrap().is_none(), "n{number}");
    }
    let (number, guard) = guards.into_iter().next().unwrap();
    let waiting = tokio::spawn({
        let other = other.clone();
        async move { other.mutex(format!("n{number}")).acquire().timeout(PATIENCE).await }
    });
    tokio::time::sleep(50 * MS).await;
    assert!(!waiting.is_finished());
    let token = guard.token();
    guard.release().await.unwrap();
    assert!(waiting.await.unwrap().unwrap().token() > token);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_ends_loses_its_own_guards_and_no_others() {
    let (url, database) = url();
    let (locks, other) = (session_locks(&url).await, session_locks(&url).await);
    let guards = acquire(&locks, 0..MOST + 400).await;
    let held = held_by_session(&database);
    let (session, lost) = held.iter().min_by_key(|(_, names)| names.len()).unwrap();
    assert_eq!(held.len(), 2);
    assert!((400..410).contains(&lost.len()), "{}", lost.len());
    let broken = lost.iter().next().unwrap();
    // Its holder loses this session, and is told what else it loses.
    let holders = other.break_lock(Kind::Mutex, broken.as_str()).await.unwrap();
    assert_eq!(holders.len(), 1);
    assert_eq!(holders[0].also_held.len(), lost.len() - 1, "those of session {session} alone");
    let is_lost = |number: usize| lost.contains(&format!("n{number}"));
    eventually("its guards are lost", async || {
        guards.iter().all(|(number, guard)| !is_lost(*number) || guard.is_lost())
    })
    .await;
    // Longer than heartbeats may be missing.
    tokio::time::sleep(3500 * MS).await;
    assert!(guards.iter().all(|(number, guard)| is_lost(*number) == guard.is_lost()));
    // What it held can be acquired again, in the same process, and what the other session holds cannot.
    let again = locks.mutex(broken.as_str()).acquire().timeout(PATIENCE).await.unwrap();
    let kept =
        held.values().find(|names| names.len() > MOST / 2).and_then(|names| names.iter().next()).unwrap();
    assert!(other.mutex(kept.as_str()).try_acquire().await.unwrap().is_none());
    assert_eq!(other.inspect(&Query::named(kept.as_str())).await.unwrap().len(), 1);
    assert!(!again.is_lost());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_end_with_their_locks_and_a_process_at_the_limit_opens_none_for_each_lock() {
    let (url, database) = url();
    let locks = session_locks(&url).await;
    let guards = acquire(&locks, 0..MOST).await;
    let mut sessions = HashSet::new();
    for _ in 0..20 {
        let guards = acquire(&locks, MOST..MOST + 10).await;
        let held = held_by_session(&database);
        sessions.extend(held.into_keys());
        for (_, guard) in guards {
            guard.release().await.unwrap();
        }
    }
    assert!(sessions.len() <= 2, "{sessions:?}");
    let before = connections(&database);
    let more = acquire(&locks, MOST..3 * MOST).await;
    assert!(connections(&database) > before);
    for (_, guard) in guards.into_iter().chain(more) {
        guard.release().await.unwrap();
    }
    // One that takes the next lock, and those for requests about locks.
    eventually("sessions without locks end", async || connections(&database) <= before).await;
    assert!(locks.mutex("n1").try_acquire().await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_the_server_takes_no_other_session_the_ones_there_are_get_more_locks() {
    let (_, database) = url();
    // One for requests about locks, and one that holds them.
    server().sql(&format!(
        "CREATE USER '{database}'@'%' WITH MAX_USER_CONNECTIONS 2; GRANT ALL ON {database}.* TO '{database}'@'%'"
    ));
    let url = server().url_of("mysql+session", &database).replace("root@", &format!("{database}@"));
    let locks = session_locks(&url).await;
    let guards = acquire(&locks, 0..MOST + 200).await;
    assert_eq!(held_by_session(&database).len(), 1);
    assert!(guards.iter().all(|(_, guard)| !guard.is_lost()));
    // As soon as the server takes another one, and there are as many locks again, there is another one.
    server().sql(&format!("ALTER USER '{database}'@'%' WITH MAX_USER_CONNECTIONS 20"));
    let more = acquire(&locks, MOST + 200..2 * MOST + 400).await;
    assert_eq!(held_by_session(&database).len(), 2);
    assert!(guards.iter().chain(&more).all(|(_, guard)| !guard.is_lost()));
}
