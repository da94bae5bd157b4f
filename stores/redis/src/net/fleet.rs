//! All servers of a store, whatever their number: calls a script for many items and brings the answers in order.

use std::sync::Arc;
use std::time::Duration;

use distlock_core::store::WakeStream;
use distlock_core::{Error, ErrorKind, Result};
use redis::Value;

use super::cluster::Cluster;
use super::dial::Dialer;
use super::link::Reply;
use super::{Link, Live};
use crate::config::{RedisConfig, Servers};
use crate::script::{Item, Script};
use crate::trouble;

/// How a script is to be called.
#[derive(Debug)]
pub(crate) struct Request<'a> {
    pub(crate) script: &'a Script,
    pub(crate) limit: Duration,
    /// How many replicas must confirm.
    pub(crate) replicas: u32,
    /// Whether it must not be carried out after the limit.
    pub(crate) timed: bool,
}

/// What the script said of one item.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) values: [Value; 2],
    /// Whether as many replicas confirmed as were asked for.
    pub(crate) confirmed: bool,
}

/// One server, or many.
#[derive(Debug)]
pub(crate) enum Fleet {
    One(Arc<Link>),
    Cluster(Box<Cluster>),
}

impl Fleet {
    /// Connects to nothing yet.
    pub(crate) fn new(config: &RedisConfig) -> Result<Self> {
        let dialer = Dialer::new(config);
        Ok(match &config.servers {
            Servers::One(address) => Fleet::One(Arc::new(Link::direct(&dialer, address)?)),
            Servers::Sentinel { sentinels, master } => {
                Fleet::One(Arc::new(Link::by_sentinel(&dialer, sentinels, master)?))
            }
            Servers::Cluster { seeds } => Fleet::Cluster(Box::new(Cluster::new(&dialer, seeds)?)),
        })
    }

    /// Whether PUBLISH counts every subscriber there is.
    pub(crate) fn counts_readers(&self) -> bool {
        matches!(self, Fleet::One(_))
    }

    /// Connects, if that was not done before.
    pub(crate) async fn connect(&self) -> Result<()> {
        match self {
            Fleet::One(link) => link.live().await.map(|_| ()),
            Fleet::Cluster(cluster) => cluster.connect().await,
        }
    }

    /// The connections to all masters.
    pub(crate) async fn masters(&self) -> Result<Vec<Arc<Live>>> {
        match self {
            Fleet::One(link) => Ok(vec![link.live().await?]),
            Fleet::Cluster(cluster) => cluster.masters().await,
        }
    }

    /// Calls the script: once for all items on one server, once for each slot in a Cluster.
    pub(crate) async fn call(&self, request: &Request<'_>, items: &[Item<'_>]) -> Vec<Result<Answer>> {
        match self {
            Fleet::One(link) => {
                let group: Vec<&Item<'_>> = items.iter().collect();
                match link.call(request, &[group], false).await {
                    Ok((mut replies, confirmed)) => match replies.pop() {
                        Some(reply) => answers_of(reply, request, confirmed, items.len()),
                        None => all_failed(&trouble::nonsense("nothing"), items.len()),
                    },
                    Err(error) => all_failed(&error, items.len()),
                }
            }
            Fleet::Cluster(cluster) => cluster.call(request, items).await,
        }
    }

    pub(crate) async fn subscribe(&self, channel: &[u8], limit: Duration) -> Result<WakeStream> {
        let live = match self {
            Fleet::One(link) => link.live().await?,
            Fleet::Cluster(cluster) => cluster.any_master().await?,
        };
        live.subscribe(channel, limit).await
    }
}

pub(super) fn all_failed(error: &Error, items: usize) -> Vec<Result<Answer>> {
    (0..items).map(|_| Err(error.clone())).collect()
}

/// One answer for each of so many items of a call.
pub(super) fn answers_of(
    reply: Reply,
    request: &Request<'_>,
    confirmed: Option<u64>,
    items: usize,
) -> Vec<Result<Answer>> {
    let confirmed = confirmed.is_none_or(|count| count >= u64::from(request.replicas));
    let values = match reply {
        Reply::Done(values) => values,
        Reply::Each(values) => {
            return (0..items).map(|_| Ok(Answer { values: values.clone(), confirmed })).collect();
        }
        Reply::Refused(text) => return all_failed(&trouble::refused(&text), items),
        Reply::Late => {
            let error = Error::new(
                ErrorKind::Unavailable,
                "the server read the request after its time was over, and did nothing",
            )
            .advise("find out why the server is slow");
            return all_failed(&error, items);
        }
    };
    let width = request.script.width;
    if values.len() != width * items {
        return all_failed(&trouble::nonsense(values), items);
    }
    let mut values = values.into_iter();
    let mut next = || values.next().unwrap_or(Value::Nil);
    (0..items)
        .map(|_| {
            let first = next();
            let second = if width > 1 { next() } else { Value::Nil };
            Ok(Answer { values: [first, second], confirmed })
        })
        .collect()
}
