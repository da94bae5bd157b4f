//! Wake-ups: one change stream for each inbox, open only while somebody waits. It shows what is addressed to us and
//! nothing else: messages in the collection of queues, and mutexes that were handed to one of our lock ids.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use distlock_core::store::{GRANT_WINDOW, Inbox, Wake, WakeStream};
use distlock_core::{LockId, Result};
use futures_core::Stream;
use futures_util::StreamExt;
use mongodb::bson::{Bson, Document, doc};
use mongodb::change_stream::ChangeStream;
use mongodb::options::{ReadConcern, ReadPreference, SelectionCriteria};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::core::Core;
use crate::failure::{self, number};
use crate::known::Arrival;
use crate::lock;
use crate::message::{Address, Message, own_lock_ids, read};

/// How long the server keeps a request for more without news.
const LONGEST_SILENCE: Duration = Duration::from_secs(10);

/// Opens the stream. It runs in a task of its own: the driver's futures must not be dropped half-way.
pub(crate) async fn subscribe(core: &Arc<Core>, inbox: &Inbox) -> Result<WakeStream> {
    let database = core.wire.database().clone();
    let pipeline = pipeline(core, inbox);
    let opening = tokio::spawn(async move {
        database
            .watch()
            .pipeline(pipeline)
            .max_await_time(LONGEST_SILENCE)
            .read_concern(ReadConcern::majority())
            .selection_criteria(SelectionCriteria::ReadPreference(ReadPreference::Primary))
            .await
    });
    let opened = opening.await.map_err(|_| failure::odd("the task that opened a stream ended early"))?;
    let stream = opened.map_err(|error| failure::from_driver(&error))?.with_type::<Document>();
    let (sender, receiver) = unbounded_channel();
    tokio::spawn(forward(Arc::clone(core), Address::of(inbox), stream, sender));
    Ok(Box::pin(Wakes(receiver)))
}

/// What is for us. Small documents are told as a whole (`replace`), large ones by what changed (`update`).
fn pipeline(core: &Core, inbox: &Inbox) -> Vec<Document> {
    let names = core.wire.names();
    let window = i64::try_from(GRANT_WINDOW.as_millis()).unwrap_or(i64::MAX);
    let message = doc! { "$regex": format!("^{} ", Address::of(inbox).as_str()), "$options": "m" };
    let lock_id = doc! { "$regex": own_lock_ids(inbox) };
    // What we took ourselves, and what we extended, is held for longer than what is handed over.
    let short = |of: &str| {
        let lasts = doc! { "$subtract": [format!("${of}.expiresAt"), format!("${of}.acquiredAt")] };
        doc! { "$expr": { "$lte": [lasts, window] } }
    };
    let (changed, whole) = ("updateDescription.updatedFields", "fullDocument");
    let mut handed = Vec::new();
    let mut told = Vec::new();
    for of in [changed, whole] {
        // A document that is inserted is no handoff.
        let mut lock = doc! {
            "operationType": { "$ne": "insert" },
            "ns.coll": &names.locks,
            format!("{of}.lockId"): lock_id.clone(),
        };
        lock.extend(short(of));
        handed.push(lock);
        told.push(doc! { "ns.coll": &names.queues, format!("{of}.wake"): message.clone() });
    }
    let any: Vec<Bson> = told.into_iter().chain(handed).map(Bson::Document).collect();
    let fields = ["wake", "lockId", "acquiredAt", "expiresAt", "fencingToken"];
    let mut shown = doc! { "ns.coll": 1 };
    for of in [changed, whole] {
        shown.extend(fields.iter().map(|field| (format!("{of}.{field}"), Bson::Int32(1))));
    }
    vec![
        doc! { "$match": { "operationType": { "$in": ["insert", "update", "replace"] }, "$or": any } },
        doc! { "$project": shown },
    ]
}

/// Drives the stream until it breaks or nobody listens any more.
async fn forward(
    core: Arc<Core>,
    address: Address,
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
                for wake in wakes(&core, &address, &event) {
                    if sender.send(wake).is_err() {
                        return;
                    }
                }
            }
            Some(Err(error)) => {
                tracing::debug!(error = %failure::from_driver(&error), "the stream of wake-ups broke");
                return;
            }
            None => return,
        }
    }
}

fn wakes(core: &Arc<Core>, address: &Address, event: &Document) -> Vec<Wake> {
    let changed =
        event.get_document("updateDescription").and_then(|update| update.get_document("updatedFields"));
    let Ok(fields) = changed.or_else(|_| event.get_document("fullDocument")) else { return Vec::new() };
    if let Ok(text) = fields.get_str("wake") {
        return read(text, address).into_iter().filter_map(|message| heard(core, message)).collect();
    }
    let Ok(lock_id) = fields.get_str("lockId") else { return Vec::new() };
    handed(core, &LockId::from_stored(lock_id), fields).into_iter().collect()
}

fn heard(core: &Core, message: Message) -> Option<Wake> {
    match message {
        Message::Granted { lock_id, grant } => Some(Wake::granted(lock_id, grant)),
        Message::AskAgain { lock_id } => Some(Wake::retry(lock_id)),
        Message::Broken { lock_id } => Some(Wake::broken(lock_id)),
        Message::Next { lock_id, next } => {
            core.known.followed_by(&lock_id, next);
            None
        }
    }
}

/// A mutex was handed to one of our lock ids.
fn handed(core: &Arc<Core>, lock_id: &LockId, fields: &Document) -> Option<Wake> {
    let moment = |key| fields.get_datetime(key).ok().map(|moment| moment.timestamp_millis());
    let (Some(acquired_at), Some(expires_at), Some(token)) =
        (moment("acquiredAt"), moment("expiresAt"), fields.get("fencingToken").and_then(number))
    else {
        // A field that did not change is not told: the same millisecond as before, for instance.
        return Some(Wake::retry(lock_id.clone()));
    };
    match core.known.arrived(lock_id, acquired_at, expires_at, token) {
        Arrival::Tell(wake) => Some(wake),
        Arrival::Old => None,
        Arrival::PassOn { name, next } => {
            tokio::spawn(lock::pass_on(Arc::clone(core), name, lock_id.clone(), next));
            None
        }
    }
}

/// The wake-ups. Dropping it lets the task end that drives the stream, which then closes its cursor.
struct Wakes(UnboundedReceiver<Wake>);

impl Stream for Wakes {
    type Item = Wake;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Wake>> {
        self.0.poll_recv(context)
    }
}
