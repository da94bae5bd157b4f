//! Diagnosis: what the ensemble granted, what endangers locks there, missing rights.

use std::time::Duration;

use distlock_core::store::support::errors::no_reply;
use distlock_core::store::{Claim, Finding, Lease, SessionStore};
use distlock_core::{CancellationToken, FencingToken, Kind, LockIds, Resource, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use zookeeper_client::{Acl, Client, Permission};

use crate::ZookeeperStore;
use crate::config::Address;
use crate::session::KeptSession;
use crate::sessions::DEFAULT_TIMEOUT;

const LIMIT: Duration = Duration::from_secs(3);

/// Examines the session, every server, the rights and the access list, and tries out a lock.
///
/// # Errors
/// If no server can be reached.
pub(crate) async fn examine(store: &ZookeeperStore) -> Result<Vec<Finding>> {
    let session = store.sessions.get(DEFAULT_TIMEOUT).await?;
    let mut findings = Vec::new();
    negotiated(store, &session, &mut findings);
    let mut tick = None;
    if store.config().tls.is_some() {
        findings.push(Finding::ok(
            "four-letter commands are not sent over TLS, so versions and roles are unknown",
        ));
    }
    for server in store.config().servers.iter().filter(|_| store.config().tls.is_none()) {
        tick = examine_server(server, &mut findings).await.or(tick);
    }
    ensemble(&session.client, store.config().servers.len(), &mut findings).await;
    if let Some(tick) = tick
        && session.timeout < 2 * tick
    {
        findings.push(Finding::warning(
            format!("a session of {:?} is shorter than two ticks of {tick:?}", session.timeout),
            "the leader may end it before our deadline: ask for a longer session, or set a shorter tickTime",
        ));
    }
    try_lock(store, &mut findings).await;
    access(store, &session.client, &mut findings).await;
    Ok(findings)
}

fn negotiated(store: &ZookeeperStore, session: &KeptSession, findings: &mut Vec<Finding>) {
    let asked = store.sessions.timeout_for(DEFAULT_TIMEOUT);
    let granted = session.timeout;
    if granted == asked {
        findings.push(Finding::ok(format!("a session time-out of {granted:?}, as asked for")));
    } else if granted < asked {
        findings.push(Finding::warning(
            format!("{asked:?} of session time-out were asked for, and the server allows {granted:?}"),
            "locks are lost after shorter outages than their expiry says: raise maxSessionTimeout (20 ticks by default)",
        ));
    } else {
        findings.push(Finding::warning(
            format!("{asked:?} of session time-out were asked for, and the server insists on {granted:?}"),
            "the locks of a dead client stay held longer than their expiry says: lower tickTime or minSessionTimeout",
        ));
    }
}

/// The reply to a four-letter command.
pub(crate) async fn four_letter(server: &Address, command: &str) -> Result<String> {
    let ask = async {
        let mut stream = TcpStream::connect((server.host.as_str(), server.port)).await?;
        stream.write_all(command.as_bytes()).await?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await?;
        Ok::<_, std::io::Error>(text)
    };
    match tokio::time::timeout(LIMIT, ask).await {
        Ok(Ok(text)) => Ok(text),
        Ok(Err(error)) => Err(distlock_core::store::support::errors::unavailable(error.to_string())),
        Err(_) => Err(no_reply(LIMIT)),
    }
}

/// Version, role and tick of a server. Returns the tick.
async fn examine_server(server: &Address, findings: &mut Vec<Finding>) -> Option<Duration> {
    let text = match four_letter(server, "srvr").await {
        Ok(text) => text,
        Err(error) => {
            findings.push(Finding::warning(
                format!("{server} does not answer: {error}"),
                "start it, or take it out of the URL: with a majority down there are no locks",
            ));
            return None;
        }
    };
    let value = |text: &str, key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key))?;
        Some(line.trim_start_matches([':', '=']).trim().to_owned())
    };
    match (value(&text, "Zookeeper version"), value(&text, "Mode")) {
        (Some(version), Some(mode)) => {
            let version = version.split(['-', ',']).next().unwrap_or_default().to_owned();
            findings.push(Finding::ok(format!("{server}: ZooKeeper {version}, {mode}")));
        }
        _ if text.contains("not currently serving") => findings.push(Finding::warning(
            format!("{server} has no quorum"),
            "start the other servers of the ensemble, and check the network between them",
        )),
        _ => findings.push(Finding::warning(
            format!("{server}: the command srvr is not allowed, so its version and role are unknown"),
            "allow it in zoo.cfg: 4lw.commands.whitelist=srvr,conf,mntr",
        )),
    }
    let conf = four_letter(server, "conf").await.unwrap_or_default();
    let Some(tick) = value(&conf, "tickTime").and_then(|tick| tick.parse().ok()) else {
        findings
            .push(Finding::ok(format!("{server}: the command conf is not allowed, so its tick is unknown")));
        return None;
    };
    Some(Duration::from_millis(tick))
}

