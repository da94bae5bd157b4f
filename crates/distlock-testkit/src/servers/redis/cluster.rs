//! Redis Cluster: three masters with a replica each.

use std::time::Duration;

use super::{RedisServer, Reply};
use crate::servers::wait_for;

const MASTERS: usize = 3;
const SLOTS: usize = 16_384;
const LIMIT: Duration = Duration::from_secs(30);

/// A Redis Cluster of three masters and three replicas that detects a dead node after two seconds.
#[derive(Debug)]
pub struct RedisCluster {
    nodes: Vec<RedisServer>,
}

impl RedisCluster {
    /// Starts the cluster and waits until every node serves and every replica is in sync: one that never was is never promoted.
    #[must_use]
    pub fn start() -> Self {
        let args = ["--cluster-node-timeout", "2000", "--cluster-replica-validity-factor", "0"];
        let nodes: Vec<_> =
            (0..2 * MASTERS).map(|_| RedisServer::configure().cluster_node().args(args).spawn()).collect();
        nodes.iter().for_each(|node| node.wait_ready());
        let cluster = Self { nodes };
        cluster.join();
        cluster
    }

    /// All nodes, in any role.
    #[must_use]
    pub fn nodes(&self) -> &[RedisServer] {
        &self.nodes
    }

    /// The URLs of all nodes.
    #[must_use]
    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(RedisServer::url).collect()
    }

    /// The running node that is master for `key`; waits until there is one.
    ///
    /// # Panics
    /// If there is none after half a minute.
    #[must_use]
    pub fn master_of(&self, key: &str) -> &RedisServer {
        wait_for(&format!("a master for {key:?}"), LIMIT, || self.serving(key))
    }

    /// Waits until running masters serve all slots and all running replicas are connected.
    ///
    /// # Panics
    /// If that is not so after half a minute.
    pub fn wait_healthy(&self) {
        wait_for("every node reports a complete cluster", LIMIT, || {
            self.up()
                .all(|node| {
                    cluster_info(node, "cluster_state") == "ok"
                        && cluster_info(node, "cluster_known_nodes") == self.nodes.len().to_string()
                        && (node.info("role") == "master" || node.info("master_link_status") == "up")
                })
                .then_some(())
        });
    }

    fn up(&self) -> impl Iterator<Item = &RedisServer> {
        self.nodes.iter().filter(|node| node.is_running() && !node.is_paused())
    }

    /// The node that serves `key` now, without a redirection.
    fn serving(&self, key: &str) -> Option<&RedisServer> {
        // A master answers TYPE; a replica answers MOVED even to reads.
        self.up().find(|node| matches!(node.try_command(&["TYPE", key]), Ok(Reply::Status(_))))
    }

    /// Does what `redis-cli --cluster create` does, without its pauses.
    fn join(&self) {
        let (masters, replicas) = self.nodes.split_at(MASTERS);
        for (i, master) in masters.iter().enumerate() {
            let slots: Vec<String> =
                (i * SLOTS / MASTERS..(i + 1) * SLOTS / MASTERS).map(|slot| slot.to_string()).collect();
            let slots = slots.iter().map(String::as_str);
            ok(master, &["CLUSTER", "ADDSLOTS"].into_iter().chain(slots).collect::<Vec<_>>());
        }
        let first = &masters[0];
        let port = first.port().to_string();
        for (i, node) in self.nodes.iter().enumerate() {
            ok(node, &["CLUSTER", "SET-CONFIG-EPOCH", &(i + 1).to_string()]);
            if i > 0 {
                ok(node, &["CLUSTER", "MEET", "127.0.0.1", &port]);
            }
        }
        wait_for("every node of the cluster knows all others", LIMIT, || {
            let all = self.nodes.len().to_string();
            self.nodes.iter().all(|node| cluster_info(node, "cluster_known_nodes") == all).then_some(())
        });
        for (master, replica) in masters.iter().zip(replicas) {
            let id = master.command(&["CLUSTER", "MYID"]).text();
            wait_for("a replica accepts its master", LIMIT, || {
                (replica.command(&["CLUSTER", "REPLICATE", &id]).text() == "OK").then_some(())
            });
        }
        self.wait_healthy();
        wait_for("every node knows all replicas", LIMIT, || {
            self.nodes
                .iter()
                .all(|node| {
                    let table = node.command(&["CLUSTER", "NODES"]).text();
                    let flags = table.lines().filter_map(|line| line.split(' ').nth(2));
                    flags.filter(|flags| flags.contains("slave")).count() == replicas.len()
                })
                .then_some(())
        });
    }
}

fn ok(node: &RedisServer, words: &[&str]) {
    let reply = node.command(words);
    assert_eq!(reply.text(), "OK", "{words:?} on {}", node.name());
}

fn cluster_info(node: &RedisServer, field: &str) -> String {
    let text = node.try_command(&["CLUSTER", "INFO"]).map(|reply| reply.text()).unwrap_or_default();
    let found = text.lines().filter_map(|line| line.split_once(':')).find(|(name, _)| *name == field);
    found.map(|(_, value)| value.trim().to_owned()).unwrap_or_default()
}
