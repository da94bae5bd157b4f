//! The kind and the version of the deployment.

use distlock_core::{Error, ErrorKind, Result};
use mongodb::bson::Document;

use crate::error::number;

/// The wire version of MongoDB 4.2, the first with pipelines in updates.
const WIRE_4_2: i64 = 8;
/// The wire version of MongoDB 4.4, the first with expressions in projections.
const WIRE_4_4: i64 = 9;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// A single server outside a replica set. It has no change streams.
    Standalone,
    /// A replica set of any size.
    ReplicaSet,
    /// A sharded cluster, reached through `mongos`.
    Sharded,
}

/// The reply to `hello` at connect. It does not change during the life of a store.
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

    pub(crate) fn has_change_streams(self) -> bool {
        self.shape != Shape::Standalone
    }

    /// Whether an aggregation can read one collection and merge into another.
    pub(crate) fn can_merge(self) -> bool {
        self.shape == Shape::ReplicaSet && self.wire_version >= WIRE_4_4
    }

    /// Whether a projection may contain expressions, so that replies carry the server's clock.
    pub(crate) fn has_projection_expressions(self) -> bool {
        self.wire_version >= WIRE_4_4
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mongodb::bson::doc;

    #[test]
    fn a_standalone_server_has_no_change_streams_and_an_old_server_is_refused() {
        let topology = |hello: Document| Topology::read(&hello);
        assert!(!topology(doc! { "maxWireVersion": 17 }).unwrap().has_change_streams());
        assert!(topology(doc! { "maxWireVersion": 17, "setName": "rs0" }).unwrap().has_change_streams());
        assert_eq!(topology(doc! { "maxWireVersion": 8, "msg": "isdbgrid" }).unwrap().shape, Shape::Sharded);
        let old_set = topology(doc! { "maxWireVersion": 8, "setName": "rs0" }).unwrap();
        assert!(old_set.has_change_streams() && !old_set.can_merge());
        assert!(topology(doc! { "maxWireVersion": 9, "setName": "rs0" }).unwrap().can_merge());
        assert!(!topology(doc! { "maxWireVersion": 17, "msg": "isdbgrid" }).unwrap().can_merge());
        assert_eq!(topology(doc! { "maxWireVersion": 6 }).unwrap_err().kind(), ErrorKind::Unsupported);
    }
}
