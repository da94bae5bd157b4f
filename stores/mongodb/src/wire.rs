//! The few commands that everything here is made of: one step on one document, many steps in one command, and a
//! read of many documents.
//!
//! They go out as plain commands, not through the driver's methods: those repeat a write by themselves after a
//! lost connection, for which the server keeps a copy of every document it returned. Our steps can be repeated under
//! their lock id anyway, and what is unknown is the engine's to resolve.

use std::collections::HashMap;

use distlock_core::Result;
use mongodb::bson::{Bson, Document, Timestamp, doc};
use mongodb::options::SelectionCriteria;
use mongodb::{Client, Database};

use crate::config::Names;
use crate::failure;

/// Which of the two collections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// The mutexes, shared with other programs.
    Locks,
    /// Pools, and who waits for a mutex.
    Queues,
}

/// How sure a write must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Concern {
    /// On the disks of a majority: what a primary alone knows is rolled back when another takes over.
    Majority,
    /// For what is only a hint. It is told to nobody before a majority has it either way.
    Hint,
}

/// How long a write waits for its majority at most, so that requests do not pile up on a server that lost it.
const MAJORITY_MS: i64 = 10_000;

impl Concern {
    pub(crate) fn document(self) -> Document {
        match self {
            Concern::Majority => doc! { "w": "majority", "j": true, "wtimeout": MAJORITY_MS },
            Concern::Hint => doc! { "w": 1 },
        }
    }
}

/// How often a step whose upsert met another one is tried.
const RACES: usize = 8;

/// One atomic step on one document.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) id: String,
    /// What must be true of the document beside its id.
    pub(crate) when: Document,
    pub(crate) pipeline: Vec<Document>,
    /// Whether the document is made if there is none.
    pub(crate) upsert: bool,
}

impl Step {
    fn query(&self) -> Document {
        let mut query = doc! { "_id": &self.id };
        query.extend(self.when.clone());
        query
    }

    fn pipeline(&self) -> Vec<Bson> {
        self.pipeline.iter().cloned().map(Bson::Document).collect()
    }
}

/// One atomic step on each of several documents.
#[derive(Clone, Debug)]
pub(crate) struct WideStep {
    pub(crate) ids: Vec<String>,
    /// What must be true of a document beside its id.
    pub(crate) when: Document,
    pub(crate) pipeline: Vec<Document>,
}

/// The most documents that one such step is for. Its pipeline looks up in a list which of them it is at, and the
/// server goes through that list; so a few hundred in one list cost more than a second list.
pub(crate) const WIDEST: usize = 128;

/// A document that is made if there is none of its id.
#[derive(Clone, Debug)]
pub(crate) struct Making {
    pub(crate) id: String,
    pub(crate) fields: Document,
}

/// Which version of the document a step gives back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    Before,
    After,
}

/// A document, and the server's clock in milliseconds when it was looked at. Servers before 4.4 do not tell.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) document: Document,
    pub(crate) now: Option<i64>,
}

/// What came of many steps.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    /// Steps that failed alone, by their place in the request.
    pub(crate) failed: HashMap<usize, (i32, String)>,
    /// How many documents were found, those that were made included.
    pub(crate) matched: i64,
    /// How many of those found were changed.
    pub(crate) modified: i64,
    /// The moment of the last write, for a read that must see it.
    pub(crate) time: Option<Timestamp>,
}

/// The connection, and what the server can do.
#[derive(Clone, Debug)]
pub(crate) struct Wire {
    database: Database,
    names: Names,
    /// Whether a projection may hold expressions (4.4): with it a reply carries the server's clock.
    expressions: bool,
}

impl Wire {
    pub(crate) fn new(client: &Client, names: Names, expressions: bool) -> Self {
        Wire { database: client.database(&names.database), names, expressions }
    }

    pub(crate) fn database(&self) -> &Database {
        &self.database
    }

    pub(crate) fn names(&self) -> &Names {
        &self.names
    }

    pub(crate) fn collection(&self, place: Place) -> &str {
        match place {
            Place::Locks => &self.names.locks,
            Place::Queues => &self.names.queues,
        }
    }

    /// Any command; always to the primary.
    pub(crate) async fn run(&self, command: Document) -> Result<Document> {
        let reply = self.database.run_command(command).await.map_err(|error| failure::from_driver(&error))?;
        match failure::in_reply(&reply) {
            Some(error) => Err(error),
            None => Ok(reply),
        }
    }

    /// A command of an operator, to whichever server it is for.
    pub(crate) async fn ask(
        &self,
        database: &str,
        command: Document,
        server: Option<SelectionCriteria>,
    ) -> Result<Document> {
        let database = self.database.client().database(database);
        let ask = database.run_command(command);
        let reply = match server {
            Some(server) => ask.selection_criteria(server).await,
            None => ask.await,
        };
        reply.map_err(|error| failure::from_driver(&error))
    }

    fn fields(&self) -> Option<Document> {
        self.expressions.then(|| doc! { "now": "$$NOW", "doc": "$$ROOT" })
    }

    fn found(&self, mut document: Document) -> Result<Found> {
        if !self.expressions {
            return Ok(Found { document, now: None });
        }
        let now = document.get_datetime("now").map(|now| now.timestamp_millis()).ok();
        match document.remove("doc") {
            Some(Bson::Document(document)) => Ok(Found { document, now }),
            _ => Err(failure::odd("a document was asked for and something else came")),
        }
    }

