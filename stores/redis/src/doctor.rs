//! Diagnosis: settings of the servers that endanger locks, clocks, missing rights.

use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime};

use distlock_core::store::support::errors::unexpected_reply;
use distlock_core::store::{Claim, Finding, Inbox, Lease, LeaseStore, Query, Store, Waiting};
use distlock_core::{FencingToken, Kind, LockIds, Resource, Result};
use redis::Value;

use crate::error;
use crate::net::ServerConnection;
use crate::{RedisStore, Servers};

/// A larger difference between the clocks confuses people who read times; expiry is not affected.
const MAX_CLOCK_SKEW: Duration = Duration::from_secs(1);

/// Examines every master, then tries out a lock.
pub(crate) async fn examine(store: &RedisStore) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for connection in store.0.servers.masters().await? {
        server(store, &connection, &mut findings).await?;
    }
    rights(store, &mut findings).await;
    Ok(findings)
}

struct ServerInfo(HashMap<String, String>);

impl ServerInfo {
    fn parse(text: &str) -> Self {
        let pairs = text.lines().filter_map(|line| line.split_once(':'));
        ServerInfo(pairs.map(|(key, value)| (key.to_owned(), value.trim().to_owned())).collect())
    }

    fn get(&self, key: &str) -> &str {
        self.0.get(key).map_or("", String::as_str)
    }

    fn number(&self, key: &str) -> u64 {
        self.get(key).parse().unwrap_or(0)
    }
}

async fn send(store: &RedisStore, connection: &ServerConnection, words: &[&str]) -> Result<Value> {
    let mut command = redis::Cmd::new();
    for word in words {
        command.arg(word);
    }
    error::accepted(connection.send(&command, store.0.config.response_timeout).await?)
}

async fn server(
    store: &RedisStore,
    connection: &ServerConnection,
    findings: &mut Vec<Finding>,
) -> Result<()> {
    let at = connection.address.as_str();
    match send(store, connection, &["INFO"]).await {
        Ok(value) => {
            let text: String = redis::from_redis_value(value).map_err(unexpected_reply)?;
            let info = ServerInfo::parse(&text);
            version(at, &info, findings);
            memory(at, &info, findings);
            persistence(store, connection, &info, findings).await;
            replication(store, at, &info, findings);
        }
        Err(error) if error.can_retry() => return Err(error),
        Err(error) => findings.push(Finding::warning(
            format!("{at}: INFO was refused ({error}), so memory, persistence and replicas are unknown"),
            "grant the user the right to INFO",
        )),
    }
    clock(store, connection, findings).await
}

fn version(at: &str, info: &ServerInfo, findings: &mut Vec<Finding>) {
    let (name, version) = match info.get("valkey_version") {
        "" => ("Redis", info.get("redis_version")),
        version => ("Valkey", version),
    };
    let role = info.get("role");
    if role == "master" {
        findings.push(Finding::ok(format!("{at}: {name} {version}, {role}")));
    } else {
        findings.push(Finding::warning(
            format!("{at}: {name} {version} is a {role} and takes no writes"),
            "connect to the master",
        ));
    }
}

fn memory(at: &str, info: &ServerInfo, findings: &mut Vec<Finding>) {
    let policy = info.get("maxmemory_policy");
    let limited = info.number("maxmemory") > 0;
    if !policy.is_empty() && policy != "noeviction" {
        let when = if limited { "once it is full" } else { "once it has a maxmemory" };
        findings.push(Finding::warning(
            format!("{at}: maxmemory-policy {policy} may delete held locks {when}"),
            "set maxmemory-policy noeviction, or keep locks on a server of their own",
        ));
    } else {
        findings.push(Finding::ok(format!("{at}: nothing is evicted")));
    }
    let evicted = info.number("evicted_keys");
    if evicted > 0 {
        findings.push(Finding::warning(
            format!("{at}: {evicted} keys were evicted since it started"),
            "locks may have been among them: give it more memory",
        ));
    }
}

async fn persistence(
    store: &RedisStore,
    connection: &ServerConnection,
    info: &ServerInfo,
    findings: &mut Vec<Finding>,
) {
    let at = connection.address.as_str();
    let lost = "after a restart within the expiry of a held lock another client can acquire it";
    if info.get("aof_enabled") != "1" {
        let saves = match send(store, connection, &["CONFIG", "GET", "save"]).await {
            Ok(value) => redis::from_redis_value::<HashMap<String, String>>(value).ok(),
            // Managed servers disable CONFIG.
            Err(_) => None,
        };
        let saves = saves.and_then(|pairs| pairs.get("save").cloned());
        let what = match saves.as_deref() {
            Some("") => format!("{at}: nothing is persisted on disk: {lost}"),
            _ => {
                format!(
                    "{at}: no append-only file: a crash loses what came after the last snapshot, and {lost}"
                )
            }
        };
        findings.push(Finding::warning(
            what,
            "set appendonly yes, or after a crash keep the server down for the longest expiry",
        ));
        return;
    }
    findings.push(Finding::ok(format!("{at}: append-only file")));
    if info.get("aof_last_write_status") == "err" {
        findings.push(Finding::warning(
            format!("{at}: the append-only file could not be written"),
            "free the disk, or see the server's log",
        ));
    }
}

