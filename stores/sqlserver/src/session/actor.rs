//! One session of the server: a task that owns its connection and runs one request after the other.
//!
//! The task confirms its session with heartbeats. What it holds is lost a fixed time after the last answered request was
//! *sent*: the session existed after that moment, so its locks were free no earlier. The next holder relies on it.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use distlock_core::store::support::errors;
use distlock_core::store::{LossReason, Session};
use distlock_core::{CancellationToken, Clock, Error, ErrorKind, Moment, Result};
use tiberius::Row;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

use super::name::{Process, ServerRun, session_name};
use crate::config::SqlServerConfig;
use crate::connect;
use crate::connection::{Attention, Connection, Param, Reply};
use crate::error::Failure;
use crate::lock_name::{LockName, process_lock, session_lock};
use crate::rows;

/// How long a request may take that does not wait.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// A session that holds nothing must only stay open.
const IDLE_HEARTBEAT: Duration = Duration::from_secs(30);

const SETUP: &str = include_str!("../sql/session_setup.sql");
const OPEN: &str = include_str!("../sql/session_open.sql");
const HEARTBEAT: &str = include_str!("../sql/session_heartbeat.sql");

struct Request {
    text: Arc<str>,
    params: Vec<Param>,
    /// Set for a wait: it has no time limit and ends when it is cancelled.
    cancel: Option<CancellationToken>,
    reply: oneshot::Sender<Result<Reply, Failure>>,
}

/// A handle to a session. When the last one is dropped the session ends, and what it holds is free.
#[derive(Debug)]
pub(crate) struct LockSession {
    requests: UnboundedSender<Request>,
    shared: Arc<Shared>,
    /// Ends the task at once, whatever it waits for.
    task: tokio::task::JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    /// Its name in the rows, and of the lock that it holds for as long as it lives.
    name: String,
    lock: String,
    principal: String,
    session: Session,
    is_open: AtomicBool,
    /// What it holds or asks for. A session is never asked twice for one resource: the server would grant it its own lock.
    held: Mutex<HashSet<LockName>>,
    /// How many of them are granted. Their guards are lost when the deadline has passed.
    granted: AtomicUsize,
    clock: Arc<dyn Clock>,
    heartbeat: Duration,
}

impl LockSession {
    /// Opens a session.
    pub(crate) async fn open(
        config: &SqlServerConfig,
        process: &Process,
        clock: Arc<dyn Clock>,
        attention: &Attention,
    ) -> Result<Self> {
        let mut connection = connect::open(config).await?;
        connection.share(attention);
        let rows = connection.set_up(SETUP, REQUEST_TIMEOUT).await?;
        let run = match (rows::text(rows.first(), "server"), rows::text(rows.first(), "started")) {
            (Ok(server), Ok(started)) => ServerRun::new(&server, &started),
            _ => ServerRun::unknown(),
        };
        let name = session_name(process, &run);
        let lock = session_lock(&config.names, &name);
        let sent = clock.now();
        let params = vec![
            lock.as_str().into(),
            config.principal.as_str().into(),
            process_lock(&config.names, process).into(),
        ];
        let rows = connection.query(OPEN, params, REQUEST_TIMEOUT).await?;
        let got = rows::number::<i32>(rows.first(), "got")?.min(rows::number(rows.first(), "shared")?);
        if got < 0 {
            return Err(Error::new(ErrorKind::Denied, format!("the server refused the lock of a session (result {got})"))
                .advise("check that the database principal exists and that the login is a member of it (distlock.principal)"));
        }
        let shared = Arc::new(Shared {
            name,
            lock,
            principal: config.principal.clone(),
            session: Session::until(sent.after(config.heartbeat_timeout)),
            is_open: AtomicBool::new(true),
            held: Mutex::default(),
            granted: AtomicUsize::new(0),
            clock,
            heartbeat: config.heartbeat_timeout,
        });
        let (requests, inbox) = unbounded_channel();
        let actor = Actor { connection, confirmed: sent, shared: Arc::clone(&shared) };
        Ok(LockSession { requests, shared, task: tokio::spawn(actor.run(inbox)) })
    }

