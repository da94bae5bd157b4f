//! The few commands that the store sends: an update of one document, many updates in one command, and a read of many
//! documents.
//!
//! They are sent as plain commands, not through the driver's methods. Those retry a write after a lost connection, for
//! which the server keeps a copy of every document it returned. Our updates can be repeated under their lock id, and the
//! engine resolves unknown outcomes.

use std::collections::HashMap;
use std::time::Instant;

use distlock_core::{Error, Result};
use mongodb::bson::{Bson, Document, Timestamp, doc};
use mongodb::error::ErrorKind as DriverKind;
use mongodb::options::SelectionCriteria;
use mongodb::{Client, Database};

use crate::config::Names;
use crate::error;
use crate::raw_bson::RawElements;
use crate::update_outcome::UpdateOutcome;

/// One of the two collections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Namespace {
    /// The mutexes, shared with other programs.
    Locks,
    /// The pools, and the wait queues of mutexes.
    Queues,
}

/// When a write counts as done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Durability {
    /// Journaled by a majority: what only the primary has is rolled back at a fail-over.
    Majority,
    /// Applied by the primary: for hints. Change streams show them only once a majority has them.
    Primary,
}

/// How long a write waits for its majority, so that requests do not pile up on a primary that lost its majority.
const MAJORITY_TIMEOUT_MS: i64 = 10_000;

impl Durability {
    pub(crate) fn write_concern(self) -> Document {
        match self {
            Durability::Majority => doc! { "w": "majority", "j": true, "wtimeout": MAJORITY_TIMEOUT_MS },
            Durability::Primary => doc! { "w": 1 },
        }
    }
}

/// How often an upsert that collides with another one is sent.
const UPSERT_ATTEMPTS: usize = 8;

/// An atomic update of one document.
#[derive(Clone, Debug)]
pub(crate) struct DocumentUpdate {
    pub(crate) id: String,
    /// What must hold of the document besides its id.
    pub(crate) filter: Document,
    pub(crate) pipeline: Vec<Document>,
    /// Whether the document is created if it does not exist.
    pub(crate) upsert: bool,
}

impl DocumentUpdate {
    fn query(&self) -> Document {
        let mut query = doc! { "_id": &self.id };
        query.extend(self.filter.clone());
        query
    }

    fn pipeline(&self) -> Vec<Bson> {
        self.pipeline.iter().cloned().map(Bson::Document).collect()
    }
}

/// An atomic update of each of several documents with one pipeline: far less work for the server than one update each.
#[derive(Clone, Debug)]
pub(crate) struct MultiUpdate {
    pub(crate) ids: Vec<String>,
    /// What must hold of a document besides its id.
    pub(crate) filter: Document,
    pub(crate) pipeline: Vec<Document>,
}

/// The most documents of one [`MultiUpdate`]. Its pipeline searches a list of them for each document, so two lists are
/// cheaper than one of several hundred.
pub(crate) const MULTI_UPDATE_SIZE: usize = 128;

/// A document to create unless it exists.
#[derive(Clone, Debug)]
pub(crate) struct NewDocument {
    pub(crate) id: String,
    pub(crate) fields: Document,
}

/// Which image of the document an update returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Image {
    Before,
    After,
}

/// A document, and the server's clock in milliseconds when it was read. Servers before 4.4 do not send their clock.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    pub(crate) document: Document,
    pub(crate) now: Option<i64>,
}

/// Documents by their id, and when the request for them was sent.
#[derive(Clone, Debug)]
pub(crate) struct Reading {
    pub(crate) found: HashMap<String, Snapshot>,
    pub(crate) sent: Instant,
}

/// A command that failed: the server's error code, if the server answered, and the error for the caller.
#[derive(Debug)]
pub(crate) struct CommandFailure {
    pub(crate) code: Option<i32>,
    pub(crate) error: Error,
}

impl From<mongodb::error::Error> for CommandFailure {
    fn from(error: mongodb::error::Error) -> Self {
        let code = match &*error.kind {
            DriverKind::Command(command) => Some(command.code),
            _ => None,
        };
        CommandFailure { code, error: error::from_driver(&error) }
    }
}

/// A reply, unless a majority did not confirm the write.
fn confirmed(reply: Document) -> Result<Document, CommandFailure> {
    match error::in_reply(&reply) {
        Some(error) => Err(CommandFailure { code: None, error }),
        None => Ok(reply),
    }
}

