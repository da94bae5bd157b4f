//! Acquiring on a session store: the server does the waiting.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::contain::contained;
use super::desk::Mail;
use super::held::{Grant, Held};
use super::lane::{AcquireVerb, silent};
use super::local_queue::{Answers, Standing, stand_in_line};
use super::{Ask, Shared, Wait};
use crate::clock::sleep_until;
use crate::error::{Error, ErrorKind, Result};
use crate::resource::{FencingToken, RecordKind};
use crate::store::{Backend, Claim, Lease, SessionHold};

type Answer = Result<Option<SessionHold>>;

pub(super) async fn acquire(shared: &Arc<Shared>, ask: &Ask, wait: Wait) -> Result<Option<Arc<Held>>> {
    let Backend::Session(store) = &shared.backend else {
        return Err(Error::new(ErrorKind::Internal, "a session store was expected"));
    };
    let (place, probe) = match ask.resource.kind().record() {
        RecordKind::Pool => (None, None),
        RecordKind::Lock => match stand_in_line(shared, ask, wait, Answers::Store).await? {
            Standing::First(place) => (Some(place), None),
            Standing::Probe { probe, .. } => (None, Some(probe)),
            Standing::Busy => return Ok(None),
        },
    };
    let wait = if probe.is_some() { Wait::Once } else { wait };
    let claim = Claim {
        resource: ask.resource.clone(),
        lock_id: shared.ids.next(),
        weight: ask.weight,
        capacity: ask.capacity,
        expiry: ask.options.get_expiry(),
        waiting: None,
        no_overtaking: ask.no_overtaking,
    };
    let withdraw = CancellationToken::new();
    if wait == Wait::Once {
        withdraw.cancel();
    }
    // Dropped with this future: then the store withdraws, and what comes of it all the same is released below.
    let _withdraw_on_drop = withdraw.clone().drop_guard();
    let (reply, answer) = oneshot::channel::<Answer>();
    let call = {
        let (store, claim, desk) = (Arc::clone(store), claim.clone(), Arc::clone(&shared.desk));
        let withdraw = withdraw.clone();
        async move {
            // The caller left before the engine's task came to this: nothing was asked of the store yet.
            if reply.is_closed() {
                return;
            }
            let answer =
                contained(&*store, "acquire", async { store.acquire(&claim, &withdraw).await }).await;
            let unknown = matches!(&answer, Err(error) if error.is_outcome_unknown());
            let unheard = reply.send(answer);
            if unknown || matches!(unheard, Err(Ok(Some(_)))) {
                desk.post(Mail::Forget(Lease::of(&claim, FencingToken::new(0))));
            }
        }
    };
    shared.desk.post(Mail::Work(Box::pin(call)));
    let received = Received { shared, claim, answer: Some(answer) };
    let hold = received.wait(wait, &withdraw, ask.options.get_request_timeout()).await;
    match (probe, &hold) {
        (Some(probe), Ok(_)) => probe.answered(shared.clock.now()),
        (Some(probe), Err(error)) => probe.failed(error),
        (None, _) => {}
    }
    let Some((claim, hold)) = hold? else { return Ok(None) };
    let held = Held::share(Grant {
        lease: Lease::of(&claim, hold.token),
        deadline: hold.session.deadline(),
        granted_at: shared.clock.now(),
        options: Arc::clone(&ask.options),
        session: Some(hold.session.clone()),
        place,
    });
    shared.watch(hold.session.deadline(), &held);
    let dependent: Weak<Held> = Arc::downgrade(&held);
    hold.session.bind(dependent);
    Ok(Some(held))
}

/// An answer that may be there although nobody has looked yet: then dropping must give it back.
struct Received<'a> {
    shared: &'a Arc<Shared>,
    claim: Claim,
    answer: Option<oneshot::Receiver<Answer>>,
}

impl Received<'_> {
    async fn wait(
        mut self,
        wait: Wait,
        withdraw: &CancellationToken,
        patience: Duration,
    ) -> Result<Option<(Claim, SessionHold)>> {
        let shared = self.shared;
        let Some(answer) = &mut self.answer else { return Ok(None) };
        let limit = if wait == Wait::Once { shared.clock.now() } else { wait.limit() };
        let hold = tokio::select! {
            biased;
            hold = &mut *answer => hold,
            () = shared.closing.cancelled() => return Err(shared.stopped()),
            () = sleep_until(&*shared.clock, limit) => {
                // At the limit the store is told to stop; what it answers then still counts. One that does not
                // answer at all is down, and must not look like contention.
                withdraw.cancel();
                tokio::time::timeout(patience, &mut *answer).await.map_err(|_| silent::<AcquireVerb>(patience))?
            }
        };
        self.answer = None;
        match hold {
            Ok(Ok(Some(hold))) => Ok(Some((self.claim.clone(), hold))),
            Ok(Ok(None)) => Ok(None),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(shared.stopped()),
        }
    }
}

impl Drop for Received<'_> {
    fn drop(&mut self) {
        if let Some(mut answer) = self.answer.take() {
            answer.close();
            if let Ok(Ok(Some(_))) = answer.try_recv() {
                self.shared.desk.post(Mail::Forget(Lease::of(&self.claim, FencingToken::new(0))));
            }
        }
    }
}
