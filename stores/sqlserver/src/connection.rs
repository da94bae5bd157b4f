//! One connection: requests with a time limit, a wait that can be cancelled, and the end of the connection while it is idle.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use distlock_core::store::support::ended_session::withdrawn;
use distlock_core::store::support::errors;
use distlock_core::{CancellationToken, Result};
use futures_util::io::{AsyncRead, AsyncWrite};
use tiberius::{Client, Query, Row};
use tokio::net::TcpStream;

use crate::error::{self, Failure};

/// How long the acknowledgement of a cancelled statement may take.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(2);

/// Whether the server reads an attention while it runs a statement. SQL Server does; a compatible server was seen that reads it
/// when the statement has ended, and there a cancelled statement ends with its connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct Attention(Arc<AtomicBool>);

impl Attention {
    fn is_ignored(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Known beforehand, or seen.
    pub(crate) fn was_ignored(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A value of a statement. All of them are bound.
#[derive(Clone, Debug)]
pub(crate) enum Param {
    Text(String),
    Bytes(Vec<u8>),
    Int(i32),
    Big(i64),
}

impl From<&str> for Param {
    fn from(text: &str) -> Self {
        Param::Text(text.to_owned())
    }
}

impl From<String> for Param {
    fn from(text: String) -> Self {
        Param::Text(text)
    }
}

impl From<&[u8]> for Param {
    fn from(bytes: &[u8]) -> Self {
        Param::Bytes(bytes.to_vec())
    }
}

impl From<&[u8; 32]> for Param {
    fn from(bytes: &[u8; 32]) -> Self {
        Param::Bytes(bytes.to_vec())
    }
}

impl From<i32> for Param {
    fn from(number: i32) -> Self {
        Param::Int(number)
    }
}

impl From<i64> for Param {
    fn from(number: i64) -> Self {
        Param::Big(number)
    }
}

/// What came of a request that can be cancelled.
#[derive(Debug)]
pub(crate) enum Reply {
    Rows(Vec<Row>),
    /// It was cancelled, and the session goes on. What the statement had done by then is unknown.
    Cancelled,
}

/// A connection. After a failure whose cause is [`Broken`](crate::error::Cause::Broken) it is closed.
pub(crate) struct Connection {
    client: Option<Client<Socket>>,
    socket: Arc<TcpStream>,
    attention: Attention,
}

impl Connection {
    pub(crate) fn new(client: Client<Socket>, socket: Arc<TcpStream>) -> Self {
        Connection { client: Some(client), socket, attention: Attention::default() }
    }

    /// Shares with other connections what is known about the server.
    pub(crate) fn share(&mut self, attention: &Attention) {
        self.attention = attention.clone();
    }

    pub(crate) fn is_open(&self) -> bool {
        self.client.is_some()
    }

    /// Sets the session up, and returns the rows. Not with [`query`](Connection::query): the server forgets settings of a
    /// parametrised statement at its end.
    ///
    /// # Cancel safety
    /// Dropping the future closes the connection.
    pub(crate) async fn set_up(&mut self, text: &str, limit: Duration) -> Result<Vec<Row>, Failure> {
        let Some(mut client) = self.client.take() else {
            return Err(Failure::broken(errors::unavailable("the connection is closed")));
        };
        let sent = async { client.simple_query(text).await?.into_results().await };
        match tokio::time::timeout(limit, sent).await {
            Ok(Ok(results)) => {
                self.client = Some(client);
                Ok(results.into_iter().flatten().collect())
            }
            Ok(Err(error)) => Err(error::of_statement(&error)),
            Err(_) => Err(Failure::broken(errors::no_reply(limit))),
        }
    }

    /// Runs a statement and returns its rows.
    ///
    /// # Cancel safety
    /// Dropping the future closes the connection.
    pub(crate) async fn query(
        &mut self,
        text: &str,
        params: Vec<Param>,
        limit: Duration,
    ) -> Result<Vec<Row>, Failure> {
        match self.run(text, params, Some(limit), None).await? {
            Reply::Rows(rows) => Ok(rows),
            Reply::Cancelled => Err(Failure::broken(errors::unexpected_reply("cancelled"))),
        }
    }

    /// The same without a time limit, until `cancel`: the statement is cancelled on the server then.
    ///
    /// # Cancel safety
    /// Dropping the future closes the connection.
    pub(crate) async fn run(
        &mut self,
        text: &str,
        params: Vec<Param>,
        limit: Option<Duration>,
        cancel: Option<&CancellationToken>,
    ) -> Result<Reply, Failure> {
        // Taken out while a request is in flight: if this future is dropped, so is the connection.
        let Some(mut client) = self.client.take() else {
            return Err(Failure::broken(errors::unavailable("the connection is closed")));
        };
        enum Ended {
            Answered(tiberius::Result<Vec<Vec<Row>>>),
            TimedOut(Duration),
            Cancelled,
        }
        let ended = {
            let answer = send(&mut client, text, params);
            tokio::select! {
                biased;
                answer = answer => Ended::Answered(answer),
                limit = elapsed(limit) => Ended::TimedOut(limit),
                () = withdrawn(cancel) => Ended::Cancelled,
            }
        };
        match ended {
            Ended::Answered(Ok(results)) => {
                self.client = Some(client);
                Ok(Reply::Rows(results.into_iter().flatten().collect()))
            }
            Ended::Answered(Err(error)) => {
                let failure = error::of_statement(&error);
                if !failure.is_broken() {
                    self.client = Some(client);
                }
                Err(failure)
            }
            Ended::TimedOut(limit) => Err(Failure::broken(errors::no_reply(limit))),
            Ended::Cancelled if self.attention.is_ignored() => {
                Err(Failure::broken(errors::connection_lost("its statement was cancelled")))
            }
            Ended::Cancelled => match tokio::time::timeout(CANCEL_TIMEOUT, client.cancel_query()).await {
                Ok(Ok(())) => {
                    self.client = Some(client);
                    Ok(Reply::Cancelled)
                }
                Ok(Err(error)) => Err(Failure::broken(error::of_statement(&error).error)),
                Err(_) => {
                    self.attention.was_ignored();
                    Err(Failure::broken(errors::no_reply(CANCEL_TIMEOUT)))
                }
            },
        }
    }

    /// Resolves when the server closes the connection, or says something without having been asked. Only while no request is in
    /// flight.
    ///
    /// # Cancel safety
    /// Cancel safe: nothing is read.
    pub(crate) async fn idle_end(&self) {
        let _ = self.socket.peek(&mut [0]).await;
    }
}

async fn send(
    client: &mut Client<Socket>,
    text: &str,
    params: Vec<Param>,
) -> tiberius::Result<Vec<Vec<Row>>> {
    let mut query = Query::new(text);
    for param in params {
        match param {
            Param::Text(text) => query.bind(text),
            Param::Bytes(bytes) => query.bind(bytes),
            Param::Int(number) => query.bind(number),
            Param::Big(number) => query.bind(number),
        }
    }
    query.query(client).await?.into_results().await
}

async fn elapsed(limit: Option<Duration>) -> Duration {
    match limit {
        Some(limit) => {
            tokio::time::sleep(limit).await;
            limit
        }
        None => std::future::pending().await,
    }
}

/// A socket that is also watched while the driver does not read from it.
#[derive(Debug)]
pub(crate) struct Socket(pub(crate) Arc<TcpStream>);

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.0.poll_read_ready(cx))?;
            match self.0.try_read(buf) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return Poll::Ready(read),
            }
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.0.poll_write_ready(cx))?;
            match self.0.try_write(buf) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(socket2::SockRef::from(&*self.0).shutdown(std::net::Shutdown::Write))
    }
}