/// Sends commands to the primary of one database.
#[derive(Clone, Debug)]
pub(crate) struct Commands {
    database: Database,
    names: Names,
    /// Whether a projection may contain expressions (4.4): replies then carry the server's clock.
    has_projection_expressions: bool,
}

impl Commands {
    pub(crate) fn new(client: &Client, names: Names, has_projection_expressions: bool) -> Self {
        Commands { database: client.database(&names.database), names, has_projection_expressions }
    }

    pub(crate) fn database(&self) -> &Database {
        &self.database
    }

    pub(crate) fn names(&self) -> &Names {
        &self.names
    }

    pub(crate) fn collection(&self, namespace: Namespace) -> &str {
        match namespace {
            Namespace::Locks => &self.names.locks,
            Namespace::Queues => &self.names.queues,
        }
    }

    /// Sends any command.
    pub(crate) async fn run(&self, command: Document) -> Result<Document> {
        self.try_run(command).await.map_err(|failure| failure.error)
    }

    /// [`run`](Self::run), for callers that expect certain error codes.
    pub(crate) async fn try_run(&self, command: Document) -> Result<Document, CommandFailure> {
        confirmed(self.database.run_command(command).await?)
    }

    /// Sends a command to any database, and to the server that `server` selects.
    pub(crate) async fn run_on(
        &self,
        database: &str,
        command: Document,
        server: Option<SelectionCriteria>,
    ) -> Result<Document> {
        let database = self.database.client().database(database);
        let command = database.run_command(command);
        let reply = match server {
            Some(server) => command.selection_criteria(server).await,
            None => command.await,
        };
        reply.map_err(|error| error::from_driver(&error))
    }

    fn projection(&self) -> Option<Document> {
        self.has_projection_expressions.then(|| doc! { "now": "$$NOW", "doc": "$$ROOT" })
    }

    fn snapshot(&self, mut document: Document) -> Result<Snapshot> {
        if !self.has_projection_expressions {
            return Ok(Snapshot { document, now: None });
        }
        let now = document.get_datetime("now").map(|now| now.timestamp_millis()).ok();
        match document.remove("doc") {
            Some(Bson::Document(document)) => Ok(Snapshot { document, now }),
            _ => Err(error::unexpected_reply("a projection without the document")),
        }
    }

    /// Updates one document with `findAndModify`. `None`: no document matched.
    pub(crate) async fn find_and_modify(
        &self,
        namespace: Namespace,
        update: &DocumentUpdate,
        image: Image,
        durability: Durability,
    ) -> Result<Option<Snapshot>> {
        let modified = self.modify(namespace, update, image, durability, self.projection()).await;
        match modified.map_err(|failure| failure.error)? {
            Some(value) => self.snapshot(value).map(Some),
            None => Ok(None),
        }
    }

    /// [`find_and_modify`](Self::find_and_modify) of a lock document, without the server's clock: the projection that shows it
    /// is a fifth of the server's work for a small update. So is a query plan, which a filter beside the id needs.
    pub(crate) async fn modify_lock(
        &self,
        update: &DocumentUpdate,
    ) -> Result<Option<Document>, CommandFailure> {
        self.modify(Namespace::Locks, update, Image::After, Durability::Majority, None).await
    }

    async fn modify(
        &self,
        namespace: Namespace,
        update: &DocumentUpdate,
        image: Image,
        durability: Durability,
        projection: Option<Document>,
    ) -> Result<Option<Document>, CommandFailure> {
        let mut command = doc! {
            "findAndModify": self.collection(namespace),
            "query": update.query(),
            "update": update.pipeline(),
            "upsert": update.upsert,
            "new": image == Image::After,
            "writeConcern": durability.write_concern(),
        };
        if let Some(fields) = projection {
            command.insert("fields", fields);
        }
        for _ in 0..UPSERT_ATTEMPTS {
            let mut reply = match self.try_run(command.clone()).await {
                Err(failure) if failure.code == Some(error::DUPLICATE_KEY) && update.upsert => continue,
                reply => reply?,
            };
            return match reply.remove("value") {
                Some(Bson::Document(value)) => Ok(Some(value)),
                _ => Ok(None),
            };
        }
        // The document exists whenever it is to be created, and never matches the filter.
        Err(CommandFailure { code: None, error: error::foreign_document(self.collection(namespace)) })
    }

    /// Many updates in one command, in any order, with one wait for the majority.
    pub(crate) async fn update_each(
        &self,
        namespace: Namespace,
        updates: &[DocumentUpdate],
    ) -> Result<UpdateOutcome> {
        let updates = updates.iter().map(|update| {
            Bson::Document(doc! { "q": update.query(), "u": update.pipeline(), "upsert": update.upsert })
        });
        self.update(namespace, updates.collect()).await
    }

