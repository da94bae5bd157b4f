//! After a holder that did not release: its session ended. The next one has the lock then, and is granted it as soon as no guard of
//! the holder is left:
//! - its rows are gone: its process heard of the end, its guards are lost, and it deleted them; or
//! - no session of its process is left; or
//! - the time has passed that its row names (see [`ended_session`](distlock_core::store::support::ended_session)).

use std::time::Duration;

use distlock_core::store::Claim;
use distlock_core::store::support::ended_session::{at_least, at_most, wait_until};
use distlock_core::store::support::errors;
use distlock_core::{CancellationToken, Moment, Result};

use super::{LockSession, Reservation, may_have_guards};
use crate::connection::Param;
use crate::lock_name::id_key;
use crate::rows;
use crate::store::StoreState;

/// How often the rows are looked at: at first, and at last.
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LAST_PAUSE: Duration = Duration::from_millis(100);

/// A lock that a session has and that is not granted yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Drawn {
    pub(crate) token: i64,
    /// How long earlier holders may believe that they hold it.
    pub(crate) pending: Duration,
    /// The session had the lock by then.
    pub(crate) since: Moment,
}

/// Whether the lock can be granted; false if it was withdrawn before. Rows of holders that did not release are deleted, or keep what
/// is left of their time.
pub(crate) async fn settle(
    state: &StoreState,
    claim: &Claim,
    reservation: &Reservation,
    shared: i32,
    drawn: Drawn,
    withdraw: Option<&CancellationToken>,
) -> Result<bool> {
    let session = &reservation.session;
    let clock = state.sessions.clock();
    let mut params: Vec<Param> = vec![
        reservation.name.key().into(),
        (&id_key(claim.lock_id.as_str())).into(),
        drawn.token.into(),
        shared.into(),
    ];
    let (mut left, mut pause) = (drawn.pending, FIRST_PAUSE);
    while !left.is_zero() && session.is_usable() {
        left = longest_hold(state, session, params.clone()).await?;
        let (now, until) = (clock.now(), drawn.since.after(at_least(left)));
        if left.is_zero() || now >= until {
            break;
        }
        if !wait_until(&*clock, until.min(now.after(pause)), session.session(), withdraw).await {
            let paid = at_most(clock.now().since(drawn.since));
            params.push(i64::try_from(paid.as_micros()).unwrap_or(i64::MAX).into());
            session.query(&state.statements.paid, params).await?;
            return Ok(false);
        }
        pause = LAST_PAUSE.min(pause * 2);
    }
    if !session.is_usable() || clock.now() >= session.session().deadline() {
        return Err(errors::connection_lost("the session has ended"));
    }
    if !drawn.pending.is_zero() {
        session.query(&state.statements.settled, params).await?;
    }
    Ok(true)
}

/// How long the guards of those who did not release may last from the end of their sessions on.
async fn longest_hold(state: &StoreState, session: &LockSession, params: Vec<Param>) -> Result<Duration> {
    let mut longest = Duration::ZERO;
    for row in session.query(&state.statements.pending, params).await? {
        let hold = Duration::from_micros(rows::number(Some(&row), "hold_us")?);
        let ended = rows::text(Some(&row), "session")?;
        if hold > longest && may_have_guards(state, session, &ended).await? {
            longest = hold;
        }
    }
    Ok(longest)
}
