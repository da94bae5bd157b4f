//! The scenarios, the same for every participant.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::protocol::{Command, Reply};

const HOLD: Duration = Duration::from_millis(1);
const PAUSE: Duration = Duration::from_millis(5);

/// A library under comparison: one client of it.
pub trait Peer: Send + Sync + Sized + 'static {
    /// A held lock.
    type Held: Send;
    /// Whether it renews held locks by itself.
    const RENEWS: bool;
    /// Whether it can wait for a lock; the baseline cannot.
    const WAITS: bool = true;

    /// Opens a client, with this expiry where it can be set.
    fn connect(url: &str, expiry: Option<Duration>) -> impl Future<Output = Result<Self, String>> + Send;
    /// Waits for the lock.
    fn acquire(&self, name: &str) -> impl Future<Output = Result<Self::Held, String>> + Send;
    /// Releases the lock.
    fn release(&self, held: Self::Held) -> impl Future<Output = Result<(), String>> + Send;
}

pub async fn run<P: Peer>(url: &str, command: &Command) -> Result<Reply, String> {
    let (begun, cpu) = (Instant::now(), cpu_time());
    if !P::WAITS && !matches!(command, Command::Cycles { .. }) {
        return Err("the baseline does not wait".to_owned());
    }
    let mut reply = match command {
        Command::Open { .. } => Reply::default(),
        Command::Cycles { tasks, millis, prefix } => {
            let client = client::<P>(url, None).await?;
            let names = (0..*tasks).map(|n| format!("{prefix}{n}")).collect();
            loops(&client, names, *millis, false).await?
        }
        Command::Contend { tasks, millis, name } => {
            let client = client::<P>(url, None).await?;
            loops(&client, vec![name.clone(); *tasks], *millis, true).await?
        }
        Command::Handoff { millis, settle_millis, name } => {
            handoff::<P>(url, *millis, Duration::from_millis(*settle_millis), name).await?
        }
        Command::HoldMany { count, millis, expiry_millis, prefix } => {
            hold_many::<P>(url, *count, *millis, Duration::from_millis(*expiry_millis), prefix).await?
        }
        Command::Hold { name, expiry_millis } => {
            let client = P::connect(url, Some(Duration::from_millis(*expiry_millis))).await?;
            let warm = client.acquire(&format!("{name}/warm")).await?;
            client.release(warm).await?;
            let requested = boot_nanos();
            let held = client.acquire(name).await?;
            // Held until this process is killed.
            std::mem::forget(held);
            std::mem::forget(client);
            Reply { moment_nanos: requested, ..Reply::default() }
        }
        Command::Wait { name, expiry_millis } => {
            let client = P::connect(url, Some(Duration::from_millis(*expiry_millis))).await?;
            let held = client.acquire(name).await?;
            let granted = boot_nanos();
            client.release(held).await?;
            Reply { moment_nanos: granted, ..Reply::default() }
        }
    };
    if reply.elapsed_nanos == 0 {
        reply.elapsed_nanos = nanos(begun.elapsed());
    }
    if reply.cpu_nanos == 0 {
        reply.cpu_nanos = cpu_time().saturating_sub(cpu);
    }
    Ok(reply)
}

/// Reuses the client of the last command, so that connecting is not measured.
async fn client<P: Peer>(url: &str, expiry: Option<Duration>) -> Result<Arc<P>, String> {
    use std::any::Any;
    use std::sync::Mutex;
    static LAST: Mutex<Option<Arc<dyn Any + Send + Sync>>> = Mutex::new(None);
    let last = LAST.lock().ok().and_then(|last| last.clone()).and_then(|last| last.downcast::<P>().ok());
    if let Some(client) = last {
        return Ok(client);
    }
    let client = Arc::new(P::connect(url, expiry).await?);
    if let Ok(mut last) = LAST.lock() {
        *last = Some(client.clone());
    }
    Ok(client)
}

