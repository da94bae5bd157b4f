//! Semaphores whose capacity changed: what clients that name another number have.

use std::collections::HashMap;
use std::time::Duration;

use distlock_core::Result;
use distlock_core::store::Claim;
use distlock_core::store::support::errors;

use crate::connection::Param;
use crate::rows;
use crate::session::{Reservation, is_alive, may_have_guards};
use crate::store::StoreState;

/// Permits in slots that a claim does not take, because its capacity ends before them.
#[derive(Debug, Default)]
pub(crate) struct Beyond {
    /// Those of live sessions. They count against its capacity.
    pub(crate) in_use: u32,
    /// Those of sessions that ended. Their guards may last for a while.
    ended: Vec<Ended>,
}

#[derive(Debug)]
struct Ended {
    id: Vec<u8>,
    session: String,
    hold: Duration,
}

impl Beyond {
    /// Refuses another capacity than that of clients that hold it or wait for it, unless the claim resizes.
    pub(crate) async fn of(state: &StoreState, claim: &Claim, reservation: &Reservation) -> Result<Self> {
        let params: Vec<Param> =
            vec![reservation.name.key().into(), i32::try_from(claim.capacity).unwrap_or(i32::MAX).into()];
        let session = &reservation.session;
        let mut alive: HashMap<String, bool> = HashMap::new();
        let mut beyond = Beyond::default();
        for row in session.query(&state.statements.pool_others, params).await? {
            let row = Some(&row);
            let theirs = rows::text(row, "session")?;
            let is_alive = match alive.get(&theirs) {
                Some(alive) => *alive,
                None => is_alive(state, session, &theirs).await?,
            };
            alive.insert(theirs.clone(), is_alive);
            if is_alive && !claim.resizes {
                let capacity: u32 = rows::number(row, "capacity")?;
                return Err(errors::capacity_mismatch(&claim.resource, capacity, claim.capacity));
            }
            if rows::number::<i64>(row, "slot")? < i64::from(claim.capacity) {
                // A waiter, or a slot that the claim tries too.
                continue;
            }
            if is_alive {
                beyond.in_use += 1;
            } else {
                let hold = match may_have_guards(state, session, &theirs).await? {
                    true => Duration::from_micros(rows::number(row, "hold_us")?),
                    false => Duration::ZERO,
                };
                beyond.ended.push(Ended { id: rows::bytes(row, "id")?, session: theirs, hold });
            }
        }
        Ok(beyond)
    }

    /// Ended sessions of which guards may be left, and for how long from their end on.
    pub(crate) fn pending(&self) -> impl Iterator<Item = (&str, Duration)> {
        self.ended.iter().filter(|ended| !ended.hold.is_zero()).map(|ended| (&*ended.session, ended.hold))
    }

    /// Deletes the rows of ended sessions. Their guards are lost by now.
    pub(crate) async fn bury(&mut self, state: &StoreState, reservation: &Reservation) -> Result<()> {
        for ended in self.ended.drain(..) {
            let params: Vec<Param> = vec![
                reservation.name.key().into(),
                ended.id.as_slice().into(),
                ended.session.as_str().into(),
            ];
            reservation.session.query(&state.statements.sweep, params).await?;
        }
        Ok(())
    }

    /// Whether so many permits more fit. Only while we hold the queue: then permits are released and none are taken.
    pub(crate) async fn leaves(
        &self,
        state: &StoreState,
        claim: &Claim,
        reservation: &Reservation,
        missing: u32,
    ) -> Result<bool> {
        if self.in_use == 0 {
            return Ok(true);
        }
        let params: Vec<Param> = vec![
            reservation.name.slots().into(),
            state.config.principal.as_str().into(),
            i32::try_from(claim.capacity).unwrap_or(i32::MAX).into(),
        ];
        let rows = reservation.session.query(&state.statements.pool_free, params).await?;
        let free: u32 = rows::number(rows.first(), "free")?;
        Ok(free >= missing.saturating_add(self.in_use))
    }
}
