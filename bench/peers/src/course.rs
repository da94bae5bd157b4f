//! The course that everybody runs.

use std::time::Instant;

use serde::Serialize;

use crate::field::{Arena, Server};
use crate::participant_process::Participant;
use crate::protocol::{Answer, Order};

const SLICE_MILLIS: u64 = 250;
const CONTENDERS: usize = 64;
const EXPIRY_MILLIS: u64 = 9000;
const TAKEOVER_EXPIRY_MILLIS: u64 = 1000;

/// What came of one scenario for one participant. `None` where it does not apply, with the reason.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Figure {
    pub ops_per_s: Option<f64>,
    pub p50_us: Option<f64>,
    pub p99_us: Option<f64>,
    pub requests_per_op: Option<f64>,
    pub fairness: Option<f64>,
    pub requests_per_s: Option<f64>,
    pub cpu_cores: Option<f64>,
    pub bytes_per_lock: Option<u64>,
    pub reason: Option<String>,
}

#[derive(Debug, Serialize)]
pub struct Row {
    pub participant: String,
    pub scenario: &'static str,
    pub figure: Figure,
}

#[derive(Debug, Serialize)]
pub struct Results {
    pub arena: &'static str,
    pub server: String,
    pub setup: &'static str,
    pub rows: Vec<Row>,
}

/// What was seen of one participant over all its slices.
#[derive(Default)]
struct Sum {
    nanos: Vec<u64>,
    counts: Vec<u64>,
    elapsed: u64,
    cpu: u64,
    requests: Option<u64>,
}

impl Sum {
    fn add(&mut self, answer: Answer, requests: Option<u64>) {
        self.nanos.extend(&answer.nanos);
        self.counts.resize(self.counts.len().max(answer.counts.len()), 0);
        // Which task is which changes from slice to slice; the sum of sorted counts is on the strict side.
        let mut counts = answer.counts;
        counts.sort_unstable();
        for (sum, count) in self.counts.iter_mut().zip(counts) {
            *sum += count;
        }
        self.elapsed += answer.elapsed_nanos;
        self.cpu += answer.cpu_nanos;
        if let Some(requests) = requests {
            *self.requests.get_or_insert(0) += requests;
        }
    }

    fn figure(mut self) -> Figure {
        self.nanos.sort_unstable();
        let at = |share: f64| {
            let index = ((self.nanos.len() as f64 * share) as usize).min(self.nanos.len().saturating_sub(1));
            self.nanos.get(index).map(|nanos| *nanos as f64 / 1000.0)
        };
        let operations: u64 = self.counts.iter().sum();
        let seconds = self.elapsed as f64 / 1e9;
        let most = self.counts.iter().max().copied().unwrap_or(0);
        let fewest = self.counts.iter().min().copied().unwrap_or(0);
        Figure {
            ops_per_s: (operations > 0 && seconds > 0.0).then(|| operations as f64 / seconds),
            p50_us: at(0.5),
            p99_us: at(0.99),
            requests_per_op: self.requests.map(|requests| requests as f64 / operations.max(1) as f64),
            fairness: (self.counts.len() > 1).then(|| most as f64 / fewest.max(1) as f64),
            cpu_cores: (seconds > 0.0).then(|| self.cpu as f64 / 1e9 / seconds),
            ..Figure::default()
        }
    }
}

pub fn run(arena: &'static Arena, seconds: f64, held: usize) -> Results {
    let server = arena.start();
    let mut rows = Vec::new();
    let mut row = |participant: &str, scenario, figure| {
        rows.push(Row { participant: participant.to_owned(), scenario, figure });
    };
    let mut present: Vec<(&str, Participant)> = Vec::new();
    for who in arena.participants {
        match Participant::start(who, &server.url) {
            Ok(participant) => present.push((who, participant)),
            Err(reason) => {
                eprintln!("peers: {who} does not take part: {reason}");
                row(who, "start", Figure { reason: Some(reason), ..Figure::default() });
            }
        }
    }
    for (scenario, tasks) in [("uncontended", 1), ("throughput-64", 64), ("throughput-256", 256)] {
        let order =
            |who: &str| Order::Cycles { tasks, millis: SLICE_MILLIS, prefix: format!("peers/{who}/cycle/") };
        for (who, figure) in interleave(&server, &mut present, seconds, order) {
            row(&who, scenario, figure);
        }
    }
    let handover = |who: &str| Order::Handover {
        millis: (seconds * 1000.0) as u64 / 2,
        settle_millis: 20,
        name: format!("peers/{who}/handover"),
    };
    for (who, mut figure) in interleave(&server, &mut present, seconds * 0.5, handover) {
        figure.ops_per_s = None;
        row(&who, "handover", figure);
    }
    let contend = |who: &str| Order::Contend {
        tasks: CONTENDERS,
        millis: (seconds * 1000.0) as u64,
        name: format!("peers/{who}/contended"),
    };
    for (who, figure) in interleave(&server, &mut present, seconds, contend) {
        row(&who, "contended-64", figure);
    }
    for (who, participant) in &mut present {
        row(who, "held", keep(&server, participant, who, held, seconds));
    }
    drop(present);
    for who in arena.participants.iter().filter(|who| **who != "raw") {
        row(who, "takeover", takeover(&server, who, seconds));
    }
    Results { arena: arena.name, server: server.version.clone(), setup: arena.setup, rows }
}

