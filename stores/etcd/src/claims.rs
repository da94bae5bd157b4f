//! The claims of a session, holders and waiters. A process may hold very many locks, so what is kept of each is small: its key is
//! known by its hash, and the caller that releases a lock knows the key itself.

use std::collections::HashMap;

use distlock_core::Moment;
use distlock_core::store::Session;
use sha2::{Digest, Sha256};

use crate::txn::ClaimKey;

/// How many holders are marked at one renewal.
const MARKED_AT_ONCE: usize = 32;

/// A claim's key, hashed. Two keys have one hash as rarely as two lock ids have one text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ClaimId([u8; 16]);

impl ClaimId {
    pub(crate) fn of(key: &[u8]) -> Self {
        let digest: [u8; 32] = Sha256::digest(key).into();
        let mut id = [0; 16];
        id.copy_from_slice(&digest[..16]);
        ClaimId(id)
    }
}

/// A key that holds and does not say so yet: the value to write, and the creation revision.
pub(crate) type Unmarked = (ClaimKey, i64);

/// What its holder must know to delete a claim's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kept {
    /// The creation revision of the key.
    pub(crate) revision: i64,
    /// An enter of it may still be in flight.
    pub(crate) uncertain: bool,
}

#[derive(Debug)]
struct ClaimState {
    /// The life of this claim alone: it ends with the session, or when the claim is broken.
    life: Session,
    /// The round of checks in which it was granted; 0 while it waits. A check that began later must find its key.
    granted: u32,
    /// The last round of checks that found its key.
    found: u32,
    /// Its acquisition is complete.
    is_kept: bool,
    uncertain: bool,
    revision: i64,
}

#[derive(Debug)]
pub(crate) struct Claims {
    by_id: HashMap<ClaimId, ClaimState>,
    /// Few claims are in here: of most, the key says from the beginning that they hold.
    unmarked: HashMap<ClaimId, Unmarked>,
    /// Counts the checks.
    round: u32,
}

impl Default for Claims {
    fn default() -> Self {
        Claims { by_id: HashMap::new(), unmarked: HashMap::new(), round: 1 }
    }
}

impl Claims {
    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Adds a claim that waits.
    pub(crate) fn add(&mut self, id: ClaimId, life: Session) {
        let claim = ClaimState { life, granted: 0, found: 0, is_kept: false, uncertain: false, revision: 0 };
        self.by_id.insert(id, claim);
    }

    /// Notes that a claim holds, until this moment for now.
    pub(crate) fn granted(&mut self, id: ClaimId, until: Moment, unmarked: Option<Unmarked>) {
        let Some(claim) = self.by_id.get_mut(&id) else { return };
        claim.granted = self.round;
        claim.life.keep_until(until);
        if let Some(unmarked) = unmarked {
            self.unmarked.insert(id, unmarked);
        }
    }

    /// Notes what is needed to release a claim that holds.
    pub(crate) fn keep(&mut self, id: ClaimId, kept: Kept) {
        if let Some(claim) = self.by_id.get_mut(&id) {
            (claim.is_kept, claim.revision, claim.uncertain) = (true, kept.revision, kept.uncertain);
        }
    }

    pub(crate) fn remove(&mut self, id: ClaimId) {
        self.by_id.remove(&id);
        self.unmarked.remove(&id);
    }

    /// Removes a claim that was kept. `None`: there is none, or its acquisition is not complete.
    pub(crate) fn take(&mut self, id: ClaimId) -> Option<Kept> {
        let claim = self.by_id.get(&id).filter(|claim| claim.is_kept)?;
        let kept = Kept { revision: claim.revision, uncertain: claim.uncertain };
        self.remove(id);
        Some(kept)
    }

    /// Some holders whose keys do not say that they hold.
    pub(crate) fn take_unmarked(&mut self) -> Vec<Unmarked> {
        let some: Vec<ClaimId> = self.unmarked.keys().take(MARKED_AT_ONCE).copied().collect();
        some.into_iter().filter_map(|id| self.unmarked.remove(&id)).collect()
    }

    pub(crate) fn life(&self, id: ClaimId) -> Option<Session> {
        self.by_id.get(&id).map(|claim| claim.life.clone())
    }

    pub(crate) fn lives(&self) -> impl Iterator<Item = &Session> {
        self.by_id.values().map(|claim| &claim.life)
    }

    /// Begins a check: what is granted from now on need not be found by it.
    pub(crate) fn begin_check(&mut self) -> u32 {
        self.round += 1;
        self.round
    }

    /// Ends a check that found these keys. Returns the lives of the holders whose keys it should have found and did not.
    pub(crate) fn end_check(&mut self, round: u32, found: impl IntoIterator<Item = ClaimId>) -> Vec<Session> {
        for id in found {
            if let Some(claim) = self.by_id.get_mut(&id) {
                claim.found = round;
            }
        }
        let is_gone = |claim: &&ClaimState| (1..round).contains(&claim.granted) && claim.found != round;
        self.by_id.values().filter(is_gone).map(|claim| claim.life.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use distlock_core::store::LossReason;

    use super::*;

    fn id(name: &str) -> ClaimId {
        ClaimId::of(name.as_bytes())
    }

    fn add(claims: &mut Claims, name: &str) -> Session {
        let life = Session::new();
        claims.add(id(name), life.clone());
        life
    }

    fn grant(claims: &mut Claims, name: &str) -> Session {
        let life = add(claims, name);
        claims.granted(id(name), Moment::NEVER, None);
        life
    }

    fn check(claims: &mut Claims, found: &[&str]) {
        let round = claims.begin_check();
        for life in claims.end_check(round, found.iter().map(|name| id(name))) {
            life.end(LossReason::NotYours);
        }
    }

    #[test]
    fn a_check_loses_the_holders_that_it_did_not_find_and_no_other_claim() {
        let mut claims = Claims::default();
        let (kept, gone, waiting) =
            (grant(&mut claims, "kept"), grant(&mut claims, "gone"), add(&mut claims, "waiting"));
        check(&mut claims, &["kept", "gone", "of another session"]);
        assert!(gone.ended().is_none());
        check(&mut claims, &["kept"]);
        assert!(kept.ended().is_none() && waiting.ended().is_none());
        assert_eq!(gone.ended(), Some(&LossReason::NotYours));
    }

    #[test]
    fn a_claim_that_was_granted_during_a_check_is_not_lost_by_it() {
        let mut claims = Claims::default();
        let before = grant(&mut claims, "before");
        let round = claims.begin_check();
        let during = grant(&mut claims, "during");
        // Released and acquired again under the same key: the reply may be older.
        claims.remove(id("before"));
        let again = grant(&mut claims, "before");
        assert!(claims.end_check(round, []).is_empty());
        check(&mut claims, &[]);
        assert!(before.ended().is_none() && during.ended().is_some() && again.ended().is_some());
    }

    #[test]
    fn a_claim_whose_acquisition_is_not_complete_is_not_released() {
        let mut claims = Claims::default();
        grant(&mut claims, "a");
        assert_eq!(claims.take(id("a")), None);
        let kept = Kept { revision: 7, uncertain: true };
        claims.keep(id("a"), kept);
        assert_eq!(
            (claims.take(id("b")), claims.take(id("a")), claims.take(id("a"))),
            (None, Some(kept), None)
        );
        assert_eq!(claims.len(), 0);
    }
}
