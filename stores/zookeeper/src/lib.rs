//! Locks on Apache ZooKeeper 3.5 and later, for [distlock](distlock_core): the ensemble's own queues, sessions and order.
//!
//! ```no_run
//! # async fn example() -> distlock_core::Result<()> {
//! use distlock_core::{Locks, store::Backend};
//! use distlock_zookeeper::{Address, ZookeeperConfig, ZookeeperStore};
//!
//! let config = ZookeeperConfig::new([Address::new("zk1", 2181), Address::new("zk2", 2181)]);
//! let locks = Locks::new(Backend::session(ZookeeperStore::connect(config).await?))?;
//! let guard = locks.mutex("orders/42").acquire().await?;
//! # drop(guard); Ok(()) }
//! ```
//!
//! # URLs
//! `zookeeper://[user:password@]h1:p,h2:p[/chroot]`. The port is 2181 unless given, the chroot `/distlock`. Name all servers: a
//! session moves from one to another, and survives the loss of each. A login is one of the digest scheme. `zookeepers://` is the
//! same over TLS, with the feature `tls` of this crate.
//!
//! | option | default | meaning |
//! | --- | --- | --- |
//! | `distlock.session_timeout` | the expiry of each lock | the session time-out to ask the server for |
//! | `distlock.connect_timeout` | `10s` | how long it may take to connect, log in and open a session |
//! | `distlock.tls_ca`, `distlock.tls_cert`, `distlock.tls_key` | none | PEM files: the authority to trust, the client certificate and its key |
//! | `distlock.acl` | `creator` with a login, `open` without | who may read, write and delete our nodes |
//!
//! # Guarantees
//! * **First come, first served**, for every primitive and across all processes; `fair()` costs nothing more. An entry of a
//!   queue is granted as soon as its weight and the weights before it fit the capacity, so a large request is not starved.
//! * **A waiter watches only its predecessor**: a mutex and a writer the entry before it, a reader the nearest writer. Of a
//!   semaphore, the first waiter watches the list and every other one its predecessor. A handoff of a mutex costs two
//!   requests, of a semaphore six, whatever the number of waiters. A free lock costs one round trip to acquire and one to
//!   release, three requests in all.
//! * **A token is the transaction (zxid) that created the node.** It rises for the whole ensemble, also if the folder of a lock
//!   was removed in between.
//! * **A guard is lost before the ensemble may end its session.** Heartbeats are transactions, because a server that is cut off
//!   from the majority still answers pings and reads. The deadline is counted from the sending of a heartbeat that the leader
//!   certainly knows of, on a clock that counts suspended time.
//! * **A request whose reply was lost is neither repeated nor forgotten.** A node is found again by the GUID in its name. A
//!   removal goes on until the server confirms it or the session has ended.
//! * **A forced release is noticed at once**: a holder watches its own node, from an age of 20 ms on.
//! * **A waiter whose session ended queues again**, at the end. It never holds on a dead session.
//!
//! # Sessions
//! A dead client frees its locks when its session ends, so the session time-out is the expiry that a lock asks for. Each expiry
//! that is in use has a session of its own, up to eight; further ones share the session with the next shorter time-out. The
//! server has limits: 2 and 20 ticks (4 s and 40 s) by default. `doctor` tells what it granted. `extension_cadence` and
//! `auto_extend` have no effect: a session sends a heartbeat eight times within its time-out.
//!
//! A connection that breaks is made again by the driver, on the same session. It waits between its attempts, about as long as
//! the outage has lasted. An outage of less than a third of the session time-out is survived; a longer one may end the session.
//!
//! [`ZookeeperStore::with_client`] uses a session that the application has opened.
//!
//! # Nodes
//! ```text
//! CHROOT/mutex/NAME/_c_GUID-lock-N                      data: the lock id
//! CHROOT/rwlock/NAME/_c_GUID-__READ__N, _c_GUID-__WRIT__N
//! CHROOT/semaphore/NAME/_c_GUID-WEIGHTofCAPACITY-lock-N
//! ```
//! N is the sequence number of the server. NAME is the name with everything but letters, digits, `-`, `_` and inner dots as
//! `%xx`. The folders are containers, which the server removes some time after they became empty.
//!
//! **Apache Curator** shares mutexes and reader-writer locks: `InterProcessMutex(client, "/distlock/mutex/NAME")` and
//! `InterProcessReadWriteLock(client, "/distlock/rwlock/NAME")` use the same nodes and the same order. Its semaphores are others.
//!
//! # Limits
//! * `show` cannot tell since when a lock is held, except for permits that were waited for: the server records when a node was
//!   created, which is when its owner began to wait.
//! * TLS is not a default feature. The driver's TLS brings a crypto provider of rustls (aws-lc-rs) into the program. The program
//!   must have a default provider before it connects (`CryptoProvider::install_default`); this store installs none.
//! * A server that grants a shorter session after a reconnection than before is not noticed. Use the same limits on all servers.
//! * A `minSessionTimeout` below two ticks allows sessions that are too short for the deadline; `doctor` warns.
//!
//! # Rights
//! All of `CREATE`, `READ`, `WRITE`, `DELETE` below the chroot, and `CREATE` on its parent if it does not exist. Without access
//! lists every client of the ensemble may delete our nodes; `doctor` warns.

mod acquire;
#[cfg(feature = "bench")]
mod baseline;
mod config;
mod connect;
mod contender;
mod doctor;
mod error;
mod inspect;
mod names;
mod queue;
mod session;
mod sessions;
mod store;

pub use config::{Access, Address, DEFAULT_CHROOT, ZookeeperConfig};
pub use connect::DRIVER;
pub(crate) use connect::SCHEMES;
pub use store::ZookeeperStore;
