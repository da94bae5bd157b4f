//! Requests: one endpoint at a time, fail-over to the next, login, time limits.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use distlock_core::store::url::Secret;
use distlock_core::{Error, ErrorKind, Result};
use tokio::sync::watch;
use tokio::time::Instant;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status};

use crate::api::auth_client::AuthClient;
use crate::api::cluster_client::ClusterClient;
use crate::api::kv_client::KvClient;
use crate::api::lease_client::LeaseClient;
use crate::api::maintenance_client::MaintenanceClient;
use crate::api::*;
use crate::error::{self, Failure, NextStep};

/// The pauses between rounds through all endpoints.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LAST_PAUSE: Duration = Duration::from_millis(250);

/// A request with one reply.
pub(crate) trait Unary: Clone + Send + Sync + 'static {
    type Reply: Send;

    fn send(
        channel: Channel,
        request: Request<Self>,
    ) -> impl Future<Output = Result<Response<Self::Reply>, Status>> + Send;
}

macro_rules! unary {
    ($($request:ident => $client:ident . $method:ident -> $reply:ident),* $(,)?) => {
        $(impl Unary for $request {
            type Reply = $reply;

            async fn send(channel: Channel, request: Request<Self>) -> Result<Response<$reply>, Status> {
                // A queue with thousands of claims is larger than the driver's limit of 4 MiB.
                $client::new(channel).max_decoding_message_size(usize::MAX).$method(request).await
            }
        })*
    };
}

unary! {
    RangeRequest => KvClient.range -> RangeResponse,
    DeleteRangeRequest => KvClient.delete_range -> DeleteRangeResponse,
    TxnRequest => KvClient.txn -> TxnResponse,
    LeaseGrantRequest => LeaseClient.lease_grant -> LeaseGrantResponse,
    LeaseRevokeRequest => LeaseClient.lease_revoke -> LeaseRevokeResponse,
    LeaseTimeToLiveRequest => LeaseClient.lease_time_to_live -> LeaseTimeToLiveResponse,
    MemberListRequest => ClusterClient.member_list -> MemberListResponse,
    StatusRequest => MaintenanceClient.status -> StatusResponse,
    AuthenticateRequest => AuthClient.authenticate -> AuthenticateResponse,
}

/// A reply, and whether an earlier attempt of the same request may have been applied or may still be.
#[derive(Debug)]
pub(crate) struct Answer<T> {
    pub(crate) reply: T,
    pub(crate) repeated: bool,
}

/// User and password.
#[derive(Clone)]
pub(crate) struct Login {
    pub(crate) user: String,
    pub(crate) password: Secret,
}

/// The limits of requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// For one attempt.
    pub(crate) reply: Duration,
    /// For all attempts of a request.
    pub(crate) total: Duration,
}

/// A member of the cluster that we know.
struct Member {
    /// Host and port, for messages.
    address: String,
    /// `None` for a channel that the application made: it cannot be replaced.
    endpoint: Option<Endpoint>,
    channel: Mutex<Channel>,
}

/// Sends requests. Clones share everything.
#[derive(Clone)]
pub(crate) struct Client(Arc<Shared>);

struct Shared {
    members: Vec<Member>,
    /// The member that requests go to. Counts on; the index is the remainder.
    current: watch::Sender<usize>,
    login: Option<Login>,
    token: tokio::sync::Mutex<TokenState>,
    limits: Limits,
}

#[derive(Default)]
struct TokenState {
    /// Counts logins, so that many requests with one expired token log in once.
    generation: u64,
    token: Option<MetadataValue<Ascii>>,
    /// The server said that it has no authentication.
    is_off: bool,
}

/// A member at a moment, for requests that must go to one member, and to fail over from it once.
#[derive(Clone)]
pub(crate) struct Target {
    number: usize,
    channel: Channel,
}