    /// Creates the documents that do not exist, then runs the updates, in one command. The outcome has the failed updates
    /// by their index in `updates`.
    pub(crate) async fn update_many(
        &self,
        namespace: Namespace,
        new: Vec<NewDocument>,
        updates: Vec<MultiUpdate>,
    ) -> Result<UpdateOutcome> {
        let created = new.len();
        let create = |new: NewDocument| {
            doc! { "q": { "_id": new.id }, "u": { "$setOnInsert": new.fields }, "upsert": true }
        };
        let update = |update: MultiUpdate| {
            let mut query = doc! { "_id": { "$in": update.ids } };
            query.extend(update.filter);
            // Without the hint the server may choose an index that examines other documents too.
            doc! { "q": query, "u": update.pipeline, "multi": true, "hint": { "_id": 1 } }
        };
        let all = new.into_iter().map(create).chain(updates.into_iter().map(update));
        let mut outcome = self.update(namespace, all.map(Bson::Document).collect()).await?;
        // A document that could not be created exists, or its update matches nothing.
        outcome.failed = outcome
            .failed
            .into_iter()
            .filter_map(|(index, error)| Some((index.checked_sub(created)?, error)))
            .collect();
        Ok(outcome)
    }

    async fn update(&self, namespace: Namespace, updates: Vec<Bson>) -> Result<UpdateOutcome> {
        let reply = self
            .run(doc! {
                "update": self.collection(namespace),
                "updates": updates,
                "ordered": false,
                "writeConcern": Durability::Majority.write_concern(),
            })
            .await?;
        UpdateOutcome::of(&reply)
    }

    /// The same for updates with long lists: `write` writes each of them, in a command of about `size` bytes.
    pub(crate) async fn update_written<T>(
        &self,
        namespace: Namespace,
        size: usize,
        updates: impl IntoIterator<Item = T>,
        write: impl FnMut(&mut RawElements, T),
    ) -> Result<UpdateOutcome> {
        let concern = RawElements::of_tree(&Durability::Majority.write_concern())?;
        let command = RawElements::document(size, |command| {
            command.text("update", self.collection(namespace));
            command.documents("updates", updates, write);
            command.boolean("ordered", false);
            command.embedded("writeConcern", &concern);
        })?;
        let reply =
            self.database.run_raw_command(command).await.map_err(|error| error::from_driver(&error))?;
        UpdateOutcome::of(&confirmed(reply).map_err(|failure| failure.error)?)
    }

    /// Reads many documents from the primary, as they are after a write at `after`. An older view would miss a confirmed
    /// grant, and the majority view of a newly elected primary may be older.
    pub(crate) async fn read(
        &self,
        namespace: Namespace,
        ids: &[&str],
        after: Option<Timestamp>,
    ) -> Result<HashMap<String, Snapshot>> {
        Ok(self.read_at(namespace, ids, after).await?.found)
    }

    /// [`read`](Self::read), and when it was sent: the server's clock in the answer is not earlier.
    pub(crate) async fn read_at(
        &self,
        namespace: Namespace,
        ids: &[&str],
        after: Option<Timestamp>,
    ) -> Result<Reading> {
        let count = i64::try_from(ids.len()).unwrap_or(i64::MAX);
        let mut command = doc! {
            "find": self.collection(namespace),
            "filter": { "_id": { "$in": ids } },
            "limit": count,
            "batchSize": count,
            "singleBatch": true,
        };
        if let Some(fields) = self.projection() {
            command.insert("projection", fields);
        }
        if let Some(after) = after {
            command.insert("readConcern", doc! { "level": "local", "afterClusterTime": after });
        }
        let sent = Instant::now();
        let mut reply = self.run(command).await?;
        let batch = reply.get_document_mut("cursor").ok().and_then(|cursor| cursor.remove("firstBatch"));
        let Some(Bson::Array(batch)) = batch else {
            return Err(error::unexpected_reply("a cursor without a batch"));
        };
        let mut found = HashMap::with_capacity(batch.len());
        for item in batch {
            let Bson::Document(item) = item else {
                return Err(error::unexpected_reply("a batch of something other than documents"));
            };
            let Ok(id) = item.get_str("_id").map(str::to_owned) else { continue };
            found.insert(id, self.snapshot(item)?);
        }
        Ok(Reading { found, sent })
    }
}
