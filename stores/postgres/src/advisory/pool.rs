//! Semaphores: permits in a row, held as long as the session that has them. A release grants to whoever is next, and
//! tells its session; nobody polls.

use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use distlock_core::store::{Attempt, Claim, Holder, Inbox, Lease, SessionHold, Waiting};
use distlock_core::{CancellationToken, Error, ErrorKind, FencingToken, LockId, Resource, Result};
use tokio::sync::oneshot;
use tokio_postgres::Row;

use super::home::Home;
use super::{Inner, watch};
use crate::failure;
use crate::names::Key;
use crate::questions::{self, Questions};
use crate::statement::{Patience, Statement, Tables};
use crate::values::get;

/// Longer than any session.
const FOR_EVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
/// How often a permit is released again whose row another session keeps locked.
const LATER: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(super) struct Statements {
    step: Statement,
    break_lock: Statement,
}

impl Statements {
    pub(super) fn new(tables: &Tables) -> Self {
        Statements {
            step: questions::step(6, tables, true),
            break_lock: questions::break_step(10, tables, true),
        }
    }
}

/// Asks about one semaphore. A row that another session keeps locked is an error soon, and the next time at once: other
/// guards depend on the session that asks.
async fn ask(store: &Inner, home: &Home, key: &Key, questions: &Questions) -> Result<Vec<Row>> {
    let locked = || store.locked.lock().unwrap_or_else(PoisonError::into_inner);
    let patience = if locked().contains(&key.key) { Patience::Brief } else { Patience::Usual };
    let rows = home.seat.wire.run_with(&store.pool.step, &questions.parameters(), patience).await;
    let rows = rows.map_err(|error| failure::of_statement(&error));
    match &rows {
        Err(error) if failure::is_row_locked(error) => {
            locked().insert(key.key.clone());
        }
        _ => {
            locked().remove(&key.key);
        }
    }
    rows
}

/// What came of a claim, and which sessions are in the way.
struct Answer {
    attempt: Attempt,
    in_the_way: Vec<i64>,
}

pub(super) async fn acquire(
    store: &Arc<Inner>,
    claim: &Claim,
    withdraw: &CancellationToken,
) -> Result<Option<SessionHold>> {
    claim.check_weight()?;
    let home = store.home().await?;
    let key = Key::of(&claim.resource, home.seat.wire.server.utf8);
    let mut claim = claim.clone();
    claim.expiry = FOR_EVER;
    if !withdraw.is_cancelled() {
        claim.waiting = Some(Waiting::new(Inbox::new(home.seat.channel.as_str()), FOR_EVER, 1));
    }
    // Before anything is asked for: a permit can be granted and broken before the waiter hears of either.
    let session = home.seat.welcome(&claim.lock_id);
    let mut granted = home.enlist(&claim.lock_id);
    let outcome = get_in(store, &home, &key, &claim, withdraw, &mut granted).await;
    home.strike(&claim.lock_id);
    let outcome = match outcome {
        Ok(Some(token)) => match home.seat.verify().await {
            Ok(()) => return Ok(Some(SessionHold { token, session })),
            Err(error) => {
                home.seat.cut("the server did not answer in time");
                Err(error)
            }
        },
        Ok(None) if claim.waiting.is_none() => Ok(None),
        // Nothing of the claim may be left: neither as waiter nor as holder.
        Ok(None) => give_back(store, &home, key, &claim.lock_id).await.map(|()| None),
        Err(error) => {
            if error.kind() != ErrorKind::Mismatch {
                let _ = give_back(store, &home, key, &claim.lock_id).await;
            }
            Err(error)
        }
    };
    home.seat.dismiss(&claim.lock_id);
    outcome
}

/// Asks, and waits to be told.
async fn get_in(
    store: &Arc<Inner>,
    home: &Arc<Home>,
    key: &Key,
    claim: &Claim,
    withdraw: &CancellationToken,
    granted: &mut oneshot::Receiver<u64>,
) -> Result<Option<FencingToken>> {
    let ended = home.seat.life.clone();
    loop {
        let answer = ask_once(store, home, key, claim).await?;
        if let Attempt::Granted { token, .. } = answer.attempt {
            return Ok(Some(token));
        }
        if claim.waiting.is_none() {
            return Ok(None);
        }
        tokio::select! {
            biased;
            token = &mut *granted => return Ok(token.ok().map(FencingToken::new)),
            () = withdraw.cancelled() => return Ok(None),
            () = ended.wait_for_end() => {
                return Err(Error::new(ErrorKind::Unavailable, "the session ended while it waited"));
            }
            () = watch::until_somebody_died(store, &key.key, &answer.in_the_way) => {}
        }
    }
}

