//! State shared by the proxy's handle and its connections: active faults and counters.

use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use crate::servers::Port;

/// One of the two directions of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server: requests.
    ToServer = 0,
    /// From the server to the client: replies.
    ToClient = 1,
}

/// What happens to a connection after a lost reply. No network loses the middle of a stream, so the client receives nothing more
/// on it in either case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterLoss {
    /// Both sides see the connection close.
    Close,
    /// The connection stays open and requests reach the server, but no further reply reaches the client.
    Hang,
}

/// The traffic through a proxy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Connections accepted.
    pub accepted: u64,
    /// Connections open now.
    pub open: u64,
    /// Traffic to the server.
    pub to_server: Flow,
    /// Traffic to the client.
    pub to_client: Flow,
}

/// The traffic in one direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Flow {
    /// Bytes forwarded.
    pub bytes: u64,
    /// Bursts forwarded. A burst is what was read at once.
    pub bursts: u64,
    /// Bursts dropped by a fault.
    pub lost: u64,
}

/// The active faults of all connections.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Faults {
    pub(super) delay: [Duration; 2],
    pub(super) black_hole: [bool; 2],
    pub(super) paused: bool,
    pub(super) refusing: bool,
    pub(super) closed: bool,
    /// Increases with every cut: connections of an earlier epoch end.
    pub(super) epoch: u64,
    /// Increases with every heal: connections that hang after a lost reply end.
    pub(super) healed: u64,
}

impl Faults {
    pub(super) fn heal(&mut self) {
        *self = Self { closed: self.closed, epoch: self.epoch, healed: self.healed + 1, ..Self::default() };
    }
}

/// A scheduled loss of a reply.
#[derive(Debug)]
pub(super) enum ReplyLoss {
    /// The reply after this many more.
    Nth { left: usize, after: AfterLoss },
    /// The reply to the next request that contains these words.
    To { words: Vec<u8>, after: AfterLoss },
}

/// Identifies the connections that a [`cut`](super::ProxyHandle::cut) ends: each holds the epoch it began in.
pub(super) type Epoch = Arc<u64>;

#[derive(Debug)]
pub(super) struct ProxyState {
    pub(super) port: Port,
    pub(super) listening: AtomicBool,
    target: Mutex<SocketAddr>,
    faults: watch::Sender<Faults>,
    loss: Mutex<Option<ReplyLoss>>,
    epoch: Mutex<Epoch>,
    counters: Mutex<Counters>,
}

impl ProxyState {
    pub(super) fn new(port: Port, target: SocketAddr) -> Self {
        Self {
            port,
            listening: AtomicBool::new(false),
            target: Mutex::new(target),
            faults: watch::Sender::new(Faults::default()),
            loss: Mutex::default(),
            epoch: Mutex::default(),
            counters: Mutex::default(),
        }
    }

    pub(super) fn target(&self) -> SocketAddr {
        *lock(&self.target)
    }

    pub(super) fn set_target(&self, target: SocketAddr) {
        *lock(&self.target) = target;
    }

    pub(super) fn faults(&self) -> Faults {
        *self.faults.borrow()
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<Faults> {
        self.faults.subscribe()
    }

    pub(super) fn change(&self, change: impl FnOnce(&mut Faults)) {
        self.faults.send_modify(change);
    }

    /// The epoch for a connection that begins now.
    pub(super) fn epoch(&self) -> Epoch {
        Arc::clone(&lock(&self.epoch))
    }

    /// Ends an epoch and returns it with the number of its connections. When all are closed, the caller holds the only
    /// reference.
    pub(super) fn next_epoch(&self) -> (Epoch, usize) {
        let mut epoch = lock(&self.epoch);
        let next = Arc::new(**epoch + 1);
        let old = std::mem::replace(&mut *epoch, Arc::clone(&next));
        let connections = Arc::strong_count(&old) - 1;
        self.change(|faults| faults.epoch = *next);
        (old, connections)
    }

    pub(super) fn lose(&self, loss: Option<ReplyLoss>) {
        *lock(&self.loss) = loss;
    }

    /// Called for every request: whether its reply is to be dropped.
    pub(super) fn loses_reply_to(&self, request: &[u8]) -> Option<AfterLoss> {
        let mut loss = lock(&self.loss);
        match &*loss {
            Some(ReplyLoss::To { words, after })
                if request.windows(words.len()).any(|window| window == words) =>
            {
                let after = *after;
                *loss = None;
                Some(after)
            }
            _ => None,
        }
    }

    /// Called for every reply: whether it is to be dropped.
    pub(super) fn loses_this_reply(&self) -> Option<AfterLoss> {
        let mut loss = lock(&self.loss);
        let Some(ReplyLoss::Nth { left, after }) = &mut *loss else { return None };
        *left -= 1;
        let after = *after;
        (*left == 0).then(|| {
            *loss = None;
            after
        })
    }

    pub(super) fn counters(&self) -> Counters {
        *lock(&self.counters)
    }

    pub(super) fn count(&self, count: impl FnOnce(&mut Counters)) {
        count(&mut lock(&self.counters));
    }

    pub(super) fn count_flow(&self, direction: Direction, count: impl FnOnce(&mut Flow)) {
        self.count(|counters| match direction {
            Direction::ToServer => count(&mut counters.to_server),
            Direction::ToClient => count(&mut counters.to_client),
        });
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