    /// One step. `None`: there was no such document.
    pub(crate) async fn step(
        &self,
        place: Place,
        step: &Step,
        version: Version,
        concern: Concern,
    ) -> Result<Option<Found>> {
        let mut command = doc! {
            "findAndModify": self.collection(place),
            "query": step.query(),
            "update": step.pipeline(),
            "upsert": step.upsert,
            "new": version == Version::After,
            "writeConcern": concern.document(),
        };
        if let Some(fields) = self.fields() {
            command.insert("fields", fields);
        }
        for _ in 0..RACES {
            let reply = self.database.run_command(command.clone()).await;
            let mut reply = match reply {
                Ok(reply) => reply,
                Err(error) => match &*error.kind {
                    mongodb::error::ErrorKind::Command(told)
                        if told.code == failure::DUPLICATE_KEY && step.upsert =>
                    {
                        continue;
                    }
                    _ => return Err(failure::from_driver(&error)),
                },
            };
            if let Some(error) = failure::in_reply(&reply) {
                return Err(error);
            }
            return match reply.remove("value") {
                Some(Bson::Document(value)) => self.found(value).map(Some),
                _ => Ok(None),
            };
        }
        // The document is there each time we want to make it, and never there to be changed.
        Err(failure::alien(self.collection(place)))
    }

    /// Many steps in one command, in any order, with one wait for the majority.
    pub(crate) async fn steps(&self, place: Place, steps: &[Step]) -> Result<Outcome> {
        let updates = steps.iter().map(|step| {
            Bson::Document(doc! { "q": step.query(), "u": step.pipeline(), "upsert": step.upsert })
        });
        self.update(place, updates.collect()).await
    }

    /// A step on each of many documents, which is much less work for the server than a step for each; first the
    /// documents that may not be there yet are made. The steps that failed are told by their place among the steps.
    pub(crate) async fn wide_steps(
        &self,
        place: Place,
        makings: Vec<Making>,
        steps: Vec<WideStep>,
    ) -> Result<Outcome> {
        let made = makings.len();
        let making = |making: Making| {
            doc! { "q": { "_id": making.id }, "u": { "$setOnInsert": making.fields }, "upsert": true }
        };
        let step = |step: WideStep| {
            let mut which = doc! { "_id": { "$in": step.ids } };
            which.extend(step.when);
            // Whatever else is indexed: these documents and no others are looked at.
            doc! { "q": which, "u": step.pipeline, "multi": true, "hint": { "_id": 1 } }
        };
        let updates = makings.into_iter().map(making).chain(steps.into_iter().map(step));
        let mut outcome = self.update(place, updates.map(Bson::Document).collect()).await?;
        // One that could not be made is there already, or its step will find nothing.
        outcome.failed =
            outcome.failed.into_iter().filter_map(|(at, why)| Some((at.checked_sub(made)?, why))).collect();
        Ok(outcome)
    }

    async fn update(&self, place: Place, updates: Vec<Bson>) -> Result<Outcome> {
        let reply = self
            .run(doc! {
                "update": self.collection(place),
                "updates": updates,
                "ordered": false,
                "writeConcern": Concern::Majority.document(),
            })
            .await?;
        let mut outcome = Outcome {
            matched: reply.get("n").and_then(failure::number).unwrap_or_default(),
            modified: reply.get("nModified").and_then(failure::number).unwrap_or_default(),
            time: reply.get_timestamp("operationTime").ok(),
            ..Outcome::default()
        };
        let index = |item: &Document| {
            item.get("index").and_then(failure::number).and_then(|index| usize::try_from(index).ok())
        };
        for item in documents(&reply, "writeErrors") {
            let at = index(item).ok_or_else(|| failure::odd("an error without its place"))?;
            let code = item.get("code").and_then(failure::number).and_then(|code| i32::try_from(code).ok());
            let words = item.get_str("errmsg").unwrap_or_default().to_owned();
            outcome.failed.insert(at, (code.unwrap_or_default(), words));
        }
        Ok(outcome)
    }

    /// Many documents at once, on the primary, as they are after a write at `after`. An older view would miss a
    /// grant that was confirmed; a majority view of a primary that was just elected may be such an older one.
    pub(crate) async fn read(
        &self,
        place: Place,
        ids: &[&str],
        after: Option<Timestamp>,
    ) -> Result<HashMap<String, Found>> {
        let count = i64::try_from(ids.len()).unwrap_or(i64::MAX);
        let mut command = doc! {
            "find": self.collection(place),
            "filter": { "_id": { "$in": ids } },
            "limit": count,
            "batchSize": count,
            "singleBatch": true,
        };
        if let Some(fields) = self.fields() {
            command.insert("projection", fields);
        }
        if let Some(after) = after {
            command.insert("readConcern", doc! { "level": "local", "afterClusterTime": after });
        }
        let mut reply = self.run(command).await?;
        let batch = reply.get_document_mut("cursor").ok().and_then(|cursor| cursor.remove("firstBatch"));
        let Some(Bson::Array(batch)) = batch else { return Err(failure::odd("a cursor without a batch")) };
        let mut found = HashMap::with_capacity(batch.len());
        for item in batch {
            let Bson::Document(item) = item else { return Err(failure::odd("a batch of something else")) };
            let Ok(id) = item.get_str("_id").map(str::to_owned) else { continue };
            found.insert(id, self.found(item)?);
        }
        Ok(found)
    }
}

/// The documents in a list of a reply, if there is one.
fn documents<'a>(reply: &'a Document, key: &str) -> impl Iterator<Item = &'a Document> {
    reply.get_array(key).into_iter().flatten().filter_map(Bson::as_document)
}
