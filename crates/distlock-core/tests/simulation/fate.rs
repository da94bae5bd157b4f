//! What becomes of a request on its way: drawn from the seed, once for each.

use std::time::Duration;

use crate::plan::Outage;
use crate::world::World;

/// What becomes of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Fine,
    Refused,
    LostReply,
    HangBefore,
    HangAfter,
    /// Applied once more, this much later.
    Twice(Duration),
    /// The caller is told that it failed, and it is applied this much later.
    Early(Duration),
    PanicBefore,
    PanicAfter,
}

#[derive(Clone, Copy, Debug)]
pub struct Passage {
    pub there: Duration,
    pub back: Duration,
    pub fate: Fate,
    /// Whoever waits for it may rightly fail.
    pub faulted: bool,
}

impl Passage {
    /// What happens to the next request of a client to a node.
    pub fn draw(world: &World, slot: usize, node: usize) -> Passage {
        let mut rng = world.rng();
        let latency = world.plan.latency;
        let (there, back) = (sleeping(&mut rng, latency), sleeping(&mut rng, latency));
        let mut passage = Passage { there, back, fate: Fate::Fine, faulted: false };
        if world.is_healed() {
            return passage;
        }
        let outage = world.outages.lock().unwrap()[slot][node];
        if let Some((_, sort)) = outage.filter(|(until, _)| *until > world.time()) {
            passage.faulted = true;
            match sort {
                Outage::Down => passage.fate = Fate::Refused,
                Outage::Hole => passage.fate = Fate::HangBefore,
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
        passage.fate = if hit(odds.next()) {
            Fate::Refused
        } else if hit(odds.next()) {
            Fate::LostReply
        } else if hit(odds.next()) {
            Fate::HangBefore
        } else if hit(odds.next()) {
            Fate::HangAfter
        } else if hit(odds.next()) {
            let longest = (*rng.choice(&[60, 200, 2_000, 10_000]).unwrap()).min(world.plan.slowest);
            let delay = Duration::from_millis(rng.u64(longest / 2..=longest));
            if rng.bool() {
                passage.there += delay
            } else {
                passage.back += delay
            }
            // Late, but not so late that a caller may give up.
            passage.faulted = longest > 200 || 2 * delay > world.plan.request_timeout;
            return passage;
        } else if hit(odds.next()) {
            let after = Duration::from_millis(rng.u64(1..=5_000));
            if rng.bool() { Fate::Twice(after) } else { Fate::Early(after) }
        } else if hit(odds.next()) {
            if rng.bool() { Fate::PanicBefore } else { Fate::PanicAfter }
        } else {
            Fate::Fine
        };
        passage.faulted = !matches!(passage.fate, Fate::Fine | Fate::Twice(_));
        passage
    }

    pub fn shown(&self) -> String {
        match self.fate {
            Fate::Fine if !self.faulted => String::new(),
            fate => format!(" [{fate:?} {:?} {:?}]", self.there, self.back),
        }
    }
}

pub fn sleeping(rng: &mut fastrand::Rng, longest: u64) -> Duration {
    Duration::from_millis(rng.u64(0..=longest))
}
