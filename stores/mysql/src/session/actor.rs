//! One session of the server: a task that owns its connection. What tasks ask for while a request is in flight goes out
//! together as the next one. The task sends a word often enough that the server does not end the session, and notices its
//! end.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use distlock_core::store::support::errors;
use distlock_core::store::{LossReason, Session};
use distlock_core::{Clock, Moment};
use distlock_core::{Error, FencingToken, LockId, Result};
use mysql_async::Row;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

use super::lock_name::LockName;
use super::statements::{Grant, Held, LONGEST_WAIT, exchange, wait};
use crate::connections::{Connection, REQUEST_TIMEOUT};
use crate::error::{Cause, Failure};
use crate::identifier::Tables;
use crate::rows::{optional, required};

/// How many operations one request carries.
const MOST_AT_ONCE: usize = 64;
/// How often a session that holds something is checked, at the least often.
const HEARTBEAT: Duration = Duration::from_millis(500);

/// What came of taking a lock that may be free.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Taken {
    Granted(FencingToken),
    /// Another session holds it.
    Busy,
    /// This session holds it, under another lock id. `GET_LOCK` would grant it again.
    HeldHere,
}

enum Command {
    Take { grant: Grant, reply: oneshot::Sender<Result<Taken>> },
    Wait { grant: Grant, reply: oneshot::Sender<Result<Taken>> },
    Release { name: LockName, reply: oneshot::Sender<Result<bool>> },
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
        timeout: Duration,
    ) -> Self {
        let (commands, inbox) = unbounded_channel();
        // The connection was just used; the first heartbeat or request sets the deadline.
        let session = Session::until(clock.now().after(timeout / 4));
        let is_open = Arc::new(AtomicBool::new(true));
        let connection_id = connection.id();
        let actor = Actor {
            connection,
            tables,
            clock,
            timeout,
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

    /// Releases a lock; false if this session did not hold it.
    pub(super) async fn release(&self, name: LockName) -> Result<bool> {
        self.ask(|reply| Command::Release { name, reply }).await
    }
}

impl Drop for SessionActor {
    fn drop(&mut self) {
        self.end("its store was dropped");
    }
}

struct Actor {
    connection: Connection,
    tables: Tables,
    clock: Arc<dyn Clock>,
    timeout: Duration,
    session: Session,
    is_open: Arc<AtomicBool>,
    held: HashSet<LockName>,
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
            // A session that holds nothing must only stay open.
            let beat = if self.held.is_empty() { self.timeout / 3 } else { HEARTBEAT.min(self.timeout / 4) };
            let command = match tokio::time::timeout(beat, inbox.recv()).await {
                Ok(Some(command)) => Some(command),
                Ok(None) => return errors::unavailable("the store was dropped"),
                Err(_) => None,
            };
            let outcome = match command {
                None => self.heartbeat().await,
                Some(Command::Wait { grant, reply }) => self.wait(grant, reply).await,
                Some(first) => {
                    let mut commands = vec![first];
                    let mut waiting = None;
                    while commands.len() < MOST_AT_ONCE {
                        match inbox.try_recv() {
                            Ok(Command::Wait { grant, reply }) => {
                                waiting = Some((grant, reply));
                                break;
                            }
                            Ok(command) => commands.push(command),
                            Err(_) => break,
                        }
                    }
                    let mut outcome = self.exchange(commands).await;
                    if let (Ok(()), Some((grant, reply))) = (&outcome, waiting) {
                        outcome = self.wait(grant, reply).await;
                    }
                    outcome
                }
            };
            if let Err(error) = outcome {
                return error;
            }
        }
    }

    async fn query(&mut self, text: &str, limit: Duration) -> Result<Vec<Row>, Failure> {
        let sent = self.clock.now();
        if sent >= self.session.deadline() && !self.held.is_empty() {
            // We were paused for longer than the session lasts: the server may have given our locks away.
            return Err(Failure::broken(errors::unavailable("no word was sent to the server in time")));
        }
        let rows = self.connection.query(text, limit).await?;
        self.session.keep_until(self.deadline_after(sent));
        Ok(rows)
    }

    /// The server counts from the end of the last request, which is not before it was sent.
    fn deadline_after(&self, sent: Moment) -> Moment {
        let margin = (self.timeout / 4).min(Duration::from_secs(1));
        sent.after(self.timeout - margin)
    }

    async fn heartbeat(&mut self) -> Result<()> {
        // Shorter than the session: what was held must not outlive it here.
        let limit = self
            .session
            .deadline()
            .since(self.clock.now())
            .max(Duration::from_millis(100))
            .min(REQUEST_TIMEOUT);
        self.query("DO 1", limit).await.map(drop).map_err(|failure| failure.error)
    }

    /// Waits for a lock in the server's queue. Nothing else can be asked of the session meanwhile.
    async fn wait(&mut self, grant: Grant, reply: oneshot::Sender<Result<Taken>>) -> Result<()> {
        if !self.held.is_empty() {
            let _ = reply.send(Ok(Taken::HeldHere));
            return Ok(());
        }
        let text = wait(&grant.name, &grant.lock_id);
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
        // The request that draws the token is the first word after the wait, and sets the session's deadline.
        self.held.insert(grant.name);
        self.take_all(vec![(grant, Held::Yes, reply)], Vec::new()).await
    }

    async fn exchange(&mut self, commands: Vec<Command>) -> Result<()> {
        let mut releases = Vec::new();
        let mut takes = Vec::new();
        let mut names = self.held.clone();
        for command in commands {
            match command {
                Command::Release { name, reply } => releases.push((name, reply)),
                Command::Take { grant, reply } | Command::Wait { grant, reply } => {
                    if reply.is_closed() {
                        continue;
                    }
                    if names.insert(grant.name) {
                        takes.push((grant, Held::No, reply));
                    } else {
                        let _ = reply.send(Ok(Taken::HeldHere));
                    }
                }
            }
        }
        if releases.is_empty() && takes.is_empty() {
            return Ok(());
        }
        self.take_all(takes, releases).await
    }

    async fn take_all(
        &mut self,
        takes: Vec<(Grant, Held, oneshot::Sender<Result<Taken>>)>,
        releases: Vec<(LockName, oneshot::Sender<Result<bool>>)>,
    ) -> Result<()> {
        let released: Vec<LockName> = releases.iter().map(|(name, _)| *name).collect();
        let grants: Vec<(Grant, Held)> =
            takes.iter().map(|(grant, held, _)| (grant.clone(), *held)).collect();
        let rows = match self.query(&exchange(&self.tables, &released, &grants), REQUEST_TIMEOUT).await {
            Ok(rows) => rows,
            Err(failure) if failure.cause == Cause::Broken => {
                answer_all(takes, releases, &failure.error);
                return Err(failure.error);
            }
            Err(failure) => return self.one_by_one(takes, releases, &failure).await,
        };
        self.held.retain(|name| !released.contains(name));
        let got: Vec<(Option<i64>, Option<u64>)> = rows
            .iter()
            .map(|row| (optional(row, "got").unwrap_or_default(), optional(row, "token").unwrap_or_default()))
            .collect();
        for (at, (_, reply)) in releases.into_iter().enumerate() {
            let _ = reply.send(Ok(got.get(at).and_then(|(got, _)| *got) == Some(1)));
        }
        let mut unwanted = Vec::new();
        for (at, (grant, _, reply)) in takes.into_iter().enumerate() {
            let answer = match got.get(released.len() + at) {
                Some((Some(1), Some(token))) => Ok(Taken::Granted(FencingToken::new(*token))),
                Some((Some(0), _)) => Ok(Taken::Busy),
                other => Err(errors::unexpected_reply(other)),
            };
            if matches!(&answer, Ok(Taken::Granted(_)) | Err(_)) {
                self.held.insert(grant.name);
            }
            let failed = answer.is_err();
            if reply.send(answer).is_err() || failed {
                unwanted.push(grant.name);
            }
        }
        self.drop_locks(unwanted).await
    }

    /// Releases locks whose taker is gone.
    async fn drop_locks(&mut self, names: Vec<LockName>) -> Result<()> {
        let names: Vec<LockName> = names.into_iter().filter(|name| self.held.contains(name)).collect();
        if names.is_empty() {
            return Ok(());
        }
        let text = exchange(&self.tables, &names, &[]);
        self.query(&text, REQUEST_TIMEOUT).await.map_err(|failure| failure.error)?;
        self.held.retain(|name| !names.contains(name));
        Ok(())
    }

    /// After a failure in the middle of a request: locks may have been taken, and no token drawn. They are released, and each
    /// operation is sent alone, so that one token row that another session keeps locked fails one lock.
    async fn one_by_one(
        &mut self,
        takes: Vec<(Grant, Held, oneshot::Sender<Result<Taken>>)>,
        releases: Vec<(LockName, oneshot::Sender<Result<bool>>)>,
        failure: &Failure,
    ) -> Result<()> {
        let taken: Vec<LockName> = takes.iter().map(|(grant, _, _)| grant.name).collect();
        let released: Vec<LockName> = releases.iter().map(|(name, _)| *name).collect();
        self.held.extend(&taken);
        self.drop_locks(taken).await?;
        // They were released by the first statements of the request, or are now.
        self.drop_locks(released.clone()).await?;
        for (_, reply) in releases {
            let _ = reply.send(Ok(true));
        }
        if takes.len() == 1 {
            for (_, _, reply) in takes {
                let _ = reply.send(Err(failure.error.clone()));
            }
            return Ok(());
        }
        for (grant, _, reply) in takes {
            Box::pin(self.take_all(vec![(grant, Held::No, reply)], Vec::new())).await?;
        }
        Ok(())
    }
}

fn answer_all(
    takes: Vec<(Grant, Held, oneshot::Sender<Result<Taken>>)>,
    releases: Vec<(LockName, oneshot::Sender<Result<bool>>)>,
    error: &Error,
) {
    for (_, _, reply) in takes {
        let _ = reply.send(Err(error.clone()));
    }
    for (_, reply) in releases {
        let _ = reply.send(Err(error.clone()));
    }
}

fn refuse(command: Command, error: &Error) {
    match command {
        Command::Take { reply, .. } | Command::Wait { reply, .. } => drop(reply.send(Err(error.clone()))),
        Command::Release { reply, .. } => drop(reply.send(Err(error.clone()))),
    }
}

/// The lock id of a grant, for messages.
impl Grant {
    pub(super) fn new(name: LockName, shown: &str, lock_id: &LockId) -> Self {
        Grant { name, shown: shown.to_owned(), lock_id: lock_id.clone() }
    }
}
