//! One session of the server: a task that owns its connection. What tasks ask for while a request is in flight goes out
//! together as the next one.
//!
//! The task confirms its session with heartbeats. What it holds is lost a fixed time after the last confirmed heartbeat was
//! *sent*: the session existed after that moment, so its locks were free no earlier. The next client relies on it.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use distlock_core::store::support::errors;
use distlock_core::store::{LossReason, Session};
use distlock_core::{Clock, Moment};
use distlock_core::{Error, FencingToken, Result};
use mysql_async::Row;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

use super::exchange::refuse;
use super::lock_name::LockName;
use super::statements::{self, Grant, Held, LONGEST_WAIT, Mark, Release};
use crate::connections::{Connection, REQUEST_TIMEOUT};
use crate::error::{Cause, Failure};
use crate::identifier::Tables;
use crate::rows::required;

/// How many operations one request carries.
const MOST_AT_ONCE: usize = 64;

/// How long a session lasts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timing {
    /// The server ends a session that sends nothing for this long.
    pub(super) session: Duration,
    /// What a session holds is lost this long after its last confirmed heartbeat.
    pub(super) heartbeat: Duration,
}

/// What came of taking a lock that may be free.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Taken {
    Granted(Drawn),
    /// Another session holds it.
    Busy,
    /// This session holds it, under another lock id. `GET_LOCK` would grant it again.
    HeldHere,
}

/// A lock that a session has, with its token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Drawn {
    pub(super) token: FencingToken,
    /// How long earlier holders may believe that they hold it.
    pub(super) pending: Duration,
    /// The session had the lock by then, so the sessions of earlier holders had ended.
    pub(super) since: Moment,
}

pub(super) type TakeReply = oneshot::Sender<Result<Taken>>;
pub(super) type ReleaseReply = oneshot::Sender<Result<bool>>;
pub(super) type RowsReply = oneshot::Sender<Result<Vec<Row>>>;

pub(super) enum Command {
    Take { grant: Grant, reply: TakeReply },
    Wait { grant: Grant, reply: TakeReply },
    Release { release: Release, reply: ReleaseReply },
    Settle { text: String, reply: RowsReply },
}

/// A handle to a session. When the last one is dropped the session ends, and what it holds is free.
#[derive(Debug)]
pub(super) struct SessionActor {
    commands: UnboundedSender<Command>,
    session: Session,
    connection_id: u32,
    is_open: Arc<AtomicBool>,
    /// Ends the task at once, whatever it waits for.
    task: tokio::task::JoinHandle<()>,
}

impl SessionActor {
    pub(super) fn start(
        connection: Connection,
        tables: Tables,
        clock: Arc<dyn Clock>,
        timing: Timing,
    ) -> Self {
        let (commands, inbox) = unbounded_channel();
        // The request that takes the first lock confirms it.
        let session = Session::until(clock.now());
        let is_open = Arc::new(AtomicBool::new(true));
        let connection_id = connection.id();
        let actor = Actor {
            connection,
            tables,
            confirmed: clock.now(),
            clock,
            timing,
            session: session.clone(),
            is_open: Arc::clone(&is_open),
            held: HashSet::new(),
        };
        let task = tokio::spawn(actor.run(inbox));
        SessionActor { commands, session, connection_id, is_open, task }
    }

    pub(super) fn session(&self) -> &Session {
        &self.session
    }

    pub(super) fn connection_id(&self) -> u32 {
        self.connection_id
    }

    pub(super) fn is_usable(&self) -> bool {
        self.is_open.load(Ordering::SeqCst) && self.session.ended().is_none()
    }

    /// Ends the session now: its connection is closed, also in the middle of a wait.
    pub(super) fn end(&self, why: &'static str) {
        self.is_open.store(false, Ordering::SeqCst);
        self.task.abort();
        self.session.end(LossReason::SessionEnded(why.into()));
    }

    async fn ask<T>(&self, command: impl FnOnce(oneshot::Sender<Result<T>>) -> Command) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        if self.commands.send(command(reply)).is_err() {
            return Err(errors::unavailable("the session has ended"));
        }
        answer.await.unwrap_or_else(|_| Err(errors::connection_lost("the session has ended")))
    }

    /// Takes a lock if it is free.
    pub(super) async fn take(&self, grant: Grant) -> Result<Taken> {
        self.ask(|reply| Command::Take { grant, reply }).await
    }

    /// Waits for a lock, in the server's queue.
    pub(super) async fn wait(&self, grant: Grant) -> Result<Taken> {
        self.ask(|reply| Command::Wait { grant, reply }).await
    }

    /// Sends a statement about the row of a lock that this session has.
    pub(super) async fn settle(&self, text: String) -> Result<Vec<Row>> {
        self.ask(|reply| Command::Settle { text, reply }).await
    }

    /// Releases a lock; false if this session did not hold it.
    pub(super) async fn release(&self, release: Release) -> Result<bool> {
        self.ask(|reply| Command::Release { release, reply }).await
    }

    /// The same without waiting for it. If it fails, the session ends.
    pub(super) fn release_later(&self, release: Release) {
        let _ = self.commands.send(Command::Release { release, reply: oneshot::channel().0 });
    }
}

impl Drop for SessionActor {
    fn drop(&mut self) {
        self.end("its store was dropped");
    }
}

pub(super) struct Actor {
    connection: Connection,
    pub(super) tables: Tables,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) timing: Timing,
    session: Session,
    is_open: Arc<AtomicBool>,
    /// What this session holds, as far as we know: at least what it does hold.
    pub(super) held: HashSet<LockName>,
    /// When the last confirmed heartbeat was sent.
    confirmed: Moment,
}

