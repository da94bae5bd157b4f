//! A node of ours in a queue: created once, found again if the reply was lost, and removed whatever happens.
//!
//! Its name begins with a GUID made of the lock id, the session and the attempt. So a creation that is repeated after a broken
//! connection finds the node that the first one made, and a removal never hits the node of another contender, or of an
//! earlier session of ours.

use std::sync::Arc;
use std::time::Duration;

use distlock_core::store::Claim;
use distlock_core::{Error, FencingToken, Result};
use sha2::{Digest, Sha256};
use zookeeper_client::{Acls, Client, CreateMode, Error as DriverError};

use crate::config::Access;
use crate::error::{Failure, driver_error, session_ended};
use crate::queue::{node_prefix, protected_prefix};
use crate::session::KeptSession;

/// How often the parent may be missing again when a node is created: the server removes an empty one now and then.
const PARENT_ATTEMPTS: usize = 20;

/// A node of ours.
#[derive(Debug)]
pub(crate) struct Contender {
    parent: String,
    protected: String,
    /// Its name, as soon as it is known.
    node: String,
    /// The reply to a creation was lost: there may be another node of this GUID.
    uncertain: bool,
    /// Its number within the session.
    attempt: u64,
}

/// A created node, and the children of its parent afterwards.
pub(crate) struct Enqueued {
    pub(crate) contender: Contender,
    pub(crate) token: FencingToken,
    pub(crate) children: Vec<String>,
}

impl Contender {
    /// The name of the node.
    pub(crate) fn node(&self) -> &str {
        &self.node
    }

    pub(crate) fn attempt(&self) -> u64 {
        self.attempt
    }

    pub(crate) fn path(&self) -> String {
        self.path_of(&self.node)
    }

    pub(crate) fn path_of(&self, node: &str) -> String {
        format!("{}/{node}", self.parent)
    }

    pub(crate) fn parent(&self) -> &str {
        &self.parent
    }

    /// Creates the node and lists the queue, in one round trip.
    ///
    /// # Errors
    /// If the server refuses or the session ends. A node that may exist is removed in the background.
    pub(crate) async fn enqueue(
        session: &Arc<KeptSession>,
        parent: &str,
        claim: &Claim,
        access: Access,
    ) -> Result<Enqueued> {
        let attempt = session.next_attempt();
        let guid = guid(session, claim, attempt);
        let prefix = node_prefix(claim.resource.kind(), &guid, claim.weight, claim.capacity);
        let protected = protected_prefix(&guid);
        let mut contender = Contender {
            parent: parent.to_owned(),
            protected,
            node: String::new(),
            uncertain: false,
            attempt,
        };
        match contender.create(session, &prefix, claim, access).await {
            Ok((token, children)) => Ok(Enqueued { contender, token, children }),
            Err(error) => {
                if contender.uncertain || !contender.node.is_empty() {
                    tokio::spawn(contender.remove(Arc::clone(session)));
                }
                Err(error)
            }
        }
    }

    async fn create(
        &mut self,
        session: &KeptSession,
        prefix: &str,
        claim: &Claim,
        access: Access,
    ) -> Result<(FencingToken, Vec<String>)> {
        let path = self.path_of(prefix);
        let data = claim.lock_id.as_str().as_bytes();
        let options = CreateMode::EphemeralSequential.with_acls(acls(access));
        let mut missing = 0;
        loop {
            // Both are sent now, and the server answers in this order.
            let created = session.client.create(&path, data, &options);
            let listed = session.client.list_children(&self.parent);
            match session.reply(created).await {
                Ok((stat, sequence)) => {
                    self.node = format!("{prefix}{sequence}");
                    let children = match session.reply(listed).await {
                        Ok(children) => children,
                        Err(_) => self.list(session).await?,
                    };
                    return Ok((token(stat.czxid)?, children));
                }
                Err(DriverError::NoNode) if missing < PARENT_ATTEMPTS => {
                    missing += 1;
                    make_parent(session, &self.parent, access).await?;
                }
                Err(error) => match Failure::of(&error) {
                    Failure::Unknown => {
                        self.uncertain = true;
                        if let Some(found) = self.find(session).await? {
                            return Ok(found);
                        }
                    }
                    Failure::Refused | Failure::SessionEnded => return Err(driver_error(&error)),
                },
            }
        }
    }

    /// Looks for the node after a lost reply. `None`: it was not created, and will not be.
    async fn find(&mut self, session: &KeptSession) -> Result<Option<(FencingToken, Vec<String>)>> {
        let children = match self.list_now(session).await {
            Ok(children) => children,
            Err(DriverError::NoNode) => return Ok(None),
            Err(error) => return Err(driver_error(&error)),
        };
        let Some(found) = children.iter().find(|child| child.starts_with(&self.protected)) else {
            return Ok(None);
        };
        self.node.clone_from(found);
        let path = self.path();
        match session.repeat(|| session.client.check_stat(&path)).await {
            Ok(Some(stat)) => Ok(Some((token(stat.czxid)?, children))),
            Ok(None) => {
                self.node.clear();
                Ok(None)
            }
            Err(error) => Err(driver_error(&error)),
        }
    }

