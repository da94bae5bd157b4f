//! The two halves of a socket whose arrivals the runtime need not be told of.
//!
//! While a task looks at the socket by itself, a thread of the runtime that sleeps until something arrives would be woken by each
//! reply, for nothing, and take the processor that the server needs. So the runtime watches an epoll instance that watches the socket,
//! and that one can be told to be quiet.

use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rustix::event::{Timespec, epoll};
use socket2::Socket;
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};

use super::{ReadHalf, ReadNow, WriteHalf};

struct QuietRead {
    socket: Arc<Socket>,
    /// Readable while there is something to read, unless it is quiet.
    arrivals: AsyncFd<OwnedFd>,
    is_quiet: bool,
}

struct QuietWrite(AsyncFd<Arc<Socket>>);

/// The instance watches one socket.
const NOTHING: epoll::EventData = epoll::EventData::new_u64(0);

/// Splits a connected socket that does not block.
pub(super) fn split(socket: Socket) -> io::Result<(ReadHalf, WriteHalf)> {
    let socket = Arc::new(socket);
    let arrivals = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&arrivals, &*socket, NOTHING, epoll::EventFlags::IN)?;
    let arrivals = watched(arrivals, Interest::READABLE)?;
    let write = watched(Arc::clone(&socket), Interest::WRITABLE)?;
    Ok((Box::new(QuietRead { socket, arrivals, is_quiet: false }), Box::new(QuietWrite(write))))
}

/// The successor of this function is `unsafe`, since it takes types that do not keep their descriptor open. Both of ours own it.
#[allow(deprecated)]
fn watched<T: AsRawFd>(descriptor: T, interest: Interest) -> io::Result<AsyncFd<T>> {
    AsyncFd::with_interest(descriptor, interest)
}

fn is_not_ready(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}

impl ReadNow for QuietRead {
    fn read_now(&self, room: &mut [u8]) -> io::Result<usize> {
        (&*self.socket).read(room)
    }

    fn set_quiet(&mut self, quiet: bool) -> io::Result<()> {
        if self.is_quiet != quiet {
            let flags = if quiet { epoll::EventFlags::empty() } else { epoll::EventFlags::IN };
            epoll::modify(self.arrivals.get_ref(), &*self.socket, NOTHING, flags)?;
            self.is_quiet = quiet;
            if quiet {
                // Forgets what was reported before: otherwise the end of the quiet would report nothing.
                let (mut forgotten, now) = ([const { MaybeUninit::uninit() }; 1], Timespec::default());
                epoll::wait(self.arrivals.get_ref(), &mut forgotten, Some(&now))?;
            }
        }
        Ok(())
    }
}

impl AsyncRead for QuietRead {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let read = |buf: &mut ReadBuf<'_>| {
            let count = (&*self.socket).read(buf.initialize_unfilled())?;
            buf.advance(count);
            Ok(())
        };
        loop {
            let mut arrived = ready!(self.arrivals.poll_read_ready(cx))?;
            match read(buf) {
                Err(error) if is_not_ready(&error) => arrived.clear_ready(),
                done => return Poll::Ready(done),
            }
        }
    }
}

impl AsyncWrite for QuietWrite {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match (&**self.0.get_ref()).write(bytes) {
            Err(error) if is_not_ready(&error) => {}
            done => return Poll::Ready(done),
        }
        loop {
            let mut writable = ready!(self.0.poll_write_ready(cx))?;
            match (&**self.0.get_ref()).write(bytes) {
                Err(error) if is_not_ready(&error) => writable.clear_ready(),
                done => return Poll::Ready(done),
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.0.get_ref().shutdown(std::net::Shutdown::Write))
    }
}