impl Client {
    /// A client for these endpoints. Connects when the first request is sent.
    pub(crate) fn new(endpoints: Vec<(String, Endpoint)>, login: Option<Login>, limits: Limits) -> Self {
        let member = |(address, endpoint): (String, Endpoint)| {
            let channel = Mutex::new(endpoint.connect_lazy());
            Member { address, endpoint: Some(endpoint), channel }
        };
        Client::of_members(endpoints.into_iter().map(member).collect(), login, limits)
    }

    /// A client for a channel that the application made.
    pub(crate) fn of_channel(channel: Channel, login: Option<Login>, limits: Limits) -> Self {
        let address = "the application's channel".to_owned();
        Client::of_members(
            vec![Member { address, endpoint: None, channel: Mutex::new(channel) }],
            login,
            limits,
        )
    }

    fn of_members(members: Vec<Member>, login: Option<Login>, limits: Limits) -> Self {
        Client(Arc::new(Shared {
            members,
            current: watch::Sender::new(0),
            login,
            token: tokio::sync::Mutex::default(),
            limits,
        }))
    }

    pub(crate) fn limits(&self) -> Limits {
        self.0.limits
    }

    pub(crate) fn has_login(&self) -> bool {
        self.0.login.is_some()
    }

    /// Whether the server said that its authentication is off.
    pub(crate) async fn auth_is_off(&self) -> bool {
        self.0.token.lock().await.is_off
    }

