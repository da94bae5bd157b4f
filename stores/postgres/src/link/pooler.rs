//! Whether the other end is the server itself or a pooler in front of it.
//!
//! A pooler such as PgBouncer may give each transaction another session of the server. It answers the handshake itself
//! and makes up the process number that goes with it; the server's own number is told by `pg_backend_pid()`. The
//! driver keeps the number from the handshake to itself, but writes it into a request to cancel a statement: here into
//! one that goes nowhere.

use std::future::{Ready, ready};
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::Client;
use tokio_postgres::tls::{ChannelBinding, TlsConnect, TlsStream};

/// The process number that the other end told in its handshake.
pub(super) async fn told_process(client: &Client) -> Option<i32> {
    let written = Arc::new(Mutex::new(Vec::new()));
    let nowhere = Nowhere { agreed: false, written: Arc::clone(&written) };
    client.cancel_token().cancel_query_raw(nowhere, Unencrypted).await.ok()?;
    let written = written.lock().unwrap_or_else(PoisonError::into_inner);
    // The last 16 bytes: length, code of the request, process number, secret.
    let request: [u8; 16] = written.get(written.len().checked_sub(16)?..)?.try_into().ok()?;
    let word = |at: usize| Some(i32::from_be_bytes(request.get(at..at + 4)?.try_into().ok()?));
    (word(0) == Some(16)).then(|| word(8)).flatten()
}

/// A connection that leads nowhere: it agrees to TLS once, and keeps what is written.
struct Nowhere {
    agreed: bool,
    written: Arc<Mutex<Vec<u8>>>,
}

impl AsyncRead for Nowhere {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.agreed && buffer.remaining() > 0 {
            self.agreed = true;
            buffer.put_slice(b"S");
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Nowhere {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl TlsStream for Nowhere {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

/// Calls a stream encrypted that is not: nothing leaves this process.
struct Unencrypted;

impl TlsConnect<Nowhere> for Unencrypted {
    type Stream = Nowhere;
    type Error = io::Error;
    type Future = Ready<io::Result<Nowhere>>;

    fn connect(self, stream: Nowhere) -> Self::Future {
        ready(Ok(stream))
    }
}