    /// What guards depend on.
    pub(crate) fn session(&self) -> &Session {
        &self.shared.session
    }

    /// Its name in the rows.
    pub(crate) fn name(&self) -> &str {
        &self.shared.name
    }

    pub(crate) fn is_usable(&self) -> bool {
        self.shared.is_open.load(Ordering::SeqCst) && self.shared.session.ended().is_none()
    }

    /// Ends the session now: its connection is closed, also in the middle of a wait.
    pub(crate) fn end(&self, why: &'static str) {
        self.shared.is_open.store(false, Ordering::SeqCst);
        self.task.abort();
        self.shared.session.end(LossReason::SessionEnded(why.into()));
    }

    /// Notes that the session is asked for a resource; false if it was before.
    pub(super) fn reserve(&self, name: &LockName) -> bool {
        self.shared.held().insert(name.clone())
    }

    pub(super) fn free(&self, name: &LockName) {
        self.shared.held().remove(name);
    }

    /// Guards depend on one more of what it holds, or on one less.
    pub(super) fn count_granted(&self, more: bool) {
        match more {
            true => self.shared.granted.fetch_add(1, Ordering::SeqCst),
            false => self.shared.granted.fetch_sub(1, Ordering::SeqCst),
        };
    }

    /// How often it is asked for a resource, or holds a permit of it.
    pub(super) fn reservations(&self, name: &LockName) -> usize {
        self.shared.held().iter().filter(|held| held.key() == name.key()).count()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.shared.held().is_empty()
    }

    /// Runs a statement and returns its rows.
    pub(crate) async fn query(&self, text: &Arc<str>, params: Vec<Param>) -> Result<Vec<Row>, Failure> {
        match self.ask(text, params, None).await? {
            Reply::Rows(rows) => Ok(rows),
            Reply::Cancelled => Err(Failure::broken(errors::unexpected_reply("cancelled"))),
        }
    }

    /// Runs a statement that waits on the server, until it is cancelled.
    pub(crate) async fn wait(
        &self,
        text: &Arc<str>,
        params: Vec<Param>,
        cancel: &CancellationToken,
    ) -> Result<Reply, Failure> {
        self.ask(text, params, Some(cancel.clone())).await
    }

    async fn ask(
        &self,
        text: &Arc<str>,
        params: Vec<Param>,
        cancel: Option<CancellationToken>,
    ) -> Result<Reply, Failure> {
        let (reply, answer) = oneshot::channel();
        if self.requests.send(Request { text: Arc::clone(text), params, cancel, reply }).is_err() {
            return Err(Failure::broken(errors::unavailable("the session has ended")));
        }
        let ended = |_| Err(Failure::broken(errors::connection_lost("the session has ended")));
        answer.await.unwrap_or_else(ended)
    }
}

impl Drop for LockSession {
    fn drop(&mut self) {
        self.end("its store was dropped");
    }
}

impl Shared {
    fn held(&self) -> MutexGuard<'_, HashSet<LockName>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Actor {
    connection: Connection,
    shared: Arc<Shared>,
    /// When the last request was sent that was answered.
    confirmed: Moment,
}

impl Actor {
    async fn run(mut self, mut inbox: UnboundedReceiver<Request>) {
        let ended = self.serve(&mut inbox).await;
        self.shared.is_open.store(false, Ordering::SeqCst);
        self.shared.session.end(LossReason::SessionEnded(ended.to_string().into()));
        drop(self.connection);
        inbox.close();
        while let Ok(request) = inbox.try_recv() {
            let _ = request.reply.send(Err(Failure::broken(ended.clone())));
        }
    }

