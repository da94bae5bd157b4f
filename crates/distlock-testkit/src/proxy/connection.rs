//! One connection through the proxy.

use std::cell::Cell;
use std::future::pending;
use std::io;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

use super::state::{AfterLoss, Direction, Faults, ProxyState};

/// The maximum size of one burst.
const BURST: usize = 256 * 1024;
/// How many delayed bursts the proxy keeps before it stops reading.
const QUEUE: usize = 1024;

/// Forwards bytes in both directions until the connection ends or is cut.
pub(super) async fn forward(client: TcpStream, shared: Arc<ProxyState>) {
    let epoch = shared.epoch();
    shared.count(|counters| {
        counters.accepted += 1;
        counters.open += 1;
    });
    let damage = Damage::default();
    tokio::select! {
        () = forward_both(client, &shared, &damage) => {}
        () = cut(shared.subscribe(), *epoch, &damage) => {}
    }
    shared.count(|counters| counters.open -= 1);
    drop(epoch);
}

/// The effects of faults on one connection. All connections of a proxy run on one thread.
#[derive(Default)]
struct Damage {
    /// Bytes in this direction were dropped.
    lossy: [Cell<bool>; 2],
    /// The next reply is to be dropped.
    drop_reply: Cell<Option<AfterLoss>>,
    /// All replies are dropped until the next heal: the count of heals at that moment.
    muted: Cell<Option<u64>>,
}

/// Completes when the proxy must close the connection.
async fn cut(mut faults: watch::Receiver<Faults>, epoch: u64, damage: &Damage) {
    let has_gap = |now: &Faults, d: Direction| damage.lossy[d as usize].get() && !now.black_hole[d as usize];
    let _ = faults
        .wait_for(|now| {
            now.closed
                || now.epoch != epoch
                || damage.muted.get().is_some_and(|healed| healed != now.healed)
                || has_gap(now, Direction::ToServer)
                || has_gap(now, Direction::ToClient)
        })
        .await;
}

async fn forward_both(mut client: TcpStream, shared: &ProxyState, damage: &Damage) {
    let mut faults = shared.subscribe();
    if faults.wait_for(|now| !now.paused).await.is_err() {
        return;
    }
    let Ok(mut server) = TcpStream::connect(shared.target()).await else { return };
    let _ = client.set_nodelay(true);
    let _ = server.set_nodelay(true);
    let (from_client, to_client) = client.split();
    let (from_server, to_server) = server.split();
    // A clean end of one direction leaves the other open; anything else ends both.
    let _ = tokio::try_join!(
        forward_one(Direction::ToServer, from_client, to_server, shared, damage),
        forward_one(Direction::ToClient, from_server, to_client, shared, damage),
    );
}

struct Burst {
    bytes: Vec<u8>,
    due: Instant,
}

async fn forward_one(
    direction: Direction,
    mut from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    shared: &ProxyState,
    damage: &Damage,
) -> io::Result<()> {
    let (queue, mut waiting) = mpsc::channel::<io::Result<Burst>>(QUEUE);
    let read = async move {
        let mut buffer = vec![0; BURST];
        loop {
            let result = from.read(&mut buffer).await;
            let length = *result.as_ref().unwrap_or(&0);
            let bytes = &buffer[..length];
            match decide(direction, bytes, shared, damage) {
                Verdict::Drop => {
                    shared.count_flow(direction, |flow| flow.lost += u64::from(length > 0));
                    if length == 0 {
                        // The other side must not see the end of the stream; `cut` ends this future.
                        pending::<()>().await;
                    }
                    continue;
                }
                Verdict::DropAndClose => {
                    shared.count_flow(direction, |flow| flow.lost += 1);
                    return Err(io::ErrorKind::ConnectionAborted.into());
                }
                Verdict::Forward => {}
            }
            let due = Instant::now() + shared.faults().delay[direction as usize];
            let end = length == 0;
            let burst = result.map(|_| Burst { bytes: bytes.to_vec(), due });
            if queue.send(burst).await.is_err() || end {
                return Ok(());
            }
        }
    };
    let write = async {
        let mut faults = shared.subscribe();
        while let Some(burst) = waiting.recv().await {
            if let Ok(burst) = &burst
                && burst.due > Instant::now()
            {
                sleep_until(burst.due).await;
            }
            let _ = faults.wait_for(|now| !now.paused).await;
            let Burst { bytes, .. } = burst?;
            if bytes.is_empty() {
                return to.shutdown().await;
            }
            // Count first: the receiver may read the counters as soon as it has the bytes.
            shared.count_flow(direction, |flow| {
                flow.bytes += bytes.len() as u64;
                flow.bursts += 1;
            });
            to.write_all(&bytes).await?;
        }
        Ok(())
    };
    tokio::try_join!(read, write).map(drop)
}

enum Verdict {
    Forward,
    Drop,
    DropAndClose,
}

/// Decides what to do with a burst that was just read. An empty one is the end of the stream.
fn decide(direction: Direction, bytes: &[u8], shared: &ProxyState, damage: &Damage) -> Verdict {
    let now = shared.faults();
    if damage.muted.get().is_some() && direction == Direction::ToClient {
        return Verdict::Drop;
    }
    if now.black_hole[direction as usize] {
        damage.lossy[direction as usize].set(true);
        return Verdict::Drop;
    }
    if bytes.is_empty() {
        return Verdict::Forward;
    }
    match direction {
        Direction::ToServer => {
            if let Some(after) = shared.loses_reply_to(bytes) {
                damage.drop_reply.set(Some(after));
            }
            Verdict::Forward
        }
        Direction::ToClient => match damage.drop_reply.take().or_else(|| shared.loses_this_reply()) {
            None => Verdict::Forward,
            Some(AfterLoss::Close) => Verdict::DropAndClose,
            Some(AfterLoss::Hang) => {
                damage.muted.set(Some(now.healed));
                Verdict::Drop
            }
        },
    }
}