async fn loops<P: Peer>(
    client: &Arc<P>,
    names: Vec<String>,
    millis: u64,
    contend: bool,
) -> Result<Reply, String> {
    let begun = Instant::now();
    let length = Duration::from_millis(millis);
    let mut running = JoinSet::new();
    for name in names {
        let client = Arc::clone(client);
        running.spawn(async move {
            let mut took = Vec::new();
            while begun.elapsed() < length {
                let start = Instant::now();
                let held = client.acquire(&name).await?;
                if contend {
                    took.push(nanos(start.elapsed()));
                    sleep(HOLD).await;
                    client.release(held).await?;
                    sleep(PAUSE).await;
                } else {
                    client.release(held).await?;
                    took.push(nanos(start.elapsed()));
                }
            }
            Ok::<_, String>(took)
        });
    }
    let mut reply = Reply::default();
    while let Some(joined) = running.join_next().await {
        let mut took = joined.map_err(|error| error.to_string())??;
        reply.counts.push(took.len() as u64);
        reply.nanos.append(&mut took);
    }
    reply.elapsed_nanos = nanos(begun.elapsed());
    Ok(reply)
}

async fn handoff<P: Peer>(url: &str, millis: u64, settle: Duration, name: &str) -> Result<Reply, String> {
    let clients = [Arc::new(P::connect(url, None).await?), Arc::new(P::connect(url, None).await?)];
    let begun = Instant::now();
    let mut reply = Reply { counts: vec![0], ..Reply::default() };
    let mut next_holder = 0;
    let mut rounds = 0;
    while begun.elapsed() < Duration::from_millis(millis) || rounds < 4 {
        let (holder, waiter) = (Arc::clone(&clients[next_holder]), Arc::clone(&clients[1 - next_holder]));
        next_holder = 1 - next_holder;
        let held = holder.acquire(name).await?;
        let name_of_waiter = name.to_owned();
        let waiting = tokio::spawn(async move {
            let held = waiter.acquire(&name_of_waiter).await?;
            let granted = Instant::now();
            waiter.release(held).await?;
            Ok::<_, String>(granted)
        });
        // A varying time: peers that poll at fixed times would otherwise always be at the same point of their pause.
        sleep(settle + Duration::from_millis(rounds * 37 % 200)).await;
        let released = Instant::now();
        holder.release(held).await?;
        let granted = waiting.await.map_err(|error| error.to_string())??;
        rounds += 1;
        // The first two open subscriptions and are not counted.
        if rounds > 2 {
            reply.nanos.push(nanos(granted.saturating_duration_since(released)));
            reply.counts[0] += 1;
        }
    }
    Ok(reply)
}

async fn hold_many<P: Peer>(
    url: &str,
    count: usize,
    millis: u64,
    expiry: Duration,
    prefix: &str,
) -> Result<Reply, String> {
    if !P::RENEWS {
        return Err("it does not renew held locks".to_owned());
    }
    let client = Arc::new(P::connect(url, Some(expiry)).await?);
    let before = resident_bytes();
    let mut fillers = JoinSet::new();
    for filler in 0..64_usize {
        let (client, prefix) = (Arc::clone(&client), prefix.to_owned());
        fillers.spawn(async move {
            let mut held = Vec::new();
            for n in (filler..count).step_by(64) {
                held.push(client.acquire(&format!("{prefix}{n}")).await?);
            }
            Ok::<_, String>(held)
        });
    }
    let mut held = Vec::new();
    while let Some(joined) = fillers.join_next().await {
        held.append(&mut joined.map_err(|error| error.to_string())??);
    }
    let bytes = resident_bytes().saturating_sub(before);
    // Two more replies than other commands have: the benchmark counts the requests between them.
    crate::send(&Reply::default());
    let cpu = cpu_time();
    sleep(Duration::from_millis(millis)).await;
    let cpu = cpu_time().saturating_sub(cpu);
    let reply = Reply {
        counts: vec![held.len() as u64],
        cpu_nanos: cpu,
        elapsed_nanos: millis * 1_000_000,
        bytes_per_lock: bytes / held.len().max(1) as u64,
        ..Reply::default()
    };
    crate::send(&reply);
    for held in held {
        client.release(held).await?;
    }
    Ok(Reply::default())
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The clock that all processes of the machine share.
fn boot_nanos() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

/// User and system time of this process, from the kernel's ticks.
fn cpu_time() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
    (ticks(11) + ticks(12)) * 10_000_000
}

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.trim().trim_end_matches("kB").trim().parse::<u64>().unwrap_or(0) * 1024
}
