//! The nodes' wake-ups as one stream. Each is a hint that asking again may help, and never more: what one node
//! grants is one vote.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, StreamExt};

use super::Inner;
use super::ticket::as_asked;
use crate::error::Result;
use crate::store::{Inbox, Wake, WakeStream};

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LAST_PAUSE: Duration = Duration::from_secs(2);

/// Opens a stream on each node. It ends only when it is dropped: a node whose stream breaks or does not open is
/// tried again while the others go on.
pub(super) async fn subscribe(inner: &Arc<Inner>, inbox: &Inbox) -> Result<WakeStream> {
    let streams = (0..inner.nodes.len()).filter(|node| inner.nodes[*node].store.capabilities().push);
    let streams: Vec<_> = streams.map(|node| listen(Arc::clone(inner), node, inbox.clone()).boxed()).collect();
    Ok(Box::pin(stream::select_all(streams)))
}

enum Line {
    Closed { pause: Duration },
    Open(WakeStream),
}

fn listen(inner: Arc<Inner>, node: usize, inbox: Inbox) -> impl futures_core::Stream<Item = Wake> + Send {
    stream::unfold(Line::Closed { pause: Duration::ZERO }, move |mut line| {
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
                        match inner.nodes[node].store.subscribe(&inbox).await {
                            // Whatever was sent while it was closed is gone.
                            Ok(open) => return Some((Wake::Missed, Line::Open(open))),
                            Err(_) => Line::Closed { pause: (pause * 2).clamp(FIRST_PAUSE, LAST_PAUSE) },
                        }
                    }
                };
            }
        }
    })
}

fn as_hint(wake: Wake) -> Wake {
    match wake {
        Wake::Retry { lock_id } | Wake::Granted { lock_id, .. } => Wake::Retry { lock_id: as_asked(&lock_id) },
        Wake::Missed => Wake::Missed,
    }
}
