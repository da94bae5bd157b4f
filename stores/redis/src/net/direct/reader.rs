//! The half of a connection that reads: the socket, and the bytes that are not a whole reply yet.

use std::io;

use redis::Value;
use tokio::io::AsyncRead;

use crate::net::resp::{Malformed, first_frame};

/// The room for replies. A larger reply makes it grow for as long as it takes to read it.
pub(super) const READ_BUFFER: usize = 16 * 1024;

pub(crate) type ReadHalf = Box<dyn ReadNow>;

/// A socket that can also be read without the runtime.
pub(crate) trait ReadNow: AsyncRead + Send + Unpin {
    /// Reads what has arrived; [`WouldBlock`](io::ErrorKind::WouldBlock) if that is nothing, zero at the end of the connection.
    fn read_now(&self, room: &mut [u8]) -> io::Result<usize>;

    /// Whether the runtime is not told of what arrives. When it is told again, that includes what has arrived meanwhile. A socket that
    /// cannot be quiet tells it always.
    fn set_quiet(&mut self, quiet: bool) -> io::Result<()> {
        let _ = quiet;
        Ok(())
    }
}

/// The socket and its buffer.
pub(super) struct Reader {
    pub(super) half: ReadHalf,
    pub(super) buffer: Vec<u8>,
    /// How much of the buffer is read from the socket and not parsed yet.
    pub(super) filled: usize,
    /// The runtime is not told of what arrives, because a task polls.
    pub(super) is_quiet: bool,
}

impl Reader {
    pub(super) fn new(half: ReadHalf) -> Self {
        Reader { half, buffer: vec![0; READ_BUFFER], filled: 0, is_quiet: false }
    }

    pub(super) fn make_room(&mut self) {
        if self.filled == self.buffer.len() {
            let larger = self.buffer.len().max(READ_BUFFER) * 2;
            self.buffer.resize(larger, 0);
        }
    }

    /// Takes complete values out of the buffer, until `deliver` wants no more.
    pub(super) fn parse(&mut self, mut deliver: impl FnMut(Value) -> bool) -> Result<(), Malformed> {
        let mut from = 0;
        while from < self.filled {
            let unparsed = self.buffer.get(from..self.filled).unwrap_or_default();
            let Some((value, length)) = first_frame(unparsed)? else { break };
            from += length;
            if !deliver(value) {
                break;
            }
        }
        self.buffer.copy_within(from..self.filled, 0);
        self.filled -= from;
        if self.filled == 0 && self.buffer.len() > READ_BUFFER {
            self.buffer = vec![0; READ_BUFFER];
        }
        Ok(())
    }
}