    /// Hosts and ports.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = &str> {
        self.0.members.iter().map(|member| member.address.as_str())
    }

    /// The member that requests go to.
    pub(crate) fn target(&self) -> Target {
        self.target_of(*self.0.current.borrow())
    }

    /// All members, for questions about each.
    pub(crate) fn targets(&self) -> Vec<(String, Target)> {
        (0..self.0.members.len())
            .map(|number| (self.0.members[number].address.clone(), self.target_of(number)))
            .collect()
    }

    fn target_of(&self, number: usize) -> Target {
        let member = &self.0.members[number % self.0.members.len()];
        let channel = member.channel.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Target { number, channel }
    }

    /// Sends later requests to the next member, unless another request has seen to that. The connection to this one is
    /// replaced: after a time-out it may be half open, and the driver would keep it.
    pub(crate) fn fail_over(&self, from: &Target) {
        let is_first = self.0.current.send_if_modified(|current| {
            let is_first = *current == from.number;
            if is_first {
                *current = from.number.wrapping_add(1);
            }
            is_first
        });
        let member = &self.0.members[from.number % self.0.members.len()];
        if let (true, Some(endpoint)) = (is_first, &member.endpoint) {
            *member.channel.lock().unwrap_or_else(PoisonError::into_inner) = endpoint.connect_lazy();
        }
    }

    /// Resolves when requests go to another member than this one.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(crate) async fn left(&self, target: &Target) {
        let mut current = self.0.current.subscribe();
        // The sender lives as long as we do.
        let _ = current.wait_for(|current| *current != target.number).await;
    }

    /// Adds the token, and asks for a member that has a leader.
    pub(crate) async fn request<T>(&self, message: T, target: &Target) -> Result<(Request<T>, u64), Failure> {
        let mut request = Request::new(message);
        let (generation, token) = self.token(target).await?;
        if let Some(token) = token {
            request.metadata_mut().insert("token", token);
        }
        request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        Ok((request, generation))
    }

    async fn token(&self, target: &Target) -> Result<(u64, Option<MetadataValue<Ascii>>), Failure> {
        let Some(login) = &self.0.login else { return Ok((0, None)) };
        let mut state = self.0.token.lock().await;
        if state.token.is_none() && !state.is_off {
            let login = AuthenticateRequest {
                name: login.user.clone(),
                password: login.password.expose().to_owned(),
            };
            let sent = AuthenticateRequest::send(target.channel.clone(), Request::new(login));
            match tokio::time::timeout(self.0.limits.reply, sent).await {
                Err(_) => return Err(Failure::no_reply(self.0.limits.reply)),
                Ok(Err(status)) if status.message().contains(error::AUTH_IS_OFF) => state.is_off = true,
                Ok(Err(status)) => return Err(error::of_status(&status)),
                Ok(Ok(reply)) => {
                    let token = reply.into_inner().token.parse();
                    state.token = Some(token.map_err(|_| {
                        Failure::fatal(Error::new(ErrorKind::Internal, "the server's token is not ASCII"))
                    })?);
                }
            }
            state.generation += 1;
        }
        Ok((state.generation, state.token.clone()))
    }

    /// Forgets a token that the server refused.
    pub(crate) async fn forget_token(&self, generation: u64) {
        let mut state = self.0.token.lock().await;
        if state.generation == generation {
            state.token = None;
            state.is_off = false;
        }
    }

    /// One attempt at one member.
    ///
    /// # Errors
    /// If it fails, or is not answered within the limit; the outcome is unknown then.
    pub(crate) async fn send_to<R: Unary>(
        &self,
        target: &Target,
        message: R,
        limit: Duration,
    ) -> Result<R::Reply, Failure> {
        let attempt = async {
            let (request, generation) = self.request(message, target).await?;
            match R::send(target.channel.clone(), request).await {
                Ok(reply) => Ok(reply.into_inner()),
                Err(status) => {
                    let failure = error::of_status(&status);
                    if failure.next == NextStep::Authenticate {
                        self.forget_token(generation).await;
                    }
                    Err(failure)
                }
            }
        };
        tokio::time::timeout(limit, attempt).await.unwrap_or_else(|_| Err(Failure::no_reply(limit)))
    }

    /// Sends a request until it is answered: at the current member, then at the others, for at most the total limit. The
    /// request must be one that may be applied twice.
    ///
    /// # Errors
    /// If it is refused, or not answered by any member within the limit. The outcome is unknown if that of any attempt is.
    pub(crate) async fn send<R: Unary>(&self, message: R) -> Result<Answer<R::Reply>, Failure> {
        let ends = Instant::now() + self.0.limits.total;
        let (mut repeated, mut attempts, mut logins, mut pause) = (false, 0_usize, 0, FIRST_PAUSE);
        loop {
            let target = self.target();
            let left = ends.saturating_duration_since(Instant::now());
            let limit = self.0.limits.reply.min(left);
            let failure = match self.send_to(&target, message.clone(), limit).await {
                Ok(reply) => return Ok(Answer { reply, repeated }),
                Err(failure) => failure,
            };
            repeated |= failure.error.is_outcome_unknown();
            attempts += 1;
            let complete = |failure: Failure| {
                let error = if repeated { failure.error.with_unknown_outcome() } else { failure.error };
                Err(Failure { error, ..failure })
            };
            match failure.next {
                NextStep::Fail | NextStep::LeaseEnded => return complete(failure),
                NextStep::Authenticate if logins < 2 && self.has_login() => {
                    logins += 1;
                    continue;
                }
                NextStep::Authenticate => return complete(failure),
                NextStep::FailOver | NextStep::Unreachable => self.fail_over(&target),
            }
            if attempts.is_multiple_of(self.0.members.len()) {
                if Instant::now() + pause >= ends {
                    return complete(failure);
                }
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LAST_PAUSE);
            } else if Instant::now() >= ends {
                return complete(failure);
            }
        }
    }

    /// Reads the version of some member: the first request after connecting. If no member can be reached, that is reported
    /// at once; a cluster that elects a leader gets the total limit.
    pub(crate) async fn find_server(&self) -> Result<StatusResponse> {
        for left in (0..self.0.members.len()).rev() {
            let target = self.target();
            match self.send_to(&target, StatusRequest {}, self.0.limits.reply).await {
                Ok(status) => return Ok(status),
                Err(failure) if failure.next == NextStep::Unreachable => {
                    self.fail_over(&target);
                    if left == 0 {
                        return Err(failure.error);
                    }
                }
                Err(_) => break,
            }
        }
        self.send(StatusRequest {}).await.map(|answer| answer.reply).map_err(|failure| failure.error)
    }
}

impl Target {
    pub(crate) fn channel(&self) -> Channel {
        self.channel.clone()
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.addresses()).finish()
    }
}