    /// The children of the parent.
    pub(crate) async fn list(&self, session: &KeptSession) -> Result<Vec<String>> {
        let listed = session.repeat(|| session.client.list_children(&self.parent)).await;
        listed.map_err(|error| driver_error(&error))
    }

    /// The children of the parent after everything that the leader has received. Another server may not have applied a
    /// request of our broken connection yet.
    async fn list_now(&self, session: &KeptSession) -> Result<Vec<String>, DriverError> {
        let both = || async {
            let synced = session.client.sync(&self.parent);
            let listed = session.client.list_children(&self.parent);
            synced.await?;
            listed.await
        };
        session.repeat(both).await
    }

    /// Removes the node. It goes on until the server confirms or the session has ended, and with it the node: a release whose
    /// reply is lost must not leave the lock held.
    ///
    /// # Errors
    /// If the session ended first, or the server refuses; the session is ended then.
    pub(crate) async fn remove(self, session: Arc<KeptSession>) -> Result<()> {
        let Err(error) = self.delete_all(&session).await else { return Ok(()) };
        let refused = Failure::of(&error) == Failure::Refused;
        if refused {
            session.end("the server refused to delete a node of ours");
        }
        session.abandon(self);
        Err(if refused { driver_error(&error) } else { session_ended().with_unknown_outcome() })
    }

    /// Removes the node from a session that is not ours to close, for as long as that lives.
    pub(crate) async fn abandon(self, client: Client) {
        const PAUSE: Duration = Duration::from_millis(200);
        loop {
            let children = client.list_children(&self.parent).await;
            let ours = |child: &&String| child.starts_with(&self.protected);
            let failed = match &children {
                Ok(children) => {
                    let mut failed = None;
                    for child in children.iter().filter(ours) {
                        failed = failed.or(client.delete(&self.path_of(child), None).await.err());
                    }
                    failed
                }
                Err(error) => Some(error.clone()),
            };
            match failed.as_ref().map(Failure::of) {
                Some(Failure::Unknown) => tokio::time::sleep(PAUSE).await,
                None | Some(Failure::Refused | Failure::SessionEnded) => return,
            }
        }
    }

    async fn delete_all(&self, session: &KeptSession) -> Result<(), DriverError> {
        if !self.node.is_empty() {
            self.delete(session, &self.node).await?;
        }
        if !self.uncertain {
            return Ok(());
        }
        let children = match self.list_now(session).await {
            Err(DriverError::NoNode) => return Ok(()),
            children => children?,
        };
        for child in children.iter().filter(|child| child.starts_with(&self.protected)) {
            self.delete(session, child).await?;
        }
        Ok(())
    }

    async fn delete(&self, session: &KeptSession, node: &str) -> Result<(), DriverError> {
        let path = self.path_of(node);
        match session.repeat(|| session.client.delete(&path, None)).await {
            Ok(()) | Err(DriverError::NoNode) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Creates the parent and its ancestors, as containers: the server removes them some time after they became empty.
async fn make_parent(session: &KeptSession, path: &str, access: Access) -> Result<()> {
    let made = |mode: CreateMode| async move {
        let options = mode.with_acls(acls(access));
        session.repeat(|| session.client.mkdir(path, &options)).await
    };
    let made = match made(CreateMode::Container).await {
        Err(DriverError::Unimplemented) => made(CreateMode::Persistent).await,
        other => other,
    };
    made.map_err(|error| driver_error(&error))
}

pub(crate) fn acls(access: Access) -> Acls<'static> {
    match access {
        Access::Open => Acls::anyone_all(),
        Access::Creator => Acls::creator_all(),
    }
}

/// The transaction that created a node is its token: it is higher than every earlier one of the ensemble.
pub(crate) fn token(czxid: i64) -> Result<FencingToken> {
    let number = u64::try_from(czxid).ok().filter(|number| *number > 0);
    number.map(FencingToken::new).ok_or_else(|| {
        Error::new(
            distlock_core::ErrorKind::Internal,
            format!("the server says that transaction {czxid} made our node"),
        )
    })
}

/// A GUID in the usual form.
fn guid(session: &KeptSession, claim: &Claim, attempt: u64) -> String {
    let identity = format!("{}\n{}\n{}", claim.lock_id, session.client.session_id(), attempt);
    let digest: [u8; 32] = Sha256::digest(identity.as_bytes()).into();
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let part = |from: usize, to: usize| hex(digest.get(from..to).unwrap_or_default());
    format!("{}-{}-{}-{}-{}", part(0, 4), part(4, 6), part(6, 8), part(8, 10), part(10, 16))
}
