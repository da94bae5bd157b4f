//! The plan of a seed: the store, the clients, their operations and the faults.

use std::time::Duration;

use distlock_core::Options;
use fastrand::Rng;

use crate::planted::Defect;

/// How long a counter of a whole server is kept after its last use.
const COUNTER_RETENTION: Duration = Duration::from_secs(10);
pub const MS: Duration = Duration::from_millis(1);

/// The settings of a run, apart from its seed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mode {
    /// A defect planted in the store.
    pub defect: Option<Defect>,
    /// The main subject of the run, drawn from the seed if not given.
    pub theme: Option<Theme>,
    /// Leaves driver panics out.
    pub no_panics: bool,
    /// Checks this rule alone.
    pub only: Option<&'static str>,
}

/// The main subject of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Theme {
    Anything,
    /// No faults, and everything must be prompt.
    Calm,
    /// Wait queues with late pushed grants.
    LatePushes,
    /// An operator that breaks locks.
    Breaks,
    /// A store that does not answer for seconds, and little contention.
    Silence,
    /// A quorum, and callers whose runtimes end.
    Visits,
    /// A server with one token counter for all mutexes, as Redis has it: it is lost, the server restarts empty, or a replica takes
    /// over that has not all of it.
    Counter,
}

impl Theme {
    fn draw(rng: &mut Rng) -> Theme {
        match rng.u32(0..16) {
            0 | 1 => Theme::Calm,
            2 | 3 => Theme::LatePushes,
            4 => Theme::Breaks,
            5 => Theme::Silence,
            6 => Theme::Visits,
            7 => Theme::Counter,
            _ => Theme::Anything,
        }
    }
}

/// The probability of each fault of a request, in thousandths.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rates {
    pub refused: u32,
    pub lost_reply: u32,
    pub hang_before: u32,
    pub hang_after: u32,
    pub slow: u32,
    /// Applied twice, or after it was reported as failed.
    pub late: u32,
    pub panic: u32,
    pub wake_lost: u32,
    pub wake_late: u32,
    pub wake_twice: u32,
    pub subscribe: u32,
}

/// An event that happens to a client or a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    Stall {
        client: usize,
        length: Duration,
        hold_messages: bool,
    },
    Resume {
        client: usize,
    },
    Outage {
        client: usize,
        node: usize,
        length: Duration,
        sort: Outage,
    },
    Crash {
        client: usize,
    },
    RuntimeEnd {
        client: usize,
    },
    ShutDown {
        client: usize,
    },
    StreamsEnd {
        client: usize,
    },
    ServerJump {
        node: usize,
        by: Duration,
        back: bool,
    },
    Restart {
        node: usize,
    },
    /// The token counter of a server is lost.
    CounterLost {
        node: usize,
    },
    /// A replica has all that its server has.
    Replicated {
        node: usize,
    },
    /// The replica takes over.
    FailOver {
        node: usize,
    },
    Break {
        name: usize,
    },
    Visit {
        client: usize,
    },
    VisitEnd,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outage {
    /// Connections are refused.
    Down,
    /// Requests are not answered.
    Hole,
    /// Everything is slow.
    Slow,
}

/// One set of options that acquisitions draw from.
#[derive(Clone, Debug)]
pub struct Choice {
    pub options: Options,
    /// The longest time-to-live of a waiter's entry.
    pub ttl: Duration,
}

#[derive(Clone, Debug)]
pub struct Plan {
    pub defect: Option<Defect>,
    /// The number of nodes. One is a store without a quorum.
    pub nodes: usize,
    pub push: bool,
    pub max_in_flight: usize,
    pub max_batch: usize,
    pub clients: usize,
    pub tasks: usize,
    pub names: usize,
    /// Which kinds are used: mutex, reader-writer lock, semaphore, fair mutex, several at once.
    pub kinds: [u32; 5],
    /// How often an acquisition uses a name that only its client uses, in per cent.
    pub private: u32,
    pub length: Duration,
    pub latency: u64,
    pub pause: u64,
    pub hold: u64,
    pub choices: Vec<Choice>,
    pub request_timeout: Duration,
    pub rates: Rates,
    /// The longest latency of a slow request, in milliseconds.
    pub slowest: u64,
    /// How often an acquisition or release is cancelled, in per cent.
    pub drops: u32,
    pub events: Vec<(Duration, Event)>,
    /// No faults: everything must be prompt.
    pub calm: bool,
    /// Clients with tasks outside their runtime.
    pub guests: bool,
    /// Servers have one token counter for all mutexes, which is kept for this long after its last use.
    pub counter: Option<Duration>,
}

fn duration(rng: &mut Rng, from: u64, to: u64) -> Duration {
    Duration::from_millis(rng.u64(from..=to))
}