impl Actor {
    async fn run(mut self, mut inbox: UnboundedReceiver<Command>) {
        let ended = self.serve(&mut inbox).await;
        self.is_open.store(false, Ordering::SeqCst);
        self.session.end(LossReason::SessionEnded(ended.to_string().into()));
        self.connection.discard();
        inbox.close();
        while let Ok(command) = inbox.try_recv() {
            refuse(command, &ended);
        }
    }

    /// Until the session ends, and why.
    async fn serve(&mut self, inbox: &mut UnboundedReceiver<Command>) -> Error {
        loop {
            if let Err(error) = self.heartbeat_if_due().await {
                return error;
            }
            let pause = self.next_heartbeat().since(self.clock.now());
            let command = match tokio::time::timeout(pause, inbox.recv()).await {
                Ok(Some(command)) => command,
                Ok(None) => return errors::unavailable("the store was dropped"),
                Err(_) => continue,
            };
            let outcome = match command {
                alone @ (Command::Wait { .. } | Command::Settle { .. }) => self.serve_alone(alone).await,
                first => {
                    let mut commands = vec![first];
                    let mut next = None;
                    while commands.len() < MOST_AT_ONCE {
                        match inbox.try_recv() {
                            Ok(alone @ (Command::Wait { .. } | Command::Settle { .. })) => {
                                next = Some(alone);
                                break;
                            }
                            Ok(command) => commands.push(command),
                            Err(_) => break,
                        }
                    }
                    let mut outcome = self.exchange(commands).await;
                    if let (Ok(()), Some(next)) = (&outcome, next) {
                        outcome = self.serve_alone(next).await;
                    }
                    outcome
                }
            };
            if let Err(error) = outcome {
                return error;
            }
        }
    }

    /// A command that no other can go along with.
    async fn serve_alone(&mut self, command: Command) -> Result<()> {
        match command {
            Command::Wait { grant, reply } => self.wait(grant, reply).await,
            Command::Settle { text, reply } => {
                let outcome = self.query(&text, REQUEST_TIMEOUT).await;
                let is_broken = matches!(&outcome, Err(failure) if failure.cause == Cause::Broken);
                let outcome = outcome.map_err(|failure| failure.error);
                let ended = outcome.as_ref().err().filter(|_| is_broken).cloned();
                let _ = reply.send(outcome);
                ended.map_or(Ok(()), Err)
            }
            other => self.exchange(vec![other]).await,
        }
    }

    /// Sends a request. While something is held, a reply after the deadline is none: guards are lost by then.
    pub(super) async fn query(&mut self, text: &str, limit: Duration) -> Result<Vec<Row>, Failure> {
        let deadline = if self.held.is_empty() { Moment::NEVER } else { self.session.deadline() };
        let late = || Failure::broken(errors::unavailable("no heartbeat was answered in time"));
        let now = self.clock.now();
        if now >= deadline {
            return Err(late());
        }
        let outcome = self.connection.query(text, limit.min(deadline.since(now))).await;
        if self.clock.now() >= deadline {
            return Err(late());
        }
        outcome
    }

    /// The session answered a request that was sent at this moment.
    pub(super) fn confirm(&mut self, sent: Moment) {
        self.confirmed = sent;
        self.session.keep_until(sent.after(self.timing.heartbeat));
    }

    fn next_heartbeat(&self) -> Moment {
        // A session that holds nothing must only stay open.
        let pause = self.timing.session / 4;
        let pause = if self.held.is_empty() { pause } else { pause.min(self.timing.heartbeat / 4) };
        self.confirmed.after(pause)
    }

    /// Confirms that the session exists and holds what it holds: it holds all of it or nothing.
    pub(super) async fn heartbeat_if_due(&mut self) -> Result<()> {
        let sent = self.clock.now();
        if sent < self.next_heartbeat() {
            return Ok(());
        }
        let text = statements::heartbeat(self.held.iter().next());
        let rows = self.query(&text, REQUEST_TIMEOUT).await.map_err(|failure| failure.error)?;
        if !matches!(rows.first().map(|row| required::<i64>(row, "ours")), Some(Ok(1))) {
            return Err(errors::unavailable("its session does not hold its locks any more"));
        }
        self.confirm(sent);
        Ok(())
    }

    /// Waits for a lock in the server's queue. Nothing else can be asked of the session meanwhile.
    async fn wait(&mut self, grant: Grant, reply: TakeReply) -> Result<()> {
        if !self.held.is_empty() {
            let _ = reply.send(Ok(Taken::HeldHere));
            return Ok(());
        }
        let text = statements::wait(&grant.name, &grant.lock_id);
        let limit = Duration::from_secs(LONGEST_WAIT) + REQUEST_TIMEOUT;
        loop {
            let got = match self.query(&text, limit).await {
                Ok(rows) => rows.first().and_then(|row| required::<i64>(row, "got").ok()),
                Err(failure) => {
                    // A statement that was killed, or a session: the lock is not ours.
                    let _ = reply.send(Err(failure.error.clone()));
                    return Err(failure.error);
                }
            };
            match got {
                Some(1) => break,
                // The time of one statement is over.
                Some(0) => {}
                _ => {
                    let error = errors::unavailable("the wait was interrupted by the server");
                    let _ = reply.send(Err(error.clone()));
                    return Err(error);
                }
            }
        }
        if reply.is_closed() {
            let (name, lock_id) = (grant.name, grant.lock_id);
            return self.drop_locks(vec![Release { name, lock_id, mark: Mark::Untouched }]).await;
        }
        // It counts as held from the request that draws the token, which confirms the session after the wait.
        self.take_all(vec![(grant, Held::Yes, reply)], Vec::new()).await
    }
}
