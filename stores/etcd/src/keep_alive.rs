//! Keeps a session's lease alive.
//!
//! A renewal counts only if a quorum confirms it. A leader that was paused or cut off answers renewals by itself until it
//! learns of its successor, which may have ended the lease already. So each renewal is followed by a linearizable read at the
//! same member; if both replies have the same raft term, the leader that renewed was the leader afterwards too.

use std::sync::Arc;
use std::time::Duration;

use distlock_core::store::LossReason;
use distlock_core::store::support::errors;
use distlock_core::{Moment, Result};
use futures_util::StreamExt as _;
use tokio::sync::mpsc;
use tonic::Streaming;

use crate::api::lease_client::LeaseClient;
use crate::api::*;
use crate::client::Target;
use crate::error::{self, Failure, NextStep};
use crate::session::{EtcdSession, local_deadline};
use crate::txn;

/// The shortest time that an attempt gets.
const SHORTEST_ATTEMPT: Duration = Duration::from_millis(250);
/// The pauses after failed attempts.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LAST_PAUSE: Duration = Duration::from_millis(250);
/// A session that no claim has used for this long, and for its time-to-live, is ended.
const IDLE: Duration = Duration::from_secs(5);

/// What came of a renewal.
enum Renewal {
    Renewed { until: Moment },
    Ended(LossReason),
}

/// An open stream of keep-alives. One request is in flight at a time, so that each reply answers the last one.
struct KeepAliveStream {
    target: Target,
    requests: mpsc::UnboundedSender<LeaseKeepAliveRequest>,
    replies: Streaming<LeaseKeepAliveResponse>,
}

/// Renews until the session ends. `sent` is when the request of the last renewal was sent.
pub(crate) async fn run(session: Arc<EtcdSession>, mut sent: Moment) {
    let mut stream = None;
    let mut pause = FIRST_PAUSE;
    let mut failed: Option<String> = None;
    loop {
        let now = session.clock.now();
        let deadline = session.life.deadline();
        let due = if failed.is_some() { now.after(pause) } else { sent.after(session.cadence()) };
        // In short steps: the runtime's timer does not count suspended time, and a claim may shorten the cadence.
        let sleep = due.min(deadline).since(now).min(Duration::from_millis(500));
        tokio::select! {
            // Ended by the server, or by the deletion of its key: what is left of it goes too.
            () = session.life.wait_for_end() => return session.revoke().await,
            () = session.closing().cancelled() => return close(&session).await,
            () = tokio::time::sleep(sleep) => {}
        }
        let now = session.clock.now();
        if now >= session.life.deadline() {
            // A reply that comes now does not revive it: its holders were told that they lost.
            session.end(LossReason::Expired { last_error: failed });
            return session.revoke().await;
        }
        if now < due {
            continue;
        }
        if session.end_if_idle(IDLE.max(session.ttl)) {
            return session.revoke().await;
        }
        let begun = session.clock.now();
        match renew(&session, &mut stream, begun).await {
            Ok(Renewal::Renewed { until }) => {
                sent = begun;
                (failed, pause) = (None, FIRST_PAUSE);
                if session.is_alive() {
                    session.keep_until(until);
                    let marking = Arc::clone(&session);
                    tokio::spawn(async move { marking.mark_holders().await });
                }
            }
            Ok(Renewal::Ended(reason)) => return session.end(reason),
            Err(failure) => {
                tracing::debug!(error = %failure.error, lease = session.key.lease, "a session was not renewed");
                pause = if failed.is_some() { (pause * 2).min(LAST_PAUSE) } else { FIRST_PAUSE };
                failed = Some(failure.error.to_string());
            }
        }
    }
}

/// Ends the session of a store that is dropped.
async fn close(session: &EtcdSession) {
    session.end(LossReason::ShutDown);
    session.revoke().await;
}

/// One renewal, at one member. After a failure the next one goes to another member.
async fn renew(
    session: &EtcdSession,
    stream: &mut Option<KeepAliveStream>,
    sent: Moment,
) -> Result<Renewal, Failure> {
    let target = stream.as_ref().map_or_else(|| session.client.target(), |open| open.target.clone());
    let renewed = renew_at(session, stream, &target, sent).await;
    if renewed.is_err() {
        *stream = None;
        session.client.fail_over(&target);
    }
    renewed
}

