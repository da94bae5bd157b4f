//! Diagnosis: members, leader, alarms, space, authentication, rights, and defects of known versions.

use std::time::Duration;

use distlock_core::store::{Claim, Finding, Lease, SessionStore as _};
use distlock_core::{CancellationToken, FencingToken, Kind, LockIds, Resource, Result};

use crate::api::{MemberListRequest, StatusRequest, StatusResponse};
use crate::connect::unreachable_everywhere;
use crate::store::EtcdStore;

/// etcd's default for `--quota-backend-bytes`. Servers before 3.6 do not say what theirs is.
const DEFAULT_QUOTA: i64 = 2 * 1024 * 1024 * 1024;

/// Examines every endpoint, then tries out a lock.
pub(crate) async fn examine(store: &EtcdStore) -> Result<Vec<Finding>> {
    let client = &store.0.client;
    let mut findings = Vec::new();
    let mut answered = false;
    let mut last = None;
    for (address, target) in client.targets() {
        match client.send_to(&target, StatusRequest {}, client.limits().reply).await {
            Ok(status) => {
                answered = true;
                member(&address, &status, &mut findings);
            }
            Err(failure) => {
                findings.push(Finding::warning(
                    format!("{address}: {}", failure.error),
                    "start it, or take it out of the URL",
                ));
                last = Some(failure.error);
            }
        }
    }
    if !answered {
        return Err(last.unwrap_or_else(unreachable_everywhere));
    }
    cluster(store, &mut findings).await?;
    authentication(store, &mut findings).await;
    rights(store, &mut findings).await;
    Ok(findings)
}

fn member(at: &str, status: &StatusResponse, findings: &mut Vec<Finding>) {
    let version = &status.version;
    let id = status.header.as_ref().map_or(0, |header| header.member_id);
    match status.leader {
        0 => findings.push(Finding::warning(
            format!("{at}: etcd {version}, without a leader"),
            "bring back a majority of the members; until then nothing can be acquired or renewed here",
        )),
        leader if leader == id => findings.push(Finding::ok(format!("{at}: etcd {version}, leader"))),
        _ => findings.push(Finding::ok(format!("{at}: etcd {version}, follower"))),
    }
    if status.is_learner {
        findings.push(Finding::warning(
            format!("{at}: it is a learner and serves no requests of ours"),
            "name the voting members in the URL",
        ));
    }
    // "etcdserver: no leader" is said above.
    for error in status.errors.iter().filter(|error| !error.contains("no leader")) {
        let advice = if error.contains("NOSPACE") {
            "compact and defragment the database, then disarm the alarm (etcdctl alarm disarm); until then nothing can be acquired"
        } else {
            "see etcdctl alarm list and the server's log"
        };
        findings.push(Finding::warning(format!("{at}: alarm {error}"), advice));
    }
    space(at, status, findings);
    if let Some((defect, advice)) = known_defect(version) {
        findings.push(Finding::warning(format!("{at}: etcd {version} {defect}"), advice));
    }
}

fn space(at: &str, status: &StatusResponse, findings: &mut Vec<Finding>) {
    let (quota, assumed) = match status.db_size_quota {
        0 => (DEFAULT_QUOTA, " (the default; the server does not say)"),
        quota => (quota, ""),
    };
    let (used, quota) = (status.db_size >> 20, quota >> 20);
    let what = format!("{at}: the database has {used} MiB of a quota of {quota} MiB{assumed}");
    findings.push(if used * 4 > quota * 3 {
        Finding::warning(
            what,
            "compact and defragment it, or raise --quota-backend-bytes: a full database refuses all locks",
        )
    } else {
        Finding::ok(what)
    });
}

