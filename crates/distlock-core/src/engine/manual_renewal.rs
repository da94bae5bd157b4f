//! Renewing one hold because its user asks for it.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::command_channel::Command;
use super::held::Held;
use super::store_call::contained_renewal;
use super::{Shared, telemetry};
use crate::clock::{Moment, sleep_until};
use crate::error::{Error, ErrorKind, Result};
use crate::store::support::errors::too_few_answers;
use crate::store::{Batch, LossReason, Renewal};

/// Why a hold was not renewed.
#[derive(Debug)]
pub(crate) enum RenewFailure {
    Lost(LossReason),
    Failed(Error),
}

/// Renews a hold for its whole expiry. Where it lives with a session, the session's heartbeat does that, and this only says
/// whether it is held.
///
/// # Cancel safety
/// The request goes on in the background, and its answer counts.
pub(super) async fn renew(shared: &Arc<Shared>, held: &Arc<Held>) -> Result<(), RenewFailure> {
    let lost = |held: &Held| held.loss(&*shared.clock).cloned();
    if let Some(reason) = lost(held) {
        return Err(RenewFailure::Lost(reason));
    }
    let Some(side) = &shared.lease else { return Ok(()) };
    let sent = shared.clock.now();
    if sent >= held.renewed_until() {
        return Err(RenewFailure::Failed(past_max_hold()));
    }
    let (reply, answer) = oneshot::channel();
    let (store, of_call, background) = (Arc::clone(&side.store), Arc::clone(held), Arc::clone(shared));
    shared.commands.send(Command::Work(Box::pin(async move {
        let answers = contained_renewal(&*store, &[of_call.lease()]).await;
        // Here and not by the caller, which may have left: the answer counts in any case.
        let _ = reply.send(apply(&background, sent, &of_call, answers));
    })));
    let limit = sent.after(held.options.get_request_timeout()).min(held.deadline());
    tokio::select! {
        biased;
        answered = answer => match answered {
            Ok(Ok(())) => lost(held).map_or(Ok(()), |reason| Err(RenewFailure::Lost(reason))),
            Ok(Err(failure)) => Err(failure),
            Err(_) => Err(RenewFailure::Failed(shared.stopped())),
        },
        () = sleep_until(&*shared.clock, limit) => Err(match lost(held) {
            Some(reason) => RenewFailure::Lost(reason),
            None => RenewFailure::Failed(no_answer(sent, shared.clock.now())),
        }),
    }
}

fn apply(shared: &Shared, sent: Moment, held: &Held, answers: Batch<Renewal>) -> Result<(), RenewFailure> {
    let now = shared.clock.now();
    let answer =
        answers.and_then(|answers| answers.into_iter().next().unwrap_or_else(|| Err(too_few_answers())));
    match answer {
        Ok(Renewal::Renewed) => {
            telemetry::renewed(1, now.since(sent), &shared.store_name);
            // The schedule looks at the deadline when the old one passes.
            held.renewed(sent, now);
            Ok(())
        }
        Ok(Renewal::NotYours) => {
            held.lose(LossReason::NotYours);
            Err(RenewFailure::Lost(LossReason::NotYours))
        }
        Err(error) => {
            telemetry::failed("renew", &error, &shared.store_name);
            held.note_error(&error);
            Err(RenewFailure::Failed(error))
        }
    }
}

fn past_max_hold() -> Error {
    Error::new(
        ErrorKind::InvalidInput,
        "it was held for the longest time allowed, and is not renewed any more",
    )
    .advise("release it and acquire it again, or set a longer max_hold")
}

fn no_answer(sent: Moment, now: Moment) -> Error {
    Error::new(ErrorKind::Unavailable, format!("no answer within {:?}", now.since(sent)))
        .with_unknown_outcome()
        .advise("check that the store runs and can be reached from here")
}
