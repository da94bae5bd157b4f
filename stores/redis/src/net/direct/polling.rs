//! Looking at the socket for a reply instead of sleeping: see [`busy_poll`](crate::net::busy_poll).

use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;

use super::DirectConnection;
use super::reader::Reader;

/// The pauses of the processor between two looks at the socket, which cost the kernel more than a reply is early by.
const LOOK_EVERY: u32 = 30;

impl DirectConnection {
    /// Looks at the socket until this reply is there. `None` if that took too long, or if others wait for replies too: they need
    /// the thread.
    pub(super) fn poll_for<T>(&self, answer: &mut oneshot::Receiver<T>, sent: u64) -> Option<T> {
        let in_flight = self.in_flight().requests.len();
        let polling = self.busy_poll.begin(sent, in_flight)?;
        loop {
            if let Ok(mut reader) = self.reader.try_lock() {
                self.read_now(&mut reader);
            }
            match answer.try_recv() {
                Ok(reply) => return Some(reply),
                Err(TryRecvError::Closed) => return None,
                Err(TryRecvError::Empty) => {}
            }
            for _ in 0..LOOK_EVERY {
                std::hint::spin_loop();
            }
            if polling.is_over(self.busy_poll.now()) || self.in_flight().requests.len() > 1 {
                return None;
            }
        }
    }

    /// Reads what has arrived, without asking the runtime. The end of the connection is found by [`read`](Self::read).
    fn read_now(&self, reader: &mut Reader) {
        reader.make_room();
        let Reader { half, buffer, filled } = reader;
        if let Some(count) = half.read_now(buffer.get_mut(*filled..).unwrap_or_default()) {
            *filled += count;
            self.deliver_all(reader);
        }
    }
}