/// Defects of released versions that matter for locks.
fn known_defect(version: &str) -> Option<(&'static str, &'static str)> {
    let mut numbers = version.split(['.', '-']).map(|number| number.parse::<u32>().unwrap_or(0));
    let version = (numbers.next()?, numbers.next()?, numbers.next().unwrap_or(0));
    if ((3, 5, 0)..=(3, 5, 2)).contains(&version) {
        return Some((
            "may lose committed writes after a crash (data inconsistency)",
            "upgrade to 3.5.13 or later",
        ));
    }
    let stale_revokes = version < (3, 4, 31) || ((3, 5, 0)..(3, 5, 13)).contains(&version);
    stale_revokes.then_some((
        "lets a leader that was paused or has a slow disk end live leases when it resumes (etcd issue 15247): holders are told \
         within milliseconds, and the next token is higher",
        "upgrade to 3.4.31, 3.5.13 or later",
    ))
}

async fn cluster(store: &EtcdStore, findings: &mut Vec<Finding>) -> Result<()> {
    let client = &store.0.client;
    let reply = client.send(MemberListRequest {}).await.map_err(|failure| failure.error)?.reply;
    let voters = reply.members.iter().filter(|member| !member.is_learner).count();
    let named = client.addresses().count();
    findings.push(match voters {
        0 | 1 => Finding::warning(
            "the cluster has a single member: while it is down, nothing can be acquired and held locks are lost",
            "run three or five members",
        ),
        2 => Finding::warning(
            "the cluster has two members, and needs both",
            "run three or five members: with two, the failure of either stops all locks",
        ),
        _ => Finding::ok(format!("the cluster has {voters} voting members")),
    });
    if voters > 1 && named == 1 {
        findings.push(Finding::warning(
            format!("the URL names one of {voters} members: if that one fails, this client loses its locks"),
            "name all members: etcd://h1:2379,h2:2379,h3:2379",
        ));
    }
    Ok(())
}

async fn authentication(store: &EtcdStore, findings: &mut Vec<Finding>) {
    let (client, config) = (&store.0.client, &store.0.config);
    let has_certificate = config.tls.as_ref().is_some_and(|tls| tls.client.is_some());
    if client.has_login() && !client.auth_is_off().await {
        findings.push(Finding::ok("logged in with user and password"));
    } else if client.has_login() {
        findings.push(Finding::warning(
            "the URL has a login, and authentication is off on the server",
            "enable it: etcdctl auth enable",
        ));
    } else if !has_certificate {
        findings.push(Finding::warning(
            "authentication is off: every client that reaches the port can delete any lock",
            "enable it (etcdctl auth enable), or require client certificates (--client-cert-auth)",
        ));
    }
    if client.has_login() && config.tls.is_none() {
        findings.push(Finding::warning(
            "the password crosses the network without encryption",
            "use TLS: distlock.tls=on",
        ));
    }
}

/// Acquires and releases a mutex of its own.
async fn rights(store: &EtcdStore, findings: &mut Vec<Finding>) {
    let ids = LockIds::new("doctor");
    let lock_id = ids.next();
    let name = format!("distlock-doctor-{}", lock_id.as_str());
    let tried = async {
        let resource = Resource::new(Kind::Mutex, name)?;
        let claim = Claim::new(resource.clone(), lock_id, Duration::from_secs(10));
        let once = CancellationToken::new();
        once.cancel();
        let held = store.acquire(&claim, &once).await?;
        store.release(&Lease::of(&claim, FencingToken::new(0))).await?;
        Ok::<bool, distlock_core::Error>(held.is_some())
    };
    findings.push(match tried.await {
        Ok(true) => Finding::ok("a lock can be acquired and released"),
        Ok(false) => Finding::warning("a lock of a new name was held", "report it: this is a defect"),
        Err(error) => Finding::warning(
            format!("no lock can be acquired: {error}"),
            error.advice().map_or_else(|| "see the server's log".to_owned(), ToOwned::to_owned),
        ),
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_with_known_defects_are_named() {
        for bad in ["3.4.0", "3.4.23", "3.5.1", "3.5.3", "3.5.12"] {
            assert!(known_defect(bad).is_some(), "{bad}");
        }
        for good in ["3.4.31", "3.4.33", "3.5.13", "3.5.16", "3.6.0", "4.0.0"] {
            assert!(known_defect(good).is_none(), "{good}");
        }
    }
}