/// Draws on a logarithmic scale.
fn scaled(rng: &mut Rng, from: u64, to: u64) -> u64 {
    let (from_log, to_log) = ((from.max(1) as f64).ln(), (to.max(1) as f64).ln());
    ((from_log + (to_log - from_log) * rng.f64()).exp() as u64).clamp(from, to)
}

impl Plan {
    pub fn draw(seed: u64, mode: Mode) -> Plan {
        let mut rng = Rng::with_seed(seed);
        let rng = &mut rng;
        let theme = Theme::draw(rng);
        let theme = mode.theme.unwrap_or(theme);
        let quorum =
            rng.u32(0..4) == 0 && !matches!(theme, Theme::LatePushes | Theme::Silence | Theme::Counter);
        let quorum = (quorum || theme == Theme::Visits) && mode.defect.is_none();
        let nodes = if !quorum { 1 } else { *rng.choice(&[3, 3, 5]).unwrap() };
        let calm = theme == Theme::Calm;
        let crowded = !quorum && rng.u32(0..4) == 0;
        let clients = if crowded { rng.usize(1..=2) } else { rng.usize(2..=if quorum { 3 } else { 5 }) };
        let tasks = if crowded { rng.usize(4..=9) } else { rng.usize(1..=if quorum { 2 } else { 3 }) };
        // A quorum waits up to a second for a node that it needs.
        let timeouts: &[u64] = if quorum { &[2_000, 5_000] } else { &[200, 500, 1_000, 2_000, 5_000] };
        let request_timeout = Duration::from_millis(*rng.choice(timeouts).unwrap());
        let choices = (0..rng.usize(1..=3)).map(|_| choice(rng, request_timeout)).collect();
        let kinds = if quorum {
            [3, 3, 0, 0, 1]
        } else {
            let mut kinds = [0; 5];
            kinds.iter_mut().for_each(|weight| *weight = *rng.choice(&[0, 1, 3]).unwrap());
            if kinds[..4].iter().sum::<u32>() == 0 { [2, 2, 2, 2, 1] } else { kinds }
        };
        let length = duration(rng, 3_000, 12_000);
        let rates = if calm { Rates::default() } else { rates(rng, mode) };
        let mut plan = Plan {
            defect: mode.defect,
            nodes,
            push: rng.u32(0..5) > 0,
            max_in_flight: *rng.choice(&[1, 1, 2, 4, 16]).unwrap(),
            max_batch: *rng.choice(&[1, 2, 3, 1000]).unwrap(),
            clients,
            tasks,
            names: rng.usize(1..=3),
            kinds,
            private: *rng.choice(&[0, 0, 10, 30, 60]).unwrap(),
            length,
            latency: if quorum {
                *rng.choice(&[5, 10, 20]).unwrap()
            } else {
                *rng.choice(&[0, 1, 2, 5, 20]).unwrap()
            },
            pause: *rng.choice(&[5, 50, 300, 1000]).unwrap(),
            hold: *rng.choice(&[1, 30, 300, 2500]).unwrap(),
            choices,
            request_timeout,
            rates,
            slowest: 10_000,
            drops: *rng.choice(&[0, 0, 10, 40]).unwrap(),
            events: Vec::new(),
            calm,
            guests: rng.u32(0..4) == 0,
            counter: None,
        };
        match theme {
            Theme::LatePushes => plan.late_pushes(rng),
            Theme::Silence => plan.silence(rng),
            Theme::Counter => plan.one_counter(rng),
            _ => {}
        }
        if !calm {
            plan.events = events(rng, &plan);
        }
        match theme {
            Theme::Breaks => plan.breaks(rng),
            Theme::Silence => plan.holes(rng),
            Theme::Visits => plan.visits(rng),
            Theme::Counter => plan.counter_losses(rng),
            _ => {}
        }
        plan.events.sort_by_key(|(at, _)| *at);
        plan
    }
}

impl Plan {
    /// Wait queues whose waiters get their grants late, or are stalled then.
    fn late_pushes(&mut self, rng: &mut Rng) {
        self.kinds = [0, rng.u32(0..3), rng.u32(0..3), rng.u32(1..3), 0];
        (self.push, self.names, self.private, self.guests) = (true, 1, 0, false);
        (self.hold, self.pause, self.drops) = (rng.u64(100..1_500), 50, 0);
        self.rates.wake_late = rng.u32(100..800);
        self.rates.wake_lost = 0;
        for choice in &mut self.choices {
            choice.options = choice.options.clone().auto_extend(true);
        }
    }

