//! Hazard: two holders at once.

use distlock_core::Kind;

use crate::agent::{Agent, spell};
use crate::support::{acquire, claim, mutex, open, release, try_once};

const PROCESSES: u32 = 8;
const HOLDS: u32 = 100;

fn contend(kind: Kind) -> Vec<u64> {
    let (dir, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut agents: Vec<Agent> = (0..PROCESSES).map(|_| Agent::start(dir.path())).collect();
    let command = format!("cycles 1 {HOLDS} {} {}", out.path().display(), spell(kind, "contended", 1, 1));
    agents.iter_mut().for_each(|agent| agent.tell(&command));
    agents.iter_mut().for_each(|agent| drop(agent.wait_for("cycled 1")));
    let history = std::fs::read_to_string(out.path().join("history")).unwrap();
    let tokens = history.lines().map(|line| {
        let (token, alone) = line.split_once(' ').unwrap();
        assert_eq!(alone, "true", "two holders at token {token}");
        token.parse().unwrap()
    });
    tokens.collect()
}

/// The holders write the tokens in the order in which they held.
fn assert_without_gap(tokens: &[u64]) {
    assert_eq!(tokens.len(), usize::try_from(PROCESSES * HOLDS).unwrap());
    assert!(tokens.windows(2).all(|pair| pair[1] > pair[0]), "{tokens:?}");
}

#[test]
fn no_two_of_eight_processes_hold_a_mutex_at_once_and_its_tokens_rise_by_one() {
    assert_without_gap(&contend(Kind::Mutex));
}

#[test]
fn no_two_of_eight_processes_hold_a_pool_of_one_at_once_and_its_tokens_rise_by_one() {
    assert_without_gap(&contend(Kind::Semaphore));
}

#[tokio::test]
async fn two_stores_in_one_process_do_not_share_a_lock() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (open(dir.path()).await, open(dir.path()).await);
    for kind in [Kind::Mutex, Kind::Semaphore, Kind::FairQueue] {
        let (a, b) = (claim(kind, "x", 1, 1), claim(kind, "x", 1, 1));
        let first = acquire(&one, &a).await;
        assert!(try_once(&two, &b).await.unwrap().is_none(), "{kind}");
        assert!(try_once(&one, &b).await.unwrap().is_none(), "{kind}");
        release(&one, &a, &first).await;
        let second = try_once(&two, &b).await.unwrap().unwrap();
        assert!(second.token > first.token);
        release(&two, &b, &second).await;
    }
}

#[tokio::test]
async fn kinds_of_one_name_do_not_conflict() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    for kind in [Kind::Mutex, Kind::RwLock, Kind::Semaphore, Kind::FairQueue] {
        assert!(try_once(&store, &claim(kind, "x", 1, 1)).await.unwrap().is_some(), "{kind}");
    }
}

#[tokio::test]
async fn a_release_under_another_lock_id_frees_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    let (a, b) = (mutex("x"), mutex("x"));
    let hold = acquire(&store, &a).await;
    release(&store, &b, &hold).await;
    assert!(try_once(&store, &b).await.unwrap().is_none());
    release(&store, &a, &hold).await;
    release(&store, &a, &hold).await;
    assert!(try_once(&store, &b).await.unwrap().is_some());
}

#[tokio::test]
async fn a_child_process_does_not_keep_the_lock_of_its_parent() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    for kind in [Kind::Mutex, Kind::RwLock] {
        let mut agent = Agent::start(dir.path());
        agent.acquire(1, &spell(kind, "x", 1, 1));
        let child = agent.ask("spawn", "spawned")[0].clone();
        agent.kill();
        // The grandchild still runs, and has no descriptor of the lock.
        let held: Vec<_> = std::fs::read_dir(format!("/proc/{child}/fd"))
            .unwrap()
            .filter_map(|fd| std::fs::read_link(fd.unwrap().path()).ok())
            .filter(|path| path.starts_with(dir.path()))
            .collect();
        assert_eq!(held, Vec::<std::path::PathBuf>::new());
        // It had all descriptors between fork and exec, and the kernel may take milliseconds to close them.
        acquire(&store, &claim(kind, "x", 1, 1)).await;
        let pid = rustix::process::Pid::from_raw(child.parse().unwrap()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    }
}

/// The first users of a pool create its folders while others open them.
#[test]
fn no_two_of_the_first_users_of_a_pool_hold_it_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut agents: Vec<Agent> = (0..4).map(|_| Agent::start(dir.path())).collect();
    for round in 0..100 {
        let out = tempfile::tempdir().unwrap();
        let pool = spell(Kind::Semaphore, &format!("new {round}"), 1, 1);
        let command = format!("cycles {round} 1 {} {pool}", out.path().display());
        agents.iter_mut().for_each(|agent| agent.tell(&command));
        agents.iter_mut().for_each(|agent| drop(agent.wait_for(&format!("cycled {round}"))));
        let history = std::fs::read_to_string(out.path().join("history")).unwrap();
        let tokens: Vec<u64> = history
            .lines()
            .map(|line| {
                let (token, alone) = line.split_once(' ').unwrap();
                assert_eq!(alone, "true", "two holders at token {token} in round {round}");
                token.parse().unwrap()
            })
            .collect();
        assert!(tokens.len() == agents.len() && tokens.is_sorted(), "round {round}: {tokens:?}");
    }
}
