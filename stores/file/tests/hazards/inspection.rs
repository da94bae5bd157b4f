//! Hazard: an inspection disturbs clients, or reports what is not true.

use distlock_core::store::{Level, Query, Store};
use distlock_core::{ErrorKind, Kind};
use distlock_file::{FileConfig, FileStore};

use crate::agent::{Agent, spell};
use crate::support::{acquire, claim, mutex, open, release, tree, try_once, until};

#[test]
fn an_inspection_never_makes_an_attempt_on_a_free_lock_fail() {
    for kind in [Kind::Mutex, Kind::Semaphore] {
        let dir = tempfile::tempdir().unwrap();
        let (mut inspector, mut client) = (Agent::start(dir.path()), Agent::start(dir.path()));
        client.ask(&format!("try-free 1 1 {}", spell(kind, "x", 1, 1)), "tried 1");
        inspector.tell("inspect 1 3000");
        let refused = client.ask(&format!("try-free 2 1000 {}", spell(kind, "x", 1, 1)), "tried 2");
        assert_eq!(refused[0], "0", "{kind}: attempts failed during an inspection");
        inspector.wait_for("inspected 1");
    }
}

#[test]
fn an_inspection_of_a_dead_holders_file_never_makes_an_attempt_fail() {
    let dir = tempfile::tempdir().unwrap();
    let lock = spell(Kind::Mutex, "x", 1, 1);
    let mut inspector = Agent::start(dir.path());
    for round in 0..10 {
        let mut holder = Agent::start(dir.path());
        holder.acquire(1, &lock);
        inspector.tell(&format!("inspect {round} 500"));
        holder.kill();
        // The file still names the dead holder, so the inspection has to try the lock.
        let mut client = Agent::start(dir.path());
        assert_eq!(client.ask(&format!("try-free 1 1 {lock}"), "tried 1")[0], "0");
        inspector.wait_for(&format!("inspected {round}"));
    }
}

#[tokio::test]
async fn live_holders_are_shown_and_dead_ones_are_not() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    assert!(store.inspect(&Query::default()).await.unwrap().is_empty());
    assert!(tree(dir.path()).is_empty(), "the inspection created files");
    for (kind, weight, capacity) in [(Kind::Mutex, 1, 1), (Kind::RwLock, 1, 1 << 30), (Kind::Semaphore, 3, 7)]
    {
        let mut agent = Agent::start(dir.path());
        let (token, _) = agent.acquire(1, &spell(kind, "x y", weight, capacity));
        let records = store.inspect(&Query::named("x y")).await.unwrap();
        let [record] = &records[..] else { panic!("{records:?}") };
        let holder = &record.holders[0];
        assert_eq!((record.kind, record.capacity, record.holders.len()), (kind, capacity, 1));
        assert_eq!((holder.token.unwrap().get(), holder.weight), (token, weight));
        assert!(holder.lock_id.label().ends_with(&format!(":{}", agent.pid())), "{holder:?}");
        assert!(holder.acquired_at.unwrap().elapsed().unwrap().as_secs() < 60);
        agent.kill();
        assert!(store.inspect(&Query::default()).await.unwrap().is_empty());
    }
}

#[tokio::test]
async fn waiters_are_shown_in_order_and_until_they_withdraw() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    for kind in [Kind::Mutex, Kind::Semaphore] {
        let held = claim(kind, "x", 1, 1);
        let hold = acquire(&store, &held).await;
        let query = Query::named("x").with_kind(kind);
        let waiters = async || {
            let record = store.inspect(&query).await.unwrap().remove(0);
            record.waiters.iter().map(|w| w.lock_id.label().to_owned()).collect::<Vec<_>>()
        };
        let mut agents: Vec<Agent> = (0..3).map(|_| Agent::start(dir.path())).collect();
        for (at, agent) in agents.iter_mut().enumerate() {
            agent.tell(&format!("acquire 1 {}", spell(kind, "x", 1, 1)));
            until("one more waits", async || waiters().await.len() == at + 1).await;
        }
        let shown = waiters().await;
        for (label, agent) in shown.iter().zip(&agents) {
            assert!(label.ends_with(&format!(":{}", agent.pid())), "{shown:?}");
        }
        for agent in &mut agents {
            agent.ask("withdraw 1", "none 1");
        }
        assert!(waiters().await.is_empty());
        release(&store, &held, &hold).await;
    }
}

#[tokio::test]
async fn a_lock_that_cannot_be_broken_names_the_process_to_end() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    for kind in [Kind::Mutex, Kind::Semaphore] {
        let held = claim(kind, "x", 1, 1);
        assert!(store.break_lock(&held.resource).await.unwrap().is_empty());
        let mut agent = Agent::start(dir.path());
        agent.acquire(1, &spell(kind, "x", 1, 1));
        let error = store.break_lock(&held.resource).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains(&format!("end process {} on host ", agent.pid())), "{error}");
        assert!(try_once(&store, &held).await.unwrap().is_none());
    }
    assert!(!store.capabilities().forced_release && store.capabilities().frees_on_crash);
}

#[tokio::test]
async fn the_doctor_has_no_warning_for_a_good_folder_and_leaves_no_trace() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path().join("new")).await;
    let findings = store.doctor().await.unwrap();
    assert!(findings.iter().all(|finding| finding.level == Level::Ok), "{findings:?}");
    assert!(findings.len() >= 6, "{findings:?}");
    assert_eq!(tree(dir.path()), ["new"]);
}

#[tokio::test]
async fn the_doctor_warns_of_a_folder_that_others_can_write_to() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let warnings = async |store: FileStore| {
        let findings = store.doctor().await.unwrap().into_iter();
        findings.filter(|finding| finding.level == Level::Warning).collect::<Vec<_>>()
    };
    let found = warnings(open(dir.path()).await).await;
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].what.contains("every user") && found[0].advice.as_ref().unwrap().contains("chmod"));
    assert!(found[1].what.contains("group") && found[1].advice.as_ref().unwrap().contains("chmod"));
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o2770)).unwrap();
    let shared = FileConfig::new(dir.path()).access(distlock_file::Access::Group);
    assert!(warnings(FileStore::connect(shared).await.unwrap()).await.is_empty(), "shared on purpose");
    if rustix::process::geteuid().is_root() {
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
        std::os::unix::fs::chown(dir.path(), Some(65534), None).unwrap();
        let found = warnings(open(dir.path()).await).await;
        assert!(found[0].what.contains("belongs to user 65534"), "{found:?}");
    }
    let polls = FileConfig::new(tempfile::tempdir().unwrap().path()).wakeups(distlock_file::Wakeups::Poll);
    let found = warnings(FileStore::connect(polls).await.unwrap()).await;
    assert!(found[0].what.contains("poll"), "{found:?}");
}

#[tokio::test]
async fn the_lock_file_can_be_read_by_people() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    let claim = mutex("nightly");
    let hold = acquire(&store, &claim).await;
    let text = std::fs::read_to_string(dir.path().join("mutex/nightly.lock")).unwrap();
    for part in [format!("holds {}", hold.token), claim.lock_id.to_string(), "name 7 nightly".into()] {
        assert!(text.contains(&part), "{text}");
    }
    release(&store, &claim, &hold).await;
    assert!(!std::fs::read_to_string(dir.path().join("mutex/nightly.lock")).unwrap().contains("holds"));
}
