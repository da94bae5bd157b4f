//! The link between one client and one server: every request and every wake-up draws its fault from the seed.

use std::fmt;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use distlock_core::store::{
    Attempt, Batch, Capabilities, Claim, Finding, Holder, Inbox, Lease, LeaseStore, Query, Record, Released,
    Renewal, Store, Wake, WakeStream,
};
use distlock_core::{Clock, Error, ErrorKind, Resource, Result};
use futures_core::future::BoxFuture;
use futures_util::StreamExt;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::observations::Verb;
use crate::request_fault::{RequestFault, RequestPlan, sleeping};
use crate::rules;
use crate::trace_format::{shown_claims, shown_leases, shown_reply, shown_wake};
use crate::world::{Process, World};

#[derive(Clone)]
pub struct Link {
    world: Arc<World>,
    process: Arc<Process>,
    node: usize,
    /// The open stream. Late messages of an earlier one arrive there too.
    stream: Arc<Mutex<Option<OpenStream>>>,
}

struct OpenStream {
    sender: UnboundedSender<Wake>,
    ends: CancellationToken,
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Link({} - {})", self.process, self.node)
    }
}

impl Link {
    pub fn new(world: Arc<World>, process: Arc<Process>, node: usize) -> Self {
        Link { world, process, node, stream: Arc::default() }
    }

    pub fn end_stream(&self) {
        if let Some(open) = self.stream.lock().unwrap().take() {
            open.ends.cancel();
        }
    }

    fn failed(&self, what: &'static str) -> Error {
        Error::new(ErrorKind::Unavailable, what).on(self.describe())
    }

    /// Sends one request. The network delivers it even if the caller is cancelled.
    async fn call<T, A>(&self, request: RequestInfo, apply: A) -> Batch<T>
    where
        T: Clone + fmt::Debug + Send + 'static,
        A: Fn(Arc<dyn LeaseStore>) -> BoxFuture<'static, Batch<T>> + Send + Sync + 'static,
        T: Sync,
    {
        if self.process.is_dead() {
            return std::future::pending().await;
        }
        let (world, process, node) = (Arc::clone(&self.world), Arc::clone(&self.process), self.node);
        let passage = RequestPlan::draw(&world, process.slot, node);
        let number = world.observed().sent(&process, node, &request, world.time(), passage.faulted);
        let RequestInfo { verb, claims, leases, resources } = request;
        let name = format!("{process} #{number} {verb:?}");
        world.note(|| {
            let what = if verb == Verb::Acquire { shown_claims(&claims) } else { shown_leases(&leases) };
            format!("{name} {what} → s{node}{}", passage.shown())
        });
        let unsent = world.observed().unwanted(&process, verb, &claims, world.time());
        if let Some(text) = unsent {
            world.violated(rules::UNWANTED, text);
        }
        if passage.fault == RequestFault::PanicBefore {
            std::panic::resume_unwind(Box::new("a driver that panics"));
        }
        let (sent, begun) = (world.servers[node].clock.now().as_nanos(), world.time());
        let (reply_to, reply_from) = oneshot::channel::<Batch<T>>();
        let (refused, lost) =
            (self.failed("refused"), self.failed("the reply was lost").with_unknown_outcome());
        world.main_work.store(true, SeqCst);
        let main = world.main.clone();
        main.spawn(async move {
            let mut reply_to = Some(reply_to);
            let answer = async |reply_to: &mut Option<oneshot::Sender<Batch<T>>>, answer: Batch<T>| {
                process.enter().await;
                world.observed().answered(number, world.time());
                if let Some(reply_to) = reply_to.take() {
                    let _ = reply_to.send(answer);
                }
            };
            if !passage.there.is_zero() {
                sleep(passage.there).await;
            }
            match passage.fault {
                RequestFault::Refused => return answer(&mut reply_to, Err(refused)).await,
                RequestFault::HangBefore => return std::future::pending().await,
                RequestFault::Early(after) => {
                    answer(&mut reply_to, Err(lost.clone())).await;
                    sleep(after).await;
                }
                _ => {}
            }
            // The caller got an error or was cancelled, and its runtime has not ended.
            let patient = world.time() < begun + world.plan.request_timeout;
            let undelivered = reply_to.as_ref().is_none_or(|reply_to| reply_to.is_closed() && !patient);
            let apply = |again: bool| {
                world.sent.store(sent, SeqCst);
                world.observed().applied(&world, verb, &claims, undelivered || again);
                apply(world.servers[node].store())
            };
            let reply = apply(false).await;
            // A lock of a set is held and renewed before its user gets the set.
            for resource in &resources {
                world.observed().look(&world, resource);
            }
            world.note(|| format!("s{node} {name}: {}", shown_reply(&reply)));
            if let RequestFault::Twice(after) = passage.fault {
                let again = async {
                    sleep(after).await;
                    let reply = apply(true).await;
                    world.note(|| format!("s{node} {name} again: {}", shown_reply(&reply)));
                };
                let reply = async {
                    sleep(passage.back).await;
                    answer(&mut reply_to, reply).await;
                };
                tokio::join!(again, reply);
                return;
            }
            if !passage.back.is_zero() {
                sleep(passage.back).await;
            }
            match passage.fault {
                RequestFault::HangAfter => std::future::pending().await,
                RequestFault::LostReply => answer(&mut reply_to, Err(lost)).await,
                _ => answer(&mut reply_to, reply).await,
            }
        });
        let reply = reply_from
            .await
            .unwrap_or_else(|_| Err(self.failed("the network has ended").with_unknown_outcome()));
        if passage.fault == RequestFault::PanicAfter {
            std::panic::resume_unwind(Box::new("a driver that panics"));
        }
        reply
    }

