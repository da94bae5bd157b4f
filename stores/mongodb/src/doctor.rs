//! What `distlock doctor` finds at the server.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use distlock_core::store::Finding;
use distlock_core::{ErrorKind, Result};
use mongodb::bson::{Bson, Document, doc};
use mongodb::options::SelectionCriteria;

use crate::commands::{Durability, Namespace};
use crate::documents::is_countable;
use crate::error::{NAMESPACE_NOT_FOUND, number};
use crate::server_clock::{CLOCK_NOTE, DAY_MS, noted_setback};
use crate::state::StoreState;
use crate::topology::Shape;
use crate::{change_stream, indexes};

/// A larger difference between two clocks is a warning.
const CLOCK_TOLERANCE_MS: i64 = 1000;

pub(crate) async fn examine(state: &Arc<StoreState>) -> Result<Vec<Finding>> {
    // The first request decides whether the server is reachable.
    let hello = state.commands.run_on("admin", doc! { "hello": 1 }, None).await?;
    let mut findings = vec![version(state).await, shape(state, &hello), write_concern(state, &hello).await];
    findings.extend(indexes(state).await);
    findings.extend(rights(state).await);
    findings.extend(tokens(state, &hello).await);
    findings.extend(clocks(state, &hello).await);
    Ok(findings)
}

async fn version(state: &StoreState) -> Finding {
    match state.commands.run_on("admin", doc! { "buildInfo": 1 }, None).await {
        Ok(info) => {
            Finding::ok(format!("MongoDB {}", info.get_str("version").unwrap_or("of unknown version")))
        }
        Err(error) => {
            Finding::warning(format!("the version cannot be read: {error}"), "check the user's rights")
        }
    }
}

fn shape(state: &StoreState, hello: &Document) -> Finding {
    let count = |key: &str| hello.get_array(key).map_or(0, Vec::len);
    let set = hello.get_str("setName").unwrap_or_default();
    match state.topology.shape {
        Shape::Standalone => Finding::warning(
            "a standalone server: waiters poll instead of being woken, and a lost disk loses all locks",
            "make it a replica set; one of a single member already has change streams",
        ),
        Shape::Sharded => Finding::ok(
            "a sharded cluster; leave the collections unsharded or shard them by _id, since wake-ups wait for the \
             slowest shard",
        ),
        Shape::ReplicaSet if count("arbiters") > 0 => Finding::warning(
            format!(
                "the replica set {set} has an arbiter: with one member down no majority can confirm a lock"
            ),
            "use a third member that keeps data instead of the arbiter",
        ),
        Shape::ReplicaSet if count("hosts") + count("passives") == 2 => Finding::warning(
            format!("the replica set {set} has two members: with one of them down there is no majority"),
            "add a third member",
        ),
        Shape::ReplicaSet => Finding::ok(format!(
            "the replica set {set} of {} member(s); waiters are woken by a change stream",
            count("hosts") + count("passives"),
        )),
    }
}

/// An update that matches nothing. It needs the rights that acquiring a lock needs, and waits until a majority has every
/// earlier write.
fn empty_update(collection: &str) -> Document {
    doc! {
        "update": collection,
        "updates": [{ "q": { "_id": { "$in": [] } }, "u": [{ "$set": { "lockId": "" } }], "upsert": false }],
        "writeConcern": Durability::Majority.write_concern(),
    }
}

/// Whether our write concern is met, and how long that takes.
async fn write_concern(state: &StoreState, hello: &Document) -> Finding {
    if state.topology.shape == Shape::ReplicaSet
        && hello.get("isWritablePrimary").or_else(|| hello.get("ismaster")).and_then(Bson::as_bool)
            != Some(true)
    {
        return Finding::warning(
            "the server that answers is not the primary",
            "name the whole replica set in the URL, without directConnection",
        );
    }
    let started = std::time::Instant::now();
    match state.commands.run(empty_update(&state.commands.names().locks)).await {
        Ok(_) => Finding::ok(format!(
            "writes are confirmed by a majority with journal, whatever the server's default; it takes {:?}",
            round(started.elapsed()),
        )),
        Err(error) => Finding::warning(
            format!("a write with majority and journal fails: {error}"),
            error.advice().unwrap_or("check the members of the replica set").to_owned(),
        ),
    }
}

fn round(duration: Duration) -> Duration {
    Duration::from_micros(u64::try_from(duration.as_micros()).unwrap_or_default() / 100 * 100)
}

