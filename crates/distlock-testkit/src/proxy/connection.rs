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

use super::state::{AfterLoss, Direction, Faults, Shared};

/// The most that counts as one burst.
const BURST: usize = 256 * 1024;
/// How many bursts wait in the proxy for their delay to pass, before it stops reading.
const QUEUE: usize = 1024;

/// Carries bytes both ways until the connection ends or is cut.
pub(super) async fn carry(client: TcpStream, shared: Arc<Shared>) {
    let epoch = shared.epoch();
    shared.count(|counters| {
        counters.accepted += 1;
        counters.open += 1;
    });
    let damage = Damage::default();
    tokio::select! {
        () = both_ways(client, &shared, &damage) => {}
        () = cut(shared.subscribe(), *epoch, &damage) => {}
    }
    shared.count(|counters| counters.open -= 1);
    drop(epoch);
}

/// What faults have done to one connection. All of a proxy's connections live on one thread.
#[derive(Default)]
struct Damage {
    /// Bytes of this direction were lost.
    lossy: [Cell<bool>; 2],
    /// The next reply is the one to be lost.
    doomed: Cell<Option<AfterLoss>>,
    /// No reply passes any more, until all is healed: the count of healings at that moment.
    muted: Cell<Option<u64>>,
}

/// Ends when the connection is to be closed by us.
async fn cut(mut faults: watch::Receiver<Faults>, epoch: u64, damage: &Damage) {
    let spoilt = |now: &Faults, d: Direction| damage.lossy[d as usize].get() && !now.black_hole[d as usize];
    let _ = faults
        .wait_for(|now| {
            now.closed
                || now.epoch != epoch
                || damage.muted.get().is_some_and(|healed| healed != now.healed)
                || spoilt(now, Direction::ToServer)
                || spoilt(now, Direction::ToClient)
        })
        .await;
}

async fn both_ways(mut client: TcpStream, shared: &Shared, damage: &Damage) {
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
        one_way(Direction::ToServer, from_client, to_server, shared, damage),
        one_way(Direction::ToClient, from_server, to_client, shared, damage),
    );
}

struct Burst {
    bytes: Vec<u8>,
    due: Instant,
}

async fn one_way(
    direction: Direction,
    mut from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    shared: &Shared,
    damage: &Damage,
) -> io::Result<()> {
    let (queue, mut waiting) = mpsc::channel::<io::Result<Burst>>(QUEUE);
    let read = async move {
        let mut buffer = vec![0; BURST];
        loop {
            let result = from.read(&mut buffer).await;
            let length = *result.as_ref().unwrap_or(&0);
            let bytes = &buffer[..length];
            match fate(direction, bytes, shared, damage) {
                Fate::Lost => {
                    shared.count_flow(direction, |flow| flow.lost += u64::from(length > 0));
                    if length == 0 {
                        // The other side never learns of the end; `cut` ends this.
                        pending::<()>().await;
                    }
                    continue;
                }
                Fate::LostAndClosed => {
                    shared.count_flow(direction, |flow| flow.lost += 1);
                    return Err(io::ErrorKind::ConnectionAborted.into());
                }
                Fate::Passes => {}
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
            // Counted first: whoever gets the bytes may look at the counters at once.
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

enum Fate {
    Passes,
    Lost,
    LostAndClosed,
}

/// Decides over a burst at the moment it was read; an empty one is the end of the stream.
fn fate(direction: Direction, bytes: &[u8], shared: &Shared, damage: &Damage) -> Fate {
    let now = shared.faults();
    if damage.muted.get().is_some() && direction == Direction::ToClient {
        return Fate::Lost;
    }
    if now.black_hole[direction as usize] {
        damage.lossy[direction as usize].set(true);
        return Fate::Lost;
    }
    if bytes.is_empty() {
        return Fate::Passes;
    }
    match direction {
        Direction::ToServer => {
            if let Some(after) = shared.loses_reply_to(bytes) {
                damage.doomed.set(Some(after));
            }
            Fate::Passes
        }
        Direction::ToClient => match damage.doomed.take().or_else(|| shared.loses_this_reply()) {
            None => Fate::Passes,
            Some(AfterLoss::Close) => Fate::LostAndClosed,
            Some(AfterLoss::Hang) => {
                damage.muted.set(Some(now.healed));
                Fate::Lost
            }
        },
    }
}
