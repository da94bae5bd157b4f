//! Runs the same scenarios for every participant.

use std::time::Instant;

use serde::Serialize;

use crate::participant_process::Participant;
use crate::protocol::{Command, Reply};
use crate::servers::{PeerServer, Server};

const SLICE_MILLIS: u64 = 250;
const CONTENDERS: usize = 64;
const EXPIRY_MILLIS: u64 = 9000;
const TAKEOVER_EXPIRY_MILLIS: u64 = 1000;

/// The figures of one scenario for one participant. `None` where they do not apply, with the reason.
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
    pub store: &'static str,
    pub server: String,
    pub setup: &'static str,
    pub rows: Vec<Row>,
}

/// The sum of all slices of one participant.
#[derive(Default)]
struct Sum {
    nanos: Vec<u64>,
    counts: Vec<u64>,
    elapsed: u64,
    cpu: u64,
    requests: Option<u64>,
}

impl Sum {
    fn add(&mut self, reply: Reply, requests: Option<u64>) {
        self.nanos.extend(&reply.nanos);
        self.counts.resize(self.counts.len().max(reply.counts.len()), 0);
        // The order of tasks changes from slice to slice. Summing sorted counts overstates unfairness, never understates it.
        let mut counts = reply.counts;
        counts.sort_unstable();
        for (sum, count) in self.counts.iter_mut().zip(counts) {
            *sum += count;
        }
        self.elapsed += reply.elapsed_nanos;
        self.cpu += reply.cpu_nanos;
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

pub fn run(setup: &'static PeerServer, seconds: f64, held: usize) -> Results {
    let server = setup.start();
    let mut rows = Vec::new();
    let mut row = |participant: &str, scenario, figure| {
        rows.push(Row { participant: participant.to_owned(), scenario, figure });
    };
    let mut present: Vec<(&str, Participant)> = Vec::new();
    for who in setup.participants {
        match Participant::start(who, &server.url) {
            Ok(participant) => present.push((who, participant)),
            Err(reason) => {
                eprintln!("peers: {who} is left out: {reason}");
                row(who, "start", Figure { reason: Some(reason), ..Figure::default() });
            }
        }
    }
    for (scenario, tasks) in [("uncontended", 1), ("throughput-64", 64), ("throughput-256", 256)] {
        let command = |who: &str| Command::Cycles {
            tasks,
            millis: SLICE_MILLIS,
            prefix: format!("peers/{who}/cycle/"),
        };
        for (who, figure) in interleave(&server, &mut present, seconds, command) {
            row(&who, scenario, figure);
        }
    }
    let handoff = |who: &str| Command::Handoff {
        millis: (seconds * 1000.0) as u64 / 2,
        settle_millis: 20,
        name: format!("peers/{who}/handoff"),
    };
    for (who, mut figure) in interleave(&server, &mut present, seconds * 0.5, handoff) {
        figure.ops_per_s = None;
        row(&who, "handoff", figure);
    }
    let contend = |who: &str| Command::Contend {
        tasks: CONTENDERS,
        millis: (seconds * 1000.0) as u64,
        name: format!("peers/{who}/contended"),
    };
    for (who, figure) in interleave(&server, &mut present, seconds, contend) {
        row(&who, "contended-64", figure);
    }
    for (who, participant) in &mut present {
        row(who, "held", hold_many(&server, participant, who, held, seconds));
    }
    drop(present);
    for who in setup.participants.iter().filter(|who| **who != "baseline") {
        row(who, "takeover", takeover(&server, who, seconds));
    }
    Results { store: setup.name, server: server.version.clone(), setup: setup.setup, rows }
}

/// Alternates slices of all participants, in an order that is reversed every round, until each has run for `seconds`.
fn interleave(
    server: &Server,
    present: &mut [(&str, Participant)],
    seconds: f64,
    command: impl Fn(&str) -> Command,
) -> Vec<(String, Figure)> {
    let mut sums: Vec<Result<Sum, String>> = present.iter().map(|_| Ok(Sum::default())).collect();
    let mut rounds = 0_usize;
    let begun = Instant::now();
    // The first round warms up and is not counted.
    let mut spent = 0.0;
    while (spent < seconds || rounds < 2) && begun.elapsed().as_secs_f64() < seconds * 40.0 {
        let round = Instant::now();
        let count = present.len();
        for position in 0..count {
            let at = if rounds.is_multiple_of(2) { position } else { count - 1 - position };
            let (who, participant) = &mut present[at];
            let Ok(sum) = &mut sums[at] else { continue };
            let mark = server.mark();
            match participant.execute(&command(who)) {
                Ok(reply) => {
                    let requests = server.since(mark);
                    if rounds > 0 {
                        sum.add(reply, requests);
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

/// Holds many locks that are only renewed.
fn hold_many(server: &Server, participant: &mut Participant, who: &str, held: usize, seconds: f64) -> Figure {
    // Each lock is an open file.
    let count = if server.url.starts_with("file:") { held.min(900) } else { held };
    let millis = ((seconds * 1000.0) as u64).max(EXPIRY_MILLIS);
    let command = Command::HoldMany {
        count,
        millis,
        expiry_millis: EXPIRY_MILLIS,
        prefix: format!("peers/{who}/held/"),
    };
    let held = participant.send(&command).and_then(|()| participant.receive()).and_then(|_| {
        // The first reply comes when all are held, the second before their release, the third after it.
        let mark = server.mark();
        let reply = participant.receive()?;
        let requests = server.since(mark);
        participant.receive()?;
        Ok((reply, requests))
    });
    match held {
        Ok((reply, requests)) => {
            let seconds = reply.elapsed_nanos as f64 / 1e9;
            Figure {
                requests_per_s: requests.map(|requests| requests as f64 / seconds),
                cpu_cores: Some(reply.cpu_nanos as f64 / reply.elapsed_nanos.max(1) as f64),
                bytes_per_lock: Some(reply.bytes_per_lock),
                ..Figure::default()
            }
        }
        Err(reason) => Figure { reason: Some(reason), ..Figure::default() },
    }
}

/// The process of the holder is killed while another participant waits.
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
    let held = holder.execute(&Command::Hold { name: name.to_owned(), expiry_millis })?;
    if who == "mongodb-lock" {
        return Err("never: its locks do not expire".to_owned());
    }
    waiter.send(&Command::Wait { name: name.to_owned(), expiry_millis })?;
    std::thread::sleep(std::time::Duration::from_millis(100));
    let killed = boot_nanos();
    holder.kill();
    let granted = waiter.receive()?.moment_nanos;
    let sessions = ["file:", "postgres+advisory:"].iter().any(|scheme| server.url.starts_with(scheme));
    let free = if sessions { killed } else { (held.moment_nanos + expiry_millis * 1_000_000).max(killed) };
    Ok(granted.saturating_sub(free))
}

fn boot_nanos() -> u64 {
    use distlock::Clock;
    distlock::BootClock.now().as_nanos()
}