    /// Locks that are held for long, and an operator that breaks them.
    fn breaks(&mut self, rng: &mut Rng) {
        (self.hold, self.private) = (rng.u64(2_000..6_000), 0);
        for _ in 0..rng.usize(2..6) {
            let at = duration(rng, 50, self.length.as_millis() as u64);
            self.events.push((at, Event::Break { name: rng.usize(0..self.names) }));
        }
    }

    /// Locks that are free most of the time.
    fn silence(&mut self, rng: &mut Rng) {
        (self.kinds, self.private, self.names) = ([3, 0, 0, 1, 0], 80, 3);
        (self.hold, self.pause, self.tasks) = (30, 300, rng.usize(2..=4));
        (self.length, self.rates) = (duration(rng, 8_000, 14_000), Rates::default());
    }

    /// Requests that are not answered for seconds.
    fn holes(&mut self, rng: &mut Rng) {
        for client in 0..self.clients {
            let (at, length) = (duration(rng, 500, 5_000), duration(rng, 3_000, 8_000));
            self.events.push((at, Event::Outage { client, node: 0, length, sort: Outage::Hole }));
        }
    }

    /// Short holds of mutexes, so that names are granted again soon after a loss.
    fn one_counter(&mut self, rng: &mut Rng) {
        (self.kinds, self.private) = ([3, 0, 0, 0, rng.u32(0..2)], 0);
        (self.hold, self.pause) = (rng.u64(1..60), rng.u64(5..60));
        self.counter = Some(COUNTER_RETENTION);
        // Applied again after the faults have ended, a claim of long ago is granted by a server that restarted, and blocks the others.
        self.rates.late = 0;
    }

    /// The counter, all of the server, or what the replica has not got, is lost again and again.
    fn counter_losses(&mut self, rng: &mut Rng) {
        let length = self.length.as_millis() as u64;
        // The clock is not set back by more than the retention in all.
        self.events.retain(|(_, what)| !matches!(what, Event::ServerJump { .. }));
        for _ in 0..rng.usize(0..=3) {
            let (back, by) = (rng.bool(), duration(rng, 1, COUNTER_RETENTION.as_millis() as u64 / 4));
            let by = if back { by } else { by * 8 };
            self.events.push((duration(rng, 50, length), Event::ServerJump { node: 0, by, back }));
        }
        for _ in 0..rng.usize(2..8) {
            let at = duration(rng, 50, length);
            match rng.u32(0..3) {
                0 => self.events.push((at, Event::CounterLost { node: 0 })),
                1 => self.events.push((at, Event::Restart { node: 0 })),
                _ => {
                    self.events.push((at, Event::Replicated { node: 0 }));
                    self.events.push((at + duration(rng, 1, 500), Event::FailOver { node: 0 }));
                }
            }
        }
    }

    /// Nodes that are a little late, one of them down, and callers whose runtimes end.
    fn visits(&mut self, rng: &mut Rng) {
        self.rates = Rates { slow: rng.u32(50..250), ..Rates::default() };
        (self.slowest, self.private) = (200, 30);
        for choice in &mut self.choices {
            let longer = choice.options.clone().expiry(duration(rng, 20_000, 60_000));
            let fits = |options: &Options| options.clone().auto_extend(true).check().is_ok();
            choice.options = longer.ok().filter(fits).unwrap_or(choice.options.clone());
        }
        self.events.retain(|(_, what)| matches!(what, Event::Stall { .. } | Event::Resume { .. }));
        for client in 0..self.clients {
            let (node, at) = (rng.usize(0..self.nodes), duration(rng, 0, 3_000));
            let length = duration(rng, 500, 6_000);
            self.events.push((at, Event::Outage { client, node, length, sort: Outage::Down }));
        }
        for _ in 0..rng.usize(4..10) {
            let (at, client) =
                (duration(rng, 50, self.length.as_millis() as u64), rng.usize(0..self.clients));
            self.events.push((at, Event::Visit { client }));
            self.events.push((at + duration(rng, 1, 60), Event::VisitEnd));
        }
    }
}

fn choice(rng: &mut Rng, request_timeout: Duration) -> Choice {
    let expiry = match rng.u32(0..4) {
        0 => duration(rng, 100, 800),
        1 => request_timeout.max(100 * MS),
        2 => duration(rng, 1_000, 6_000),
        _ => duration(rng, 8_000, 60_000),
    };
    let mut options = Options::new().expiry(expiry).unwrap().request_timeout(request_timeout).unwrap();
    if rng.u32(0..5) == 0 {
        options = options.auto_extend(false);
    }
    let share = *rng.choice(&[0.0, 0.0, 0.0, 0.1, 0.5, 0.9, 0.995]).unwrap();
    if share > 0.0 {
        // A cadence that leaves no time for a second attempt may be refused, and is not used then.
        let cadence = options.clone().extension_cadence(expiry.mul_f64(share));
        let fits = |options: &Options| options.clone().auto_extend(true).check().is_ok();
        options = cadence.ok().filter(fits).unwrap_or(options);
    }
    let longest = *rng.choice(&[20, 100, 800, 20_000, 60_000]).unwrap();
    let shortest = rng.u64(1..=20);
    options = options.busy_wait_sleep(shortest * ms(), longest * ms()).unwrap();
    if rng.u32(0..6) == 0 {
        options = options.hold_at_least(duration(rng, 1, 500)).unwrap();
    }
    options = options.adaptive_backoff(rng.bool());
    let ttl = (longest * 3 * ms()).max(Duration::from_secs(3));
    Choice { options, ttl }
}