    /// Delivers wake-ups: some late, some twice, some not at all.
    async fn forward(self, mut wakes: WakeStream, stream: UnboundedSender<Wake>) {
        loop {
            let wake = tokio::select! {
                biased;
                () = stream.closed() => return,
                wake = wakes.next() => wake,
            };
            let Some(wake) = wake else { return };
            let mut deliveries = Vec::new();
            {
                let mut rng = self.world.rng();
                let rates = self.world.plan.rates;
                let mut one = || {
                    let late = !self.world.is_healed() && rng.u32(0..1000) < rates.wake_late;
                    let longest = if late { *rng.choice(&[100, 1_000, 3_000, 10_000]).unwrap() } else { 0 };
                    sleeping(&mut rng, longest.max(self.world.plan.latency))
                };
                deliveries.push(one());
                if !self.world.is_healed() && rng.u32(0..1000) < rates.wake_twice {
                    deliveries.push(sleeping(&mut rng, 5_000));
                }
                if !self.world.is_healed() && rng.u32(0..1000) < rates.wake_lost {
                    deliveries.clear();
                }
            }
            self.world.note(|| {
                format!("s{} ⇢ {} {} in {deliveries:?}", self.node, self.process, shown_wake(&wake))
            });
            for delay in deliveries {
                let (link, wake) = (self.clone(), wake.clone());
                self.world.main.spawn(async move {
                    sleep(delay).await;
                    link.process.enter().await;
                    let wake = link.world.servers[link.node].delivered(wake);
                    if let Some(open) = &*link.stream.lock().unwrap() {
                        let _ = open.sender.send(wake);
                    }
                });
            }
        }
    }
}

/// A request as the trace and the rules see it.
pub struct RequestInfo {
    pub verb: Verb,
    pub resources: Vec<Resource>,
    pub claims: Arc<Vec<Claim>>,
    pub leases: Arc<Vec<Lease>>,
}

#[async_trait]
impl Store for Link {
    fn describe(&self) -> String {
        format!("s{}", self.node)
    }

    fn capabilities(&self) -> Capabilities {
        let plan = &self.world.plan;
        let mut capabilities = Capabilities::all();
        capabilities.push = plan.push;
        capabilities.max_batch = plan.max_batch;
        capabilities.max_in_flight = plan.max_in_flight;
        capabilities
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<Record>> {
        Ok(self.world.servers[self.node].records(query))
    }

    async fn break_lock(&self, resource: &Resource) -> Result<Vec<Holder>> {
        self.world.servers[self.node].store().break_lock(resource).await
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        Ok(Vec::new())
    }
}

#[async_trait]
impl LeaseStore for Link {
    async fn try_acquire(&self, claims: &[Claim]) -> Batch<Attempt> {
        let all = Arc::new(claims.to_vec());
        let resources = claims.iter().map(|claim| claim.resource.clone()).collect();
        let asked =
            RequestInfo { verb: Verb::Acquire, resources, claims: Arc::clone(&all), leases: Arc::default() };
        let call = move |store: Arc<dyn LeaseStore>| -> BoxFuture<'static, Batch<Attempt>> {
            let all = Arc::clone(&all);
            Box::pin(async move { store.try_acquire(&all).await })
        };
        self.call(asked, call).await
    }

    async fn renew(&self, leases: &[Lease]) -> Batch<Renewal> {
        let all = Arc::new(leases.to_vec());
        let resources = leases.iter().map(|lease| lease.resource.clone()).collect();
        let asked =
            RequestInfo { verb: Verb::Renew, resources, claims: Arc::default(), leases: Arc::clone(&all) };
        let call = move |store: Arc<dyn LeaseStore>| -> BoxFuture<'static, Batch<Renewal>> {
            let all = Arc::clone(&all);
            Box::pin(async move { store.renew(&all).await })
        };
        self.call(asked, call).await
    }

    async fn release(&self, leases: &[Lease]) -> Batch<Released> {
        let all = Arc::new(leases.to_vec());
        let resources = leases.iter().map(|lease| lease.resource.clone()).collect();
        let asked =
            RequestInfo { verb: Verb::Release, resources, claims: Arc::default(), leases: Arc::clone(&all) };
        let call = move |store: Arc<dyn LeaseStore>| -> BoxFuture<'static, Batch<Released>> {
            let all = Arc::clone(&all);
            Box::pin(async move { store.release(&all).await })
        };
        self.call(asked, call).await
    }

    async fn subscribe(&self, inbox: &Inbox) -> Result<WakeStream> {
        if self.process.is_dead() {
            return std::future::pending().await;
        }
        let refused = !self.world.is_healed() && {
            let bad = self.world.plan.rates.subscribe;
            let outage = self.world.outages.lock().unwrap()[self.process.slot][self.node];
            self.world.rng().u32(0..1000) < bad || outage.is_some_and(|(until, _)| until > self.world.time())
        };
        if refused {
            return Err(self.failed("cannot subscribe"));
        }
        let wakes = self.world.servers[self.node].store().subscribe(inbox).await?;
        let (sender, receiver) = unbounded_channel();
        let ends = CancellationToken::new();
        *self.stream.lock().unwrap() = Some(OpenStream { sender: sender.clone(), ends: ends.clone() });
        self.world.main_work.store(true, SeqCst);
        self.world.main.spawn(self.clone().forward(wakes, sender));
        let stream = futures_util::stream::unfold(receiver, |mut receiver| async {
            receiver.recv().await.map(|wake| (wake, receiver))
        });
        Ok(Box::pin(stream.take_until(ends.cancelled_owned())))
    }
}