    /// Until the session ends, and why.
    async fn serve(&mut self, inbox: &mut UnboundedReceiver<Request>) -> Error {
        loop {
            if self.shared.clock.now() >= self.next_heartbeat()
                && let Err(error) = self.heartbeat().await
            {
                return error;
            }
            let pause = self.next_heartbeat().since(self.shared.clock.now());
            let request = tokio::select! {
                biased;
                request = inbox.recv() => match request {
                    Some(request) => request,
                    None => return errors::unavailable("the store was dropped"),
                },
                () = tokio::time::sleep(pause) => continue,
                () = self.connection.idle_end() => {
                    // The server closed the connection, or says why it will.
                    match self.heartbeat().await {
                        Ok(()) => continue,
                        Err(error) => return error,
                    }
                }
            };
            if let Err(error) = self.answer(request).await {
                return error;
            }
        }
    }

    async fn answer(&mut self, request: Request) -> Result<()> {
        let Request { text, params, cancel, reply } = request;
        if let Err(late) = self.check_deadline() {
            let _ = reply.send(Err(Failure::broken(late.clone())));
            return Err(late);
        }
        let sent = self.shared.clock.now();
        let limit = if cancel.is_some() { None } else { Some(self.limit(sent)) };
        let outcome = self.connection.run(&text, params, limit, cancel.as_ref()).await;
        if !self.connection.is_open() {
            let error = match &outcome {
                Err(failure) => failure.error.clone(),
                Ok(_) => errors::unavailable("the connection is closed"),
            };
            let _ = reply.send(outcome);
            return Err(error);
        }
        let is_late = !self.shared.held().is_empty()
            && cancel.is_none()
            && self.shared.clock.now() >= self.deadline(sent);
        if is_late {
            // Guards are lost by now.
            let late = errors::unavailable("no request was answered in time");
            let _ = reply.send(Err(Failure::broken(late.clone().with_unknown_outcome())));
            return Err(late);
        }
        self.confirm(sent);
        let _ = reply.send(outcome);
        Ok(())
    }

    /// After its deadline, guards are lost: the process was paused. What they held must not stay held.
    fn check_deadline(&self) -> Result<()> {
        let has_guards = self.shared.granted.load(Ordering::SeqCst) > 0;
        if has_guards && self.shared.clock.now() >= self.shared.session.deadline() {
            return Err(errors::unavailable("no request was answered in time"));
        }
        Ok(())
    }

    fn deadline(&self, sent: Moment) -> Moment {
        self.shared.session.deadline().max(sent.after(self.shared.heartbeat))
    }

    fn limit(&self, sent: Moment) -> Duration {
        match self.shared.held().is_empty() {
            true => REQUEST_TIMEOUT,
            false => REQUEST_TIMEOUT.min(self.deadline(sent).since(sent)),
        }
    }

    /// The session answered a request that was sent at this moment.
    fn confirm(&mut self, sent: Moment) {
        self.confirmed = sent;
        self.shared.session.keep_until(sent.after(self.shared.heartbeat));
    }

    fn next_heartbeat(&self) -> Moment {
        let pause = if self.shared.held().is_empty() { IDLE_HEARTBEAT } else { self.shared.heartbeat / 4 };
        self.confirmed.after(pause)
    }

    /// Confirms that the session is the one that holds our locks: it holds all of them or none.
    async fn heartbeat(&mut self) -> Result<()> {
        self.check_deadline()?;
        let sent = self.shared.clock.now();
        let params = vec![self.shared.lock.as_str().into(), self.shared.principal.as_str().into()];
        let limit = self.limit(sent);
        let rows = self.connection.query(HEARTBEAT, params, limit).await?;
        if !rows::text(rows.first(), "mode").is_ok_and(|mode| mode == "Exclusive") {
            return Err(errors::unavailable("its session does not hold its locks any more"));
        }
        self.confirm(sent);
        Ok(())
    }
}
