//! What the proxy's handle and its connections share: the faults in force, and the counters.

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

/// What becomes of a connection after a reply on it was lost. No network loses the middle of a stream, so nothing
/// more arrives on it in either case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterLoss {
    /// Both sides see the connection close.
    Close,
    /// The connection stays open, requests still reach the server, and no reply reaches the client any more.
    Hang,
}

/// What has passed through a proxy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Connections accepted.
    pub accepted: u64,
    /// Connections open now.
    pub open: u64,
    /// What went to the server.
    pub to_server: Flow,
    /// What went to the client.
    pub to_client: Flow,
}

/// What has passed in one direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Flow {
    /// Bytes passed on.
    pub bytes: u64,
    /// Bursts passed on: what was read at once.
    pub bursts: u64,
    /// Bursts taken away by a fault.
    pub lost: u64,
}

/// The faults in force for all connections.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Faults {
    pub(super) delay: [Duration; 2],
    pub(super) black_hole: [bool; 2],
    pub(super) paused: bool,
    pub(super) refusing: bool,
    pub(super) closed: bool,
    /// Grows when connections are cut: those of another epoch end.
    pub(super) epoch: u64,
    /// Grows when all is made well: connections that hang after a lost reply end.
    pub(super) healed: u64,
}

impl Faults {
    pub(super) fn heal(&mut self) {
        *self = Self { closed: self.closed, epoch: self.epoch, healed: self.healed + 1, ..Self::default() };
    }
}

/// A reply that is to be lost.
#[derive(Debug)]
pub(super) enum Loss {
    /// The reply after so many more.
    Nth { left: usize, after: AfterLoss },
    /// The reply to the next request that contains these words.
    To { words: Vec<u8>, after: AfterLoss },
}

/// Marks the connections that a [`cut`](super::ProxyHandle::cut) ends: each holds the epoch it began in.
pub(super) type Epoch = Arc<u64>;

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) port: Port,
    pub(super) listening: AtomicBool,
    target: Mutex<SocketAddr>,
    faults: watch::Sender<Faults>,
    loss: Mutex<Option<Loss>>,
    epoch: Mutex<Epoch>,
    counters: Mutex<Counters>,
}

impl Shared {
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

    /// Ends an epoch, and gives it with the number of its connections: nobody else holds it when they are closed.
    pub(super) fn next_epoch(&self) -> (Epoch, usize) {
        let mut epoch = lock(&self.epoch);
        let next = Arc::new(**epoch + 1);
        let old = std::mem::replace(&mut *epoch, Arc::clone(&next));
        let connections = Arc::strong_count(&old) - 1;
        self.change(|faults| faults.epoch = *next);
        (old, connections)
    }

    pub(super) fn lose(&self, loss: Option<Loss>) {
        *lock(&self.loss) = loss;
    }

    /// Called for every request: whether the reply to it is to be lost.
    pub(super) fn loses_reply_to(&self, request: &[u8]) -> Option<AfterLoss> {
        let mut loss = lock(&self.loss);
        match &*loss {
            Some(Loss::To { words, after }) if request.windows(words.len()).any(|window| window == words) => {
                let after = *after;
                *loss = None;
                Some(after)
            }
            _ => None,
        }
    }

    /// Called for every reply: whether it is the one to be lost.
    pub(super) fn loses_this_reply(&self) -> Option<AfterLoss> {
        let mut loss = lock(&self.loss);
        let Some(Loss::Nth { left, after }) = &mut *loss else { return None };
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
