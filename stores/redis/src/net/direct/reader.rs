//! The half of a connection that reads: the socket, and the bytes that are not a whole reply yet.

use std::io::Read;

use redis::Value;
use socket2::{SockRef, Socket};
use tokio::io::AsyncRead;

use crate::net::resp::{Malformed, first_frame};

/// The room for replies. A larger reply makes it grow for as long as it takes to read it.
pub(super) const READ_BUFFER: usize = 16 * 1024;

pub(crate) type ReadHalf = Box<dyn ReadNow>;

/// A socket that can also be read without the runtime.
pub(crate) trait ReadNow: AsyncRead + Send + Unpin {
    /// Reads what has arrived; `None` if that is nothing, or the connection has ended.
    fn read_now(&self, room: &mut [u8]) -> Option<usize>;
}

impl ReadNow for tokio::net::tcp::OwnedReadHalf {
    fn read_now(&self, room: &mut [u8]) -> Option<usize> {
        read_socket(&SockRef::from(self.as_ref()), room)
    }
}

#[cfg(unix)]
impl ReadNow for tokio::net::unix::OwnedReadHalf {
    fn read_now(&self, room: &mut [u8]) -> Option<usize> {
        read_socket(&SockRef::from(self.as_ref()), room)
    }
}

/// The runtime's sockets do not block.
fn read_socket(mut socket: &Socket, room: &mut [u8]) -> Option<usize> {
    socket.read(room).ok().filter(|count| *count > 0)
}

/// The socket and its buffer.
pub(super) struct Reader {
    pub(super) half: ReadHalf,
    pub(super) buffer: Vec<u8>,
    /// How much of the buffer is read from the socket and not parsed yet.
    pub(super) filled: usize,
}

impl Reader {
    pub(super) fn new(half: ReadHalf) -> Self {
        Reader { half, buffer: vec![0; READ_BUFFER], filled: 0 }
    }

    pub(super) fn make_room(&mut self) {
        if self.filled == self.buffer.len() {
            let larger = self.buffer.len().max(READ_BUFFER) * 2;
            self.buffer.resize(larger, 0);
        }
    }

    /// Takes all complete values out of the buffer.
    pub(super) fn parse(&mut self, mut deliver: impl FnMut(Value)) -> Result<(), Malformed> {
        let mut from = 0;
        while from < self.filled {
            let unparsed = self.buffer.get(from..self.filled).unwrap_or_default();
            let Some((value, length)) = first_frame(unparsed)? else { break };
            from += length;
            deliver(value);
        }
        self.buffer.copy_within(from..self.filled, 0);
        self.filled -= from;
        if self.filled == 0 && self.buffer.len() > READ_BUFFER {
            self.buffer = vec![0; READ_BUFFER];
        }
        Ok(())
    }
}
