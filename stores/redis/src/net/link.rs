//! The way to one server: a connection that is made when it is needed and made anew when it is gone.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use distlock_core::{Error, Result};
use redis::{Client, Value};

use super::Live;
use super::dial::Dialer;
use super::fleet::Request;
use super::sentinel::Sentinels;
use crate::config::Address;
use crate::script::{By, Item, command};
use crate::trouble;

/// How the server is found.
enum Route {
    Direct(Address, Box<Client>),
    Sentinel(Sentinels),
}

#[derive(Default)]
struct State {
    live: Option<Arc<Live>>,
    /// How often a connection was tried, and why the last one failed.
    dials: u64,
    failure: Option<Error>,
}

pub(crate) struct Link {
    route: Route,
    dialer: Dialer,
    state: Mutex<State>,
    dialing: tokio::sync::Mutex<()>,
}

/// What came of one call of a script.
#[derive(Debug)]
pub(super) enum Reply {
    /// The values behind the server's clock.
    Done(Vec<Value>),
    /// The same for every item.
    Each([Value; 2]),
    /// The server answered with an error; nothing was done.
    Refused(String),
    /// The server carried it out after its deadline, that is: not at all.
    Late,
}

impl Link {
    pub(super) fn direct(dialer: &Dialer, address: &Address) -> Result<Self> {
        let client = Box::new(dialer.client(address)?);
        Ok(Link::new(Route::Direct(address.clone(), client), dialer))
    }

    pub(super) fn by_sentinel(dialer: &Dialer, sentinels: &[Address], master: &str) -> Result<Self> {
        let sentinels = Sentinels::new(dialer, sentinels, master)?;
        Ok(Link::new(Route::Sentinel(sentinels), dialer))
    }

