//! The suite on a quorum of three memory stores: threads play the other processes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::Arc;
use std::time::Duration;

use distlock_core::memory::MemoryStore;
use distlock_core::quorum::{Quorum, QuorumOptions};
use distlock_core::store::{Backend, LeaseStore};
use distlock_testkit::conformance::{ActorMode, Fixture};

struct ThreeNodes([MemoryStore; 3]);

impl Fixture for ThreeNodes {
    async fn open() -> Self {
        ThreeNodes(std::array::from_fn(|_| MemoryStore::new()))
    }

    async fn connect(&self) -> Backend {
        let nodes = self.0.iter().map(|node| Arc::new(node.clone()) as Arc<dyn LeaseStore>);
        // A busy machine must not look like a node that is down.
        let options = QuorumOptions::new().node_timeout(Duration::from_secs(2)).unwrap();
        Backend::lease(Quorum::with_options(nodes.collect(), options).unwrap())
    }

    fn actor_mode(&self) -> ActorMode {
        ActorMode::Threads { reason: "its nodes are memory stores, which live in one process" }
    }

    fn readers_may_share_tokens(&self) -> bool {
        true
    }

    async fn cut_connections(&self) {
        self.0.iter().for_each(MemoryStore::hang_up);
    }
}

distlock_testkit::conformance!(ThreeNodes, faults: [cut_connections]);