/// All participants by turns, in an order that changes from round to round, until each had its time.
fn interleave(
    server: &Server,
    present: &mut [(&str, Participant)],
    seconds: f64,
    order: impl Fn(&str) -> Order,
) -> Vec<(String, Figure)> {
    let mut sums: Vec<Result<Sum, String>> = present.iter().map(|_| Ok(Sum::default())).collect();
    let mut rounds = 0_usize;
    let begun = Instant::now();
    // Everybody gets so many seconds; the first round is to warm up.
    let mut spent = 0.0;
    while (spent < seconds || rounds < 2) && begun.elapsed().as_secs_f64() < seconds * 40.0 {
        let round = Instant::now();
        let count = present.len();
        for turn in 0..count {
            let at = if rounds.is_multiple_of(2) { turn } else { count - 1 - turn };
            let (who, participant) = &mut present[at];
            let Ok(sum) = &mut sums[at] else { continue };
            let mark = server.mark();
            match participant.obey(&order(who)) {
                Ok(answer) => {
                    let requests = server.since(mark);
                    if rounds > 0 {
                        sum.add(answer, requests);
                    }
                }
                Err(reason) => sums[at] = Err(reason),
            }
        }
        if rounds > 0 {
            spent += round.elapsed().as_secs_f64() / count.max(1) as f64;
        }
        rounds += 1;
    }
    let named = present.iter().map(|(who, _)| (*who).to_owned()).zip(sums);
    named
        .map(|(who, sum)| match sum {
            Ok(sum) => (who, sum.figure()),
            Err(reason) => (who, Figure { reason: Some(reason), ..Figure::default() }),
        })
        .collect()
}

/// Locks that are only kept alive.
fn keep(server: &Server, participant: &mut Participant, who: &str, held: usize, seconds: f64) -> Figure {
    // A lock of these is a file.
    let count = if server.url.starts_with("file:") { held.min(900) } else { held };
    let millis = ((seconds * 1000.0) as u64).max(EXPIRY_MILLIS);
    let order =
        Order::Keep { count, millis, expiry_millis: EXPIRY_MILLIS, prefix: format!("peers/{who}/held/") };
    let kept = participant.tell(&order).and_then(|()| participant.hear()).and_then(|_| {
        // The first line came when all were held; the second comes before they are given back, the third after that.
        let mark = server.mark();
        let answer = participant.hear()?;
        let requests = server.since(mark);
        participant.hear()?;
        Ok((answer, requests))
    });
    match kept {
        Ok((answer, requests)) => {
            let seconds = answer.elapsed_nanos as f64 / 1e9;
            Figure {
                requests_per_s: requests.map(|requests| requests as f64 / seconds),
                cpu_cores: Some(answer.cpu_nanos as f64 / answer.elapsed_nanos.max(1) as f64),
                bytes_per_lock: Some(answer.bytes_per_lock),
                ..Figure::default()
            }
        }
        Err(reason) => Figure { reason: Some(reason), ..Figure::default() },
    }
}

/// The holder's process is killed while another waits.
fn takeover(server: &Server, who: &str, seconds: f64) -> Figure {
    let mut past = Vec::new();
    let begun = Instant::now();
    let mut round = 0;
    while round < 3 || begun.elapsed().as_secs_f64() < seconds {
        let name = format!("peers/{who}/takeover/{round}");
        round += 1;
        match one_takeover(server, who, &name) {
            Ok(nanos) => past.push(nanos),
            Err(reason) => return Figure { reason: Some(reason), ..Figure::default() },
        }
    }
    let sum = Sum { nanos: past, counts: vec![1], elapsed: 0, cpu: 0, requests: None };
    Figure { ops_per_s: None, requests_per_op: None, cpu_cores: None, ..sum.figure() }
}

fn one_takeover(server: &Server, who: &str, name: &str) -> Result<u64, String> {
    let expiry_millis = TAKEOVER_EXPIRY_MILLIS;
    let mut holder = Participant::start(who, &server.url)?;
    let mut waiter = Participant::start(who, &server.url)?;
    let held = holder.obey(&Order::Hold { name: name.to_owned(), expiry_millis })?;
    if who == "mongodb-lock" {
        return Err("never: its locks do not expire".to_owned());
    }
    waiter.tell(&Order::Wait { name: name.to_owned(), expiry_millis })?;
    std::thread::sleep(std::time::Duration::from_millis(100));
    let killed = boot_nanos();
    holder.kill();
    let got = waiter.hear()?.moment_nanos;
    let sessions = ["file:", "postgres+advisory:"].iter().any(|scheme| server.url.starts_with(scheme));
    let free = if sessions { killed } else { (held.moment_nanos + expiry_millis * 1_000_000).max(killed) };
    Ok(got.saturating_sub(free))
}

fn boot_nanos() -> u64 {
    use distlock::Clock;
    distlock::BootClock.now().as_nanos()
}