    fn new(route: Route, dialer: &Dialer) -> Self {
        Link {
            route,
            dialer: dialer.clone(),
            state: Mutex::default(),
            dialing: tokio::sync::Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection there is, or a new one. Whoever waits while somebody else fails to connect shares that
    /// failure: a server that is down is tried once for all, not once for each.
    pub(crate) async fn live(&self) -> Result<Arc<Live>> {
        let dials = {
            let state = self.state();
            if let Some(live) = state.live.as_ref().filter(|live| !live.is_closed()) {
                return Ok(Arc::clone(live));
            }
            state.dials
        };
        let _one_at_a_time = self.dialing.lock().await;
        {
            let state = self.state();
            if let Some(live) = state.live.as_ref().filter(|live| !live.is_closed()) {
                return Ok(Arc::clone(live));
            }
            if let Some(failure) = state.failure.as_ref().filter(|_| state.dials != dials) {
                return Err(failure.clone());
            }
        }
        let outcome = match &self.route {
            Route::Direct(address, client) => self.dialer.connect(client, address.to_string(), false).await,
            Route::Sentinel(sentinels) => sentinels.connect(&self.dialer).await,
        };
        let mut state = self.state();
        state.dials += 1;
        match outcome {
            Ok(live) => {
                let live = Arc::new(live);
                state.failure = None;
                state.live = Some(Arc::clone(&live));
                Ok(live)
            }
            Err(error) => {
                state.failure = Some(error.clone());
                state.live = None;
                Err(error)
            }
        }
    }

    /// Whether there is a connection now.
    pub(super) fn is_connected(&self) -> bool {
        self.state().live.as_ref().is_some_and(|live| !live.is_closed())
    }

    /// Calls a script for several groups of items, one call each, all at once. Says beside it how many replicas
    /// confirmed, if that was asked for. With `asking`, a node is told that we come with its master's blessing.
    pub(super) async fn call(
        &self,
        request: &Request<'_>,
        groups: &[Vec<&Item<'_>>],
        asking: bool,
    ) -> Result<(Vec<Reply>, Option<u64>)> {
        let live = self.live().await?;
        let mut by = By::Hash;
        let mut tried_again = false;
        loop {
            let (values, confirmed) = self.exchange(&live, request, groups, asking, by).await?;
            let replies: Vec<Reply> = values.into_iter().map(|value| read(&live, value)).collect();
            let unknown = |reply: &Reply| matches!(reply, Reply::Refused(text) if text.contains("NOSCRIPT"));
            if by == By::Hash && replies.iter().any(unknown) {
                // It was restarted, or somebody flushed its scripts. Calls of others in the same pipeline were
                // carried out; doing them again is harmless, except that a release would find nothing.
                by = By::Text;
                if groups.len() == 1 {
                    continue;
                }
                return self.again(&live, request, groups, asking, replies).await;
            }
            if !tried_again && request.timed && replies.iter().all(|reply| matches!(reply, Reply::Late)) {
                // We are still here, so it was not late: the server's clock was set. Now we know what it says.
                tried_again = true;
                continue;
            }
            return Ok((replies, confirmed));
        }
    }

    /// Calls the groups that met a server without the script once more, with its text.
    async fn again(
        &self,
        live: &Live,
        request: &Request<'_>,
        groups: &[Vec<&Item<'_>>],
        asking: bool,
        mut replies: Vec<Reply>,
    ) -> Result<(Vec<Reply>, Option<u64>)> {
        let missing: Vec<usize> = (0..replies.len())
            .filter(|at| matches!(&replies[*at], Reply::Refused(text) if text.contains("NOSCRIPT")))
            .collect();
        let subset: Vec<Vec<&Item<'_>>> = missing.iter().map(|at| groups[*at].clone()).collect();
        let (values, confirmed) = self.exchange(live, request, &subset, asking, By::Text).await?;
        for (at, value) in missing.into_iter().zip(values) {
            replies[at] = read(live, value);
        }
        Ok((replies, confirmed))
    }

    async fn exchange(
        &self,
        live: &Live,
        request: &Request<'_>,
        groups: &[Vec<&Item<'_>>],
        asking: bool,
        by: By,
    ) -> Result<(Vec<Value>, Option<u64>)> {
        let deadline = if request.timed { live.deadline(request.limit) } else { 0 };
        let make = |by: By, items: &[&Item<'_>]| command(request.script, by, deadline, items);
        if let ([only], 0, false) = (groups, request.replicas, asking) {
            return Ok((vec![live.send(&make(by, only), request.limit).await?], None));
        }
        let mut pipeline = redis::pipe();
        for (number, group) in groups.iter().enumerate() {
            if asking {
                pipeline.cmd("ASKING");
            }
            // The first one brings the text, and the rest finds it there.
            pipeline.add_command(make(if number == 0 { by } else { By::Hash }, group));
        }
        if request.replicas > 0 {
            let wait = u64::try_from((request.limit / 2).as_millis()).unwrap_or(1000).max(1);
            pipeline.cmd("WAIT").arg(request.replicas).arg(wait);
        }
        let mut values = live.send_all(&pipeline, request.limit).await?;
        let confirmed = match (request.replicas, values.last()) {
            (0, _) => None,
            (_, Some(Value::Int(count))) => Some(u64::try_from(*count).unwrap_or(0)),
            (_, Some(Value::ServerError(_))) if refused(&values[..values.len() - 1]) => Some(0),
            (_, Some(Value::ServerError(error))) => {
                let text = trouble::text_of(error);
                if trouble::wants_another_server(&text) {
                    live.give_up();
                }
                return Err(trouble::refused(&text).with_unknown_outcome());
            }
            (_, other) => return Err(trouble::nonsense(other)),
        };
        if request.replicas > 0 {
            values.pop();
        }
        if asking {
            // Every other one is what ASKING was answered.
            values = values.into_iter().skip(1).step_by(2).collect();
        }
        Ok((values, confirmed))
    }
}

/// Whether something was not carried out: why not says more than why it was not confirmed.
fn refused(values: &[Value]) -> bool {
    values.iter().any(|value| matches!(value, Value::ServerError(_)))
}

/// The clock in ms, and the token behind it unless it is the same.
fn clock_and_token(text: &[u8]) -> Option<(u64, i64)> {
    let text = std::str::from_utf8(text).ok()?;
    let (clock, token) = text.split_once(' ').unwrap_or((text, text));
    Some((clock.parse().ok()?, token.parse().ok()?))
}

fn read(live: &Live, value: Value) -> Reply {
    match value {
        Value::Array(mut values) => {
            let Some(Value::Int(now)) = values.first() else {
                return Reply::Refused(format!("an answer without a clock: {values:?}"));
            };
            // Zero where the script had no need of a clock.
            if let Ok(now @ 1..) = u64::try_from(*now) {
                live.heard(now);
            }
            if values.len() == 1 {
                return Reply::Late;
            }
            values.remove(0);
            // Text stands for an item that failed: a replica refuses each of them, not the whole call.
            let text = |value: &Value| match value {
                Value::BulkString(text) => trouble::wants_another_server(&String::from_utf8_lossy(text)),
                _ => false,
            };
            if values.iter().any(text) {
                live.give_up();
            }
            Reply::Done(values)
        }
        // One lock that nobody else wanted, and many if the same came of all, are answered without a list: acquired or
        // extended, the clock and the token; released, the code.
        Value::BulkString(text) => match clock_and_token(&text) {
            Some((now, token)) => {
                live.heard(now);
                Reply::Each([Value::Int(1), Value::Int(token)])
            }
            None => {
                Reply::Refused(format!("an answer that is no clock: {:?}", String::from_utf8_lossy(&text)))
            }
        },
        Value::Int(code) => Reply::Each([Value::Int(code), Value::Nil]),
        Value::ServerError(error) => {
            let text = trouble::text_of(&error);
            if trouble::wants_another_server(&text) {
                live.give_up();
            }
            Reply::Refused(text)
        }
        other => Reply::Refused(format!("an answer that is no list: {other:?}")),
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let route = match &self.route {
            Route::Direct(address, _) => address.to_string(),
            Route::Sentinel(_) => "by sentinels".to_owned(),
        };
        f.debug_struct("Link")
            .field("route", &route)
            .field("live", &self.state().live)
            .finish_non_exhaustive()
    }
}
