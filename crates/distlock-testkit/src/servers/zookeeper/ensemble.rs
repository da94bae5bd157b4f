//! Three servers that elect a leader. The links between them lead through proxies, so that a node can be cut off.

use std::collections::HashMap;
use std::time::Duration;

use super::{ZookeeperBuilder, ZookeeperServer};
use crate::proxy::Proxy;
use crate::servers::port::Port;
use crate::servers::wait::wait_for;

const NODES: usize = 3;
const LIMIT: Duration = Duration::from_secs(60);

/// An ensemble of three servers.
#[derive(Debug)]
pub struct ZookeeperEnsemble {
    nodes: Vec<ZookeeperServer>,
    /// From a node to the quorum port of another: a follower connects to its leader.
    links: HashMap<(usize, usize), Proxy>,
}

impl ZookeeperEnsemble {
    /// Starts three servers and waits until all of them serve.
    #[must_use]
    pub fn start() -> Self {
        Self::start_with(|builder| builder)
    }

    /// The same with other settings on each server.
    #[must_use]
    pub fn start_with(configure: impl Fn(ZookeeperBuilder) -> ZookeeperBuilder) -> Self {
        let clients: Vec<Port> = (0..NODES).map(|_| Port::reserve()).collect();
        let quorum: Vec<Port> = (0..NODES).map(|_| Port::reserve()).collect();
        let election: Vec<Port> = (0..NODES).map(|_| Port::reserve()).collect();
        let pairs = (0..NODES).flat_map(|from| (0..NODES).map(move |to| (from, to)));
        let links: HashMap<(usize, usize), Proxy> = pairs
            .filter(|(from, to)| from != to)
            .map(|(from, to)| ((from, to), Proxy::start(quorum[to].addr())))
            .collect();
        let servers = |from: usize| -> Vec<String> {
            let line = |to: usize| {
                let port = links.get(&(from, to)).map_or(quorum[to].number(), |link| link.port());
                format!("server.{}=127.0.0.1:{port}:{}", to + 1, election[to].number())
            };
            (0..NODES).map(line).collect()
        };
        let lines: Vec<Vec<String>> = (0..NODES).map(servers).collect();
        let ports = clients.into_iter().zip(quorum.into_iter().zip(election));
        let nodes: Vec<ZookeeperServer> = ports
            .zip(lines)
            .enumerate()
            .map(|(node, ((client, (quorum, election)), lines))| {
                let mut builder =
                    configure(ZookeeperServer::configure()).node(node + 1, vec![quorum, election]);
                for line in lines {
                    builder = builder.setting(line);
                }
                builder.spawn(client)
            })
            .collect();
        nodes.iter().for_each(|node| node.wait_ready());
        ZookeeperEnsemble { nodes, links }
    }

    /// The servers.
    #[must_use]
    pub fn nodes(&self) -> &[ZookeeperServer] {
        &self.nodes
    }

    /// The URL with all servers.
    #[must_use]
    pub fn url(&self) -> String {
        let hosts: Vec<String> = self.nodes.iter().map(|node| node.addr().to_string()).collect();
        format!("zookeeper://{}", hosts.join(","))
    }

    /// The number of the leader, as soon as there is one.
    ///
    /// # Panics
    /// If there is none after a minute.
    #[must_use]
    pub fn leader(&self) -> usize {
        wait_for("a leader", LIMIT, || self.nodes.iter().position(|node| node.mode() == "leader"))
    }

    /// The number of a node that follows, as soon as there is one.
    ///
    /// # Panics
    /// If there is none after a minute.
    #[must_use]
    pub fn follower(&self) -> usize {
        wait_for("a follower", LIMIT, || self.nodes.iter().position(|node| node.mode() == "follower"))
    }

    /// Cuts a node off from the others, like a pulled cable: what they send is not delivered, and no connection is closed.
    /// Clients still reach it.
    ///
    /// Votes still pass, because nodes tell each other where to send them. So a leader that is cut off may be elected again
    /// and again, and the others with it get nowhere: pause it before they vote.
    pub fn isolate(&self, node: usize) {
        self.links_of(node).for_each(|link| link.pause());
    }

    /// Ends [`isolate`](Self::isolate).
    pub fn rejoin(&self, node: usize) {
        // What was sent meanwhile is lost with its connection.
        self.links_of(node).for_each(|link| {
            link.cut();
            link.heal();
        });
    }

    /// Waits until all nodes serve.
    pub fn wait_complete(&self) {
        self.nodes.iter().for_each(|node| node.wait_ready());
    }

    fn links_of(&self, node: usize) -> impl Iterator<Item = &Proxy> {
        self.links.iter().filter(move |((from, to), _)| *from == node || *to == node).map(|(_, link)| link)
    }
}
