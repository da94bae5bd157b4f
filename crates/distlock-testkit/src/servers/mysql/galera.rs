//! Nodes of MariaDB that replicate with Galera.

use std::ops::Deref;
use std::path::Path;
use std::time::Duration;

use super::{MysqlBuilder, MysqlServer};
use crate::servers::port::Port;
use crate::servers::wait_for;

/// Debian installs it with the server.
const PROVIDER: &str = "/usr/lib/galera/libgalera_smm.so";

/// A Galera cluster of MariaDB: every node accepts writes.
#[derive(Debug)]
pub struct GaleraCluster {
    nodes: Vec<MysqlServer>,
    _ports: Vec<Port>,
}

impl GaleraCluster {
    /// Starts so many nodes. Each after the first copies the data of another one with rsync, as the servers do by themselves.
    ///
    /// # Panics
    /// If Galera is not installed, or the nodes do not find each other.
    #[must_use]
    pub fn start(nodes: usize) -> Self {
        assert!(Path::new(PROVIDER).exists(), "install it: sudo apt-get install galera-4 rsync lsof");
        let mut cluster = GaleraCluster { nodes: Vec::new(), _ports: Vec::new() };
        let mut first = None;
        for _ in 0..nodes {
            // The addresses of the group, of an incremental copy and of a whole one.
            let [group, increments, copy] = std::array::from_fn(|_| Port::reserve());
            let peer = first.get_or_insert_with(|| group.addr().to_string());
            let peer = if cluster.nodes.is_empty() { "" } else { peer };
            let options = format!(
                "gmcast.listen_addr=tcp://{};ist.recv_addr={};gcache.size=1M",
                group.addr(),
                increments.addr()
            );
            // MySQL has no Galera.
            let builder: MysqlBuilder = MysqlServer::configure()
                .only_mariadb()
                .setting("wsrep-on", "ON")
                .setting("wsrep-provider", PROVIDER)
                .setting("wsrep-cluster-address", &format!("gcomm://{peer}"))
                .setting("wsrep-node-address", &group.addr().to_string())
                .setting("wsrep-provider-options", &options)
                .setting("wsrep-sst-method", "rsync")
                .setting("wsrep-sst-receive-address", &copy.addr().to_string())
                .setting("binlog-format", "ROW")
                .setting("innodb-autoinc-lock-mode", "2");
            cluster.nodes.push(builder.start());
            cluster._ports.extend([group, increments, copy]);
        }
        for node in &cluster.nodes {
            wait_for("the nodes of Galera find each other", Duration::from_secs(60), || {
                let is_joined = status(node, "wsrep_cluster_size")? == nodes as u64;
                (is_joined && status(node, "wsrep_local_state")? == SYNCED).then_some(())
            });
        }
        cluster
    }

    /// How many transactions failed because one on another node was in conflict with them.
    #[must_use]
    pub fn conflicts(&self) -> u64 {
        let names = ["wsrep_local_cert_failures", "wsrep_local_bf_aborts"];
        self.nodes.iter().flat_map(|node| names.map(|name| status(node, name).unwrap_or_default())).sum()
    }
}

/// The node has all that the others have.
const SYNCED: u64 = 4;

fn status(node: &MysqlServer, name: &str) -> Option<u64> {
    let rows = node.try_sql(&format!("SHOW GLOBAL STATUS LIKE '{name}'")).ok()?;
    rows.into_iter().flatten().flatten().nth(1)?.parse().ok()
}

impl Deref for GaleraCluster {
    type Target = [MysqlServer];

    fn deref(&self) -> &[MysqlServer] {
        &self.nodes
    }
}
