//! Wake-ups: one change stream per inbox, open only while the inbox has waiters. Its filter selects what is addressed to
//! this inbox: messages in the queue collection, and mutexes that were handed to one of its lock ids.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use distlock_core::store::{GRANT_WINDOW, Inbox, Wake, WakeStream};
use distlock_core::{LockId, Result};
use futures_core::Stream;
use futures_util::StreamExt;
use mongodb::bson::{Bson, Document, doc};
use mongodb::change_stream::ChangeStream;
use mongodb::options::{ReadConcern, ReadPreference, SelectionCriteria};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::documents::{date_ms, whole_ms};
use crate::error::{self, number};
use crate::mutex;
use crate::state::StoreState;
use crate::waiter_cache::{HandoffAction, HandoffEvent};
use crate::wake_messages::{InboxAddress, lock_ids_of, parse};

/// Opens the stream. A task of its own drives it: the driver's futures are not cancel-safe.
pub(crate) async fn subscribe(state: &Arc<StoreState>, inbox: &Inbox) -> Result<WakeStream> {
    let database = state.commands.database().clone();
    let (pipeline, longest_silence) = (pipeline(state, inbox), state.longest_silence);
    let opening = tokio::spawn(async move {
        database
            .watch()
            .pipeline(pipeline)
            .max_await_time(longest_silence)
            .read_concern(ReadConcern::majority())
            .selection_criteria(SelectionCriteria::ReadPreference(ReadPreference::Primary))
            .await
    });
    let opened = opening.await.map_err(|_| error::task_ended("opening a change stream"))?;
    let stream = opened.map_err(|error| error::from_driver(&error))?.with_type::<Document>();
    let (sender, receiver) = unbounded_channel();
    tokio::spawn(forward(Arc::clone(state), InboxAddress::of(inbox), stream, sender));
    Ok(Box::pin(WakeReceiver(receiver)))
}

/// Selects what is addressed to the inbox. An event shows a small document as a whole (`replace`) and a large one by the
/// fields that changed (`update`).
fn pipeline(state: &StoreState, inbox: &Inbox) -> Vec<Document> {
    let names = state.commands.names();
    let message = doc! { "$regex": format!("^{} ", InboxAddress::of(inbox).as_str()), "$options": "m" };
    let lock_id = doc! { "$regex": lock_ids_of(inbox) };
    // A hold that this process acquired or renewed itself lasts longer than the window of a handoff.
    let is_in_window = |of: &str| {
        let lasts = doc! { "$subtract": [format!("${of}.expiresAt"), format!("${of}.acquiredAt")] };
        doc! { "$lte": [lasts, whole_ms(GRANT_WINDOW)] }
    };
    let (changed, whole) = ("updateDescription.updatedFields", "fullDocument");
    let mut events: Vec<Bson> = Vec::new();
    for of in [changed, whole] {
        events.push(doc! { "ns.coll": &names.queues, format!("{of}.wake"): message.clone() }.into());
        let handoff = doc! {
            // An inserted document is not a handoff.
            "operationType": { "$ne": "insert" },
            "ns.coll": &names.locks,
            format!("{of}.lockId"): lock_id.clone(),
            "$expr": is_in_window(of),
        };
        events.push(handoff.into());
    }
    let fields = ["wake", "lockId", "acquiredAt", "expiresAt", "fencingToken"];
    let mut shown = doc! { "ns.coll": 1 };
    for of in [changed, whole] {
        shown.extend(fields.iter().map(|field| (format!("{of}.{field}"), Bson::Int32(1))));
    }
    vec![
        doc! { "$match": { "operationType": { "$in": ["insert", "update", "replace"] }, "$or": events } },
        doc! { "$project": shown },
    ]
}

/// Drives the stream until it breaks or its receiver is dropped.
async fn forward(
    state: Arc<StoreState>,
    address: InboxAddress,
    mut stream: ChangeStream<Document>,
    sender: UnboundedSender<Wake>,
) {
    loop {
        let event = tokio::select! {
            event = stream.next() => event,
            () = sender.closed() => return,
        };
        match event {
            Some(Ok(event)) => {
                for wake in wakes(&state, &address, &event) {
                    if sender.send(wake).is_err() {
                        return;
                    }
                }
            }
            Some(Err(error)) => {
                tracing::debug!(error = %error::from_driver(&error), "the change stream of wake-ups broke");
                return;
            }
            None => return,
        }
    }
}

fn wakes(state: &Arc<StoreState>, address: &InboxAddress, event: &Document) -> Vec<Wake> {
    let changed =
        event.get_document("updateDescription").and_then(|update| update.get_document("updatedFields"));
    let Ok(fields) = changed.or_else(|_| event.get_document("fullDocument")) else { return Vec::new() };
    if let Ok(text) = fields.get_str("wake") {
        return parse(text, address);
    }
    let Ok(lock_id) = fields.get_str("lockId") else { return Vec::new() };
    handoff(state, LockId::from_stored(lock_id), fields).into_iter().collect()
}

/// A mutex was handed to a lock id of this inbox.
fn handoff(state: &Arc<StoreState>, lock_id: LockId, fields: &Document) -> Option<Wake> {
    let event = HandoffEvent {
        acquired_at: date_ms(fields, "acquiredAt"),
        expires_at: date_ms(fields, "expiresAt"),
        token: fields.get("fencingToken").and_then(number),
    };
    match state.waiters.handed_off(&lock_id, event) {
        HandoffAction::Wake(wake) => Some(wake),
        HandoffAction::Ignore => None,
        HandoffAction::PassOn { name } => {
            // A token that is not known is below every one: the handoff finds it out.
            let token = event.token.unwrap_or(i64::MIN);
            tokio::spawn(mutex::pass_on(Arc::clone(state), name, lock_id, token));
            None
        }
    }
}

/// Dropping it ends the task that drives the stream, which closes its cursor.
struct WakeReceiver(UnboundedReceiver<Wake>);

impl Stream for WakeReceiver {
    type Item = Wake;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Wake>> {
        self.0.poll_recv(context)
    }
}
