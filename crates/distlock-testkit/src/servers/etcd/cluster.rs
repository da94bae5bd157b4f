//! A cluster of three members.

use std::time::Duration;

use super::peer_links::PeerLinks;
use super::{ANSWER_LIMIT, EtcdServer, MemberConfig, http};
use crate::servers::port::Port;
use crate::servers::wait::wait_for;

const LIMIT: Duration = Duration::from_secs(60);
const SIZE: usize = 3;

/// A cluster of three members.
#[derive(Debug)]
pub struct EtcdCluster {
    members: Vec<EtcdServer>,
    links: PeerLinks,
}

impl EtcdCluster {
    /// Starts three members and waits until they have a leader.
    #[must_use]
    pub fn start() -> Self {
        let ports: Vec<(Port, Port)> = (0..SIZE).map(|_| (Port::reserve(), Port::reserve())).collect();
        let links = PeerLinks::start(ports.iter().map(|(_, peer)| peer.addr()).collect());
        let initial_cluster = (0..SIZE)
            .map(|number| format!("m{number}=http://127.0.0.1:{}", links.port(number)))
            .collect::<Vec<_>>()
            .join(",");
        let members: Vec<EtcdServer> = ports
            .into_iter()
            .enumerate()
            .map(|(number, (port, peer_port))| {
                let member = MemberConfig {
                    name: format!("m{number}"),
                    port,
                    peer_port,
                    initial_cluster: initial_cluster.clone(),
                    advertised_peer_port: links.port(number),
                };
                EtcdServer::configure().member(member).spawn()
            })
            .collect();
        members.iter().for_each(|member| member.wait_ready());
        // `ID, started, NAME, …`
        for line in members[0].etcdctl(&["member", "list"]).lines() {
            let mut words = line.split(", ");
            if let (Some(id), Some(name)) = (words.next(), words.nth(1)) {
                let number = name.trim_start_matches('m').parse().expect("a name that we gave");
                links.name_member(id, number);
            }
        }
        EtcdCluster { members, links }
    }

    /// The members.
    #[must_use]
    pub fn members(&self) -> &[EtcdServer] {
        &self.members
    }

    /// The URL with all members.
    #[must_use]
    pub fn url(&self) -> String {
        let hosts: Vec<String> = self.members.iter().map(|member| member.addr().to_string()).collect();
        format!("etcd://{}", hosts.join(","))
    }

    /// The index of the leader, as the members that run say; waits until there is one.
    ///
    /// # Panics
    /// If there is none after a minute.
    #[must_use]
    pub fn leader(&self) -> usize {
        wait_for("a leader of the cluster", LIMIT, || self.find_leader())
    }

    fn find_leader(&self) -> Option<usize> {
        let leads = |member: &EtcdServer| {
            let metrics = http::get(member.port(), "/metrics", ANSWER_LIMIT).unwrap_or_default();
            metrics.lines().any(|line| line == "etcd_server_is_leader 1")
        };
        let runs = |member: &EtcdServer| member.is_running() && !member.is_paused();
        self.members.iter().position(|member| runs(member) && leads(member))
    }

    /// Waits until a majority of the members without this one has a leader.
    ///
    /// # Panics
    /// If there is none after a minute.
    pub fn wait_for_leader_other_than(&self, old: usize) -> usize {
        wait_for("another leader", LIMIT, || {
            let others = (0..SIZE).filter(|number| *number != old);
            others.into_iter().find(|number| {
                let member = &self.members[*number];
                let metrics = http::get(member.port(), "/metrics", ANSWER_LIMIT).unwrap_or_default();
                metrics.lines().any(|line| line == "etcd_server_is_leader 1")
            })
        })
    }

    /// Cuts a member off from the two others, in both directions. Clients still reach all of them.
    pub fn cut_off(&self, member: usize) {
        self.links.cut_off(Some(member));
    }

    /// Ends [`cut_off`](Self::cut_off).
    pub fn reconnect(&self) {
        self.links.cut_off(None);
    }
}
