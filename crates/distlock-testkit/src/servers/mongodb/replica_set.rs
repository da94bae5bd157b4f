//! MongoDB replica sets of one or more members.

use std::time::Duration;

use super::bson::{Document, Value};
use super::{MongoBuilder, MongoServer, wire};
use crate::servers::wait_for;

const NAME: &str = "rs0";
const LIMIT: Duration = Duration::from_secs(60);
/// The time limit of a command: a paused member accepts connections and never answers.
const COMMAND_LIMIT: Duration = Duration::from_millis(250);

/// A replica set whose members detect a dead primary after two seconds.
#[derive(Debug)]
pub struct MongoReplicaSet {
    members: Vec<MongoServer>,
}

impl MongoReplicaSet {
    /// Starts a set of `count` members and waits until it has a primary and all others follow it.
    #[must_use]
    pub fn start(count: usize) -> Self {
        Self::start_with(count, MongoServer::configure)
    }

    /// [`start`](Self::start) with settings for each member: `|| MongoServer::configure().movable_clock()`.
    #[must_use]
    pub fn start_with(count: usize, configure: impl Fn() -> MongoBuilder) -> Self {
        let args = ["--replSet", NAME, "--oplogSize", "50"];
        // How much longer than agreed a member waits for a paused sync source: 5 s by default, during which no write reaches a
        // majority.
        let buffer = ["--setParameter", "oplogNetworkTimeoutBufferSeconds=1"];
        let members: Vec<MongoServer> =
            (0..count).map(|_| configure().args(args).args(buffer).spawn()).collect();
        members.iter().for_each(|member| member.wait_ready());
        let set = Self { members };
        set.initiate();
        set
    }

    /// All members, in any role.
    #[must_use]
    pub fn members(&self) -> &[MongoServer] {
        &self.members
    }

    /// The set's URL.
    #[must_use]
    pub fn url(&self) -> String {
        let hosts: Vec<String> = self.members.iter().map(host).collect();
        format!("mongodb://{}/?replicaSet={NAME}", hosts.join(","))
    }

    /// The primary that answers, if any. Of two self-declared primaries, the one elected last.
    #[must_use]
    pub fn find_primary(&self) -> Option<&MongoServer> {
        let claims = self.members.iter().filter(|member| member.is_running() && !member.is_paused());
        let claims = claims.filter_map(|member| Some((member, hello(member)?)));
        let primaries = claims.filter(|(_, hello)| hello.is_true("isWritablePrimary"));
        primaries.max_by_key(|(_, hello)| election(hello)).map(|(member, _)| member)
    }

    /// The primary; waits until there is one.
    ///
    /// # Panics
    /// If there is none after a minute.
    #[must_use]
    pub fn primary(&self) -> &MongoServer {
        wait_for("a primary of the replica set", LIMIT, || self.find_primary())
    }

    /// Waits until the set has a primary and every other running member replicates from it.
    ///
    /// # Panics
    /// If that is not so after a minute.
    pub fn wait_healthy(&self) {
        wait_for("a primary that all members follow", LIMIT, || {
            let primary = self.find_primary()?;
            let running = self.members.iter().filter(|member| member.is_running() && !member.is_paused());
            let mut count = 0;
            for member in running {
                let hello = hello(member)?;
                let ready = hello.is_true("secondary") || hello.is_true("isWritablePrimary");
                (ready && hello.text("primary") == host(primary)).then_some(())?;
                count += 1;
            }
            reaches(primary, count).then_some(())
        });
    }

    fn initiate(&self) {
        let members: Vec<Document> = self
            .members
            .iter()
            .zip(0..)
            .map(|(member, id)| Document::new("_id", id).with("host", host(member)))
            .collect();
        let settings = Document::new("electionTimeoutMillis", 2000).with("heartbeatIntervalMillis", 500);
        let config = Document::new("_id", NAME).with("members", members).with("settings", settings);
        let command = Document::new("replSetInitiate", config);
        let reply = wire::run(self.members[0].port(), "admin", &command, LIMIT);
        reply.unwrap_or_else(|e| panic!("the replica set cannot be initiated: {e}"));
        self.wait_healthy();
    }
}

fn host(member: &MongoServer) -> String {
    format!("127.0.0.1:{}", member.port())
}

fn hello(member: &MongoServer) -> Option<Document> {
    wire::run(member.port(), "admin", &Document::new("hello", 1), COMMAND_LIMIT).ok()
}

/// Whether a write reaches `count` members within a second. A member that reports itself as secondary may still be choosing its
/// sync source; if that one is paused then, it keeps trying it for twenty seconds.
fn reaches(primary: &MongoServer, count: i32) -> bool {
    let concern = Document::new("w", count).with("wtimeout", 1000);
    let note = Document::new("appendOplogNote", 1).with("data", Document::new("all", "here?"));
    let reply = primary.command("admin", &note.with("writeConcern", concern));
    reply.is_ok_and(|reply| reply.get("writeConcernError").is_none())
}

/// The election id, which increases with every election.
fn election(hello: &Document) -> [u8; 12] {
    if let Some(Value::ObjectId(id)) = hello.get("electionId") { *id } else { [0; 12] }
}