/// How many servers vote. The configuration is readable for everyone unless an operator changed that.
async fn ensemble(client: &Client, named: usize, findings: &mut Vec<Finding>) {
    let Ok((config, _)) = client.get_config().await else {
        findings
            .push(Finding::ok("the configuration of the ensemble is not readable, so its size is unknown"));
        return;
    };
    let config = String::from_utf8_lossy(&config).into_owned();
    let voters =
        config.lines().filter(|line| line.starts_with("server.") && !line.contains("observer")).count();
    match voters {
        0 | 1 => findings.push(Finding::warning(
            "one server: while it is down there are no locks, and a lost disk loses the tokens",
            "run an ensemble of three or five servers",
        )),
        2 | 4 | 6 => findings.push(Finding::warning(
            format!("{voters} servers vote: they survive no more failures than {}", voters - 1),
            "use an odd number of servers",
        )),
        _ => findings.push(Finding::ok(format!("{voters} servers vote"))),
    }
    if voters > 1 && named == 1 {
        findings.push(Finding::warning(
            format!("the URL names one of {voters} servers: its failure ends our sessions"),
            "name all servers: zookeeper://h1:2181,h2:2181,h3:2181",
        ));
    }
}

/// Acquires and releases a lock.
async fn try_lock(store: &ZookeeperStore, findings: &mut Vec<Finding>) {
    let tried = async {
        let ids = LockIds::new(&format!("{} (doctor)", LockIds::default_label()));
        let resource = Resource::new(Kind::Mutex, format!("distlock doctor {}", ids.next()))?;
        let claim = Claim::new(resource, ids.next(), DEFAULT_TIMEOUT);
        let granted = store.acquire(&claim, &CancellationToken::new()).await?;
        store.release(&Lease::of(&claim, FencingToken::new(0))).await?;
        Ok::<_, distlock_core::Error>(granted)
    };
    match tokio::time::timeout(LIMIT, tried).await {
        Ok(Ok(_)) => findings.push(Finding::ok("a lock can be acquired and released")),
        Ok(Err(error)) => findings.push(Finding::warning(
            format!("a lock could not be acquired and released: {error}"),
            "grant the user all rights below the chroot",
        )),
        Err(_) => findings.push(Finding::warning(
            format!("a lock was not acquired and released within {LIMIT:?}"),
            "the ensemble commits slowly or not at all: check its disks and its quorum",
        )),
    }
}

/// Whether every client of the ensemble may delete our nodes.
async fn access(store: &ZookeeperStore, client: &Client, findings: &mut Vec<Finding>) {
    let chroot = &store.config().chroot;
    let open = |acl: &Acl| acl.scheme() == "world" && acl.permission().has(Permission::DELETE);
    match client.get_acl(chroot).await {
        Ok((acls, _)) if acls.iter().any(open) => findings.push(Finding::warning(
            format!(
                "every client of the ensemble may delete the nodes below {chroot}, and with them our locks"
            ),
            "use a login (zookeeper://user:password@…), and set the ACL of the chroot",
        )),
        Ok(_) => findings.push(Finding::ok(format!("{chroot} has an access list"))),
        Err(error) => {
            findings.push(Finding::ok(format!("the access list of {chroot} is not readable: {error}")))
        }
    }
}
