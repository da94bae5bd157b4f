//! The fault of a request: drawn from the seed, once for each.

use std::time::Duration;

use crate::plan::Outage;
use crate::world::World;

/// What happens to one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestFault {
    Fine,
    Refused,
    LostReply,
    HangBefore,
    HangAfter,
    /// Applied twice, the second time this much later.
    Twice(Duration),
    /// Reported as failed, and applied this much later.
    Early(Duration),
    PanicBefore,
    PanicAfter,
}

#[derive(Clone, Copy, Debug)]
pub struct RequestPlan {
    pub there: Duration,
    pub back: Duration,
    pub fault: RequestFault,
    /// Its caller may fail.
    pub faulted: bool,
}

impl RequestPlan {
    /// Draws what happens to the next request of a client to a node.
    pub fn draw(world: &World, slot: usize, node: usize) -> RequestPlan {
        let mut rng = world.rng();
        let latency = world.plan.latency;
        let (there, back) = (sleeping(&mut rng, latency), sleeping(&mut rng, latency));
        let mut passage = RequestPlan { there, back, fault: RequestFault::Fine, faulted: false };
        if world.is_healed() {
            return passage;
        }
        let outage = world.outages.lock().unwrap()[slot][node];
        if let Some((_, sort)) = outage.filter(|(until, _)| *until > world.time()) {
            passage.faulted = true;
            match sort {
                Outage::Down => passage.fault = RequestFault::Refused,
                Outage::Hole => passage.fault = RequestFault::HangBefore,
                Outage::Slow => {
                    passage.there += sleeping(&mut rng, 1_500);
                    passage.back += sleeping(&mut rng, 1_500);
                }
            }
            return passage;
        }
        let rates = world.plan.rates;
        let mut odds = [
            rates.refused,
            rates.lost_reply,
            rates.hang_before,
            rates.hang_after,
            rates.slow,
            rates.late,
            rates.panic,
        ]
        .into_iter();
        let mut drawn = rng.u32(0..1000);
        let mut hit = |odds: Option<u32>| {
            let odds = odds.unwrap_or(0);
            let hit = drawn < odds;
            drawn = if hit { u32::MAX } else { drawn.saturating_sub(odds) };
            hit
        };
        passage.fault = if hit(odds.next()) {
            RequestFault::Refused
        } else if hit(odds.next()) {
            RequestFault::LostReply
        } else if hit(odds.next()) {
            RequestFault::HangBefore
        } else if hit(odds.next()) {
            RequestFault::HangAfter
        } else if hit(odds.next()) {
            let longest = (*rng.choice(&[60, 200, 2_000, 10_000]).unwrap()).min(world.plan.slowest);
            let delay = Duration::from_millis(rng.u64(longest / 2..=longest));
            if rng.bool() {
                passage.there += delay
            } else {
                passage.back += delay
            }
            // Late, but not so late that a caller may time out.
            passage.faulted = longest > 200 || 2 * delay > world.plan.request_timeout;
            return passage;
        } else if hit(odds.next()) {
            let after = Duration::from_millis(rng.u64(1..=5_000));
            if rng.bool() { RequestFault::Twice(after) } else { RequestFault::Early(after) }
        } else if hit(odds.next()) {
            if rng.bool() { RequestFault::PanicBefore } else { RequestFault::PanicAfter }
        } else {
            RequestFault::Fine
        };
        passage.faulted = !matches!(passage.fault, RequestFault::Fine | RequestFault::Twice(_));
        passage
    }

    pub fn shown(&self) -> String {
        match self.fault {
            RequestFault::Fine if !self.faulted => String::new(),
            fault => format!(" [{fault:?} {:?} {:?}]", self.there, self.back),
        }
    }
}

pub fn sleeping(rng: &mut fastrand::Rng, longest: u64) -> Duration {
    Duration::from_millis(rng.u64(0..=longest))
}