async fn ask_once(store: &Inner, home: &Home, key: &Key, claim: &Claim) -> Result<Answer> {
    loop {
        let mut questions = Questions::of_sessions();
        questions.acquire(key.clone(), claim, Some(home.seat.channel.clone()));
        let rows = ask(store, home, key, &questions).await?;
        let row = rows
            .first()
            .ok_or_else(|| Error::new(ErrorKind::Internal, "no answer").with_unknown_outcome())?;
        let Some(attempt) = questions::attempt(row, claim)? else { continue };
        let holding: Option<Vec<String>> = get(row, "holding")?;
        let others = holding.into_iter().flatten().filter(|channel| *channel != home.seat.channel);
        let in_the_way = others.filter_map(|channel| alive_lock(&channel)).collect();
        return Ok(Answer { attempt, in_the_way });
    }
}

/// The lock that stands for a session, from its channel.
fn alive_lock(channel: &str) -> Option<i64> {
    u64::from_str_radix(channel.strip_prefix("dl_")?, 16).ok().map(u64::cast_signed)
}

/// Takes a lock id out, as waiter and as holder.
async fn take_out(store: &Inner, home: &Home, key: &Key, id: &LockId) -> Result<()> {
    let mut questions = Questions::of_sessions();
    questions.release(key.clone(), id);
    ask(store, home, key, &questions).await.map(drop)
}

/// Takes out what sessions left behind that ended.
pub(super) async fn forget(store: &Inner, home: &Home, key: Key) -> Result<()> {
    take_out(store, home, &key, &LockId::from_stored("")).await
}

async fn give_back(store: &Arc<Inner>, home: &Arc<Home>, key: Key, id: &LockId) -> Result<()> {
    let given = take_out(store, home, &key, id).await;
    match &given {
        Ok(()) => {}
        // Others depend on the session: it does not end for a row that will be free again.
        Err(error) if failure::is_row_locked(error) => {
            tokio::spawn(give_back_later(Arc::downgrade(store), Arc::downgrade(home), key, id.clone()));
        }
        Err(_) => home.seat.cut("a permit could not be given back"),
    }
    given
}

/// Tries again until the row is free, or the session is gone and its permits with it.
async fn give_back_later(store: Weak<Inner>, home: Weak<Home>, key: Key, id: LockId) {
    loop {
        tokio::time::sleep(LATER).await;
        let (Some(store), Some(home)) = (store.upgrade(), home.upgrade()) else { return };
        if !home.seat.is_alive() {
            return;
        }
        match take_out(&store, &home, &key, &id).await {
            Err(error) if failure::is_row_locked(&error) => {}
            Ok(()) => return,
            Err(_) => return home.seat.cut("a permit could not be given back"),
        }
    }
}

/// Gives back what the session has under this lock id. What an older session had went with it.
pub(super) async fn release(store: &Arc<Inner>, lease: &Lease) -> Result<()> {
    let Some(home) = store.current_home() else { return Ok(()) };
    if home.seat.dismiss(&lease.lock_id).is_none() {
        return Ok(());
    }
    if !home.seat.is_alive() {
        home.seat.cut("a permit was given back with it");
        return Ok(());
    }
    let key = Key::of(&lease.resource, home.seat.wire.server.utf8);
    give_back(store, &home, key, &lease.lock_id).await
}

pub(super) async fn break_lock(store: &Inner, resource: &Resource) -> Result<Vec<Holder>> {
    let home = store.home().await?;
    let mut questions = Questions::of_sessions();
    questions.break_lock(Key::of(resource, home.seat.wire.server.utf8));
    // One step: a session does not renew, so that a holder which is not told would never find out.
    let rows = home.seat.wire.run(&store.pool.break_lock, &questions.parameters()).await;
    questions::broken(&rows.map_err(|error| failure::of_statement(&error))?, true)
}
