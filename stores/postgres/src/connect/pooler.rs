//! Whether the other end is the server itself or a pooler in front of it.
//!
//! A pooler such as PgBouncer may run each transaction in another session of the server. It answers the handshake itself and
//! invents the process id in it; `pg_backend_pid()` returns the server's own. The driver does not show the process id of the
//! handshake, but writes it into a cancel request: here into one that is not sent.

use std::future::{Ready, ready};
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::Client;
use tokio_postgres::tls::{ChannelBinding, TlsConnect, TlsStream};

/// The process id of the handshake.
pub(super) async fn handshake_process(client: &Client) -> Option<i32> {
    let written = Arc::new(Mutex::new(Vec::new()));
    let sink = Sink { agreed: false, written: Arc::clone(&written) };
    client.cancel_token().cancel_query_raw(sink, Unencrypted).await.ok()?;
    let written = written.lock().unwrap_or_else(PoisonError::into_inner);
    // The last 16 bytes: length, request code, process id, secret.
    let request: [u8; 16] = written.get(written.len().checked_sub(16)?..)?.try_into().ok()?;
    let word = |at: usize| Some(i32::from_be_bytes(request.get(at..at + 4)?.try_into().ok()?));
    (word(0) == Some(16)).then(|| word(8)).flatten()
}

/// A stream to no server: it agrees to TLS once, and keeps what is written.
struct Sink {
    agreed: bool,
    written: Arc<Mutex<Vec<u8>>>,
}

impl AsyncRead for Sink {
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

impl AsyncWrite for Sink {
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

impl TlsStream for Sink {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

/// Takes the stream for encrypted as it is: nothing leaves this process.
struct Unencrypted;

impl TlsConnect<Sink> for Unencrypted {
    type Stream = Sink;
    type Error = io::Error;
    type Future = Ready<io::Result<Sink>>;

    fn connect(self, stream: Sink) -> Self::Future {
        ready(Ok(stream))
    }
}