fn replication(store: &RedisStore, at: &str, info: &ServerInfo, findings: &mut Vec<Finding>) {
    let replicas = info.number("connected_slaves");
    let wanted = u64::from(store.0.config.min_replicas);
    if replicas < wanted {
        findings.push(Finding::warning(
            format!("{at}: {replicas} replicas are connected, and distlock.min_replicas requires {wanted}"),
            "bring them back; until then nothing can be acquired",
        ));
    } else if replicas > 0 && wanted == 0 {
        findings.push(Finding::warning(
            format!("{at}: {replicas} replicas are connected, and none must confirm a lock before it counts"),
            "set distlock.min_replicas=1: a fail-over then loses fewer locks. Fencing tokens protect from the rest",
        ));
    } else if replicas == 0 && !matches!(store.0.config.servers, Servers::One(_)) {
        findings.push(Finding::warning(
            format!("{at}: no replica is connected for a fail-over"),
            "bring the replicas back",
        ));
    } else if replicas > 0 {
        findings.push(Finding::ok(format!("{at}: {replicas} replicas, {wanted} of them must confirm")));
    }
}

/// Expiry depends on the server's clock alone, but people compare times.
async fn clock(store: &RedisStore, connection: &ServerConnection, findings: &mut Vec<Finding>) -> Result<()> {
    let at = connection.address.as_str();
    let sent = Instant::now();
    let reply = send(store, connection, &["TIME"]).await?;
    let half = sent.elapsed() / 2;
    let ours = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let (seconds, micros): (u64, u64) = redis::from_redis_value(reply).map_err(unexpected_reply)?;
    let theirs = Duration::from_secs(seconds) + Duration::from_micros(micros) + half;
    let skew = ours.abs_diff(theirs);
    findings.push(if skew > MAX_CLOCK_SKEW {
        Finding::warning(
            format!("{at}: its clock and ours differ by {skew:.1?}"),
            "run NTP on both: expiry depends on the server's clock alone, and a clock that is set forward ends leases early",
        )
    } else {
        Finding::ok(format!("{at}: its clock and ours differ by {skew:.0?}"))
    });
    Ok(())
}

/// Runs every verb once, under a name that no other client uses.
async fn rights(store: &RedisStore, findings: &mut Vec<Finding>) {
    let ids = LockIds::new("distlock-doctor");
    let mut refused = Vec::new();
    for kind in [Kind::Mutex, Kind::Semaphore] {
        if let Err(error) = try_out(store, &ids, kind).await {
            refused.push(error.to_string());
        }
    }
    if let Err(error) = store.inspect(&Query::prefixed("distlock-doctor")).await {
        refused.push(error.to_string());
    }
    if let Err(error) = store.subscribe(&Inbox::new(ids.prefix())).await {
        refused.push(format!("{error} (without it waiters poll)"));
    }
    match refused.first() {
        None => findings.push(Finding::ok("a lock and a semaphore could be acquired, listed and released")),
        Some(first) => findings.push(Finding::warning(
            format!("a trial lock failed: {first}"),
            "the user needs ~PREFIX* &PREFIX* +eval +evalsha +time +get +mget +set +del +exists +pexpire +pttl +hget +hmget \
             +hset +hdel +hlen +hgetall +publish +subscribe +unsubscribe +scan +wait +role",
        )),
    }
}

async fn try_out(store: &RedisStore, ids: &LockIds, kind: Kind) -> Result<()> {
    let claim = Claim::new(
        Resource::new(kind, format!("distlock-doctor/{}", ids.prefix()))?,
        ids.next(),
        Duration::from_secs(1),
    )
    .with_waiting(Waiting::new(Inbox::new(ids.prefix()), Duration::from_secs(1), 1));
    let lease = Lease::of(&claim, FencingToken::new(0));
    let first = |mut replies: Vec<Result<()>>| replies.pop().unwrap_or(Ok(()));
    first(store.try_acquire(&[claim]).await?.into_iter().map(|reply| reply.map(|_| ())).collect())?;
    let lease = [lease];
    first(store.renew(&lease).await?.into_iter().map(|reply| reply.map(|_| ())).collect())?;
    first(store.release(&lease).await?.into_iter().map(|reply| reply.map(|_| ())).collect())
}