async fn indexes(state: &StoreState) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (collection, wanted) in indexes::wanted(state.commands.names()) {
        let command = doc! { "listIndexes": &collection, "cursor": { "batchSize": 1000 } };
        let found = match state.commands.try_run(command).await {
            Ok(reply) => reply,
            // The collection was never used.
            Err(failure) if failure.code == Some(NAMESPACE_NOT_FOUND) => Document::new(),
            Err(failure) => {
                findings.push(Finding::warning(
                    format!("the indexes of {collection} cannot be read: {}", failure.error),
                    "give the user the right listIndexes",
                ));
                continue;
            }
        };
        let batch = found.get_document("cursor").and_then(|cursor| cursor.get_array("firstBatch"));
        let found: Vec<&Document> = batch.into_iter().flatten().filter_map(Bson::as_document).collect();
        // The index of `_id` comes with the collection.
        if found.len() <= 1 && is_empty(state, &collection).await {
            findings.push(Finding::ok(format!(
                "{collection} was not used yet: the first lock creates it, with its indexes"
            )));
            continue;
        }
        for index in wanted {
            findings.push(index_finding(&collection, &index, &found));
        }
    }
    findings
}

/// Whether a collection has no document, as far as we may see.
async fn is_empty(state: &StoreState, collection: &str) -> bool {
    let found = state.commands.run(doc! { "find": collection, "limit": 1_i64, "singleBatch": true }).await;
    let batch = found.as_ref().ok().and_then(|found| found.get_document("cursor").ok());
    batch.and_then(|cursor| cursor.get_array("firstBatch").ok()).is_some_and(Vec::is_empty)
}

fn index_finding(collection: &str, wanted: &Document, found: &[&Document]) -> Finding {
    let name = wanted.get_str("name").unwrap_or_default();
    let seconds = |index: &Document| index.get("expireAfterSeconds").and_then(number);
    match found.iter().find(|index| index.get_str("name").is_ok_and(|found| found == name)) {
        Some(index)
            if seconds(index) == seconds(wanted)
                && index.get("key").map(key) == wanted.get("key").map(key) =>
        {
            Finding::ok(format!("the index {name} of {collection} is there"))
        }
        Some(_) => Finding::warning(
            format!("the index {name} of {collection} is not as it should be"),
            "drop it and run what `distlock schema` prints",
        ),
        None => Finding::warning(
            format!("the index {name} of {collection} is missing: old documents are not purged"),
            "run what `distlock schema` prints, or acquire a lock once with a user that may create indexes",
        ),
    }
}

fn key(key: &Bson) -> Vec<(String, Option<i64>)> {
    key.as_document()
        .into_iter()
        .flatten()
        .map(|(field, direction)| (field.clone(), number(direction)))
        .collect()
}

/// Tries what the store needs.
async fn rights(state: &Arc<StoreState>) -> Vec<Finding> {
    let names = state.commands.names();
    let mut findings = Vec::new();
    for collection in [&names.locks, &names.queues] {
        findings.push(match state.commands.run(empty_update(collection)).await {
            Ok(_) => Finding::ok(format!("{collection} may be written")),
            Err(error) => Finding::warning(
                format!("{collection} may not be written: {error}"),
                "give the user the role readWrite on the database",
            ),
        });
    }
    if state.topology.has_change_streams() {
        findings.push(
            match change_stream::subscribe(state, &distlock_core::store::Inbox::new("doctor")).await {
                Ok(_) => Finding::ok("a change stream can be opened"),
                Err(error) if error.kind() == ErrorKind::Denied => Finding::warning(
                    format!("no change stream can be opened, so waiters poll: {error}"),
                    "give the user the rights find and changeStream on the database",
                ),
                Err(error) => Finding::warning(
                    format!("no change stream can be opened, so waiters poll: {error}"),
                    "see the server's log",
                ),
            },
        );
    }
    findings
}

/// Tokens that cannot be readings of the clock: another program's, or a mistake.
async fn tokens(state: &StoreState, hello: &Document) -> Vec<Finding> {
    const SHOWN: i64 = 3;
    let names = state.commands.names();
    let now = hello.get_datetime("localTime").map(|now| now.timestamp_millis()).unwrap_or_default();
    let latest = now.max(state.clock.lowest_token()).saturating_add(DAY_MS);
    let mut findings = Vec::new();
    for (collection, field) in [(&names.locks, "fencingToken"), (&names.queues, "token")] {
        let found = state.commands.run(doc! {
            "find": collection,
            "filter": { field: { "$type": "number", "$not": { "$lte": latest } } },
            "projection": { field: 1 },
            "limit": SHOWN,
            "singleBatch": true,
        });
        let found = match found.await {
            Ok(found) => found,
            // Missing rights are reported already.
            Err(error) if error.kind() == ErrorKind::Denied => continue,
            Err(error) => {
                findings.push(Finding::warning(
                    format!("the tokens in {collection} cannot be read: {error}"),
                    "see the server's log",
                ));
                continue;
            }
        };
        let batch = found.get_document("cursor").and_then(|cursor| cursor.get_array("firstBatch"));
        for document in batch.into_iter().flatten().filter_map(Bson::as_document) {
            findings.push(token_finding(collection, document, field));
        }
    }
    if findings.is_empty() {
        findings.push(Finding::ok("no fencing token is far ahead of the server's clock"));
    }
    findings.extend(clock_note(state, now).await);
    findings
}

