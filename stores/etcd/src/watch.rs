//! Watches: one stream for all waiters of a store.
//!
//! A subscription delivers events until something goes wrong: the stream ends, the member has no leader, the revision was
//! compacted. Then it ends, and the subscriber reads the state again and subscribes from there. So nothing is missed, and
//! this file keeps no history.

use std::collections::HashMap;
use std::time::Duration;

use futures_util::StreamExt as _;
use tokio::sync::mpsc;
use tonic::Streaming;

use crate::api::event::EventType;
use crate::api::watch_client::WatchClient;
use crate::api::watch_create_request::FilterType;
use crate::api::watch_request::RequestUnion;
use crate::api::*;
use crate::client::{Client, Target};
use crate::error::{self, NextStep};
use crate::keys::KeyRange;

/// How long a stream that no subscription uses stays open.
const IDLE: Duration = Duration::from_secs(60);
/// The pause after a stream that could not be opened.
const PAUSE: Duration = Duration::from_millis(50);

/// Something happened to a watched key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyEvent {
    pub(crate) key: Vec<u8>,
    pub(crate) what: Change,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Written(Vec<u8>),
    Deleted,
}

/// Opens watches.
#[derive(Clone, Debug)]
pub(crate) struct Watches {
    commands: mpsc::UnboundedSender<Command>,
}

#[derive(Debug)]
enum Command {
    Open { request: WatchCreateRequest, events: mpsc::UnboundedSender<Vec<KeyEvent>> },
    Close { id: i64 },
}

/// The events of one watch.
#[derive(Debug)]
pub(crate) struct Subscription {
    id: i64,
    events: mpsc::UnboundedReceiver<Vec<KeyEvent>>,
    commands: mpsc::UnboundedSender<Command>,
}

impl Subscription {
    /// The next events, in order; `None` once events may be missing.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(crate) async fn next(&mut self) -> Option<Vec<KeyEvent>> {
        self.events.recv().await
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let _ = self.commands.send(Command::Close { id: self.id });
    }
}

impl Watches {
    /// Starts the task that owns the stream. It ends with the last handle and the last subscription.
    pub(crate) fn start(client: Client) -> Self {
        let (commands, inbox) = mpsc::unbounded_channel();
        tokio::spawn(run(client, inbox));
        Watches { commands }
    }

    /// Whether the task still runs. It does not once its runtime has ended.
    pub(crate) fn is_running(&self) -> bool {
        !self.commands.is_closed()
    }

    /// Watches keys from this revision on.
    pub(crate) fn open(&self, range: &KeyRange, from: i64, deletions_only: bool) -> Subscription {
        use std::sync::atomic::{AtomicI64, Ordering};
        static NEXT: AtomicI64 = AtomicI64::new(1);
        // The client chooses the number (etcd 3.4), so that replies and events need no matching by order.
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let filters = if deletions_only { vec![FilterType::Noput.into()] } else { Vec::new() };
        let request = WatchCreateRequest {
            key: range.start.clone(),
            range_end: range.end.clone(),
            start_revision: from,
            filters,
            watch_id: id,
            ..WatchCreateRequest::default()
        };
        let (events, receiver) = mpsc::unbounded_channel();
        // If the task has ended, the sender is dropped, and so the subscription ends.
        let _ = self.commands.send(Command::Open { request, events });
        Subscription { id, events: receiver, commands: self.commands.clone() }
    }
}

type Subscribers = HashMap<i64, mpsc::UnboundedSender<Vec<KeyEvent>>>;

async fn run(client: Client, mut inbox: mpsc::UnboundedReceiver<Command>) {
    loop {
        // Without a stream: wait for the first subscription.
        let (request, events) = match inbox.recv().await {
            None => return,
            Some(Command::Close { .. }) => continue,
            Some(Command::Open { request, events }) => (request, events),
        };
        let target = client.target();
        let first = WatchRequest { request_union: Some(RequestUnion::CreateRequest(request.clone())) };
        match open_stream(&client, &target, first).await {
            Ok(stream) => {
                let subscribers = HashMap::from([(request.watch_id, events)]);
                let generation = stream.generation;
                match serve(&client, &target, &mut inbox, stream, subscribers).await {
                    StreamEnd::Closed => return,
                    StreamEnd::Idle => {}
                    StreamEnd::Refused => client.forget_token(generation).await,
                    StreamEnd::Broken => client.fail_over(&target),
                }
            }
            Err(()) => {
                client.fail_over(&target);
                drop(events);
                tokio::time::sleep(PAUSE).await;
            }
        }
        // The subscribers' senders are dropped: they read again.
    }
}

/// Why a stream is not used any more.
enum StreamEnd {
    /// No handle is left.
    Closed,
    /// No subscription needs it.
    Idle,
    /// The server does not accept our token.
    Refused,
    /// It ended, or requests go to another member.
    Broken,
}

struct OpenStream {
    requests: mpsc::UnboundedSender<WatchRequest>,
    replies: Streaming<WatchResponse>,
    /// The login that it was opened with.
    generation: u64,
}

