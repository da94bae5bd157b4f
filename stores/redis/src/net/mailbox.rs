//! Wake-ups that come in over a connection, and who reads them.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use distlock_core::store::{PushedGrant, Wake};
use distlock_core::{FencingToken, LockId};
use futures_core::Stream;
use redis::{PushInfo, PushKind, Value};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::Live;

type Readers = HashMap<Vec<u8>, Vec<(u64, UnboundedSender<Wake>)>>;

/// The readers of one connection, by channel. Closed when the connection ends: every stream ends then.
#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    closed: AtomicBool,
    next: AtomicU64,
    readers: Mutex<Readers>,
}

impl Mailbox {
    fn readers(&self) -> MutexGuard<'_, Readers> {
        self.readers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    pub(super) fn close(&self) {
        let mut readers = self.readers();
        self.closed.store(true, Ordering::SeqCst);
        readers.clear();
    }

    /// What the server sends unasked. Runs inside the driver's own task, so it must not block.
    pub(super) fn deliver(&self, info: PushInfo) {
        match (info.kind, info.data.as_slice()) {
            (PushKind::Disconnection, _) => self.close(),
            (PushKind::Message, [Value::BulkString(channel), Value::BulkString(message)]) => {
                let Some(wake) = read(message) else {
                    tracing::debug!(
                        message = %String::from_utf8_lossy(message),
                        "a message that is no wake-up of ours"
                    );
                    return;
                };
                for (_, reader) in self.readers().get(channel).into_iter().flatten() {
                    // A closed receiver is a stream that is just being dropped.
                    let _ = reader.send(wake.clone());
                }
            }
            _ => {}
        }
    }

    /// A stream of what comes to this channel. `None` if the connection has ended.
    pub(super) fn open(&self, channel: &[u8]) -> Option<(u64, UnboundedReceiver<Wake>)> {
        let (sender, receiver) = unbounded_channel();
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let mut readers = self.readers();
        if self.is_closed() {
            return None;
        }
        readers.entry(channel.to_vec()).or_default().push((number, sender));
        Some((number, receiver))
    }

    pub(super) fn has_readers(&self, channel: &[u8]) -> bool {
        self.readers().contains_key(channel)
    }

    /// True if it was the channel's last reader.
    fn leave(&self, channel: &[u8], number: u64) -> bool {
        let mut readers = self.readers();
        let Some(open) = readers.get_mut(channel) else { return false };
        open.retain(|(other, _)| *other != number);
        let last = open.is_empty();
        if last {
            readers.remove(channel);
        }
        last
    }
}

/// `R lock-id`, `B lock-id` or `P token after window attempt lock-id`, as the scripts write them. A script of the previous
/// version writes `G token after window lock-id`: no attempt has the number 0, so the waiter asks again. That version reads
/// no `P`, so its waiters ask again too, when their time comes.
fn read(message: &[u8]) -> Option<Wake> {
    let (kind, rest) = std::str::from_utf8(message).ok()?.split_once(' ')?;
    let words = match kind {
        "R" => return Some(Wake::retry(LockId::from_stored(rest))),
        "B" => return Some(Wake::broken(LockId::from_stored(rest))),
        "P" => 5,
        "G" => 4,
        _ => return None,
    };
    let mut parts = rest.splitn(words, ' ');
    let mut number = || parts.next()?.parse::<u64>().ok();
    let (token, after, window) = (number()?, number()?, number()?);
    let grant = PushedGrant::new(FencingToken::new(token), Duration::from_millis(window))
        .with_attempt(if words == 5 { number()? } else { 0 })
        .with_after(Duration::from_millis(after));
    Some(Wake::granted(LockId::from_stored(parts.next()?), grant))
}

/// The wake-ups of one inbox. Ends with the connection; dropping it unsubscribes.
pub(super) struct Listening {
    pub(super) receiver: UnboundedReceiver<Wake>,
    pub(super) number: u64,
    pub(super) channel: Vec<u8>,
    pub(super) live: Arc<Live>,
}

impl Stream for Listening {
    type Item = Wake;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Wake>> {
        self.receiver.poll_recv(context)
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let last = self.live.mailbox.leave(&self.channel, self.number);
        // Without a runtime the subscription stays until the connection ends; its messages go nowhere.
        if let (true, Ok(runtime)) = (last, tokio::runtime::Handle::try_current()) {
            let (live, channel) = (Arc::clone(&self.live), std::mem::take(&mut self.channel));
            runtime.spawn(async move { live.unsubscribe_if_unread(&channel).await });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_back_with_lock_ids_that_hold_spaces() {
        for (message, attempt) in
            [(b"P 1700000000000 12 2000 7 a b#1-2".as_slice(), 7), (b"G 1700000000000 12 2000 a b#1-2", 0)]
        {
            let Some(Wake::Granted { lock_id, grant, .. }) = read(message) else {
                panic!("not a grant");
            };
            assert_eq!((lock_id.as_str(), grant.attempt), ("a b#1-2", attempt));
            assert_eq!((grant.token.get(), grant.after.as_millis()), (1_700_000_000_000, 12));
            assert_eq!(grant.window.as_millis(), 2000);
        }
        assert!(matches!(read(b"R x y"), Some(Wake::Retry { lock_id, .. }) if lock_id.as_str() == "x y"));
        assert!(matches!(read(b"B x y"), Some(Wake::Broken { lock_id, .. }) if lock_id.as_str() == "x y"));
        for bad in [b"".as_slice(), b"P 1 2", b"P 1 2 3 y z", b"P 1 2 3 4", b"G 1 2 x y", b"hello", b"\xff"] {
            assert!(read(bad).is_none());
        }
    }
}
