//! etcd's gRPC API: the part in `proto/etcd.proto` that distlock uses.
//!
//! `etcdserverpb.rs` is generated and committed, so that a build needs no `protoc`. To generate it again after a change of
//! the `.proto` file, run a program with `tonic-prost-build` (same version as `tonic-prost`) and a `protoc` on the path:
//!
//! ```text
//! tonic_prost_build::configure()
//!     .build_server(false)
//!     .bytes(".etcdserverpb.LeaseTimeToLiveResponse.keys")
//!     .out_dir("stores/etcd/src/api")
//!     .compile_protos(&["stores/etcd/proto/etcd.proto"], &["stores/etcd/proto"])
//! ```
#![allow(missing_docs, unreachable_pub, dead_code, clippy::all)]

#[rustfmt::skip]
mod etcdserverpb;

pub(crate) use etcdserverpb::*;