/// Opens a stream. The server sends its headers with the first message, so the first request goes with the opening.
async fn open_stream(client: &Client, target: &Target, first: WatchRequest) -> Result<OpenStream, ()> {
    let (requests, outgoing) = mpsc::unbounded_channel();
    let _ = requests.send(first);
    let outgoing = futures_util::stream::unfold(outgoing, |mut outgoing| async move {
        outgoing.recv().await.map(|request| (request, outgoing))
    });
    let opening = async {
        let (request, generation) = client.request(outgoing, target).await.map_err(|_| ())?;
        let mut watch = WatchClient::new(target.channel()).max_decoding_message_size(usize::MAX);
        match watch.watch(request).await {
            Ok(replies) => Ok((replies.into_inner(), generation)),
            Err(status) => {
                if error::of_status(&status).next == NextStep::Authenticate {
                    client.forget_token(generation).await;
                }
                Err(())
            }
        }
    };
    let opened = tokio::time::timeout(client.limits().reply, opening).await;
    let (replies, generation) = opened.unwrap_or(Err(()))?;
    Ok(OpenStream { requests, replies, generation })
}

/// Serves subscriptions over one stream.
async fn serve(
    client: &Client,
    target: &Target,
    inbox: &mut mpsc::UnboundedReceiver<Command>,
    mut stream: OpenStream,
    mut subscribers: Subscribers,
) -> StreamEnd {
    let mut left = std::pin::pin!(client.left(target));
    loop {
        let idle = subscribers.is_empty();
        let request = tokio::select! {
            command = inbox.recv() => match command {
                None => return StreamEnd::Closed,
                Some(Command::Open { request, events }) => {
                    subscribers.insert(request.watch_id, events);
                    RequestUnion::CreateRequest(request)
                }
                Some(Command::Close { id }) if subscribers.remove(&id).is_some() => {
                    RequestUnion::CancelRequest(WatchCancelRequest { watch_id: id })
                }
                Some(Command::Close { .. }) => continue,
            },
            reply = stream.replies.next() => match reply {
                Some(Ok(reply)) if is_refusal(&reply) => return StreamEnd::Refused,
                Some(Ok(reply)) => {
                    deliver(reply, &mut subscribers);
                    continue;
                }
                Some(Err(status)) => {
                    tracing::debug!(%status, "the watch stream ended");
                    return StreamEnd::Broken;
                }
                None => return StreamEnd::Broken,
            },
            () = &mut left => return StreamEnd::Broken,
            () = tokio::time::sleep(IDLE), if idle => return StreamEnd::Idle,
        };
        if stream.requests.send(WatchRequest { request_union: Some(request) }).is_err() {
            return StreamEnd::Broken;
        }
    }
}

/// A watch that the server refused to create: the token of the stream has expired. Newer servers then name no watch.
fn is_refusal(reply: &WatchResponse) -> bool {
    reply.canceled && reply.created && reply.compact_revision == 0
}

fn deliver(reply: WatchResponse, subscribers: &mut Subscribers) {
    if reply.canceled {
        // Compacted, or refused: the subscriber reads again.
        subscribers.remove(&reply.watch_id);
        return;
    }
    let Some(events) = subscribers.get(&reply.watch_id) else { return };
    let batch: Vec<KeyEvent> = reply
        .events
        .into_iter()
        .filter_map(|event| {
            let deleted = event.r#type == i32::from(EventType::Delete);
            let kv = event.kv?;
            let what = if deleted { Change::Deleted } else { Change::Written(kv.value) };
            Some(KeyEvent { key: kv.key, what })
        })
        .collect();
    // The subscriber is closed with its receiver.
    if !batch.is_empty() {
        let _ = events.send(batch);
    }
}

#[cfg(test)]
mod tests {
    use distlock_testkit::servers::EtcdServer;

    use super::*;
    use crate::client::Limits;

    fn client(server: &EtcdServer) -> Client {
        let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{}", server.addr())).unwrap();
        let limits = Limits { reply: Duration::from_secs(5), total: Duration::from_secs(10) };
        Client::new(vec![(server.addr().to_string(), endpoint)], None, limits)
    }

    async fn next(events: &mut Subscription) -> Option<Vec<KeyEvent>> {
        tokio::time::timeout(Duration::from_secs(20), events.next()).await.expect("events, or the end")
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_subscription_ends_if_events_may_be_missing_and_the_others_go_on() {
        let server = EtcdServer::start();
        let watches = Watches::start(client(&server));
        for number in 0..10 {
            server.etcdctl(&["put", "old", &number.to_string()]);
        }
        server.etcdctl(&["compact", "8"]);
        let key = |name: &str| KeyRange::one(name.as_bytes().to_vec());
        let mut live = watches.open(&key("live"), 9, false);
        let mut compacted = watches.open(&key("old"), 3, false);
        assert_eq!(next(&mut compacted).await, None, "compacted");
        server.etcdctl(&["put", "live", "1"]);
        server.etcdctl(&["del", "live"]);
        let mut seen = Vec::new();
        while seen.len() < 2 {
            seen.extend(next(&mut live).await.expect("a live watch").into_iter().map(|event| event.what));
        }
        assert_eq!(seen, [Change::Written(b"1".to_vec()), Change::Deleted]);
        // Without its server every subscription ends, and works again afterwards.
        server.kill();
        assert_eq!(next(&mut live).await, None, "the stream ended");
        server.start_again();
        loop {
            let mut again = watches.open(&key("old"), 9, true);
            server.etcdctl(&["del", "old"]);
            if next(&mut again).await.is_some() {
                break;
            }
            server.etcdctl(&["put", "old", "again"]);
        }
    }
}
