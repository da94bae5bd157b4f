//! What sort of deployment answers.

use distlock_core::{Error, ErrorKind, Result};
use mongodb::bson::Document;

use crate::failure::number;

/// The first version with pipelines in updates, 4.2, as the wire protocol counts.
const WIRE_4_2: i64 = 8;
/// The first version with expressions in projections, 4.4.
const WIRE_4_4: i64 = 9;

/// A deployment, as its `hello` told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// One server by itself: it has no change streams.
    Standalone,
    /// A replica set, whatever its size.
    ReplicaSet,
    /// A sharded cluster, behind `mongos`.
    Sharded,
}

/// What was found out when we connected. It does not change during the life of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Topology {
    pub(crate) shape: Shape,
    wire_version: i64,
}

impl Topology {
    pub(crate) fn read(hello: &Document) -> Result<Self> {
        let shape = if hello.get_str("msg").is_ok_and(|msg| msg == "isdbgrid") {
            Shape::Sharded
        } else if hello.contains_key("setName") {
            Shape::ReplicaSet
        } else {
            Shape::Standalone
        };
        let wire_version = hello.get("maxWireVersion").and_then(number).unwrap_or_default();
        if wire_version < WIRE_4_2 {
            return Err(Error::new(ErrorKind::Unsupported, "the server is older than MongoDB 4.2")
                .advise("use MongoDB 4.2 or later"));
        }
        Ok(Topology { shape, wire_version })
    }

    /// Whether there are change streams.
    pub(crate) fn pushes(self) -> bool {
        self.shape != Shape::Standalone
    }

    /// Whether an aggregation may look into another collection and merge into its own.
    pub(crate) fn merges(self) -> bool {
        self.shape == Shape::ReplicaSet && self.wire_version >= WIRE_4_4
    }

    /// Whether replies can carry the server's clock.
    pub(crate) fn has_expressions(self) -> bool {
        self.wire_version >= WIRE_4_4
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mongodb::bson::doc;

    #[test]
    fn a_standalone_server_cannot_push_and_an_old_one_is_refused() {
        let topology = |hello: Document| Topology::read(&hello);
        assert!(!topology(doc! { "maxWireVersion": 17 }).unwrap().pushes());
        assert!(topology(doc! { "maxWireVersion": 17, "setName": "rs0" }).unwrap().pushes());
        assert_eq!(topology(doc! { "maxWireVersion": 8, "msg": "isdbgrid" }).unwrap().shape, Shape::Sharded);
        let old_set = topology(doc! { "maxWireVersion": 8, "setName": "rs0" }).unwrap();
        assert!(old_set.pushes() && !old_set.merges());
        assert!(topology(doc! { "maxWireVersion": 9, "setName": "rs0" }).unwrap().merges());
        assert!(!topology(doc! { "maxWireVersion": 17, "msg": "isdbgrid" }).unwrap().merges());
        assert_eq!(topology(doc! { "maxWireVersion": 6 }).unwrap_err().kind(), ErrorKind::Unsupported);
    }
}
