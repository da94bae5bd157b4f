//! MongoDB replica sets of one or more members.

use std::time::Duration;

use super::bson::{Document, Value};
use super::{MongoBuilder, MongoServer, wire};
use crate::servers::wait_for;

const NAME: &str = "rs0";
const LIMIT: Duration = Duration::from_secs(60);
/// A member that is frozen accepts connections and never answers.
const PATIENCE: Duration = Duration::from_millis(250);

/// A replica set whose members notice a dead primary after two seconds.
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
        // How much longer than its server a member waits for news when it copies from a frozen one: with the default
        // of 5 s, the first majority write after a freeze takes 21 s instead of 6.
        let patience = ["--setParameter", "oplogNetworkTimeoutBufferSeconds=1"];
        let members: Vec<MongoServer> =
            (0..count).map(|_| configure().args(args).args(patience).spawn()).collect();
        members.iter().for_each(|member| member.wait_ready());
        let set = Self { members };
        set.initiate();
        set
    }

    /// All members, whatever their role.
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

    /// The primary, if there is one that answers. Of two that both believe to be it, the one elected last.
    #[must_use]
    pub fn find_primary(&self) -> Option<&MongoServer> {
        let claims = self.members.iter().filter(|member| member.is_running() && !member.is_frozen());
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

    /// Waits until the set has a primary and every running member is it or follows it.
    ///
    /// # Panics
    /// If that is not so after a minute.
    pub fn wait_healthy(&self) {
        wait_for("a primary that all members follow", LIMIT, || {
            let primary = host(self.find_primary()?);
            let mut running = self.members.iter().filter(|member| member.is_running() && !member.is_frozen());
            running
                .all(|member| {
                    hello(member).is_some_and(|hello| {
                        let ready = hello.is_true("secondary") || hello.is_true("isWritablePrimary");
                        ready && hello.text("primary") == primary
                    })
                })
                .then_some(())
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
    wire::run(member.port(), "admin", &Document::new("hello", 1), PATIENCE).ok()
}

/// Grows with every election.
fn election(hello: &Document) -> [u8; 12] {
    if let Some(Value::ObjectId(id)) = hello.get("electionId") { *id } else { [0; 12] }
}