async fn renew_at(
    session: &EtcdSession,
    stream: &mut Option<KeepAliveStream>,
    target: &Target,
    sent: Moment,
) -> Result<Renewal, Failure> {
    let limit = session.client.limits().reply.min((session.ttl / 4).max(SHORTEST_ATTEMPT));
    let reply = match tokio::time::timeout(limit, keep_alive(session, stream, target)).await {
        Ok(reply) => reply?,
        Err(_) => return Err(Failure::no_reply(limit)),
    };
    if reply.ttl <= 0 {
        return Ok(Renewal::Ended(LossReason::SessionEnded("the server ended the session's lease".into())));
    }
    let round = session.begin_check();
    let lease = LeaseTimeToLiveRequest { id: session.key.lease, keys: true };
    let attached = session.client.send_to(target, lease, limit).await?;
    // The read that confirms both: it is answered only if a quorum follows the leader.
    let own = session.client.send_to(target, txn::get(&session.key.key), limit).await?;
    if !have_one_leader(&[reply.header, attached.header, own.header]) {
        return Err(Failure::fail_over(errors::unavailable("the leader changed during a renewal")));
    }
    session.saw_own_key(own.kvs.first());
    if let Some(reason) = session.life.ended() {
        return Ok(Renewal::Ended(reason.clone()));
    }
    if attached.ttl > 0 {
        session.end_check(round, &attached.keys);
    }
    let ttl = Duration::from_secs(u64::try_from(reply.ttl).unwrap_or(0));
    Ok(Renewal::Renewed { until: local_deadline(sent, ttl) })
}

/// Whether these replies were all given under the same leader. A leader that was paused or cut off answers with its old term;
/// the read after it is answered under the new one.
fn have_one_leader(replies: &[Option<ResponseHeader>]) -> bool {
    let mut terms = replies.iter().map(|header| header.as_ref().map(|header| header.raft_term));
    terms.next().is_some_and(|first| first.is_some() && terms.all(|other| other == first))
}

/// Sends a keep-alive over the stream, which is opened if there is none.
async fn keep_alive(
    session: &EtcdSession,
    stream: &mut Option<KeepAliveStream>,
    target: &Target,
) -> Result<LeaseKeepAliveResponse, Failure> {
    let request = LeaseKeepAliveRequest { id: session.key.lease };
    let open = match stream {
        Some(open) => {
            let _ = open.requests.send(request);
            open
        }
        None => stream.insert(open_stream(session, target.clone(), request).await?),
    };
    match open.replies.next().await {
        Some(Ok(reply)) => Ok(reply),
        Some(Err(status)) => Err(error::of_status(&status)),
        None => Err(Failure::fail_over(errors::connection_lost("the server ended the keep-alive stream"))),
    }
}

/// Opens a stream. The server sends its headers with the first message, so the first request goes with the opening.
async fn open_stream(
    session: &EtcdSession,
    target: Target,
    first: LeaseKeepAliveRequest,
) -> Result<KeepAliveStream, Failure> {
    let (requests, outgoing) = mpsc::unbounded_channel();
    let _ = requests.send(first);
    let outgoing = futures_util::stream::unfold(outgoing, |mut outgoing| async move {
        outgoing.recv().await.map(|request| (request, outgoing))
    });
    let (request, generation) = session.client.request(outgoing, &target).await?;
    match LeaseClient::new(target.channel()).lease_keep_alive(request).await {
        Ok(replies) => Ok(KeepAliveStream { target, requests, replies: replies.into_inner() }),
        Err(status) => {
            let failure = error::of_status(&status);
            if failure.next == NextStep::Authenticate {
                session.client.forget_token(generation).await;
            }
            Err(failure)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn under(term: u64) -> Option<ResponseHeader> {
        Some(ResponseHeader { raft_term: term, ..ResponseHeader::default() })
    }

    #[test]
    fn a_renewal_by_a_leader_that_was_replaced_does_not_count() {
        assert!(have_one_leader(&[under(7), under(7), under(7)]));
        assert!(!have_one_leader(&[under(7), under(7), under(8)]), "the read came after an election");
        assert!(!have_one_leader(&[under(7), under(8), under(8)]), "the renewal is the old leader's");
        assert!(!have_one_leader(&[None, under(7), under(7)]), "a reply without a header proves nothing");
        assert!(!have_one_leader(&[under(7), under(7), None]));
        assert!(!have_one_leader(&[None, None, None]) && !have_one_leader(&[]));
    }
}
