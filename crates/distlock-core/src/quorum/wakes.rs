//! The nodes' wake-ups as one stream. Each is a hint that asking again may help, and never more: what one node
//! grants is one vote.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::{self, StreamExt};

use super::Inner;
use super::error::Failures;
use super::ticket::as_asked;
use crate::error::{Error, ErrorKind, Result};
use crate::store::{Inbox, Wake, WakeStream};

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LAST_PAUSE: Duration = Duration::from_secs(2);

/// Opens a stream on each node. A node whose stream breaks or does not open is tried again while the others
/// go on.
pub(super) async fn subscribe(inner: &Arc<Inner>, inbox: &Inbox) -> Result<WakeStream> {
    let nodes: Vec<usize> =
        (0..inner.nodes.len()).filter(|node| inner.nodes[*node].store.capabilities().push).collect();
    let opened = join_all(nodes.iter().map(|node| async {
        let open = tokio::time::timeout(inner.options.node_timeout, open(inner, *node, inbox));
        open.await.unwrap_or_else(|_| {
            let what = format!("no answer within {:?}", inner.options.node_timeout);
            Err(Error::new(ErrorKind::Unavailable, what))
        })
    }));
    let opened = opened.await;
    if opened.iter().all(Result::is_err) {
        let mut failures = Failures::new(inner);
        for (node, error) in nodes.iter().zip(opened.into_iter().filter_map(Result::err)) {
            failures.add(*node, error);
        }
        return Err(failures.into_error(0).doing("subscribe"));
    }
    let streams = nodes.into_iter().zip(opened).map(|(node, opened)| {
        let line = opened.map_or(Line::Closed { pause: FIRST_PAUSE }, Line::Open);
        listen(Arc::clone(inner), node, inbox.clone(), line).boxed()
    });
    Ok(Box::pin(stream::select_all(streams)))
}

/// In a task of its own, since not every driver bears that a call is dropped half-way.
async fn open(inner: &Arc<Inner>, node: usize, inbox: &Inbox) -> Result<WakeStream> {
    let (store, inbox) = (Arc::clone(&inner.nodes[node].store), inbox.clone());
    let opened = tokio::spawn(async move { store.subscribe(&inbox).await });
    opened.await.unwrap_or_else(|_| Err(Error::new(ErrorKind::Internal, "the task of the call ended early")))
}

enum Line {
    Open(WakeStream),
    Closed { pause: Duration },
}

fn listen(
    inner: Arc<Inner>,
    node: usize,
    inbox: Inbox,
    line: Line,
) -> impl futures_core::Stream<Item = Wake> + Send {
    stream::unfold(line, move |mut line| {
        let (inner, inbox) = (Arc::clone(&inner), inbox.clone());
        async move {
            loop {
                line = match line {
                    Line::Open(mut open) => match open.next().await {
                        Some(wake) => return Some((as_hint(wake), Line::Open(open))),
                        None => Line::Closed { pause: FIRST_PAUSE },
                    },
                    Line::Closed { pause } => {
                        tokio::time::sleep(pause).await;
                        match open(&inner, node, &inbox).await {
                            // Whatever was sent while it was closed is gone.
                            Ok(open) => return Some((Wake::Missed, Line::Open(open))),
                            Err(_) => Line::Closed { pause: (pause * 2).min(LAST_PAUSE) },
                        }
                    }
                };
            }
        }
    })
}

fn as_hint(wake: Wake) -> Wake {
    match wake {
        Wake::Retry { lock_id } | Wake::Granted { lock_id, .. } => {
            Wake::Retry { lock_id: as_asked(&lock_id) }
        }
        Wake::Missed => Wake::Missed,
    }
}
