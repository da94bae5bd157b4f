//! Waiting behind others of this process, and what an attempt or a time limit means there: contention only if the store
//! said so of late, or this process holds the lock; otherwise the store is asked.

use std::sync::Arc;
use std::time::Duration;

use super::lines::{Entry, Place, Probe, Turn};
use super::{Ask, Shared, Wait, telemetry};
use crate::clock::{Moment, sleep_until};
use crate::error::{Error, ErrorKind, Result};

/// How long the store may take to answer the one in front before one of those behind asks for itself.
const GRACE: Duration = Duration::from_millis(500);

/// Where standing in line led to.
pub(super) enum Standing {
    /// The first place.
    First(Place),
    /// Not first, and it is unknown whether the lock is contended: one attempt past the line, with a time limit.
    Probe { probe: Probe, limit: Duration },
    /// Contended.
    Busy,
}

/// Who answers those behind while the one in front waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answers {
    /// The one in front asks again and again, and tells the others what it hears.
    Front,
    /// The server does the waiting and says nothing meanwhile.
    Store,
}

/// Waits for the first place in this process's line, as long as asked.
pub(super) async fn stand_in_line(
    shared: &Arc<Shared>,
    ask: &Ask,
    wait: Wait,
    answers: Answers,
) -> Result<Standing> {
    let request = ask.options.get_request_timeout();
    if wait == Wait::Once {
        return first_word(shared, ask, answers, request, request).await;
    }
    let receiver = match shared.lines.enter(&ask.resource) {
        Entry::Behind(receiver) => receiver,
        Entry::First(place) => return Ok(Standing::First(place)),
        Entry::Busy | Entry::Probe(_) => return Ok(Standing::Busy),
    };
    telemetry::waiting(&ask.resource, None);
    tokio::select! {
        biased;
        // First: a place that a guard leaves because the engine ended must not be used to ask the store.
        () = shared.closing.cancelled() => return Err(shared.stopped()),
        turn = receiver => match turn {
            Ok(Turn::First(place)) => return Ok(Standing::First(place)),
            Ok(Turn::Failed(error)) => return Err(error),
            Ok(Turn::Busy | Turn::Again) => return Ok(Standing::Busy),
            Err(_) => return Err(shared.stopped()),
        },
        () = sleep_until(&*shared.clock, wait.limit()) => {}
    }
    if let Some(error) = shared.lines.failing(&ask.resource) {
        return Err(error);
    }
    let longest = 2 * GRACE.min(request / 2);
    first_word(shared, ask, answers, longest, longest / 2).await
}

/// The store's next word on the lock, through the one in front or by an attempt of our own of at most `limit`.
async fn first_word(
    shared: &Arc<Shared>,
    ask: &Ask,
    answers: Answers,
    longest: Duration,
    limit: Duration,
) -> Result<Standing> {
    let begun = shared.clock.now();
    let mut may_probe = answers == Answers::Store;
    let limit = if may_probe { ask.options.get_request_timeout() } else { limit };
    let grace = begun.after(GRACE.min(longest / 2));
    loop {
        let receiver = match shared.lines.enter_once(&ask.resource, shared.clock.now(), may_probe) {
            Entry::First(place) => return Ok(Standing::First(place)),
            Entry::Busy => return Ok(Standing::Busy),
            Entry::Probe(probe) => return Ok(Standing::Probe { probe, limit }),
            Entry::Behind(receiver) => receiver,
        };
        let until: Moment = if may_probe { begun.after(longest) } else { grace };
        tokio::select! {
            biased;
            () = shared.closing.cancelled() => return Err(shared.stopped()),
            turn = receiver => match turn {
                Ok(Turn::First(place)) => return Ok(Standing::First(place)),
                Ok(Turn::Busy) => return Ok(Standing::Busy),
                Ok(Turn::Failed(error)) => return Err(error),
                Ok(Turn::Again) => {}
                Err(_) => return Err(shared.stopped()),
            },
            () = sleep_until(&*shared.clock, until) => {
                if may_probe {
                    return Err(unanswered(longest));
                }
                may_probe = true;
            }
        }
    }
}

fn unanswered(after: Duration) -> Error {
    let what = format!("no answer within {after:?} to any acquisition of this process");
    Error::new(ErrorKind::Unavailable, what)
        .doing("acquire")
        .advise("check that the store runs and can be reached from here")
}
