//! Hazard: a waiter learns late that the lock is free.
//!
//! The limits are orders of magnitude, for slow machines; the measured times are printed (`--nocapture`).

use std::time::{Duration, Instant};

use distlock_core::Kind;

use crate::agent::{Agent, spell};
use crate::support::{acquire, claim, median, open, release};

/// From the release in one process to the grant of a waiter in another one.
fn handoffs(kind: Kind, start: fn(&std::path::Path) -> Agent, bystanders: usize) -> Vec<Duration> {
    let dir = tempfile::tempdir().unwrap();
    let lock = spell(kind, "x", 1, 1);
    let mut agents: Vec<Agent> = (0..2 + bystanders).map(|_| start(dir.path())).collect();
    let (mut holder, mut number) = (0, 1);
    agents[holder].acquire(number, &lock);
    let mut asked = vec![0; agents.len()];
    for (at, agent) in agents.iter_mut().enumerate().skip(1) {
        agent.tell(&format!("acquire 1 {lock}"));
        asked[at] = 1;
    }
    let mut times = Vec::new();
    for _ in 0..60 {
        // Long enough for all waiters to sleep: this measures the wake-up.
        std::thread::sleep(Duration::from_millis(20));
        let released = agents[holder].release(number);
        let before = holder;
        let (winner, granted) = first_granted(&mut agents, &asked);
        times.push(Duration::from_nanos(granted.saturating_sub(released)));
        asked[before] += 1;
        number = asked[winner];
        agents[before].tell(&format!("acquire {} {lock}", asked[before]));
        holder = winner;
    }
    times
}

fn first_granted(agents: &mut [Agent], asked: &[u32]) -> (usize, u64) {
    let start = Instant::now();
    loop {
        for (at, agent) in agents.iter_mut().enumerate() {
            if let Some((_, granted)) = agent.granted_by_now(asked[at]) {
                return (at, granted);
            }
        }
        assert!(start.elapsed() < crate::support::LONG, "no waiter was granted");
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// A busy machine may spoil one round, but not three in a row.
fn check(what: &str, limit: Duration, mut measure: impl FnMut() -> Vec<Duration>) {
    let reached = (0..3).any(|_| {
        let mut times = measure();
        times.sort();
        println!("{what}: median {:?}, 95 % {:?}", times[times.len() / 2], times[times.len() * 95 / 100]);
        median(times) < limit
    });
    assert!(reached, "{what}: not below {limit:?}");
}

const TEN: Duration = Duration::from_millis(10);

#[test]
fn the_handoff_of_a_mutex_does_not_wait_for_a_poll() {
    check("handoff of a mutex", TEN, || handoffs(Kind::Mutex, Agent::start, 0));
}

#[test]
fn the_handoff_of_a_pool_does_not_wait_for_a_poll() {
    check("handoff of a pool", TEN, || handoffs(Kind::Semaphore, Agent::start, 0));
}

#[test]
fn many_waiters_do_not_slow_the_handoff_down() {
    check("handoff of a mutex, 16 waiters", 3 * TEN, || handoffs(Kind::Mutex, Agent::start, 15));
    check("handoff of a pool, 16 waiters", 3 * TEN, || handoffs(Kind::Semaphore, Agent::start, 15));
}

#[test]
fn without_inotify_a_waiter_is_still_served() {
    let limit = Duration::from_millis(200);
    check("handoff of a mutex by polling", limit, || handoffs(Kind::Mutex, Agent::start_polling, 0));
    check("handoff of a pool by polling", limit, || handoffs(Kind::FairQueue, Agent::start_polling, 0));
}

#[tokio::test]
async fn waiting_is_not_a_busy_loop() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    let mut agent = Agent::start(dir.path());
    for (number, kind) in [(1, Kind::Mutex), (2, Kind::RwLock)] {
        acquire(&store, &claim(kind, "x", 1, 1)).await;
        agent.tell(&format!("acquire {number} {}", spell(kind, "x", 1, 1)));
    }
    let ticks = || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", agent.pid())).unwrap();
        let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    };
    let before = ticks();
    tokio::time::sleep(Duration::from_secs(2)).await;
    // In hundredths of a second.
    let used = ticks() - before;
    assert!(used <= 10, "{used} ticks in two seconds of waiting");
}

#[test]
fn an_uncontended_lock_is_not_slow() {
    let dir = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let store = runtime.block_on(open(dir.path()));
    let mut used = 0;
    let cycle = |kind, name: &str| {
        let claim = claim(kind, name, 1, 1);
        let start = Instant::now();
        runtime.block_on(async {
            let hold = acquire(&store, &claim).await;
            release(&store, &claim, &hold).await;
        });
        start.elapsed()
    };
    for kind in [Kind::Mutex, Kind::Semaphore] {
        check(&format!("acquire and release of a {kind}"), 5 * TEN, || {
            (0..300).map(|_| cycle(kind, "x")).collect()
        });
    }
    check("the same with a new name each time", 5 * TEN, || {
        used += 100;
        (used..used + 100).map(|number| cycle(Kind::Mutex, &format!("new {number}"))).collect()
    });
}