fn token_finding(collection: &str, document: &Document, field: &str) -> Finding {
    let id = document.get("_id").and_then(Bson::as_str).unwrap_or_default();
    let token = document.get(field).unwrap_or(&Bson::Null);
    let what = format!("the fencing token {token} of the document {id:?} in {collection}");
    if is_countable(Some(token)) {
        return Finding::warning(
            format!(
                "{what} is more than a day ahead of the clock; the tombstone of that name is never purged"
            ),
            "find out which program wrote it; delete the document only if no resource compares tokens of that name",
        );
    }
    Finding::warning(
        format!("{what} cannot be counted on from, so that lock is refused"),
        "find out which program wrote it, and delete the document once no client uses that lock",
    )
}

/// The note of the clock shifts the tokens of every name.
async fn clock_note(state: &StoreState, now: i64) -> Option<Finding> {
    let found = state.commands.read(Namespace::Queues, &[CLOCK_NOTE], None).await.ok()?;
    let collection = state.commands.collection(Namespace::Queues);
    let what = format!("the document {:?} in {collection}", CLOCK_NOTE);
    match noted_setback(&found.get(CLOCK_NOTE)?.document, now) {
        Some(behind) if behind > DAY_MS => Some(Finding::warning(
            format!(
                "{what} says that the clock was set back by {} days; all tokens are that far ahead",
                behind / DAY_MS
            ),
            "if it never was, delete the document, then restart all clients; tokens of all names fall once",
        )),
        Some(_) => None,
        None => Some(Finding::warning(
            format!("{what} says that the clock was set back by an impossible time; it is ignored"),
            "delete the document",
        )),
    }
}

/// The primary's clock decides when a lock expires, and after a fail-over the next primary's does.
async fn clocks(state: &StoreState, hello: &Document) -> Vec<Finding> {
    let hosts = hello.get_array("hosts").into_iter().flatten().filter_map(Bson::as_str);
    let mut members = Vec::new();
    for host in hosts {
        let address = host.to_ascii_lowercase();
        let server = SelectionCriteria::Predicate(Arc::new(move |server: &mongodb::ServerInfo<'_>| {
            server.address().to_string() == address
        }));
        if let Some(offset) = clock_offset(state, Some(server)).await {
            members.push((host, offset));
        }
    }
    if members.is_empty() {
        members.extend(clock_offset(state, None).await.map(|offset| ("the server", offset)));
    }
    let (Some(least), Some(most)) =
        (members.iter().map(|(_, ms)| *ms).min(), members.iter().map(|(_, ms)| *ms).max())
    else {
        return vec![Finding::warning(
            "no member sends its clock",
            "check that the members can be reached from here",
        )];
    };
    let mut findings = Vec::new();
    if most - least > CLOCK_TOLERANCE_MS {
        let each: Vec<String> = members.iter().map(|(host, ms)| format!("{host} {ms:+} ms")).collect();
        findings.push(Finding::warning(
            format!("the clocks of the members are {} ms apart ({})", most - least, each.join(", ")),
            "synchronise them: after a fail-over locks expire earlier or later by that much",
        ));
    }
    findings.push(if most.abs().max(least.abs()) > CLOCK_TOLERANCE_MS {
        Finding::warning(
            format!("the server's clock is {most:+} ms from ours"),
            "synchronise them; the server's clock decides, and `distlock ls` shows its times",
        )
    } else {
        Finding::ok(format!("the server's clock is {most:+} ms from ours"))
    });
    findings
}

/// How far a server's clock is ahead of ours, halfway through the request.
async fn clock_offset(state: &StoreState, server: Option<SelectionCriteria>) -> Option<i64> {
    let ms =
        || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).ok().map(|now| now.as_millis() as i64);
    let before = ms()?;
    let hello = state.commands.run_on("admin", doc! { "hello": 1 }, server).await.ok()?;
    let after = ms()?;
    let theirs = hello.get_datetime("localTime").ok()?.timestamp_millis();
    Some(theirs - (before + after) / 2)
}