fn ms() -> Milliseconds {
    Milliseconds
}

struct Milliseconds;

impl std::ops::Mul<Milliseconds> for u64 {
    type Output = Duration;

    fn mul(self, _: Milliseconds) -> Duration {
        Duration::from_millis(self)
    }
}

fn rates(rng: &mut Rng, mode: Mode) -> Rates {
    let scale = *rng.choice(&[5, 20, 60]).unwrap();
    let mut rate = |odds: u32| if rng.u32(0..odds) == 0 { rng.u32(1..=scale) } else { 0 };
    Rates {
        refused: rate(3),
        lost_reply: rate(3),
        hang_before: rate(3),
        hang_after: rate(3),
        slow: rate(2),
        late: rate(4),
        panic: if mode.no_panics { 0 } else { rate(8) },
        wake_lost: 10 * rate(4),
        wake_late: 10 * rate(2),
        wake_twice: 10 * rate(4),
        subscribe: 5 * rate(5),
    }
}

fn events(rng: &mut Rng, plan: &Plan) -> Vec<(Duration, Event)> {
    let mut list = Vec::new();
    let length = plan.length.as_millis() as u64;
    let whole = |rng: &mut Rng| duration(rng, 50, length * 9 / 10);
    let sorts =
        |rng: &mut Rng, odds: u32, most: usize| if rng.u32(0..odds) == 0 { rng.usize(1..=most) } else { 0 };
    if !plan.guests {
        for _ in 0..sorts(rng, 2, if plan.rates.wake_late >= 100 { 12 } else { 6 }) {
            let (at, client) = (whole(rng), rng.usize(0..plan.clients));
            let longest = *rng.choice(&[100, 1_000, 4_000, 20_000]).unwrap();
            let length = Duration::from_millis(scaled(rng, 5, longest));
            list.push((at, Event::Stall { client, length, hold_messages: rng.bool() }));
            list.push((at + length, Event::Resume { client }));
        }
    }
    for _ in 0..sorts(rng, 2, 4) {
        let (at, client, node) = (whole(rng), rng.usize(0..plan.clients), rng.usize(0..plan.nodes));
        let length = Duration::from_millis(scaled(rng, 20, 8_000));
        let sort = *rng.choice(&[Outage::Down, Outage::Hole, Outage::Hole, Outage::Slow]).unwrap();
        list.push((at, Event::Outage { client, node, length, sort }));
    }
    for _ in 0..sorts(rng, 5, 2) {
        list.push((whole(rng), Event::Crash { client: rng.usize(0..plan.clients) }));
    }
    for _ in 0..sorts(rng, 5, 2) {
        list.push((whole(rng), Event::RuntimeEnd { client: rng.usize(0..plan.clients) }));
    }
    for _ in 0..sorts(rng, 6, 2) {
        list.push((whole(rng), Event::ShutDown { client: rng.usize(0..plan.clients) }));
    }
    for _ in 0..sorts(rng, 4, 3) {
        list.push((whole(rng), Event::StreamsEnd { client: rng.usize(0..plan.clients) }));
    }
    for _ in 0..sorts(rng, 8, 3) {
        let (node, back) = (rng.usize(0..plan.nodes), rng.bool());
        let by = Duration::from_millis(scaled(rng, 1, 10_000));
        list.push((whole(rng), Event::ServerJump { node, by, back }));
    }
    if plan.nodes > 1 {
        for _ in 0..sorts(rng, 3, 3) {
            list.push((whole(rng), Event::Restart { node: rng.usize(0..plan.nodes) }));
        }
    }
    for _ in 0..sorts(rng, 5, 3) {
        list.push((whole(rng), Event::Break { name: rng.usize(0..plan.names) }));
    }
    for _ in 0..sorts(rng, if plan.nodes > 1 { 3 } else { 8 }, 3) {
        let at = whole(rng);
        list.push((at, Event::Visit { client: rng.usize(0..plan.clients) }));
        list.push((at + duration(rng, 1, 150), Event::VisitEnd));
    }
    list.sort_by_key(|(at, _)| *at);
    list
}
