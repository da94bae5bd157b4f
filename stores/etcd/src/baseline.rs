//! The baseline of benchmarks: the bare driver with one lease, a put if the key is absent, and a delete.

use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use distlock_core::bench::Baseline;
use distlock_core::store::StoreUrl;
use distlock_core::store::support::errors;
use distlock_core::{Error, ErrorKind, Kind, Result};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tonic::Request;

use crate::EtcdConfig;
use crate::api::compare::{CompareResult, CompareTarget, TargetUnion};
use crate::api::kv_client::KvClient;
use crate::api::*;
use crate::config::Address;
use crate::error;
use crate::store::EtcdStore;
use crate::txn;

/// How many keys one request deletes.
const DELETE_COUNT: usize = 100;

struct BaselineDriver {
    store: EtcdStore,
    lease: i64,
    next: AtomicU64,
}

/// Opens the baseline.
pub(crate) async fn open(url: StoreUrl) -> Result<Option<Box<dyn Baseline>>> {
    let store = EtcdStore::connect(EtcdConfig::from_url(&url)?).await?;
    // Long enough for a benchmark; it is not kept alive.
    let granted =
        store.0.client.send(LeaseGrantRequest { ttl: 600, id: 0 }).await.map_err(|failure| failure.error)?;
    Ok(Some(Box::new(BaselineDriver { store, lease: granted.reply.id, next: AtomicU64::new(0) })))
}

/// The page `/metrics` of a member.
async fn metrics(address: &Address) -> std::io::Result<String> {
    let mut stream = TcpStream::connect((address.host.as_str(), address.port)).await?;
    stream.write_all(format!("GET /metrics HTTP/1.0\r\nHost: {address}\r\n\r\n").as_bytes()).await?;
    let mut page = String::new();
    stream.read_to_string(&mut page).await?;
    Ok(page)
}

#[async_trait]
impl Baseline for BaselineDriver {
    async fn cycle(&self, name: &str) -> Result<()> {
        let failed = |status: tonic::Status| error::of_status(&status).error;
        let mut kv = KvClient::new(self.store.0.client.target().channel());
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let key = format!("{}baseline/{name}", self.store.0.config.keys.prefix()).into_bytes();
        let absent = Compare {
            result: CompareResult::Equal.into(),
            target: CompareTarget::Create.into(),
            key: key.clone(),
            target_union: Some(TargetUnion::CreateRevision(0)),
            range_end: Vec::new(),
        };
        let value = number.to_string().into_bytes();
        let put = PutRequest { key: key.clone(), value, lease: self.lease, ..PutRequest::default() };
        let put = RequestOp { request: Some(request_op::Request::RequestPut(put)) };
        let txn = TxnRequest { compare: vec![absent], success: vec![put], failure: Vec::new() };
        kv.txn(Request::new(txn)).await.map_err(failed)?;
        kv.delete_range(Request::new(DeleteRangeRequest { key, ..DeleteRangeRequest::default() }))
            .await
            .map_err(failed)?;
        Ok(())
    }

    /// The messages that all members received from clients, as their metrics say. With TLS they are out of reach.
    async fn server_requests(&self) -> Result<Option<u64>> {
        let config = &self.store.0.config;
        if config.tls.is_some() {
            return Ok(None);
        }
        let mut messages = 0;
        for address in &config.endpoints {
            let page = metrics(address).await.map_err(|error| {
                errors::unavailable("the metrics cannot be read")
                    .on(format!("etcd {address}"))
                    .caused_by(error)
            })?;
            let counters = page.lines().filter(|line| line.starts_with("grpc_server_msg_received_total"));
            let values = counters.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok());
            messages += values.sum::<f64>() as u64;
        }
        Ok(Some(messages))
    }

    async fn clean_up(&self, prefix: &str) -> Result<()> {
        if prefix.is_empty() {
            return Err(Error::new(ErrorKind::InvalidInput, "an empty prefix would remove every lock"));
        }
        let (client, keys) = (&self.store.0.client, &self.store.0.config.keys);
        let mut ours = Vec::new();
        for kind in Kind::VISIBLE {
            let found = client.send(txn::list(&keys.kind(kind))).await.map_err(|failure| failure.error)?;
            let named =
                |kv: &KeyValue| keys.parse(&kv.key).is_some_and(|(_, name, _)| name.starts_with(prefix));
            ours.extend(found.reply.kvs.into_iter().filter(named).map(|kv| kv.key));
        }
        for keys in ours.chunks(DELETE_COUNT) {
            let delete = |key: &Vec<u8>| RequestOp {
                request: Some(request_op::Request::RequestDeleteRange(DeleteRangeRequest {
                    key: key.clone(),
                    ..DeleteRangeRequest::default()
                })),
            };
            let txn = TxnRequest { success: keys.iter().map(delete).collect(), ..TxnRequest::default() };
            client.send(txn).await.map_err(|failure| failure.error)?;
        }
        Ok(())
    }
}
